// Package changes brings many records up to date, a few at a time.
//
// Now and then something changes that concerns every record: how many instances there are, the
// limits, the process of HAProxy. To look at hundreds of thousands of records at once would hold
// up every request that waits for the same lock. So a record hears of a change before it is used
// the next time, and all of them hear of it in turn, some at a time (First).
package changes

import "container/list"

// Record is embedded by what hears of changes. The zero Record belongs to no set.
type Record struct {
	element *list.Element
	heard   int // changes announced until then
}

func (r *Record) record() *Record { return r }

// Changes are those that some record of a set has not heard of. The zero Changes has no
// record. It is not safe for concurrent use.
type Changes[T interface{ record() *Record }] struct {
	records   list.List // whoever has missed most comes first
	missed    []func(T) // by the first record, oldest first
	announced int
}

// Add takes a record into the set that knows of all changes until now.
func (c *Changes[T]) Add(thing T) {
	r := thing.record()
	r.element, r.heard = c.records.PushBack(thing), c.announced
}

// Remove takes a record out of the set.
func (c *Changes[T]) Remove(thing T) {
	r := thing.record()
	c.records.Remove(r.element)
	r.element = nil
	c.forget()
}

// Announce has every record of the set hear of a change, sooner or later. It must not be called
// by a change.
func (c *Changes[T]) Announce(change func(T)) {
	if c.records.Len() > 0 {
		c.announced++
		c.missed = append(c.missed, change)
	}
}

// CatchUp has a record hear of all that it has missed, in order. It is to be called before the
// record is used. One that is in no set has missed nothing.
func (c *Changes[T]) CatchUp(thing T) {
	r := thing.record()
	if r.heard == c.announced || r.element == nil {
		return
	}
	missed := c.missed[len(c.missed)-(c.announced-r.heard):]
	r.heard = c.announced // before it hears of them: a change may use the record, or remove it
	c.records.MoveToBack(r.element)
	for _, change := range missed {
		change(thing)
	}
	c.forget()
}

// First is the record that has missed most, if any has missed something.
func (c *Changes[T]) First() (thing T, any bool) {
	if !c.Behind() {
		return thing, false
	}
	return c.records.Front().Value.(T), true
}

// Behind reports whether any record has missed something.
func (c *Changes[T]) Behind() bool { return len(c.missed) > 0 }

// forget drops the changes of which all records have heard.
func (c *Changes[T]) forget() {
	first := c.records.Front()
	if first == nil {
		c.missed = nil
		return
	}
	heard := len(c.missed) - (c.announced - first.Value.(T).record().heard)
	if c.missed = c.missed[heard:]; len(c.missed) == 0 {
		c.missed = nil
	}
}

// Len is the number of records.
func (c *Changes[T]) Len() int { return c.records.Len() }
