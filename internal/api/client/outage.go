package client

import (
	"fmt"
	"io"
	"time"
)

// Outage tells, once each, that polygen went away and that it is back. Its zero
// value is an outage that has not begun.
type Outage struct {
	since time.Time // of the last answer; zero: it answers
}

// WriteBegin says that there is no answer since the last one, and why.
func (o *Outage) WriteBegin(w io.Writer, command string, last time.Time, err error) {
	if o.since.IsZero() {
		o.since = last
		fmt.Fprintf(w, "%s: no answer since %s: %v\n", command, last.UTC().Format(time.RFC3339), err)
	}
}

// WriteEnd says that there are answers again, if there were none.
func (o *Outage) WriteEnd(w io.Writer, command string, now time.Time) {
	if !o.since.IsZero() {
		fmt.Fprintf(w, "%s: there are answers again, after %v\n", command, now.Sub(o.since).Round(time.Second))
		o.since = time.Time{}
	}
}
