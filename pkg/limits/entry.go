package limits

// Entry is what a limit file says of one user, or of all users of a pattern or a tier.
// Users of whom it says the same should share one. An Entry never changes.
type Entry struct {
	Limits   *Limits // away from endpoints, and at those where More has none
	Together *Limits // at all endpoints and away from them, taken together; rates and costs, and no other limit
	More     *More   // nil for most, so that an entry for each of many users is small
}

// Named is that a file names a user or a pattern. It is small, because there may be millions.
type Named struct {
	Entry uint32 // the index in Content.Entries of what the file says
	Line  uint32 // where it says so, as the reader numbers lines
}

// More is what few entries have.
type More struct {
	Endpoints []*Limits // by index in Content.Endpoints; empty if they are like everywhere

	// Then is what counts from Until on. It has no Until of its own, unless the entry is of
	// an override.
	Until int64 // Unix time in ns; 0 if the entry never ends
	Then  *Entry
}

// What at takes in place of an endpoint's index.
const (
	awayFromEndpoints = -1
	allEndpoints      = -2 // the limits over all of them together
)

// limitsAt returns the limits at a time, at an endpoint (by index), away from endpoints, or over
// all of them together.
func (e *Entry) limitsAt(now int64, endpoint int) *Limits {
	// An entry ends at the beginning of the instant: until a date is until its first moment.
	if e.More != nil && e.More.Until != 0 && e.More.Until <= now {
		return e.More.Then.limitsAt(now, endpoint)
	}
	switch {
	case endpoint == allEndpoints:
		return e.Together
	// An endpoint that this file has not: after a reload requests may still come with the ones of before.
	case e.More == nil || endpoint < 0 || endpoint >= len(e.More.Endpoints):
		return e.Limits
	}
	return e.More.Endpoints[endpoint]
}

// eachLimits calls of with all limits of an entry, which may be none.
func (e *Entry) eachLimits(of func(*Limits)) {
	if e == nil {
		return
	}
	of(e.Limits)
	of(e.Together)
	if e.More == nil {
		return
	}
	for _, l := range e.More.Endpoints {
		of(l)
	}
	// What follows later counts as well: whoever asks wants to know what can ever be.
	e.More.Then.eachLimits(of)
}

// eachEnd calls of with each time at which the entry, or what follows it, ends.
func (e *Entry) eachEnd(of func(until int64)) {
	// With overrides there may be several, one after the other.
	for ; e != nil && e.More != nil && e.More.Until != 0; e = e.More.Then {
		of(e.More.Until)
	}
}
