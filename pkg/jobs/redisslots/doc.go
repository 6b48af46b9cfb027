// Package redisslots keeps jobs.Slots in Redis: whatever is done is one call of one
// script, by Redis' own clock. It works with one server, with Sentinel and with Redis
// Cluster, and is tested with Redis 7.
//
// All keys expire. A user's slots are kept for a day after the last of them is over, and
// the user's line for a day after the last call about that user. No key is left of a user
// who has no jobs.
//
//	key                              type  holds
//	sluice:jobs:{<n>}:waiting        zset  users with parked or reserved jobs; all scores are 0, so they are sorted by name
//	sluice:jobs:{<n>}:slots:<user>   hash  job → h(eld) or r(eserved), till when in microseconds, order of the reservation, length of the queue, queue, holder
//	sluice:jobs:{<n>}:line:<user>    zset  the parked: length of the queue, queue, order, job; all scores are 0, so those of a queue are together
//	sluice:jobs:{<n>}:places:<user>  hash  j<job> → order, queue of a parked job; n → the last order
//
// n, from 100 to 115, is the user's shard: 100 and the first hexadecimal digit of the user's SHA-1.
// Workers in other languages call the script as docs/jobs-contract.md says. It is the hash tag: what one call touches is
// in one slot of Redis Cluster. Waiting asks all 16 shards at a time. Nothing is found
// by SCAN or KEYS.
//
// Calls of one process that come up at the same time share round trips (pkg/internal/gather).
//
// A call costs Redis the same however many users there are and jobs are parked. It
// grows with the slots that the user has taken, and with the queues in which the user has
// parked jobs: acquiring and releasing a slot take 50 µs of Redis' processor with five
// slots taken, 120 µs with 50, 2 ms with 1000.
package redisslots
