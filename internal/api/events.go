package api

import (
	"slices"
	"strings"
)

// Events are the requests of a user that started and ended in each of the last seconds, as
// the instances have told Redis. Lists have one number for each second, from Begin on; the
// last one is a second that all instances have had the time to tell of.
type Events struct {
	From
	Name
	Begin   int64         `json:"begin"`   // the first second, since the epoch
	Step    int64         `json:"step"`    // seconds from one number to the next
	Started []ClassEvents `json:"started"` // of verbs and operation classes with any, sorted
	Ended   []int64       `json:"ended"`   // of all classes
}

// ClassEvents are the requests of a class that started.
type ClassEvents struct {
	Class    string  `json:"class"` // a verb or an operation class: a request counts for both
	Requests []int64 `json:"requests"`
}

// AddStarts notes that requests of a class started in the second with this number.
func (e *Events) AddStarts(second int, class string, requests int64) {
	i, known := slices.BinarySearchFunc(e.Started, class, func(c ClassEvents, class string) int { return strings.Compare(c.Class, class) })
	if !known {
		e.Started = slices.Insert(e.Started, i, ClassEvents{class, make([]int64, len(e.Ended))})
	}
	e.Started[i].Requests[second] += requests
}
