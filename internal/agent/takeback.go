package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
)

// runtimeAPI withdraws credit: runtimeapi.Client.
type runtimeAPI interface {
	Variable(ctx context.Context, name string) (value string, process uint64, err error)
	Withdraw(ctx context.Context, granted uint32, keys []string, seconds ...int64) ([]runtimeapi.Withdrawal, error)
	Read(ctx context.Context, table string, keys []string) ([]runtimeapi.Entry, error)
}

// runWithdrawals takes credit back from HAProxy until ctx ends.
func (a *Agent) runWithdrawals(ctx context.Context) error {
	due, probe := time.NewTimer(probeEvery), time.NewTicker(probeEvery)
	defer due.Stop()
	defer probe.Stop()
	failures := afterStart()
	a.probeRuntime(ctx, &failures)
	for {
		select {
		case <-ctx.Done():
			return nil
		// Also while nothing is withdrawn: whoever cannot take credit back must not give any.
		case <-probe.C:
			a.probeRuntime(ctx, &failures)
			continue
		case <-a.limiter.credits.wake:
		case <-due.C:
		}
		for {
			work, next := a.limiter.dueWithdrawals()
			// Asleep until something is due, or a core says so.
			if work.isEmpty() {
				due.Reset(next)
				break
			}
			err := a.takeBack(ctx, work)
			if a.noteRuntime(&failures, err); err != nil {
				a.metrics.withdrawalErrors.Inc()
				// By then what was not answered is due again (askAgain).
				due.Reset(withdrawRetry)
				break
			}
		}
	}
}

// probeRuntime finds out whether HAProxy's runtime API answers.
func (a *Agent) probeRuntime(ctx context.Context, failures *failureTimes) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	// Of one row that need not be there: an answer is all that is wanted.
	_, err := a.runtime.Read(ctx, creditEntries, []string{creditRow})
	a.noteRuntime(failures, err)
}

// noteRuntime notes whether HAProxy's runtime API answered: without it no credit is given.
func (a *Agent) noteRuntime(failures *failureTimes, err error) {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.limiter.credits.reachable = err == nil
	// The agent ends: that says nothing about HAProxy.
	if errors.Is(err, context.Canceled) {
		return
	}
	if warn, _ := failures.note(err); warn {
		a.options.Logger.Warn("haproxy's runtime API does not answer: it gets no credit, and asks about every request", slog.Any("error", err))
	}
}

type withdrawalWork struct {
	withdraw []string // users whose credit is to be taken back
	read     []string // users of whom it is to be read how much is in progress
	process  int      // of credits.processes: whom that was decided for
}

func (w withdrawalWork) isEmpty() bool { return len(w.withdraw)+len(w.read) == 0 }

// dueWithdrawals is what HAProxy is to be asked now. If that is nothing, something is due next.
func (l *limiter) dueWithdrawals() (work withdrawalWork, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.credits
	// Those whose credit is to end go first: each of them keeps requests waiting. Looks at others have what is left.
	n := min(len(c.due), withdrawBatch)
	work = withdrawalWork{withdraw: slices.Clone(c.due[:n]), process: c.processes}
	c.due = slices.Delete(c.due, 0, n)
	now := l.clock.Now()
	next = probeEvery
	for user, at := range c.polls {
		// Who does not fit into this batch is due at once with the next one: the loop goes on until
		// there is nothing to do.
		if left := at.Sub(now); left > 0 || len(work.withdraw)+len(work.read) >= withdrawBatch {
			next = min(next, max(left, 0))
			continue
		}
		delete(c.polls, user)
		// Whom HAProxy has not confirmed it is asked again; of the others only what still runs matters.
		if w := c.withdrawals[user]; w != nil && w.told == 0 {
			work.withdraw = append(work.withdraw, user)
		} else if w != nil {
			work.read = append(work.read, user)
		}
	}
	return work, next
}

// askAgain puts users back of whom HAProxy did not answer.
func (l *limiter) askAgain(users []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, user := range users {
		l.credits.polls[user] = l.clock.Now().Add(withdrawRetry)
	}
}

// takeBack withdraws the credit of some users, and reads what is in progress of others.
func (a *Agent) takeBack(ctx context.Context, work withdrawalWork) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if len(work.withdraw) > 0 {
		// HAProxy's clock is this machine's, and may go on to the next second meanwhile. The cluster's second may be the one before.
		here := time.Now().Unix()
		entries, err := a.runtime.Withdraw(ctx, creditSecond(a.limiter.clock.Now()), work.withdraw, here-1, here, here+1)
		if err != nil {
			// It may have done it all the same, and does it once more then.
			a.limiter.askAgain(work.withdraw)
			a.limiter.askAgain(work.read)
			return err
		}
		a.metrics.withdrawals.Add(float64(len(entries)))
		a.takeAnswer(work.process, func(now time.Time) {
			for i := range entries {
				a.limiter.confirmWithdrawal(now, &entries[i])
			}
		})
	}
	// After the withdrawals, which are urgent, with what is left of the time.
	if len(work.read) > 0 {
		entries, err := a.runtime.Read(ctx, creditEntries, work.read)
		if err != nil {
			a.limiter.askAgain(work.read)
			return err
		}
		a.takeAnswer(work.process, func(now time.Time) {
			for i := range entries {
				a.limiter.stillInProgress(now, &entries[i])
			}
		})
	}
	return nil
}

// takeAnswer takes what a process of HAProxy has answered, unless it was replaced meanwhile: the
// new one has not heard of the withdrawal, and all of them are due again (withdrawAgain).
func (a *Agent) takeAnswer(process int, take func(now time.Time)) {
	a.limiter.update(func(now time.Time) {
		// An answer of the old one would let the core count what the new one may still spend.
		if a.limiter.credits.processes == process {
			take(now)
		}
	})
}
