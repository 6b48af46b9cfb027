package limits

// entry is what the file says of one user, or of all users of a pattern or a tier.
// Users of whom it says the same share it.
type entry struct {
	limits   *Limits // away from endpoints, and at those where more has none
	together *Limits // at all endpoints and away from them, taken together; rates only, and no other limit
	more     *more   // nil for most
}

// What at takes in place of an endpoint's index.
const (
	awayFromEndpoints = -1
	allEndpoints      = -2 // the limits over all of them together
)

type more struct {
	endpoints []*Limits // by index in Set.endpoints; empty if they are like everywhere
	until     int64     // Unix time in ns from which then is what counts; 0 if it never is
	then      *entry    // has no until, unless this is of an override by hand
}

// at returns the limits at a time, at an endpoint (by index), away from endpoints, or over
// all of them together.
func (e *entry) at(now int64, endpoint int) *Limits {
	if e.more != nil && e.more.until != 0 && e.more.until <= now {
		return e.more.then.at(now, endpoint)
	}
	switch {
	case endpoint == allEndpoints:
		return e.together
	case e.more == nil || endpoint < 0 || endpoint >= len(e.more.endpoints):
		return e.limits
	}
	return e.more.endpoints[endpoint]
}
