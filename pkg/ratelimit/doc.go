// Package ratelimit decides which requests of a user a cluster of agents admits
// in each second, so that all agents together admit the user's limit and not
// one request more.
//
// The pool (Take) holds what is left of one key's cluster second. Every Agent
// holds a small lease of it, asked for ahead of need; a request that finds its
// agent without a token waits for the answer to one Ask, never longer than a
// bound. Watch is polygen's view: it compares the pool's totals with the limits
// and says which keys are hot and which are spent.
//
// The package is a deterministic state machine: calls and times in, decisions
// and messages out. It has no clock, no network, no goroutine and no lock; its
// callers own all of these, and its tests run whole clusters of it in simulated
// time.
//
// What it trades: with more than one agent, the first request of a second at an
// agent may wait one round trip, and tokens leased to an agent that turns idle
// are out of reach for up to 50 ms. In return the sum never passes the limit,
// whatever the load, the latency and the health of polygen, but for what Timeout
// admits of cool keys, and while an agent cannot reach the pool. An agent that is
// alone, or has lost the pool, counts by itself and waits for nothing.
//
// Times are of the cluster's clock (the pool's); a second is a whole second of
// it. Times that run backwards are taken for the latest second seen.
package ratelimit
