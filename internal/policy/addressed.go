package policy

import (
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// An Addressed is a message and the instances that it concerns. What is divided among
// them is sorted by instance.
type Addressed struct {
	Message
	To []string // instances, each once; nil: all
}

// IsDivided reports whether a message says something else to each instance; see For.
func IsDivided(m Message) bool {
	switch m.(type) {
	case Slots, Share:
		return true
	}
	return false
}

// For is what a message says to one instance: of what is divided its own part alone.
func For(m Message, instance string) Message {
	// Else the messages of a user whom all instances serve would grow with the square of their number.
	switch m := m.(type) {
	case Slots:
		m.Shares = ownPart(m.Shares, instance, func(s SlotShare) string { return s.Instance })
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
	// The message goes out all the same: an instance that is not named has a share of 0, and must hear so.
	if !named {
		return nil
	}
	return parts[at : at+1]
}
