package limits

// entry is what the file says of one user, or of all users of a pattern or a tier.
// Users of whom it says the same share it.
type entry struct {
	limits *Limits // away from endpoints, and at those where more has none
	more   *more   // nil for most
}

type more struct {
	endpoints []*Limits // by index in Set.endpoints; empty if they are like everywhere
	until     int64     // Unix time in ns from which then is what counts; 0 if it never is
	then      *entry    // has no until, unless this is of an override by hand
}

// at returns the limits at a time, at an endpoint (by index) or away from them (-1).
func (e *entry) at(now int64, endpoint int) *Limits {
	if e.more == nil {
		return e.limits
	}
	if e.more.until != 0 && e.more.until <= now {
		return e.more.then.at(now, endpoint)
	}
	if endpoint < 0 || endpoint >= len(e.more.endpoints) {
		return e.limits
	}
	return e.more.endpoints[endpoint]
}
