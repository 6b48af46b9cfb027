// Package ratelimit decides which requests of a user a cluster of agents admits
// in each second, minute, hour, day and month, so that all agents together admit the user's
// limits and not one request more.
//
// The pool (Take) holds what is left of one key's window. Every Agent
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
// What it trades: with more than one agent, the first request of a window at an
// agent may wait one round trip, and tokens leased to an agent that turns idle
// are out of reach for up to 50 ms. In return the sum never passes the limit,
// whatever the load, the latency and the health of polygen, but for what Timeout
// admits of cool keys, and while an agent cannot reach the pool. An agent that is
// alone, or has lost the pool, counts seconds by itself and waits for nothing.
//
// Longer windows outlast agents, and their memory of users. So an agent that is
// alone leases them too, one that leaves gives back what it holds, and what one
// admits while the pool is lost it reports afterwards. What an agent holds when it is
// killed, a few tokens of each user with requests in its last 50 ms, is lost until the
// window ends, and so are tokens whose grant is lost on the way. Where requests are
// refused for long, HAProxy refuses them (see RefuseFor), and the pool is asked about
// once a second whether tokens came back.
//
// HAProxy may admit requests by itself, from credit: its portion of the limit in each
// second, which the pool has reserved, or all of it if its agent is alone. DESIGN.md says
// how the sum holds all the same.
//
// A burst is what is saved of seconds before; its pool is an Account.
//
// Times are of the cluster's clock (the pool's); windows are whole seconds, minutes
// and hours of it, and the days and months of a limits.Calendar. Times that run backwards are taken for the latest window seen,
// until they are a second behind it.
package ratelimit
