package slotstest

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const workers = 64

// A gauge counts what really runs of one user, by the workers and not by the back
// end, in all queues and in each.
type gauge struct {
	total, slow, fast atomic.Int64
}

var loadLimits = jobs.Limits{Total: 3, Queues: map[string]int{"slow": 1, "fast": 2}}

// runJob is a job that runs. It reports what was above its limit meanwhile.
func (g *gauge) runJob(queue string) (above string) {
	of, limit := &g.slow, int64(1)
	if queue == "fast" {
		of, limit = &g.fast, 2
	}
	inTotal, inQueue := g.total.Add(1), of.Add(1)
	for range 5 { // others get to run
		runtime.Gosched()
	}
	g.total.Add(-1)
	of.Add(-1)
	if inTotal > 3 || inQueue > limit {
		above = fmt.Sprintf("%d ran, %d of them in queue %s, want at most 3 and %d", inTotal, inQueue, queue, limit)
	}
	return above
}

// everyJobOnce has workers that do nothing but what they are told: a job that is
// refused is left, and comes again only when it is woken for a slot. If one wake-up were
// lost, its line would stand for ever.
func everyJobOnce(s *suite) {
	const users = 12
	n := 1200
	if s.Slow {
		n = 240
	}
	fleet := &fleet{suite: s, gauges: make([]gauge, users), ran: make([]atomic.Int32, n), queue: make(chan jobs.Claim, 3*n)}
	for i := range n {
		fleet.queue <- newClaim(fmt.Sprint("user", i%users), fmt.Sprint(i), [...]string{"slow", "fast", "fast"}[i/users%3])
	}
	fleet.left.Store(int64(n))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { fleet.workUntil(stop) })
	}
	fleet.waitUntilDone()
	close(stop)
	all.Wait()
	for i := range users {
		s.playSteps(fmt.Sprintf("usage user%d -> nothing", i))
	}
}

// fleet is the workers of everyJobOnce.
type fleet struct {
	*suite
	gauges []gauge         // of the users
	ran    []atomic.Int32  // how often each job did
	queue  chan jobs.Claim // jobs to try, for which there is always room
	left   atomic.Int64    // jobs that have not run
}

func (f *fleet) workUntil(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case claim := <-f.queue:
			if err := f.runIfGranted(claim); err != nil {
				f.Error(err)
				return
			}
		}
	}
}

// runIfGranted runs a job if it gets a slot, and queues the jobs that get the slot after it.
func (f *fleet) runIfGranted(claim jobs.Claim) error {
	verdict, err := f.Slots.Acquire(f.ctx, claim, loadLimits, long, true)
	switch {
	case err != nil:
		return err
	case !verdict.Granted && verdict.Place == 0:
		return fmt.Errorf("Acquire(%q) = %+v, want it granted or parked", claim.Job, verdict)
	case !verdict.Granted:
		return nil
	}
	i, err := strconv.Atoi(claim.ID)
	if err != nil {
		return err
	}
	if above := f.gauges[i%len(f.gauges)].runJob(claim.Queue); above != "" {
		return fmt.Errorf("%s: %s", claim.User, above)
	}
	if f.ran[i].Add(1) > 1 {
		return fmt.Errorf("%q ran again", claim.Job)
	}
	reserved, err := f.Slots.Release(f.ctx, claim, loadLimits, long)
	for _, next := range reserved {
		f.queue <- newClaim(next.User, next.ID, next.Queue)
	}
	f.left.Add(-1)
	return err
}

// waitUntilDone waits until all jobs have run, something has failed, or nothing has run for as long
// as the suite's patience.
func (f *fleet) waitUntilDone() {
	progress, before := time.Now(), f.left.Load()
	for before > 0 {
		<-time.After(10 * time.Millisecond)
		left := f.left.Load()
		if left < before {
			progress, before = time.Now(), left
		}
		if f.Failed() || time.Since(progress) > patience {
			f.Errorf("%d jobs of %d did not run", left, len(f.ran))
			return
		}
	}
}

// withoutLine has workers that come again by themselves.
func withoutLine(s *suite) {
	const users = 5
	each := 40 // attempts of each worker
	if s.Slow {
		each = 8
	}
	gauges := make([]gauge, users)
	var all sync.WaitGroup
	var grants, refusals atomic.Int64
	for worker := range workers {
		all.Go(func() {
			for i := range each {
				n := (worker*7 + i) % users
				c := newClaim(fmt.Sprint("user", n), fmt.Sprint(worker, "-", i), [...]string{"slow", "fast"}[(worker+i)%2])
				v, err := s.Slots.Acquire(s.ctx, c, loadLimits, long, false)
				if err != nil {
					s.Errorf("Acquire(%q) = %v", c.Job, err)
					return
				}
				if v.Place != 0 || v.Running > 3 {
					s.Errorf("Acquire(%q) = %+v, want none parked and at most 3 running", c.Job, v)
				}
				if !v.Granted {
					refusals.Add(1)
					continue
				}
				grants.Add(1)
				if above := gauges[n].runJob(c.Queue); above != "" {
					s.Errorf("%s: %s", c.User, above)
				}
				if reserved, err := s.Slots.Release(s.ctx, c, loadLimits, long); err != nil || len(reserved) > 0 {
					s.Errorf("Release(%q) = %q, %v, want it reserved for nobody", c.Job, reserved, err)
				}
			}
		})
	}
	all.Wait()
	s.Logf("%d granted, %d refused", grants.Load(), refusals.Load())
	if grants.Load() < users {
		s.Errorf("%d granted, want some", grants.Load())
	}
	for i := range users {
		s.playSteps(fmt.Sprintf("usage user%d -> nothing", i))
	}
}

// oneJob has all workers try the same job, each as another holder.
func oneJob(s *suite) {
	one := jobs.Job{User: "alice", ID: "1", Queue: "q"}
	s.playSteps("acquire alice:1@q!first of 2 -> granted, 1 running, 1 in its queue")
	var all sync.WaitGroup
	var reserved atomic.Int64
	for worker := range workers {
		all.Go(func() {
			verdict, err := s.Slots.Acquire(s.ctx, jobs.Claim{Job: one, Holder: fmt.Sprint(worker)}, limitOf(1), long, true)
			if want := (jobs.Verdict{Granted: true, Running: 1, InQueue: 1}); err != nil || verdict != want {
				s.Errorf("Acquire = %+v, %v, want %+v", verdict, err, want)
			}
		})
	}
	all.Wait()
	s.playSteps("acquire alice:2@q of 1 -> refused, 1 running, 1 in its queue, place 1")
	for worker := range workers { // one of them holds it
		all.Go(func() {
			list, err := s.Slots.Release(s.ctx, jobs.Claim{Job: one, Holder: fmt.Sprint(worker)}, limitOf(1), long)
			if err != nil {
				s.Errorf("Release = %v", err)
			}
			reserved.Add(int64(len(list)))
		})
	}
	all.Wait()
	if reserved.Load() != 1 {
		s.Errorf("the slot was reserved for %d, want 1", reserved.Load())
	}
	s.playSteps("usage alice -> reserved alice:2@q")
}

// noLostWake lets a job be refused and parked while the only slot is freed, again and
// again: it is granted the slot, or it is reserved for the job, but never left.
func noLostWake(s *suite) {
	rounds := 300
	if s.Slow {
		rounds = 60
	}
	granted, reserved := 0, 0
	for i := range rounds {
		user := fmt.Sprint("user", i%20)
		holds, comes := newClaim(user, fmt.Sprint("holds", i), "q"), newClaim(user, fmt.Sprint("comes", i), "q")
		if v, err := s.Slots.Acquire(s.ctx, holds, limitOf(1), long, false); err != nil || !v.Granted {
			s.Fatalf("Acquire(%q) = %+v, %v, want it granted", holds.Job, v, err)
		}
		var v jobs.Verdict
		var woken []jobs.Job
		var parkErr, freeErr error
		var both sync.WaitGroup
		both.Go(func() { v, parkErr = s.Slots.Acquire(s.ctx, comes, limitOf(1), long, true) })
		both.Go(func() { woken, freeErr = s.Slots.Release(s.ctx, holds, limitOf(1), long) })
		both.Wait()
		if parkErr != nil || freeErr != nil {
			s.Fatalf("Acquire and Release: %v, %v", parkErr, freeErr)
		}
		if v.Granted == (len(woken) == 1) || !v.Granted && woken[0] != comes.Job {
			s.Fatalf("round %d: Acquire = %+v and Release = %q, want either to give the slot", i, v, woken)
		}
		if v.Granted {
			granted++
		} else {
			reserved++
			s.playSteps("acquire " + s.claimText(comes) + " of 1 -> granted, 1 running, 1 in its queue")
		}
		s.playSteps("release " + s.claimText(comes) + " of 1 -> nothing")
	}
	s.Logf("%d granted, %d reserved", granted, reserved)
}
