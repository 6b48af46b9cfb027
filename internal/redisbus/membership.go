package redisbus

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

func numberOf(epoch string) int64 {
	digits, _, _ := strings.Cut(epoch, "-")
	// Redis counts from 1: what is no number is 0.
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

type membership struct {
	mu      sync.Mutex
	members members
	at      time.Time // Redis' time when it last confirmed them
}

// known is what Redis need not send again.
func (m *membership) known() members {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members
}

func (m *membership) replace(known members, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Should a message have overtaken the answer, the epochs differ at the next heartbeat, which sets it right. Changes that
	// were published before this answer are in it, however late they come (take).
	m.members, m.at = known, now
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
			return Registry{}, false
		}
		m.members = next
	}
	return Registry{Instances: m.members.instances, Now: c.now}, true
}
