package concurrency

import (
	"hash/maphash"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/changes"
)

const (
	// parkedParts divide the users of parked, so that few are looked at at a time: of 500 000
	// at a thousand, for which the agent's lock is taken a millisecond at most.
	parkedParts = 512
	// entrySpan is how long HAProxy keeps an entry of its table of credit that nobody uses.
	entrySpan = 10 * time.Minute
)

// parked are the places of users of whom nothing else is known. See newParked.
type parked struct {
	seed    maphash.Seed
	parts   [parkedParts]parkedPart
	changes changes.Changes[*parkedPart]
	users   int
	next    int // the part that ForgetPlaces looks at next
}

// parkedPart are some of the parked users.
type parkedPart struct {
	changes.Record
	places map[string]places
	wanted []string // users whose places are to be taken back, by a change that the part has just heard of
}

func newParked() *parked {
	p := &parked{seed: maphash.MakeSeed()}
	for i := range p.parts {
		p.parts[i].places = make(map[string]places)
		p.changes.Add(&p.parts[i])
	}
	return p
}

// partOf is where a user would be.
func (p *parked) partOf(name string) *parkedPart {
	return &p.parts[maphash.String(p.seed, name)%parkedParts]
}

func (p *parked) placesOf(name string) (places, bool) {
	of, ok := p.partOf(name).places[name]
	return of, ok
}

func (p *parked) has(name string) bool {
	_, ok := p.placesOf(name)
	return ok
}

// put replaces what is known of a user's places, and drops users of whom that is nothing.
func (p *parked) put(name string, of places) {
	part := p.partOf(name).places
	before := len(part)
	if of.phase == placesNone && of.former == 0 {
		delete(part, name)
	} else {
		part[name] = of
	}
	p.users += len(part) - before
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
		// Another process may have places of theirs.
		return true
	}
	since := now - int64(at.Sub(began)) - int64(entrySpan)
	part := &a.parked.parts[a.parked.next]
	a.catchUpPart(part)
	for name, p := range part.places {
		if p.phase == placesLent && p.former == 0 && max(p.lentAt, p.parkedAt) <= since && !shown(name) {
			a.setParked(name, places{})
		}
	}
	a.parked.next = (a.parked.next + 1) % parkedParts
	return a.parked.next == 0
}
