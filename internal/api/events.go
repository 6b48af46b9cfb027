package api

import (
	"slices"
	"strings"
)

// Events are the requests of a user that started, were refused and ended in each of the last seconds, as
// the instances have told Redis. Lists have one number for each second, from Begin on; the
// last one is a second that all instances have had the time to tell of.
type Events struct {
	From
	Name
	Begin   int64         `json:"begin"`   // the first second, since the epoch
	Step    int64         `json:"step"`    // seconds from one number to the next
	Started []ClassEvents `json:"started"` // of verbs and operation classes with any, sorted
	Refused []ClassEvents `json:"refused"` // the same
	Ended   []int64       `json:"ended"`   // of all classes
}

// ClassEvents are the requests of a class.
type ClassEvents struct {
	Class    string  `json:"class"` // a verb or an operation class: a request counts for both
	Requests []int64 `json:"requests"`
}

// Add notes requests of a class in the second with this number.
func (e *Events) Add(second int, class string, started, refused int64) {
	for _, of := range []struct {
		list     *[]ClassEvents
		requests int64
	}{{&e.Started, started}, {&e.Refused, refused}} {
		if of.requests == 0 {
			continue
		}
		i, known := slices.BinarySearchFunc(*of.list, class, func(c ClassEvents, class string) int { return strings.Compare(c.Class, class) })
		if !known {
			*of.list = slices.Insert(*of.list, i, ClassEvents{class, make([]int64, len(e.Ended))})
		}
		(*of.list)[i].Requests[second] += of.requests
	}
}
