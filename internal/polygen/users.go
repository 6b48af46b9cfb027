package polygen

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// maxKnownUsers bounds the records of users. Each costs one to three kilobytes.
	maxKnownUsers = 100_000
	// lookAtOnce is how many users are looked at before the lock is released: that takes a fraction of a millisecond.
	lookAtOnce = 1000
	// lookFor is how long a look at all users answers further questions.
	lookFor = 500 * time.Millisecond
	// recallWithin is how long Redis has to answer what a user has used.
	recallWithin = 125 * time.Millisecond
)

// users has the records of all users and the instances. Nothing in it is needed to decide.
type users struct {
	mu    sync.Mutex
	view  *view.View
	fleet fleet

	looking sync.Mutex // held during a look, so that callers meanwhile share it
	look    *view.Look
	lookAt  time.Time
}

// lockUsers locks the records and puts the present limits into force.
func (p *Polygen) lockUsers() *users {
	u := &p.users
	u.mu.Lock()
	u.view.Limits(p.set.Load())
	return u
}

// lookAtUsers returns a look at all users that is younger than an age. The caller must not hold the lock.
func (p *Polygen) lookAtUsers(age time.Duration) *view.Look {
	u := &p.users
	u.looking.Lock()
	defer u.looking.Unlock()
	now := p.clock.Now()
	// A negative age means that the clock was set back.
	if since := now.Sub(u.lookAt); u.look != nil && since >= 0 && since < age {
		return u.look
	}
	p.lockUsers()
	look := u.view.Look(now)
	for look.More(lookAtOnce) {
		// A mutex that is locked again at once mostly stays with its holder. decide needs a turn.
		u.mu.Unlock()
		runtime.Gosched()
		p.lockUsers()
	}
	u.mu.Unlock()
	u.look, u.lookAt = look, now
	return look
}

func (p *Polygen) showEvents(events []redisbus.Event) {
	for _, e := range events {
		p.showEvent(p.clock.Now(), e)
	}
}

func (p *Polygen) showEvent(now time.Time, e redisbus.Event) {
	v := p.lockUsers().view
	defer p.users.mu.Unlock()
	switch e := e.(type) {
	case redisbus.Usage:
		for _, u := range e.Entries {
			if unit, isCost := redisbus.CostUnit(u.Key); isCost {
				v.Charged(now, u.Key.User, unit, u.Key.Window, u.Second, int64(u.Total))
				continue
			}
			v.Usage(now, u.Key, u.Second, u.Total)
		}
	case redisbus.Progress:
		for _, u := range e.Entries {
			v.Progress(now, e.Instance, u.User, u.Active, u.Held, u.Refused)
		}
	case redisbus.Demand:
		for _, r := range e {
			v.Demand(now, r)
		}
	case redisbus.Starts:
		seconds := e.Span.Seconds()
		if seconds <= 0 {
			return // another process measures the span
		}
		for _, u := range e.Users {
			classes := make([]view.ClassRates, len(u.Classes))
			for i, c := range u.Classes {
				classes[i] = view.ClassRates{Class: c.Class, Rates: view.Rates{Started: float64(c.Starts) / seconds, Refused: float64(c.Refused) / seconds}}
			}
			v.Started(now, e.Instance, u.User, u.Active, view.Rates{Started: float64(u.Starts) / seconds, Refused: float64(u.Refused) / seconds}, classes)
		}
	case redisbus.Registry:
		v.Instances(e.Instances)
	}
}

// remember records what was decided. It returns the users whose blocks begin, sorted; other blocks are repetitions.
func (p *Polygen) remember(throttles []ratelimit.Throttle, d concurrency.Decisions) (begun []string) {
	if len(throttles)+len(d.Blocks)+len(d.Unblocks) == 0 {
		return nil // nearly always
	}
	now := p.clock.Now()
	v := p.lockUsers().view
	defer p.users.mu.Unlock()
	// As in policies: a user who is unblocked and blocked in one round is blocked after it.
	for _, user := range d.Unblocks {
		v.Unblocked(now, user)
	}
	for _, t := range throttles {
		v.Throttled(now, t)
	}
	for _, b := range d.Blocks {
		if v.Blocked(now, b.User) {
			begun = append(begun, b.User)
		}
	}
	return begun
}

func (p *Polygen) forgetUsers(now time.Time) {
	u := p.lockUsers()
	u.view.Forget(now)
	known := u.view.Users()
	u.mu.Unlock()
	p.metrics.usersSeen.Set(float64(known))
}

// recall reads from Redis what a user was charged, and used of longer windows of requests. A polygen that was restarted has
// no reports of a budget that was spent in the morning, and reports come for every 32nd of a limit only.
func (p *Polygen) recall(key string) {
	l := p.set.Load().User(key)
	if p.cutOff() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recallWithin)
	defer cancel()
	began := p.clock.Now()
	totals, err := p.options.Bus.Totals(ctx, key, l.Rates(), began.Unix())
	var pools cost.Pools
	if err == nil && l.LimitsCosts() {
		pools, err = p.options.Bus.Charges(ctx, key, l.Costs(), began.Unix())
	}
	if err != nil {
		p.options.Logger.Debug("use not read", slog.String("user", key), slog.Any("error", err))
		return
	}
	u := p.lockUsers()
	defer u.mu.Unlock()
	u.view.Recalled(began, p.clock.Now(), key, pools)
	for _, t := range totals {
		u.view.RecalledRequests(began, p.clock.Now(), t.Key, t.Second, t.Total)
	}
}
