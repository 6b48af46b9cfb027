package riverqos

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	// maxWakeRetries bounds the jobs of a process that wait until River has written that they
	// are scheduled. The sweep wakes those beyond.
	maxWakeRetries = 10_000
	// wakeRetryFor is how long a process tries to wake a job; after that the sweep does. River
	// writes within 250 ms, unless it is in trouble.
	wakeRetryFor = 2 * time.Second
	// wakeRetryInterval is the time between two tries, each of which is one statement for all
	// jobs. Most are written within some milliseconds.
	wakeRetryInterval = 25 * time.Millisecond
)

// waker makes jobs available to workers when slots have been reserved for them.
type waker struct {
	*resources
	// wakeJobs is store.wakeJobs, but in tests.
	wakeJobs func(ctx context.Context, ids []int64) (map[int64]wakeResult, error)
	retries  wakeRetries
}

func newWaker(shared *resources) *waker {
	return &waker{resources: shared, wakeJobs: shared.store.wakeJobs}
}

// wakeReserved makes jobs available for which slots are reserved.
func (w *waker) wakeReserved(ctx context.Context, reserved []jobs.Job) {
	if len(reserved) == 0 {
		return
	}
	// No longer than the reservation lasts: the slot is not the job's any more then.
	now := time.Now()
	tries := make([]wakeTry, len(reserved))
	for i, job := range reserved {
		tries[i] = wakeTry{job, now.Add(min(wakeRetryFor, w.cfg.Reserve))}
	}
	w.tryWake(ctx, tries)
}

// tryWake tries to wake jobs, and plans another try for those that River has not written yet.
func (w *waker) tryWake(ctx context.Context, tries []wakeTry) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	// Again for the jobs that get the slots of those that are gone.
	for len(tries) > 0 {
		var ids []int64
		ours := tries[:0:0]
		for _, try := range tries {
			// Jobs of other namespaces are in other databases, which have wakers of their own.
			if id, ok := w.names.riverID(try.job); ok {
				ids, ours = append(ids, id), append(ours, try)
			}
		}
		results, err := w.wakeJobs(ctx, ids)
		if err != nil {
			w.metrics.Wakes.WithLabelValues("error").Add(float64(len(ours)))
			w.failures.report("wake", "jobs with a reserved slot could not be made available yet", err)
			// The statement may have been done, but a job that is available already takes no harm.
			w.retries.planRetries(ours, time.Now())
			return
		}
		var unwritten []wakeTry
		tries = nil
		for i, try := range ours {
			result := results[ids[i]]
			w.metrics.Wakes.WithLabelValues(result.String()).Inc()
			switch result {
			// River writes some milliseconds after the worker has refused the job.
			case wakeEarly:
				unwritten = append(unwritten, try)
			// Nobody would take the slot until the reservation lapses.
			case wakeGone:
				tries = append(tries, w.passOn(ctx, try)...)
			}
		}
		w.retries.planRetries(unwritten, time.Now())
	}
}

// reserveFree reserves a user's free slots, and counts them.
func (r *resources) reserveFree(ctx context.Context, user string, limits jobs.Limits) ([]jobs.Job, error) {
	reserved, err := r.cfg.Slots.ReserveFree(ctx, user, limits, r.cfg.Reserve)
	r.metrics.Reserved.Add(float64(len(reserved)))
	return reserved, err
}

// passOn gives the reservation of a job that does not exist any more to the user's next jobs.
func (w *waker) passOn(ctx context.Context, gone wakeTry) (next []wakeTry) {
	// First, or the job's reservation would fill the slot that is to be passed on.
	if err := w.cfg.Slots.Forget(ctx, gone.job); err != nil {
		w.failures.report("forget", "the reservation of a job that is gone could not be dropped", err)
		return nil
	}
	user := gone.job.User
	reserved, err := w.reserveFree(ctx, user, w.tiers.budget().tierOf(ctx, user).Limits)
	if err != nil {
		w.failures.report("reserve", "a slot could not be reserved for the next job", err)
		return nil
	}
	for _, job := range reserved {
		next = append(next, wakeTry{job, gone.giveUp})
	}
	return next
}

// runRetries wakes jobs that could not be woken at once.
func (w *waker) runRetries(ctx context.Context) {
	callEvery(ctx, wakeRetryInterval, func() {
		if tries := w.retries.takeAll(); len(tries) > 0 {
			w.tryWake(ctx, tries)
		}
	})
}

// wakeTry is a try to wake a job, which is not tried again after giveUp.
type wakeTry struct {
	job    jobs.Job
	giveUp time.Time
}

// wakeRetries are the jobs that this process tries to wake again.
type wakeRetries struct {
	mu    sync.Mutex
	tries []wakeTry
}

// planRetries plans another try of jobs, unless they have been tried for long enough.
func (r *wakeRetries) planRetries(tries []wakeTry, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, try := range tries {
		// What is not planned here loses its reservation when that lapses, and the sweep finds it.
		if now.Before(try.giveUp) && len(r.tries) < maxWakeRetries {
			r.tries = append(r.tries, try)
		}
	}
}

// takeAll removes and returns all.
func (r *wakeRetries) takeAll() []wakeTry {
	r.mu.Lock()
	defer r.mu.Unlock()
	tries := r.tries
	r.tries = nil
	return tries
}
