package spoa

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/credit"
)

// runtimeAPI takes credit back: runtimeapi.Client.
type runtimeAPI interface {
	Withdraw(ctx context.Context, second uint32, keys []string) ([]runtimeapi.Entry, error)
	Read(ctx context.Context, table string, keys []string) ([]runtimeapi.Entry, error)
}

const (
	// creditEntries is haproxy.cfg's table of credit.
	creditEntries = "sluice_credit"
	// creditRows is creditTable as the runtime API calls it.
	creditRows = "sluice/credit"
)

// Elements of an entry of that table.
const (
	endElement    = 1 // gpt: the second at which the tickets in force end
	factorElement = 4 // gpt
	freshElement  = 5 // gpt: 1 if there are tickets in that second
	eachElement   = 6 // gpt, of the first class; the last ticket is behind it, and then the next class
	drawnElement  = 1 // gpc, of the first class; then the next one
)

const (
	// withdrawBatch bounds the users whose credit is taken back with one message.
	withdrawBatch = 50
	// withdrawTimeout bounds the time of one, and withdrawRetry is when it is tried again.
	withdrawTimeout = 200 * time.Millisecond
	withdrawRetry   = 50 * time.Millisecond
	// firstPoll and slowestPoll are how soon it is looked again how many requests are
	// still in progress that HAProxy had admitted by itself.
	firstPoll   = 5 * time.Millisecond
	probeEvery  = time.Second // whether the runtime API answers
	slowestPoll = 100 * time.Millisecond
	// withoutCredit is how long users have none whose requests in progress have reached
	// their portion.
	withoutCredit = 2 * time.Second
	// startGrace is how long HAProxy may take to answer after this agent has started: they are
	// started in any order.
	startGrace = 10 * time.Second
	// renewWithdrawal is when one that lasts is repeated: HAProxy forgets an entry that is
	// not used after 10 minutes, and may then give credit by itself.
	renewWithdrawal = 2 * time.Minute
)

// withdraw sees to it that a user has no credit through a second, and in any case through
// the next one; l.mu is held. A request that HAProxy's short way is just letting through sees
// that the credit is gone, but not if there is some again: see haproxy.cfg.
func (l *limiter) withdraw(now time.Time, user string, through int64) {
	c := &l.credits
	w := c.withdrawals[user]
	through = max(through, now.Unix()+1) // see creditSecond
	switch {
	case w == nil && len(c.withdrawals) >= maxWithdrawals:
		l.metrics.withdrawalsDropped.Inc()
	case w == nil:
		c.withdrawals[user] = &withdrawal{through: through, renewed: now}
		c.due = append(c.due, user)
		notify(c.wake)
	case through > w.through:
		w.through = through
		if w.told > 0 && through > w.told { // HAProxy has none: nothing of the further seconds is spent
			for r := range l.inForce.limitsOf(user).Rates() {
				l.tokens.Recalled(now, user, r, w.told+1, 0, through)
			}
			w.told = through
		}
		if now.Sub(w.renewed) > renewWithdrawal {
			w.renewed, w.repeat = now, true
			c.due = append(c.due, user)
			notify(c.wake)
		}
	}
}

// withdrawAgain takes credit back once more from all who shall have none: a new process of
// HAProxy has no entries that say so; l.mu is held.
func (c *credits) withdrawAgain() {
	c.processes++
	c.ended.clear()
	for user, w := range c.withdrawals {
		w.again, w.told = true, 0
		c.due = append(c.due, user)
	}
	notify(c.wake)
}

// confirmedAgain reports whether the new process has confirmed them all; l.mu is held.
func (c *credits) confirmedAgain() bool {
	for _, w := range c.withdrawals {
		if w.again {
			return false
		}
	}
	return true
}

// withdrawHot takes back the credit of a user who is near a limit, if they can have any.
func (l *limiter) withdrawHot(now time.Time, key string, until time.Time) {
	set := l.inForce.set.Load()
	if set == nil || l.inForce.instances.Load() <= 1 || !l.inForce.possible(set, key, set.User(key)) {
		return
	}
	l.withdraw(now, key, min(until.Unix(), now.Unix()+int64(hotFor.Seconds())))
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
		case <-probe.C:
			a.probeRuntime(ctx, &failures)
			continue
		case <-a.limiter.credits.wake:
		case <-due.C:
		}
		for {
			work, next := a.limiter.dueWithdrawals()
			if work.isEmpty() {
				due.Reset(next)
				break
			}
			err := a.takeBack(ctx, work)
			if a.noteRuntime(&failures, err); err != nil {
				a.metrics.withdrawalErrors.Inc()
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
	_, err := a.runtime.Read(ctx, creditEntries, []string{creditRow})
	a.noteRuntime(failures, err)
}

// noteRuntime notes whether HAProxy's runtime API answered: without it no credit is given.
func (a *Agent) noteRuntime(failures *failureTimes, err error) {
	a.limiter.mu.Lock()
	defer a.limiter.mu.Unlock()
	a.limiter.credits.reachable = err == nil
	if errors.Is(err, context.Canceled) { // the agent ends: that says nothing about HAProxy
		return
	}
	if warn, _ := failures.note(err); warn {
		a.options.Logger.Warn("haproxy's runtime API does not answer: it gets no credit, and asks about every request", slog.Any("error", err))
	}
}

// withdrawalWork is what HAProxy is to be asked next.
type withdrawalWork struct {
	withdraw []string // users whose credit is to be taken back
	read     []string // users of whom it is to be read how much is in progress
	process  int      // of credits.processes: whom that was decided for
}

func (w withdrawalWork) isEmpty() bool { return len(w.withdraw)+len(w.read) == 0 }

// takeBack withdraws the credit of some users, and reads what is in progress of others.
func (a *Agent) takeBack(ctx context.Context, work withdrawalWork) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if len(work.withdraw) > 0 {
		entries, err := a.runtime.Withdraw(ctx, creditSecond(a.limiter.clock.Now()), work.withdraw)
		if err != nil {
			a.limiter.askAgain(work.withdraw)
			a.limiter.askAgain(work.read)
			return err
		}
		a.metrics.withdrawals.Add(float64(len(entries)))
		a.takeAnswer(work.process, func(now time.Time) {
			for i := range entries {
				a.limiter.confirmWithdrawal(now, time.Now(), &entries[i])
			}
		})
	}
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
		if a.limiter.credits.processes == process {
			take(now)
		}
	})
}

// dueWithdrawals is what HAProxy is to be asked now. If that is nothing, something is due next.
func (l *limiter) dueWithdrawals() (work withdrawalWork, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.credits
	n := min(len(c.due), withdrawBatch)
	work = withdrawalWork{withdraw: slices.Clone(c.due[:n]), process: c.processes}
	c.due = slices.Delete(c.due, 0, n)
	now := l.clock.Now()
	next = probeEvery
	for user, at := range c.polls {
		if left := at.Sub(now); left > 0 || len(work.withdraw)+len(work.read) >= withdrawBatch {
			next = min(next, max(left, 0))
			continue
		}
		delete(c.polls, user)
		if w := c.withdrawals[user]; w != nil && (w.told == 0 || w.repeat) {
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

// confirmWithdrawal takes HAProxy's word that a user has no credit any more, and tells the cores
// what was spent of it in this second; l.mu is held. here is this machine's time, which
// is HAProxy's.
func (l *limiter) confirmWithdrawal(now, here time.Time, e *runtimeapi.Entry) {
	c := &l.credits
	w := c.withdrawals[e.Key]
	if w == nil {
		return
	}
	if gpt(e, 0) != 0 { // a request that was about to give itself credit has written since
		c.polls[e.Key] = now.Add(firstPoll)
		return
	}
	w.repeat = false
	if w.told > 0 { // what was spent before is known, and nothing was since
		return
	}
	w.through = max(w.through, now.Unix()+1) // HAProxy may have answered late; see withdraw
	of := l.inForce.limitsOf(e.Key)
	classes := strings.Fields(c.classes)
	// HAProxy's second is one of this machine's clock, which may be in another than the
	// cluster's: they are the same by their numbers. Tickets of a second that has just ended here
	// may be of the cluster's present one. If there are none of either, nothing is spent in it.
	second, inForce := now.Unix(), false
	if end := int64(gpt(e, endElement)); end >= here.Unix() {
		second, inForce = l.clusterSecond(time.Unix(end-1, 0)), true
	}
	for r := range of.Rates() {
		spent := 0
		if i := slices.Index(classes, r.Class); i >= 0 && inForce {
			spent = ticketsSpent(e, i)
		}
		l.tokens.Recalled(now, e.Key, r, second, spent, w.through)
	}
	c.ended.put(e.Key, now)
	w.told, w.again = w.through, false
	w.rest = e.ConnCur
	l.tellRest(now, e.Key, w)
}

// clusterSecond is the number that the cluster gives a second of this machine's clock, which is
// HAProxy's. It may begin up to half a second sooner or later than the cluster's of that number.
func (l *limiter) clusterSecond(here time.Time) int64 {
	return here.Add(l.clock.Offset().Round(time.Second)).Unix()
}

// ticketsSpent is how many tickets of a class HAProxy has admitted with in the second in force.
func ticketsSpent(e *runtimeapi.Entry, class int) int {
	if gpt(e, freshElement) != 1 {
		return 0
	}
	each, last := int(gpt(e, eachElement+2*class)), gpt(e, eachElement+2*class+1)
	left := max(0, int(int32(last-gpc(e, drawnElement+class))))
	if left > each { // it began while no agent answered
		each *= int(gpt(e, factorElement))
	}
	return max(0, each-left)
}

// gpt and gpc are an element of an entry, 0 if it has none.
func gpt(e *runtimeapi.Entry, i int) uint32 { return element(e.GPT, i) }
func gpc(e *runtimeapi.Entry, i int) uint32 { return element(e.GPC, i) }

func element(array []uint32, i int) uint32 {
	if i >= len(array) {
		return 0
	}
	return array[i]
}

// stillInProgress takes how many requests a user without credit has in progress that
// HAProxy had admitted by itself. They only become fewer: new ones are asked about, and
// not counted there; l.mu is held.
func (l *limiter) stillInProgress(now time.Time, e *runtimeapi.Entry) {
	w := l.credits.withdrawals[e.Key]
	if w == nil {
		return
	}
	if gpt(e, 0) != 0 { // HAProxy has forgotten that they have none, and has begun by itself
		w.told, w.rest = 0, e.ConnCur // so what it spent is not known: as at first
		l.credits.polls[e.Key] = now.Add(firstPoll)
		return
	}
	w.rest = min(w.rest, e.ConnCur)
	l.tellRest(now, e.Key, w)
}

// tellRest tells the core of the requests in progress, and looks again later if there are
// any; l.mu is held.
func (l *limiter) tellRest(now time.Time, user string, w *withdrawal) {
	if l.inForce.limitsOf(user).Concurrent > 0 {
		l.slots.Withdrawn(now, user, w.rest)
	}
	if w.rest > 0 {
		w.gap = min(max(2*w.gap, firstPoll), slowestPoll)
		l.credits.polls[user] = now.Add(w.gap)
	}
}

// forgetWithdrawals lets users have credit again whose time without is over; l.mu is held.
func (l *limiter) forgetWithdrawals(now time.Time) {
	l.credits.granted.forget(now)
	l.credits.ended.forget(now)
	for user, w := range l.credits.withdrawals {
		if w.told > 0 && w.rest == 0 && now.Unix() > w.through {
			delete(l.credits.withdrawals, user)
		}
	}
}

// nextGeneration begins another generation of credit: what was given before is not renewed
// when the present second is over; l.mu is held. The highest bit is HAProxy's.
func (a *Agent) nextGeneration() {
	c := &a.limiter.credits
	if c.generation++; c.generation >= 1<<31 {
		c.generation = 1
	}
	a.limiter.tokens.NextGeneration(a.clock.Now())
	a.limiter.slots.EndDefault() // HAProxy gives none of another generation
	a.teachCredit()
}

// anotherProcess is for a session that is with another process of HAProxy. Should that be the one
// that users have credit by default of, the core has just forgotten their places: so it ends; l.mu
// is held.
func (a *Agent) anotherProcess() {
	if a.limiter.credits.byDefault.active() {
		a.nextGeneration()
	}
}

// teachCredit tells HAProxy the generation, and what to do for users of whom nobody could
// be asked: they have the limits of the default tier, of which each instance keeps its
// even part; l.mu is held.
func (a *Agent) teachCredit() {
	c, instances := &a.limiter.credits, int(a.limiter.inForce.instances.Load())
	values := peers.Values{peers.GPT0: uint64(c.generation)}
	if set := a.limiter.inForce.set.Load(); set != nil {
		if of, ok := set.TierLimits(set.DefaultTier()); ok {
			requests, places := credit.Unasked(of, instances)
			values[peers.GPC0], values[peers.GPC1] = uint64(requests), uint64(places)
		}
	}
	a.teachEntry(creditTable.Name, creditRow, values, creditTable.Expire)
}
