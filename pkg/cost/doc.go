// Package cost decides which requests a user may start when limits are of what requests
// cost, such as tokens of a language model, and not of how many there are.
//
// A reservation is a charge: a request's estimate is added to the total of each of the
// user's windows when it starts, to all of them or to none, if each stays within its
// limit. When it ends, a signed correction makes the estimate what the request really
// cost. Nothing is kept of a single request, so nothing can leak: what is never settled
// stays charged with its estimate, and the window ends.
//
// Pools holds the totals, and Pools.Take is the arithmetic that internal/redisbus runs as a
// script inside Redis. An Agent is what one instance knows. It asks the pools for each
// request and leases nothing: requests that cost are rare and dear, and so the whole limit
// is usable from any instance.
//
// What it trades: a request waits one round trip to Redis. In return the charges of a window
// never pass its limit, whatever the load and however many instances there are, but while
// Redis cannot be reached. What requests cost beyond their estimates may: the next window
// pays for it.
//
// The package is a deterministic state machine: calls and times in, decisions and messages
// out. It has no clock, no network, no goroutine and no lock. DESIGN.md has the details.
package cost
