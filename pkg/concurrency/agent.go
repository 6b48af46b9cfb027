package concurrency

import (
	"container/list"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/internal/changes"
)

// forgetSpan is how long a user without any request is remembered.
const forgetSpan = time.Second

// Config is what an Agent needs to know once.
type Config struct {
	Instance string // its name in Shares

	// MaxUsers bounds the users that are known at a time, which are those with
	// requests in progress or refused in the last second, and those whose HAProxy has
	// places. Requests of users beyond the bound are admitted uncounted (Overflowed counts
	// them), and places are lent only while half of them are known. 0 means 500 000.
	MaxUsers int

	// MaxLine bounds the requests of one user that wait for a slot, and MaxLines
	// those of all users. 0 means 500 and 4000.
	MaxLine, MaxLines int

	// DrainFor is how long requests of a HAProxy that was replaced may go on: its
	// hard-stop-after. 0 means 10 minutes.
	DrainFor time.Duration

	// Lookup tells a user's limit (0: not limited), and whether HAProxy may have credit for
	// the user, of which all agents must say the same. nil: nobody can have credit. It is
	// called inside the agent's methods, also for users whom only polygen names.
	Lookup func(user string) (limit int, credit bool)
}

// Output is what became due during the calls since the last one.
type Output struct {
	Decided      []*Waiting // requests that need not wait any longer
	TableEntries []TableEntry
	// Withdraw names users whose places HAProxy is to lose, as Withdrawn then says.
	Withdraw []string
	Urgent   bool // Collect has something that should not wait for the next flush
	Sooner   bool // Tick or Collect has something to do sooner than IdleFor last said
}

// Agent decides the requests of one instance. It is not safe for concurrent use.
type Agent struct {
	config Config
	users  map[string]*user
	// Users of whom nothing but places is known, the least recently seen first.
	resting list.List
	// Of what concerns everybody: who has not heard of it yet hears before anything else.
	changes changes.Changes[*user]
	waiting map[*user]struct{} // users with requests that wait
	agenda  agenda.Agenda[*user]
	urgent  []*user // an ask is due at once
	flush   []*user // an ask is due with the next flush
	out     Output
	seq     uint64
	heardAt int64 // when the pool last answered
	idle    agenda.IdleTime
	clock
	membership
	processes
	inProgress int    // requests believed in progress, of all users
	inLine     int    // requests that wait for a slot, of all users
	overflow   uint64 // requests admitted uncounted
	postponed  uint64 // asks that waited for a flush because their user was asked for too often
}

// NewAgent returns an agent that knows of no other: it is alone until Cluster
// says otherwise.
func NewAgent(c Config) *Agent {
	setDefault(&c.MaxUsers, 500_000)
	setDefault(&c.MaxLine, 500)
	setDefault(&c.MaxLines, 4000)
	setDefault(&c.DrainFor, 10*time.Minute)
	return &Agent{
		config: c, users: make(map[string]*user), waiting: make(map[*user]struct{}),
		membership: membership{instances: 1},
	}
}

func setDefault[N int | time.Duration](n *N, standard N) {
	if *n <= 0 {
		*n = standard
	}
}

// findOrAddUser returns what is known of a user, brought up to date, or nil when too many
// are known.
func (a *Agent) findOrAddUser(name string, limit int, seen Count, now int64) *user {
	if a.noteQuestion(seen.Process, now) {
		// The other process's requests may be in the count.
		a.changes.Announce(func(u *user) { u.progress.forgetCount() })
	}
	u := a.remembered(name)
	switch {
	case u == nil && len(a.users) >= a.config.MaxUsers:
		return nil
	case u == nil:
		u = a.newUser(name, limit, now)
	case u.resting != nil:
		a.wake(u, limit, now)
	}
	a.setLimit(u, limit, a.instances, now)
	// Another process counts in another table, and one that has ended counts nothing.
	if now >= a.ignoreUntil && a.askerOf(seen.Process) == present {
		u.advance(seen, a.justReplaced(now))
	}
	return u
}

// remembered is the record of a user, perhaps at rest, who has heard of all that concerns everybody, or nil.
func (a *Agent) remembered(name string) *user {
	if u := a.users[name]; u != nil {
		a.changes.CatchUp(u)
	}
	// A change may have dropped the user.
	return a.users[name]
}

// known is the record of a user who is not at rest, or nil.
func (a *Agent) known(name string) *user {
	if u := a.remembered(name); u != nil && u.resting == nil {
		return u
	}
	return nil
}

// review draws the consequences of any change of a user: it decides who waits, lowers
// what is held, and sees to it that the pool hears what it should.
func (a *Agent) review(u *user, now int64) {
	u.settle()
	// What is given up goes first, lest who waits use it. What is kept comes last: it
	// depends on who was admitted, and on who still waits.
	a.reviewPlaces(u, now)
	a.giveUp(u, now)
	a.serveWaiting(u, now)
	// There is room only if those who wait leave some.
	a.reviewRefusal(u, now)
	a.show(u)
	if u.waits.anyWaiting() {
		a.waiting[u] = struct{}{}
	} else {
		delete(a.waiting, u)
	}
	if u.spare.unused(now, a.freeHere(u)) && u.heat.hot(now) {
		// Whoever was refused has not come back.
		u.waits.unmetAt = 0
	}
	a.reviewLease(u, now)
	if a.askDue(u, now) {
		a.listForFlush(u)
	}
	a.schedule(u, now)
}

func (a *Agent) show(u *user) {
	running := u.running()
	a.inProgress += running - u.shown
	u.shown = running
}

// TakeOutput returns what has become due and forgets it. The slices are the caller's.
func (a *Agent) TakeOutput() Output {
	out := a.out
	out.Sooner = a.idle.Shortened(a.workDue())
	a.out = Output{}
	return out
}

// Stats are counts of an agent.
type Stats struct {
	Users      int    // known, without those at rest
	InProgress int    // requests of them believed in progress
	InLine     int    // requests that wait for a slot
	Resting    int    // users of whom only the places are known that HAProxy may have
	Overflowed uint64 // requests admitted uncounted because too many users were known
	Postponed  uint64 // asks that waited for a flush because their user was asked for too often
}

// Stats returns the agent's counts.
func (a *Agent) Stats() Stats {
	return Stats{Users: len(a.users) - a.resting.Len(), InProgress: a.inProgress, InLine: a.inLine, Resting: a.resting.Len(), Overflowed: a.overflow, Postponed: a.postponed}
}

// InProgress is how many requests of a user the agent believes in progress here,
// those that HAProxy admitted by itself as last told.
func (a *Agent) InProgress(name string) int {
	if u := a.remembered(name); u != nil {
		return u.running()
	}
	return 0
}
