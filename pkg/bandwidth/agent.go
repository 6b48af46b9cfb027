package bandwidth

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/internal/changes"
)

const (
	// reportEvery is how often an instance reports a user whose demand changes, and
	// confirmEvery how often one whose demand does not. The first request in progress, and
	// the end of the last one, are reported at once.
	reportEvery  = 100 * time.Millisecond
	confirmEvery = 500 * time.Millisecond
	// holdSpan is how long requests in progress count after they have ended, so that
	// short ones, one after another, are a steady demand.
	holdSpan = 200 * time.Millisecond
	// forgetSpan is how long a user without requests in progress is remembered, with
	// the share and with what the user could use of it.
	forgetSpan = 5 * time.Second
	// lentFor is how long it counts what moves by credit, which is told now and then.
	lentFor = time.Minute
	// teachAgain is how often an unchanged share is written into HAProxy's table,
	// which forgets it after ShareFor.
	teachAgain = 20 * time.Second
	// catchUpAtOnce bounds the users who hear in one Tick of what concerns everybody, which
	// takes their agent's lock for less than a millisecond.
	catchUpAtOnce = 1000
)

// Config is what an Agent needs to know once.
type Config struct {
	Instance string // its name in Shares

	// MaxUsers bounds the users that are known at a time. Users beyond it have
	// their default shares. 0 means 200 000.
	MaxUsers int
}

// Limit is one user's, in bytes per second by Direction. The zero Limit limits
// nothing.
type Limit struct {
	Bytes [2]int64 // over the cluster; 0 means not limited
	// Default is the share of an instance that polygen has given none yet; 0 means
	// an even part of the limit.
	Default [2]int64
}

// Limited reports whether there is a limit in any direction.
func (l Limit) Limited() bool { return l.Bytes != [2]int64{} }

// Output is what became due during the calls since the last one.
type Output struct {
	TableEntries []TableEntry
	Urgent       bool // Collect has something that should not wait for the next flush
	Sooner       bool // Tick or Collect has something to do sooner than IdleFor last said
}

// Agent sees what one HAProxy moves and holds its shares. It is not safe for
// concurrent use.
type Agent struct {
	config Config
	users  map[string]*user
	// Of what concerns everybody: each user hears of it before anything else is done with them.
	changes   changes.Changes[*user]
	agenda    agenda.Agenda[*user]
	reports   []*user
	idle      agenda.IdleTime
	instances int
	out       Output
}

type user struct {
	agenda.Place
	changes.Record
	name  string
	limit Limit

	counts  [2]Count // by Source
	counted [2]bool  // whether one has come
	offset  [2]int64 // by Direction: see take
	count   Count    // of both sources
	countAt int64    // when it came; 0: none has
	lent    [2]int64 // by Direction: bytes per second of requests by credit that are not held
	lentAt  int64    // when that was told
	weight  int64    // most requests in progress lately
	next    int64    // most of those that were fewer, after since
	since   int64    // when there were last as many as weight
	idleAt  int64    // when the user was heard of last
	meters  [2]meter

	marked     bool  // stands in Agent.reports
	reported   int64 // when
	lastReport Report

	share    [2]int64 // polygen's; 0: none
	shareAt  [2]int64 // when it came
	taught   [2]int64
	taughtAt int64
}

// NewAgent returns an agent that knows of no other: it is alone until Cluster says
// otherwise.
func NewAgent(c Config) *Agent {
	if c.MaxUsers <= 0 {
		c.MaxUsers = 200_000
	}
	return &Agent{config: c, users: make(map[string]*user), instances: 1}
}

// known is what is known of a user, who has heard of all that concerns everybody, or nil.
func (a *Agent) known(name string) *user {
	u := a.users[name]
	if u != nil {
		a.changes.CatchUp(u)
	}
	return u
}

// Tick does what is due. It is to be called every 5 ms.
func (a *Agent) Tick(at time.Time) {
	now := at.UnixNano()
	a.advanceChanges()
	a.agenda.Take(now, func(u *user) {
		if a.users[u.name] != u {
			return // forgotten
		}
		a.changes.CatchUp(u)
		if u.weight > 0 {
			a.updateWeight(u, now, u.active(now))
		}
		// Only when polygen knows that nothing is in progress: an end that was not reported is a share lost.
		if u.weight == 0 && u.lastReport.Active == 0 {
			if passed(now, u.idleAt, forgetSpan) {
				delete(a.users, u.name)
				a.changes.Remove(u)
				return
			}
			a.schedule(u, now)
			return
		}
		// HAProxy pushes nothing of a counter that stands still, so the meters are told the same count again.
		if passed(now, u.countAt, pushTimeout) && u.countAt > 0 {
			a.measure(u, now)
		}
		a.updateTable(u, now)
		if passed(now, u.reported, confirmEvery) || passed(now, u.reported, reportEvery) && a.demandChanged(u, now) {
			a.report(u)
		}
		a.schedule(u, now)
	})
}

// IdleFor is for how long from a time on Tick and Collect have nothing to do if nothing else is
// called, but at most a given time. As soon as that is no longer true, an Output says Sooner.
func (a *Agent) IdleFor(at time.Time, most time.Duration) time.Duration {
	return a.idle.Announce(at.UnixNano(), a.workDue(), most)
}

// workDue is the first time at which Tick or Collect may have something to do.
func (a *Agent) workDue() int64 {
	if len(a.reports) > 0 || a.changes.Behind() {
		return 0
	}
	if at, any := a.agenda.Next(); any {
		return at
	}
	return agenda.Never
}

func (a *Agent) schedule(u *user, now int64) {
	if u.weight == 0 && u.lastReport.Active == 0 {
		a.agenda.Put(u, now+int64(forgetSpan))
		return
	}
	// Often enough for pushTimeout and the confirmation, whatever else is due.
	due := now + int64(confirmEvery)/2
	// The weight falls when holdSpan has passed, without a word of HAProxy's.
	if u.weight != u.active(now) {
		due = min(due, u.since+int64(holdSpan))
	}
	if int(u.weight) != u.lastReport.Active {
		due = min(due, u.reported+int64(reportEvery))
	}
	a.agenda.Put(u, due)
}

func (a *Agent) findOrAddUser(name string, limit Limit) *user {
	u := a.known(name)
	if u == nil {
		// Beyond the bound users are still held, to their default share.
		if len(a.users) >= a.config.MaxUsers {
			return nil
		}
		u = &user{name: name}
		a.users[name] = u
		a.changes.Add(u)
	}
	u.limit = limit
	return u
}

// TakeOutput returns what has become due and forgets it. The slice is the caller's.
func (a *Agent) TakeOutput() Output {
	out := a.out
	out.Sooner = a.idle.Shortened(a.workDue())
	a.out = Output{}
	return out
}

// KnownUsers is the number of users known.
func (a *Agent) KnownUsers() int { return len(a.users) }
