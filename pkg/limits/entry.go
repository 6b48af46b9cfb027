package limits

// Entry is what a limit file says of one user, or of all users of a pattern or a tier.
// Users of whom it says the same should share one. An Entry never changes.
type Entry struct {
	Limits *Limits

	// Then is what counts from Until on. It has no Until of its own, unless the entry is of
	// an override.
	Until int64 // Unix time in ns; 0 if the entry never ends
	Then  *Entry
}

// Named is that a file names a user or a pattern. It is small, because there may be millions.
type Named struct {
	Entry uint32 // the index in Content.Entries of what the file says
	Line  uint32 // where it says so, as the reader numbers lines
}

// at returns the limits at a time.
func (e *Entry) at(now int64) *Limits {
	// An entry ends at the beginning of the instant: until a date is until its first moment.
	for e.Until != 0 && e.Until <= now {
		e = e.Then
	}
	return e.Limits
}

// eachLimits calls of with all limits of an entry, which may be none.
func (e *Entry) eachLimits(of func(*Limits)) {
	// What follows later counts as well: whoever asks wants to know what can ever be.
	for ; e != nil; e = e.Then {
		of(e.Limits)
	}
}

// eachEnd calls of with each time at which the entry, or what follows it, ends.
func (e *Entry) eachEnd(of func(until int64)) {
	// With overrides there may be several, one after the other.
	for ; e != nil && e.Until != 0; e = e.Then {
		of(e.Until)
	}
}
