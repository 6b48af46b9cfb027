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

// For is what a message says to one instance: of what is divided its own part alone, or the
// messages of a user whom all instances serve would grow with the square of their number.
func For(m Message, instance string) Message {
	switch m := m.(type) {
	case Slots:
		at, named := slices.BinarySearchFunc(m.Shares, instance, func(s SlotShare, name string) int { return strings.Compare(s.Instance, name) })
		m.Shares = ownPart(m.Shares, at, named)
		return m
	case Share:
		at, named := slices.BinarySearchFunc(m.Shares, instance, func(s bandwidth.Share, name string) int { return strings.Compare(s.Instance, name) })
		m.Shares = ownPart(m.Shares, at, named)
		return m
	}
	return m
}

// ownPart is the part at an index, or none.
func ownPart[S any](parts []S, at int, named bool) []S {
	if !named {
		return nil
	}
	return parts[at : at+1]
}
