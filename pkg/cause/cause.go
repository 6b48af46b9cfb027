// Package cause has one word for each way in which a request can come to be refused: who
// counted, and why nothing was left. The limit that refused says what was exceeded; the cause
// says which part of the system decided so, from which count.
//
// The same word stands in the access log (cause) and in the metric sluice_refusals_total; the API's
// decisions have it of the refusals by HAProxy that follow from them. The constant is used where the decision is made, so
// a search for it leads from a log line to the code. docs/limits.md explains each word.
package cause

// Cause is why a request was refused. The zero Cause is that of a request that was not.
type Cause string

// The causes of which the agent tells HAProxy.
const (
	// OwnCount: the agent is the only one, counts by itself, and has admitted the whole limit.
	OwnCount Cause = "own-count"
	// Pool: the pool in Redis has nothing left, nor has this instance's lease of it.
	Pool Cause = "pool"
	// RedisLost: Redis cannot be reached, and this instance has used up what it may admit without it.
	RedisLost Cause = "redis-lost"
	// RedisLate: Redis did not answer in the time that a request may wait, and the user was
	// near the limit when it last did, or has used up this instance's part since.
	RedisLate Cause = "redis-late"
	// CreditSpent: HAProxy had the whole limit as credit in this second, and has used it up.
	CreditSpent Cause = "credit-spent"
	// CreditUnknown: HAProxy has credit, and did not say in time how much of it was used.
	CreditUnknown Cause = "credit-unknown"
	// EstimateTooLarge: the request is estimated to cost more than the whole limit of a window, so
	// that it can never be admitted.
	EstimateTooLarge Cause = "estimate-too-large"
	// LimitZero: the limit is 0, so that it refuses every request that counts against it.
	LimitZero Cause = "limit-zero"
	// QueueFull: as many requests of the user wait for an answer as the limit could still admit.
	QueueFull Cause = "queue-full"
	// LineFull: too many requests wait in line for a place (over_limit: wait), or some wait and
	// this one may not.
	LineFull Cause = "line-full"
	// LineTimeout: the request waited in line for as long as it may, and there was no place.
	LineTimeout Cause = "line-timeout"
)

// The causes of refusals by HAProxy alone, of which no agent was asked or none answered. The
// rules of haproxy.cfg have these words.
const (
	// ThrottleTable: an entry of the table sluice/throttle says that the window is used up.
	ThrottleTable Cause = "throttle-table"
	// BlockTable: an entry of the table sluice/block says that no place is free.
	BlockTable Cause = "block-table"
	// AddressTable: what HAProxy counts of the client's address has reached a limit of per_address
	// or failed_auth.
	AddressTable Cause = "address-table"
	// Unreadable: the request's credentials cannot be read (SLUICE_UNREADABLE=deny), so nobody counted it.
	Unreadable Cause = "unreadable-credentials"
	// AgentSilent: no agent answered, and what HAProxy may admit without one is used up.
	AgentSilent Cause = "agent-silent"
)

// Agent returns the causes of refusals by the agent.
func Agent() []Cause {
	return []Cause{OwnCount, Pool, RedisLost, RedisLate, CreditSpent, CreditUnknown, EstimateTooLarge, LimitZero, QueueFull, LineFull, LineTimeout}
}
