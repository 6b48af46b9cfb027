package concurrency

import (
	"hash/maphash"
	"iter"
	"time"
)

const (
	// parkedParts divide the users of parked, so that ForgetPlaces looks at few at a time:
	// of 500 000 at 8000, which takes the agent's lock for a millisecond.
	parkedParts = 64
	// entrySpan is how long HAProxy keeps an entry of its table of credit that nobody uses.
	entrySpan = 10 * time.Minute
)

// parked are the places of users of whom nothing else is known. See newParked.
type parked struct {
	seed  maphash.Seed
	parts [parkedParts]map[string]places
	users int
	next  int // the part that ForgetPlaces looks at next
}

func newParked() parked {
	p := parked{seed: maphash.MakeSeed()}
	for i := range p.parts {
		p.parts[i] = make(map[string]places)
	}
	return p
}

func (p *parked) partOf(name string) map[string]places {
	return p.parts[maphash.String(p.seed, name)%parkedParts]
}

func (p *parked) placesOf(name string) (places, bool) {
	of, ok := p.partOf(name)[name]
	return of, ok
}

func (p *parked) has(name string) bool {
	_, ok := p.placesOf(name)
	return ok
}

// put replaces what is known of a user's places, and drops users of whom that is nothing.
func (p *parked) put(name string, of places) {
	part := p.partOf(name)
	before := len(part)
	if of.phase == placesNone && of.former == 0 {
		delete(part, name)
	} else {
		part[name] = of
	}
	p.users += len(part) - before
}

// all are the users and their places. They may be changed and dropped meanwhile.
func (p *parked) all() iter.Seq2[string, places] {
	return func(yield func(string, places) bool) {
		for _, part := range p.parts {
			for name, of := range part {
				if !yield(name, of) {
					return
				}
			}
		}
	}
}

// ForgetPlaces drops the places of users of whom nothing else is known, if a process of HAProxy
// has no entry of theirs in its table of credit any more: then it has neither places of theirs
// nor requests in progress by them. shown says who was in a complete read of that table, which
// began at a time. A read lasts for tens of seconds, so whoever was given places, or seen to use
// some, less than entrySpan before it may have come into the table behind it.
//
// A call looks at some of the users. It reports whether it was the last one of a turn, after
// which all have been looked at.
func (a *Agent) ForgetPlaces(at time.Time, process int64, began time.Time, shown func(name string) bool) (last bool) {
	now := a.coreTime(at)
	if process == 0 || process != a.process || a.changing(now) {
		return true // another process may have places of theirs
	}
	since := now - int64(at.Sub(began)) - int64(entrySpan)
	for name, p := range a.parked.parts[a.parked.next] {
		if p.phase == placesLent && p.former == 0 && max(p.lentAt, p.parkedAt) <= since && !shown(name) {
			a.setParked(name, places{})
		}
	}
	a.parked.next = (a.parked.next + 1) % parkedParts
	return a.parked.next == 0
}
