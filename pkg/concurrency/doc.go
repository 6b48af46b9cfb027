// Package concurrency bounds how many requests of a user are in progress at a
// time, over a whole cluster.
//
// An Agent decides the requests of one instance. Redis holds the pool of a
// user's slots (Take is its arithmetic), each agent leases some of them, and a
// request that finds its agent without a free slot that the pool may still have
// waits one round trip. So the cluster never runs more than the limit, whatever
// the load and the latency. HAProxy's own count of requests in progress is the
// truth about what has ended; what the agent has admitted since bridges the
// milliseconds until it hears of it.
//
// HAProxy may admit requests of users far from their limits by itself: an agent lends
// it places, and counts them as in progress until they are withdrawn and what they
// admitted has ended. Bounds are upper ones wherever nobody can know. DESIGN.md has
// the phases, why no limit is exceeded, and where that is not so.
//
// A Watch is polygen's view of all instances: it decides whom every HAProxy is
// to block by itself, with hysteresis, and how a user's slots are best shared
// among the instances that want them. Nothing depends on it for safety.
//
// The package has no clock and does no I/O: every call takes the time.
package concurrency
