package redisbus

import (
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// An Addressed is a message that is divided, and the instances that it concerns. The parts
// are sorted by instance.
type Addressed struct {
	Message
	To []string // instances, each once
}

// For is what a message says to one instance: of what is divided its own part alone.
func For(m Message, instance string) Message {
	// Otherwise the messages of a user at all instances would grow with the square of their number.
	switch m := m.(type) {
	case Slots:
		m.Shares = ownPart(m.Shares, instance, func(s SlotShare) string { return s.Instance })
		// By name: Slots without shares are for the instances that were not given any.
		if m.Shares == nil {
			m.Shares = []SlotShare{{Instance: instance}}
		}
		return m
	case Share:
		m.Shares = ownPart(m.Shares, instance, func(s bandwidth.Share) string { return s.Instance })
		return m
	}
	return m
}

// ownPart is the part of an instance, or none.
func ownPart[S any](parts []S, instance string, of func(S) string) []S {
	at, named := slices.BinarySearchFunc(parts, instance, func(s S, name string) int { return strings.Compare(of(s), name) })
	if !named {
		return nil
	}
	return parts[at : at+1]
}
