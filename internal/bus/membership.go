package bus

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// members is a membership of the registry. The zero value is not known.
type members struct {
	epoch     string   // "" if Redis has not named it
	instances []string // sorted; never changed
}

// after is the membership after a change. It reports whether the change is one of this
// membership, or says how the membership is whatever it was before.
func (m members) after(c change) (members, bool) {
	switch {
	// It names all instances. Its epoch is not taken, for the number may be any: the next heartbeat asks for it.
	case c.from == "":
		return members{"", c.joined}, true
	// Numbers of epochs grow. Or a forged message could lead to a false list, and a second one back to the epoch that
	// Redis has, which no heartbeat would find out.
	case c.from != m.epoch || numberOf(c.epoch) != numberOf(c.from)+1:
		return m, false
	}
	// Another list and not this one changed: it is shared with all who were told of it.
	set := make(map[string]struct{}, len(m.instances)+len(c.joined))
	for _, name := range m.instances {
		set[name] = struct{}{}
	}
	for _, name := range c.left {
		delete(set, name)
	}
	for _, name := range c.joined {
		set[name] = struct{}{}
	}
	return members{c.epoch, slices.Sorted(maps.Keys(set))}, true
}

// numberOf is the number that an epoch begins with.
func numberOf(epoch string) int64 {
	digits, _, _ := strings.Cut(epoch, "-")
	// Redis counts from 1: what is no number is 0.
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// status is what an instance tells of itself.
type status struct{ version, problem string }

func newStatus(version, problem string) status {
	// It is for people, and kept for each instance. The cut may be within a rune.
	if len(problem) > maxProblem {
		problem = strings.ToValidUTF8(problem[:maxProblem], "")
	}
	return status{version, problem}
}

// repeatAfter is after how many heartbeats, 10 s in a small cluster, an instance says its
// status again though it is what it was: a replica that became the master may not have heard
// of it.
const repeatAfter = 40

// In a cluster of many instances not every heartbeat looks for those that are silent: at
// least lookouts of them do from one heartbeat of an instance to the next, and of one instance
// every rarely-th, for it may be one of the few that are left.
const (
	lookouts = 16
	rarely   = 4
)

// membership is what this process knows of the registry, and what its instances have told
// the registry.
type membership struct {
	mu      sync.Mutex
	members members
	at      time.Time         // Redis' time when it last confirmed them
	behind  bool              // a message may have been missed: the next heartbeat brings what has changed
	own     map[string]*heard // by instance, of those whose last heartbeat was answered
}

// heard is what Redis has heard of an instance.
type heard struct {
	status status
	beats  int       // since it told its status
	at     int64     // Redis' time at the last heartbeat in milliseconds
	began  time.Time // when that was sent
}

// due reports whether an instance has to register now.
func (m *membership) due(instance string, said status, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.own[instance]
	// The last one was not answered, so Redis may be away: found again it is by the next ones. Or there is news for it.
	if h == nil || h.status != said {
		return true
	}
	_, there := slices.BinarySearch(m.members.instances, instance)
	// Or Redis may have news. Nobody waits longer for them in a large cluster than in a small one, unless they do not
	// know that they have missed any.
	if !there || m.behind || m.members.epoch == "" {
		return true
	}
	// Whoever asks does it every BeatEvery, but not exactly: rather a little early than a whole turn late.
	p := paceOf(m.members.epoch)
	return p == 1 || now.Sub(h.began) > p.every()-BeatEvery/2
}

// beat tells how to send the next heartbeat: whether the short one suffices, which says
// nothing of the status, what it knows, and whether it has to look for all instances.
func (m *membership) beat(instance string, said status) (known members, at int64, all, short bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.own[instance]
	// The short heartbeat says nothing of the status, and compares epochs: there must be one, and nothing to tell.
	if h == nil || h.status != said || h.beats >= repeatAfter || m.members.epoch == "" {
		// Until the answer comes nobody knows what Redis has heard.
		delete(m.own, instance)
		return m.members, 0, false, false
	}
	h.beats++
	// A look costs Redis the more, the more instances there are, and one of them need not be made by all of them.
	every := min(rarely, max(1, len(m.members.instances)/lookouts))
	// Instances that began together do not look together.
	rank, _ := slices.BinarySearch(m.members.instances, instance)
	return m.members, h.at, (rank+h.beats)%every == 0, true
}

// heard takes the answer to a heartbeat.
func (m *membership) heard(instance string, said status, began, now time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Whether Redis has heard it is not known: the next heartbeat says all.
	if err != nil {
		delete(m.own, instance)
		return
	}
	if m.own == nil {
		m.own = make(map[string]*heard)
	}
	h := m.own[instance]
	if h == nil {
		h = &heard{status: said}
		m.own[instance] = h
	}
	// Changes that were published before this answer are in it, however late they come (take).
	h.at, h.began, m.at = now.UnixMilli(), began, now
	// Whichever heartbeat it was: the short one does not suffice where something was missed.
	m.behind = false
}

func (m *membership) leave(instance string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Should it come back, its first heartbeat must say all: Redis has forgotten its status.
	delete(m.own, instance)
}

// known is what Redis need not send again.
func (m *membership) known() members {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members
}

// replace takes what Redis has answered.
func (m *membership) replace(known members, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Should a message have overtaken the answer, the epochs differ at the next heartbeat, which sets it right.
	m.members, m.at, m.behind = known, now, false
}

// missed notes that messages may have been missed.
func (m *membership) missed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind = true
}

// askForAll lets the next heartbeat ask for the whole list.
func (m *membership) askForAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	// To know no epoch is to be told everything.
	m.members.epoch = ""
}

// take takes a published change. It reports whether the list is known after it.
func (m *membership) take(c change) (Registry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch overtaken := m.members.epoch != "" && c.now.Before(m.at); {
	// An answer of Redis was quicker. The first message of a Redis that was emptied names one instance,
	// which would be alone for everyone who hears of it late.
	case overtaken:
	case c.epoch != m.members.epoch:
		next, ok := m.members.after(c)
		// Whoever missed the one before asks: a list without an instance would make each part of a limit too large.
		if !ok {
			m.behind = true
			return Registry{}, false
		}
		m.members = next
	}
	return Registry{Instances: m.members.instances, Now: c.now}, true
}
