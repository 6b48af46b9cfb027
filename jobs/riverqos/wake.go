package riverqos

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	// maxNaps bounds the jobs of a process that wait until River has written that they are
	// scheduled. The sweep wakes those beyond.
	maxNaps = 10_000
	// napping is how long a process tries to wake a job; after that the sweep does. River
	// writes within 250 ms, unless it is in trouble.
	napping = 2 * time.Second
)

// nap is a job that could not be woken yet.
type nap struct {
	job          jobs.Job
	next, giveUp time.Time
	delay        time.Duration
}

// naps are the jobs that this process tries to wake again.
type naps struct {
	mu   sync.Mutex
	of   map[jobs.Job]nap
	wake chan struct{} // of capacity 1: there are new ones
}

func (n *naps) add(all ...nap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[jobs.Job]nap{}
	}
	for _, x := range all {
		if len(n.of) < maxNaps {
			n.of[x.job] = x
		}
	}
	poke(n.wake)
}

// due removes and returns the naps whose time has come, and how long it is until the next.
func (n *naps) due(now time.Time) (due []nap, next time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next = time.Hour
	for job, x := range n.of {
		if x.next.After(now) {
			next = min(next, x.next.Sub(now))
			continue
		}
		due = append(due, x)
		delete(n.of, job)
	}
	return due, next
}

// wake makes jobs for which slots are reserved available to workers.
func (f *Fairness) wake(ctx context.Context, handed []jobs.Job) {
	if len(handed) == 0 {
		return
	}
	now := time.Now()
	all := make([]nap, len(handed))
	for i, j := range handed {
		all[i] = nap{job: j, giveUp: now.Add(min(napping, f.cfg.Reserve)), delay: 10 * time.Millisecond}
	}
	f.rouse(ctx, all)
}

// rouse tries to wake jobs, and plans another try for those that River has not written yet.
func (f *Fairness) rouse(ctx context.Context, all []nap) {
	ctx, cancel := context.WithTimeout(ctx, finishing)
	defer cancel()
	for len(all) > 0 {
		var ids []int64
		ours := all[:0:0]
		for _, x := range all {
			if id, ok := f.id(x.job); ok { // jobs of other namespaces have wakers of their own
				ids, ours = append(ids, id), append(ours, x)
			}
		}
		found, err := f.db.wake(ctx, ids)
		if err != nil {
			f.metrics.Wakes.WithLabelValues("error").Add(float64(len(ours)))
			f.failed("wake", "jobs could not be woken", err)
			f.napAgain(ours)
			return
		}
		var again []nap
		all = nil
		for i, x := range ours {
			result := found[ids[i]]
			f.metrics.Wakes.WithLabelValues(result.String()).Inc()
			switch result {
			case early:
				again = append(again, x)
			case gone:
				all = append(all, f.next(ctx, x)...)
			}
		}
		f.napAgain(again)
	}
}

// next gives the reservation of a job that does not exist any more to the user's next job.
func (f *Fairness) next(ctx context.Context, x nap) (handed []nap) {
	if err := f.cfg.Slots.Forget(ctx, x.job); err != nil {
		f.failed("forget", "a job that is gone could not be forgotten", err)
		return nil
	}
	all, err := f.cfg.Slots.Hand(ctx, x.job.User, f.tier(ctx, x.job.User).Limits, f.cfg.Reserve)
	if err != nil {
		f.failed("hand", "a slot could not be handed on", err)
		return nil
	}
	f.metrics.Handed.Add(float64(len(all)))
	for _, j := range all {
		handed = append(handed, nap{job: j, giveUp: x.giveUp, delay: 10 * time.Millisecond})
	}
	return handed
}

// napAgain plans the next try of jobs, unless it has been tried for long enough.
func (f *Fairness) napAgain(all []nap) {
	now := time.Now()
	later := all[:0:0]
	for _, x := range all {
		x.next, x.delay = now.Add(x.delay), min(2*x.delay, 100*time.Millisecond)
		if x.next.Before(x.giveUp) {
			later = append(later, x)
		}
	}
	f.naps.add(later...)
}

// wakeLoop wakes jobs that could not be woken at once.
func (f *Fairness) wakeLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.naps.wake:
		case <-timer.C:
		}
		due, next := f.naps.due(time.Now())
		if len(due) > 0 {
			f.rouse(ctx, due)
			next = 0 // look again
		}
		timer.Reset(next)
	}
}

// poke sends without waiting. If a message waits already, one more would say nothing new.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
