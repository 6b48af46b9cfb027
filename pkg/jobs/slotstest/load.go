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

var loadLimits = jobs.Limits{Total: 3, Queues: map[string]int{"slow": 1, "fast": 2}}

// everyJobOnce has many workers run the jobs of some users. Those of users with an even
// number are never parked: whoever is refused comes again at once, so that many compete
// for each free slot. Of the others a job that is refused is left, and comes again only
// when it is woken for a slot: if one wake-up were lost, its line would stand for ever.
func everyJobOnce(s *suite) {
	const users = 12
	n := 1200
	if s.Slow {
		n = 240
	}
	fleet := &fleet{suite: s, ran: make([]atomic.Int32, n), queue: make(chan jobs.Claim, 3*n)}
	for range users {
		fleet.running = append(fleet.running, map[string]*atomic.Int32{"slow": {}, "fast": {}})
	}
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
	running []map[string]*atomic.Int32 // what really runs of each user, by queue
	ran     []atomic.Int32             // how often each job did
	queue   chan jobs.Claim            // jobs to try, for which there is always room
	left    atomic.Int64               // jobs that have not run
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
	i, err := strconv.Atoi(claim.ID)
	if err != nil {
		return err
	}
	user := i % len(f.running)
	park := user%2 == 1
	verdict, err := f.Slots.Acquire(f.ctx, claim, loadLimits, long, park)
	switch {
	case err != nil:
		return err
	case !verdict.Granted && park != (verdict.Place > 0):
		return fmt.Errorf("Acquire(%q) = %+v, want it granted, or parked if it is to be", claim.Job, verdict)
	case !verdict.Granted && !park:
		f.queue <- claim
		return nil
	case !verdict.Granted:
		return nil
	}
	if err := f.runJob(user, claim.Queue); err != nil {
		return err
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

// runJob is a job that runs. It fails if too many do meanwhile, as the workers count them,
// whatever the back end says.
func (f *fleet) runJob(user int, queue string) error {
	running := f.running[user]
	running[queue].Add(1)
	slow, fast := running["slow"].Load(), running["fast"].Load()
	for range 5 { // others get to run
		runtime.Gosched()
	}
	running[queue].Add(-1)
	if slow > 1 || fast > 2 {
		return fmt.Errorf("of user %d %d slow and %d fast jobs ran, want at most 1 and 2", user, slow, fast)
	}
	return nil
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
