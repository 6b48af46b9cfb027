package demo

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
)

// names are what the users are called, by whether they are quiet.
var names = map[bool]string{false: "noisy", true: "quiet"}

type kind uint8

const (
	answered kind = iota
	refused       // by a limit
	failed        // answered with another error, or not in time
)

func kindOf(r load.Result) kind {
	switch {
	case r.Refused():
		return refused
	case r.Failure == load.Answered && r.Admitted():
		return answered
	default:
		return failed
	}
}

// event is what became of a request, and when.
type event struct {
	at    time.Time
	took  time.Duration
	quiet bool
	kind  kind
}

// record is what became of all requests, for several goroutines.
type record struct {
	began time.Time // set before anything else

	mu      sync.Mutex
	events  []event
	written time.Time // the limits were; zero: not yet
	ended   time.Time // the second half was, or all by Ctrl-C
	refused time.Time // first; so limits are in force
}

// add does nothing after the end: what is cut off then has not failed.
func (r *record) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		return
	}
	r.events = append(r.events, e)
	if e.kind == refused && r.refused.IsZero() {
		r.refused = e.at
	}
}

func (r *record) write(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written = now
}

func (r *record) end(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = now
}

// limited is since when limits are in force, zero while they are not.
func (r *record) limited() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// figures are what a user got in some time.
type figures struct {
	counts [failed + 1]int
	p99    time.Duration // of those answered; 0 if none was
	span   time.Duration
}

func (f figures) rate(k kind) float64 { return float64(f.counts[k]) / f.span.Seconds() }

func (f figures) percent(k kind) string {
	all := f.counts[answered] + f.counts[refused] + f.counts[failed]
	return fmt.Sprintf("%.0f %%", 100*float64(f.counts[k])/math.Max(float64(all), 1))
}

// figures are those of one user, in n parts of equal length from from on.
func (r *record) figures(quiet bool, from time.Time, each time.Duration, n int) []figures {
	r.mu.Lock()
	events := r.events // what is in it does not change
	r.mu.Unlock()
	parts, took := make([]figures, n), make([]load.Distribution, n)
	for _, e := range events {
		if i := int(math.Floor(float64(e.at.Sub(from)) / float64(each))); e.quiet == quiet && i >= 0 && i < n {
			parts[i].counts[e.kind]++
			if e.kind == answered {
				took[i] = append(took[i], e.took)
			}
		}
	}
	for i := range parts {
		slices.Sort(took[i])
		parts[i].p99, parts[i].span = took[i].Quantile(0.99), each
	}
	return parts
}
