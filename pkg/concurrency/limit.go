package concurrency

// DefaultMargin is how far below the limit, in per cent of it, a blocked user's requests
// in progress must fall before the user is let in again.
const DefaultMargin = 5

// Limit bounds one user's requests in progress, summed over all instances. The
// zero Limit never blocks.
type Limit struct {
	Max     int // requests at which the user becomes blocked; 0 means not limited
	Release int // requests at or below which a blocked user is let in again; < Max
}

// NewLimit is the limit of most requests with a margin in per cent of it, one
// request at least.
func NewLimit(most, margin int) Limit {
	if most <= 0 {
		return Limit{}
	}
	return Limit{Max: most, Release: max(0, most-max(1, (most*margin+99)/100))}
}

// blocks reports whether a user with active requests should be blocked. Between
// Release and Max the answer stays what it was, so that a user at the limit does
// not flap.
func (l Limit) blocks(was bool, active int) bool {
	if l.Max == 0 || active <= l.Release {
		return false
	}
	return was || active >= l.Max
}
