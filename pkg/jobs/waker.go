package jobs

import (
	"context"
	"time"
)

const (
	// maxWakeRetries bounds the jobs of a process that wait until their queue has written that
	// they wait. The sweep wakes those beyond.
	maxWakeRetries = 10_000
	// wakeRetryFor is how long a process tries to wake a job; after that the sweep does. River
	// writes within 250 ms, and other queues at once, unless they are in trouble.
	wakeRetryFor = 2 * time.Second
	// wakeRetryInterval is the time between two tries, each of which is one call for all
	// jobs. Most are written within some milliseconds.
	wakeRetryInterval = 25 * time.Millisecond
)

// waker makes jobs available to workers when slots have been reserved for them.
type waker struct {
	*runnerParts
	retries chan wakeTry // that this process makes again
}

// wakeReserved makes jobs available for which slots are reserved.
func (w *waker) wakeReserved(ctx context.Context, reserved []Job) {
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

// tryWake tries to wake jobs, and plans another try for those that the queue has not written yet.
func (w *waker) tryWake(ctx context.Context, tries []wakeTry) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	// Again for the jobs that get the slots of those that are gone.
	for len(tries) > 0 {
		ids := make([]string, len(tries))
		for i, try := range tries {
			ids[i] = try.job.ID
		}
		results, err := w.cfg.Queue.Wake(ctx, ids)
		if err != nil {
			w.metrics.Wakes.WithLabelValues("error").Add(float64(len(tries)))
			w.failures.report("wake", "jobs with a reserved slot could not be made available yet", err)
			// It may have been done, but a job that is available already takes no harm.
			w.planRetries(tries)
			return
		}
		var unwritten, next []wakeTry
		for _, try := range tries {
			result := results[try.job.ID]
			w.countWake(result)
			switch result {
			// The queue writes some milliseconds after the worker has refused the job.
			case WakeEarly:
				unwritten = append(unwritten, try)
			// Nobody would take the slot until the reservation lapses.
			case WakeGone:
				next = append(next, w.passOn(ctx, try)...)
			}
		}
		tries = next
		w.planRetries(unwritten)
	}
}

// countWake counts a result. Jobs of other queues are not this one's to count.
func (r *runnerParts) countWake(result WakeResult) {
	if result != WakeForeign {
		r.metrics.Wakes.WithLabelValues(result.String()).Inc()
	}
}

// reserveFree reserves a user's free slots, and counts them.
func (r *runnerParts) reserveFree(ctx context.Context, user string, limits Limits) ([]Job, error) {
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
	reserved, err := w.reserveFree(ctx, user, w.Budget().Tier(ctx, user).Limits)
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
		var tries []wakeTry
		for range len(w.retries) {
			tries = append(tries, <-w.retries)
		}
		w.tryWake(ctx, tries)
	})
}

// wakeTry is a try to wake a job, which is not tried again after giveUp.
type wakeTry struct {
	job    Job
	giveUp time.Time
}

// planRetries plans another try of jobs, unless they have been tried for long enough. A job that is not planned here
// loses its reservation when that lapses, and the sweep finds it.
func (w *waker) planRetries(tries []wakeTry) {
	for _, try := range tries {
		if !time.Now().Before(try.giveUp) {
			continue
		}
		select {
		case w.retries <- try:
		default:
		}
	}
}
