// Package slotstest holds every back end of jobs.Slots to one behaviour.
package slotstest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

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
	test := func(name string, run func(*suite)) {
		t.Run(name, func(t *testing.T) {
			run(&suite{T: t, Backend: open(t), ctx: context.Background()})
		})
	}
	titles, steps := readHistories()
	for _, title := range titles {
		test(title, func(s *suite) { s.playSteps(steps[title]...) })
	}
	test("names are any bytes", anyBytes)
	test("renewing may make a lease longer", renewForLonger)
	test("waiting pages through the users in line", waiting)
	test("the line is bounded", bounded)
	test("a call that cannot be meant, or whose context has ended, does nothing", refusedCalls)
	test("many workers run every job once, never above the limit", everyJobOnce)
	test("many attempts at one job take one slot", oneJob)
	test("random calls do what those of NewMemory do", random)
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
	ctx   context.Context
	names names // in the steps of histories
}

// newClaim returns a claim on a job whose holder is named after the job.
func newClaim(user, id, queue string) jobs.Claim {
	job := jobs.Job{User: user, ID: id, Queue: queue}
	return jobs.Claim{Job: job, Holder: defaultHolder(job)}
}

// sortClaims brings claims that were lost into one order: they come in any.
func sortClaims(claims []jobs.Claim) {
	slices.SortFunc(claims, func(a, b jobs.Claim) int {
		return strings.Compare(a.User+"\x00"+a.ID+"\x00"+a.Holder, b.User+"\x00"+b.ID+"\x00"+b.Holder)
	})
}

func limitOf(n int) jobs.Limits { return jobs.Limits{Total: n} }

// afterTime lets the time go on, by d at least, and checks what then has to be so.
func (s *suite) afterTime(d time.Duration, what string, check func() error) {
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
