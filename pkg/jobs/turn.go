package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// turnLease is how long the turn of a process lasts that has died. It is shorter than
	// reservations are, so that the next process still wakes the jobs which that one was to wake.
	turnLease = 3 * time.Second
	// turnBeats is how often a turn's lease is renewed in its length.
	turnBeats = 5
	// lastTurnTimeout bounds how long the end of a turn waits for the Slots, for which its lease ends it
	// as well.
	lastTurnTimeout = time.Second
)

// errTurnLost says that another process may sweep by now.
var errTurnLost = errors.New("the turn to sweep is lost: the slots did not hear of it in time, or have forgotten it")

// turn is what lets one process of a queue sweep at a time: a slot, like that of a job, of a
// user who cannot be (no UserKey begins so) and who may have one.
type turn struct {
	slots   Slots
	claim   Claim
	lease   time.Duration
	timeout time.Duration // of a call
}

var oneTurn = Limits{Total: 1}

func (s *sweeper) turn() turn {
	job := Job{User: "~sweep." + s.cfg.Name, ID: "sweep." + s.process, Queue: "sweep"}
	// With a short lease slots are free soon, and then are to be handed on as soon.
	return turn{s.cfg.Slots, Claim{Job: job, Holder: s.process}, min(turnLease, s.cfg.Lease/2), s.cfg.AnswerTimeout}
}

// take reports whether it is this process's turn.
func (t turn) take(ctx context.Context) (bool, error) {
	verdict, err := within(ctx, t.timeout, func(ctx context.Context) (Verdict, error) {
		return t.slots.Acquire(ctx, t.claim, oneTurn, t.lease, false)
	})
	if err != nil {
		return false, fmt.Errorf("take the turn to sweep: %w", err)
	}
	return verdict.Granted, nil
}

// keep keeps the turn until the context ends, however long a sweep takes. If it fails, it
// returns why, and another process may sweep.
func (t turn) keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.lease / turnBeats):
		}
		// Bounded by the lease: an answer that comes after it says nothing.
		lost, err := within(ctx, t.lease, func(ctx context.Context) ([]Claim, error) {
			return t.slots.Renew(ctx, []Claim{t.claim}, t.lease)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("keep the turn to sweep: %w", err)
		case len(lost) > 0:
			return errTurnLost
		}
	}
}

// end lets another process sweep.
func (t turn) end() {
	ctx, cancel := context.WithTimeout(context.Background(), lastTurnTimeout)
	defer cancel()
	_, _ = t.slots.Release(ctx, t.claim, oneTurn, t.lease) // its lease ends all the same
}
