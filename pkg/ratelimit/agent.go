package ratelimit

import (
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Config is what an Agent needs to know once.
type Config struct {
	// MaxUsers bounds the users that are known at a time; a user is forgotten
	// 3 s after their last request, whatever the windows of their limits, but not while
	// the pool is lost and still has to hear what they did in a longer one. Requests of
	// users beyond the bound are admitted uncounted (Agent.Overflowed counts them).
	// 0 means 500 000: about 290 MB if each has one limit, and 190 MB more for each
	// further one.
	MaxUsers int
}

// Verdict is the answer to one request.
type Verdict struct {
	Allowed bool
	Limit   limits.Rate // the limit that refused it; zero if allowed
	Cause   cause.Cause // who found that nothing of it is left; "" if allowed
	Second  int64       // the cluster second it was decided in, or at which the refusing limit's window began
}

// End is the second at which the refusing limit's window is over.
func (v Verdict) End() int64 { _, end := v.Limit.Bounds(v.Second); return end }

// TableEntry is an instruction for HAProxy's own table: refuse the key until its
// window ends, or, with Lift, no longer. See RefuseFor for longer windows than a
// second. A Limit of 0 has no end: that of its entry is later than RefuseFor, and it is repeated
// with each request that comes through. There is none for limits that are not enforced.
type TableEntry struct {
	Key   Key
	End   int64 // the second at which the window is over
	Limit int
	Lift  bool
}

// Output is what became due during the calls since the last one.
type Output struct {
	Decided      []*Waiting // requests that need not wait any longer
	TableEntries []TableEntry

	// Withdraw names users whose credit is to be withdrawn from HAProxy, for a request
	// waits to know what was spent of it; Recalled is the answer. A name may come again.
	Withdraw []string

	Urgent bool // Collect has something that should not wait for the next flush
	Sooner bool // Tick or Collect has something to do sooner than IdleFor last said
}

// Agent decides the requests of one instance. It is not safe for concurrent use.
type Agent struct {
	maxUsers       int
	users          map[string]*user
	queues         map[*user]struct{} // users whose requests wait
	agenda         agenda.Agenda[*bucket]
	tokenRequests  []*bucket // an ask for tokens is due
	toReport       []*bucket // something is to be reported with the next flush
	reports        []Ask     // reports for windows gone by, and asks for the next one
	accountReports []Ask     // reports that go before asks
	flushUrgent    bool      // the reports are not to wait for the next flush
	unanswered     []Ask     // a batch that got no answer, without what it wanted
	seq            uint64    // of the last batch
	heard          uint64    // answers of the pool, ever
	idle           agenda.IdleTime
	out            Output

	fleet        fleet
	reloaded     int64 // the last second in which HAProxy was reloaded
	leaving      bool  // Leave has been called
	lead         int64 // how early the next window is asked for, ns
	lost         bool  // the pool cannot be asked
	lostAt       int64 // when it was lost, ns
	apartThrough int64 // the last second of a loss that is over: others may not have reported it yet
	overflow     uint64
	created      uint64 // buckets, ever
}

// NewAgent returns an agent that knows of no other: it is alone until Cluster
// says otherwise.
func NewAgent(c Config) *Agent {
	if c.MaxUsers <= 0 {
		c.MaxUsers = 500_000
	}
	return &Agent{maxUsers: c.MaxUsers, users: make(map[string]*user), queues: make(map[*user]struct{}), fleet: fleet{instances: 1}, lead: int64(nextLead)}
}

// findOrAddUser returns what is known of a user, or nil when there are too many.
func (a *Agent) findOrAddUser(name string) *user {
	u := a.users[name]
	if u == nil && len(a.users) < a.maxUsers {
		u = &user{name: name}
		a.users[name] = u
	}
	return u
}

// findOrAddBucket returns the user's bucket for a limit, in the current window.
func (a *Agent) findOrAddBucket(u *user, r *limits.Rate, now int64) *bucket {
	b := u.findBucket(r.Class, r.Window)
	if b == nil {
		a.created++
		b = &bucket{key: Key{Class: r.Class, User: u.name, Window: r.Window}, owner: u}
		b.start, b.ends = r.Bounds(now / second)
		// Asks for the next window are spread, so that not all keys ask at once.
		b.early = int64(a.created%askSteps) * int64(agenda.Tick)
		u.buckets = append(u.buckets, b)
	}
	// Each request brings the limit in force, so a reload of the limit file needs no walk through all users.
	if b.rate != *r {
		a.setLimit(b, r, now)
	}
	a.advanceWindow(b, now)
	return b
}

// setLimit takes a bucket's limit, which may have changed.
func (a *Agent) setLimit(b *bucket, r *limits.Rate, now int64) {
	// A burst has an Account, and tokens of one pool must not be given back to the other.
	if (b.rate.Burst > 0) != (r.Burst > 0) || b.rate.Calendar != r.Calendar {
		// Another pool has it from now on.
		a.closeWindow(b)
		b.clearWindow()
		b.start, b.ends = r.Bounds(now / second)
	}
	if r.Max > b.rate.Max {
		// There is more than when it was found to be spent.
		b.spent = false
	}
	b.rate = *r
	b.limit = a.ceiling(b, b.start) + r.Burst
}

// TakeOutput returns what has become due and forgets it. The slices are the
// caller's.
func (a *Agent) TakeOutput() Output {
	out := a.out
	out.Sooner = a.idle.Shortened(a.workDue())
	a.out = Output{}
	return out
}

// KnownUsers is the number of users known.
func (a *Agent) KnownUsers() int { return len(a.users) }

// Overflowed counts the requests that were admitted uncounted because too many
// users were known.
func (a *Agent) Overflowed() uint64 { return a.overflow }
