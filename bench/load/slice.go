package load

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A Slicer is a closed-loop load: each of its connections sends the next
// request as soon as the answer to the last one is there. It does so in short
// slices, so that several Slicers can take turns within one run: a machine
// whose speed drifts still compares them fairly. The connections stay open
// from slice to slice.
//
// A Slicer keeps its servers as busy as they can be. For what users feel under
// a given load use Run, which does not slow down with the servers.
type Slicer struct{ loop *loop }

// A Slice is what one slice saw.
type Slice struct {
	Answers  int             // answers received
	Others   map[int]int     // how many of them had another status than 200, by status
	Failures map[Failure]int // requests without an answer
	Elapsed  time.Duration   // from the first request to the last answer
	Times    []time.Duration // of each answer, from the sending of its request; sorted
}

// Quantile is the time within which the part q (0 to 1) of the answers came.
func (s Slice) Quantile(q float64) time.Duration { return Distribution(s.Times).Quantile(q) }

// NewSlicer returns a Slicer with Conns connections to each of the Spec's targets, which the first slice opens. Rate, Duration, Arrivals,
// Seed, Ahead, Tick and Align mean nothing to it.
func NewSlicer(s Spec) (*Slicer, error) {
	s.Rate, s.Duration = 1, time.Second
	addrs, err := s.validate()
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	s.Ahead = s.Conns
	l, err := newLoop(s, addrs)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	l.turns = &turns{}
	return &Slicer{l}, nil
}

// turns is the state of a loop whose connections send one request after another.
type turns struct {
	until int64 // no request is sent from then on
	next  int   // number of the next request
	busy  int   // requests on their way
	slice Slice
}

// Run sends requests for a time, and waits for the answers to those on their
// way. An error means that the Slicer is of no more use, or that ctx has ended.
func (s *Slicer) Run(ctx context.Context, d time.Duration) (Slice, error) {
	l, t := s.loop, s.loop.turns
	t.slice = Slice{Others: map[int]int{}, Failures: map[Failure]int{}}
	// Before the slice's time begins, and before any answer can come.
	if err := l.openAhead(); err != nil {
		return t.slice, err
	}
	started := l.now()
	t.until = started + int64(d)
	last := started
	for _, target := range l.targets {
		for range target.idle.len() {
			if c := target.idle.pop(); c.state == idle {
				l.free(c)
			}
		}
	}
	for now := started; t.busy > 0 || now < t.until; now = l.now() {
		if now-l.yielded >= int64(yieldEvery) {
			l.yielded = now
			runtime.Gosched()
		}
		if now-l.swept >= int64(sweepEvery) {
			if ctx.Err() != nil {
				return t.slice, context.Cause(ctx)
			}
			l.sweep(now)
			l.swept = now
			if now < t.until {
				l.refill()
			}
		}
		before := t.slice.Answers
		if err := l.poll(l.swept + int64(sweepEvery)); err != nil {
			return t.slice, err
		}
		if t.slice.Answers > before {
			last = l.now()
		}
	}
	t.slice.Elapsed = time.Duration(last - started)
	slices.Sort(t.slice.Times)
	return t.slice, nil
}

// Close closes the connections.
func (s *Slicer) Close() { s.loop.close() }

// take sends the next request on a free connection, and reports whether it is busy then.
func (t *turns) take(l *loop, c *conn) bool {
	if l.now() >= t.until {
		return false
	}
	for len(l.results) <= c.fd { // a connection has one request at a time
		l.results = append(l.results, Result{})
	}
	r := l.spec.Requests(t.next)
	l.results[c.fd] = Result{Target: c.target.index, User: l.user(r.User)}
	if !l.sendOn(c, c.fd, r) {
		return true // closed: refill opens another one
	}
	l.results[c.fd].Scheduled = l.results[c.fd].Sent
	t.next++
	t.busy++
	return true
}

func (t *turns) note(r *Result) {
	t.busy--
	if r.Failure != Answered {
		t.slice.Failures[r.Failure]++
		return
	}
	t.slice.Answers++
	if r.Status != 200 {
		t.slice.Others[int(r.Status)]++
	}
	t.slice.Times = append(t.slice.Times, time.Duration(r.Received-r.Sent))
}
