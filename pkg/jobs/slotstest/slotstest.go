// Package slotstest holds every back end of jobs.Slots to one behaviour.
package slotstest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// A Backend is one under test, in which nothing is stored yet.
type Backend struct {
	Slots jobs.Slots

	// Advance lets its time go on, by a whole number of milliseconds. Nil says that its
	// clock goes by itself: the suite then waits for what has to end, and asserts
	// nothing that a slow machine could break.
	Advance func(d time.Duration)

	// Slow says that ten thousand parked jobs are too many for it, as for a server that
	// sorts a line whenever it is asked for its first. The bound is not tested then, and
	// the load is small.
	Slow bool
}

// Run runs the suite. open is called for each of its tests.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	cases := []struct {
		name string
		run  func(*suite)
	}{
		{"a user's jobs run up to the limit", upToTheLimit},
		{"a queue's limit counts beside the total", queueLimits},
		{"a slow queue does not hold up a fast one", slowQueue},
		{"users do not share slots", users},
		{"names are any bytes", anyBytes},
		{"acquiring again takes no second slot", acquireAgain},
		{"releasing again frees nothing", releaseAgain},
		{"a later holder takes the slot over", takeOver},
		{"an earlier holder can neither free nor renew the slot", zombie},
		{"a job keeps its queue", keepsQueue},
		{"the refused are parked if they ask for it", parked},
		{"the first in line gets a reservation", firstInLine},
		{"a reserved slot is nobody else's", reservedSlot},
		{"nobody overtakes the line", overtaking},
		{"a parked job may come by itself", comesByItself},
		{"reserving again reserves nothing", reserveAgain},
		{"a slot is free when its lease is over", crash},
		{"renewing begins a lease anew", renew},
		{"renewing reports what is lost", lost},
		{"a reservation lapses", lapse},
		{"a raised limit lets more in", raised},
		{"a lowered limit ends nobody", lowered},
		{"a forgotten job is gone unless it holds a slot", forget},
		{"waiting pages through the users in line", waiting},
		{"the line is bounded", bounded},
		{"limits and leases may be as large as numbers are", largest},
		{"what cannot be meant is refused", invalid},
		{"an ended context does nothing", ended},
		{"many workers run every job once, never above the limit", everyJobOnce},
		{"many workers without a line never go above the limit", withoutLine},
		{"many attempts at one job take one slot", oneJob},
		{"a job that is parked while a slot is freed is woken", noLostWake},
		{"random calls do what the model does", random},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.run(&suite{T: t, Backend: open(t), ctx: context.Background()})
		})
	}
}

const (
	// long is the length of leases that must not end while a test runs.
	long = time.Hour
	// short is that of those that must.
	short = 100 * time.Millisecond
	// patience bounds the waits for what is certain to happen.
	patience = time.Minute
)

type suite struct {
	*testing.T
	Backend
	ctx context.Context
}

// job is a claim whose holder is named after it.
func job(user, id, queue string) jobs.Claim {
	return jobs.Claim{Job: jobs.Job{User: user, ID: id, Queue: queue}, Holder: id + "'s worker"}
}

// heldBy is the same job's claim by another holder.
func heldBy(c jobs.Claim, holder string) jobs.Claim {
	c.Holder = holder
	return c
}

func limitOf(n int) jobs.Limits { return jobs.Limits{Total: n} }

// acquire asks for a slot and parks if it is refused.
func (s *suite) acquire(c jobs.Claim, l jobs.Limits, want jobs.Verdict) {
	s.Helper()
	s.acquireFor(c, l, long, true, want)
}

func (s *suite) acquireFor(c jobs.Claim, l jobs.Limits, lease time.Duration, park bool, want jobs.Verdict) {
	s.Helper()
	got, err := s.Slots.Acquire(s.ctx, c, l, lease, park)
	if err != nil || got != want {
		s.Fatalf("Acquire(%q by %q, %v, park %v) = %+v, %v, want %+v", c.Job, c.Holder, l, park, got, err, want)
	}
}

// granted and refused are verdicts.
func granted(running, inQueue int) jobs.Verdict {
	return jobs.Verdict{Granted: true, Running: running, InQueue: inQueue}
}

func refused(running, inQueue, place int) jobs.Verdict {
	return jobs.Verdict{Running: running, InQueue: inQueue, Place: place}
}

func (s *suite) release(c jobs.Claim, l jobs.Limits, want ...jobs.Claim) {
	s.Helper()
	got, err := s.Slots.Release(s.ctx, c, l, long)
	s.same(fmt.Sprintf("Release(%q by %q, %v)", c.Job, c.Holder, l), got, err, want)
}

func (s *suite) reserveFree(user string, l jobs.Limits, want ...jobs.Claim) {
	s.Helper()
	s.reserveFreeFor(user, l, long, want...)
}

func (s *suite) reserveFreeFor(user string, l jobs.Limits, reserve time.Duration, want ...jobs.Claim) {
	s.Helper()
	got, err := s.Slots.ReserveFree(s.ctx, user, l, reserve)
	s.same(fmt.Sprintf("ReserveFree(%q, %v)", user, l), got, err, want)
}

func (s *suite) reserved(user string, want ...jobs.Claim) {
	s.Helper()
	got, err := s.Slots.Reserved(s.ctx, user)
	s.same(fmt.Sprintf("Reserved(%q)", user), got, err, want)
}

func (s *suite) forget(c jobs.Claim) {
	s.Helper()
	if err := s.Slots.Forget(s.ctx, c.Job); err != nil {
		s.Fatalf("Forget(%q) = %v", c.Job, err)
	}
}

func (s *suite) renewed(claims []jobs.Claim, lease time.Duration, want ...jobs.Claim) {
	s.Helper()
	got, err := s.Slots.Renew(s.ctx, claims, lease)
	if err != nil || !slices.Equal(got, want) {
		s.Fatalf("Renew(%+v) = %+v, %v, want %+v", claims, got, err, want)
	}
}

func (s *suite) same(call string, got []jobs.Job, err error, want []jobs.Claim) {
	s.Helper()
	if wanted := jobsOf(want); err != nil || !slices.Equal(got, wanted) {
		s.Fatalf("%s = %q, %v, want %q", call, got, err, wanted)
	}
}

func jobsOf(claims []jobs.Claim) []jobs.Job {
	list := make([]jobs.Job, len(claims))
	for i, c := range claims {
		list[i] = c.Job
	}
	return list
}

// usage checks who holds slots, who has them reserved, and who is parked.
func (s *suite) usage(user string, held, reserved, parked []jobs.Claim) {
	s.Helper()
	if err := s.hasUsage(user, held, reserved, parked); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) hasUsage(user string, held, reserved, parked []jobs.Claim) error {
	got, err := s.Slots.User(s.ctx, user)
	if err != nil {
		return fmt.Errorf("User(%q): %w", user, err)
	}
	want := jobs.Usage{Parked: jobsOf(parked)}
	for _, c := range held {
		want.Held = append(want.Held, jobs.Slot{Job: c.Job, Holder: c.Holder})
	}
	for _, c := range reserved {
		want.Reserved = append(want.Reserved, jobs.Slot{Job: c.Job})
	}
	for _, slots := range [][]jobs.Slot{got.Held, got.Reserved} {
		for i := range slots {
			if left := slots[i].Left; left <= 0 || left > long {
				return fmt.Errorf("User(%q) has a slot with %v left: %+v", user, left, got)
			}
			slots[i].Left = 0
		}
	}
	if diff := cmp.Diff(sorted(want), sorted(got)); diff != "" {
		return fmt.Errorf("User(%q) (-want +got):\n%s", user, diff)
	}
	return nil
}

// sorted brings those who hold slots, who are in no particular order, into one, and
// makes empty lists alike.
func sorted(u jobs.Usage) jobs.Usage {
	slices.SortFunc(u.Held, func(a, b jobs.Slot) int { return cmpString(a.ID, b.ID) })
	return jobs.Usage{
		Held:     append([]jobs.Slot{}, u.Held...),
		Reserved: append([]jobs.Slot{}, u.Reserved...),
		Parked:   append([]jobs.Job{}, u.Parked...),
	}
}

func cmpString(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// after lets the time go on, by d at least, and checks what then has to be so.
func (s *suite) after(d time.Duration, what string, check func() error) {
	s.Helper()
	var err error
	if s.Advance != nil {
		s.Advance(d)
		err = check()
	} else {
		err = pollUntil(check)
	}
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// pollUntil calls check until it returns nil or patience is at an end.
func pollUntil(check func() error) error {
	for end := time.Now().Add(patience); ; {
		err := check()
		if err == nil || time.Now().After(end) {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}
