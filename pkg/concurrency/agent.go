package concurrency

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

// Config is what an Agent needs to know once.
type Config struct {
	Instance string // its name in Shares

	// MaxUsers bounds the users that are known at a time, which are those with
	// requests in progress or refused in the last second. Requests of users
	// beyond the bound are admitted uncounted (Overflowed counts them). 0 means
	// 500 000.
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

// Verdict is the answer to one request.
type Verdict struct {
	Allowed bool
	Limit   int // the limit that refused it; 0 if allowed
}

// Waiting is a request that is not decided yet. It is decided by a later call
// of the agent's methods, which return it in Output.Decided, or by Timeout.
type Waiting struct {
	Verdict Verdict // valid once the request is decided

	owner   *user
	process int64 // that asked
	counted bool  // HAProxy's count of the user, when the places are withdrawn, has it
	decided bool
}

// Native is an instruction for HAProxy's own table.
type Native struct {
	User  string
	Until int64 // the epoch second until which HAProxy refuses him by itself; 0: it does not
	Limit int   // over the cluster; 0: he is not limited any more
	Cap   int   // requests in progress that HAProxy may have while nobody answers it; 0: any number
}

// Output is what became due during the calls since the last one.
type Output struct {
	Decided []*Waiting // requests that need not wait any longer
	Native  []Native
	// Withdraw names users whose places HAProxy is to lose, as Withdrawn then says.
	Withdraw []string
	Urgent   bool // Collect has something that should not wait for the next flush
}

// Agent decides the requests of one instance. It is not safe for concurrent use.
type Agent struct {
	config Config
	users  map[string]*user
	parked map[string]places // of users of whom nothing else is known
	agenda agenda.Agenda[*user]
	wanted []*user // an ask is due at once
	dirty  []*user // an ask is due with the next flush
	out    Output

	now        int64 // the time of the last call
	seq        uint64
	instances  int // in the cluster, this one included
	rank       int // this one's place among them
	lost       bool
	lostAt     int64
	deafUntil  int64 // what HAProxy says with its questions is not believed until then
	settleAt   int64 // when the pool has known the instances and the limits for settleSpan
	drainUntil int64 // when the draining of a replaced HAProxy is over at the latest; 0: none is
	processes
	inProgress int // requests believed in progress, of all users
	lines      int // requests that wait for a slot, of all users
	overflow   uint64
}

// NewAgent returns an agent that knows of no other: it is alone until Cluster
// says otherwise.
func NewAgent(c Config) *Agent {
	setDefault(&c.MaxUsers, 500_000)
	setDefault(&c.MaxLine, 500)
	setDefault(&c.MaxLines, 4000)
	if c.DrainFor <= 0 {
		c.DrainFor = 10 * time.Minute
	}
	return &Agent{config: c, users: make(map[string]*user), parked: make(map[string]places), instances: 1}
}

func setDefault(n *int, standard int) {
	if *n <= 0 {
		*n = standard
	}
}

// Start decides a request of a user with a limit (> 0), given what HAProxy's
// tables said of the user when it asked. When a slot is missing that the pool may
// still have, or that HAProxy's places may free, the request waits: the Waiting is
// not nil and the verdict is not valid yet. A request that is allowed holds a slot
// until HAProxy tells of its end, or until Cancel.
func (a *Agent) Start(at time.Time, name string, limit int, seen Count, p Places) (Verdict, *Waiting) {
	now := a.clock(at)
	u := a.user(name, limit, seen, now)
	if u == nil {
		a.overflow++
		return Verdict{Allowed: true}, nil
	}
	u.seen, u.asker = now, seen.Process
	defer a.review(u, now)
	a.distinguish(u, seen, p, now)
	admitted, counted := a.credited(u, seen.Process, p, now)
	if admitted || len(u.line) == 0 && a.free(u) > 0 {
		return a.admit(u, now, seen.Process, standing(admitted, counted)), nil
	}
	if len(u.line) > 0 || len(u.queue) >= u.limit || a.full(u, now) {
		return a.refuse(u, now), nil
	}
	w := &Waiting{owner: u, process: seen.Process, counted: counted}
	u.queue = append(u.queue, w)
	return Verdict{}, w
}

// full reports whether it is known that there is no slot, so that waiting for the pool
// or for HAProxy's places is in vain.
func (a *Agent) full(u *user, now int64) bool {
	return u.phase != withdrawing && (a.countsAlone() || u.exhausted(now))
}

// Patient says that a user's requests may wait in line when they are refused: for a
// while HAProxy does not refuse them by itself unless the line is full.
func (a *Agent) Patient(at time.Time, name string) {
	if u := a.users[name]; u != nil {
		u.patientTo = a.clock(at) + int64(refreshSpan)
	}
}

// Hold has a request, which Start has just refused, wait for a slot in the order
// of arrival: until a slot is free, or Timeout. It is refused at once, with a nil
// Waiting, where too many wait already.
func (a *Agent) Hold(at time.Time, name string, limit int, seen Count, p Places) (Verdict, *Waiting) {
	now := a.clock(at)
	u := a.user(name, limit, seen, now)
	if u == nil {
		a.overflow++
		return Verdict{Allowed: true}, nil
	}
	u.seen, u.asker = now, seen.Process
	defer a.review(u, now)
	a.distinguish(u, seen, p, now)
	admitted, counted := a.credited(u, seen.Process, p, now)
	if !admitted && (len(u.line) >= a.config.MaxLine || a.lines >= a.config.MaxLines) {
		u.refusals++
		return a.turnAway(u, now), nil
	}
	u.patientTo, u.refusals = now+int64(refreshSpan), 0
	if u.native {
		u.native = false
		a.teach(u, now)
	}
	if admitted || len(u.line) == 0 && a.free(u) > 0 {
		return a.admit(u, now, seen.Process, standing(admitted, counted)), nil
	}
	w := &Waiting{owner: u, process: seen.Process, counted: counted}
	u.line = append(u.line, w)
	a.lines++
	u.unmetAt, u.busyAt = now, now
	return Verdict{}, w
}

// Timeout decides a request that has waited as long as it may. It is refused,
// with one exception: of a user who is not near their limit, as far as the agent
// knows, it admits up to its even part, and one request without a slot at least, so
// that a stall of the pool does not refuse users who are far below their limits, nor
// whoever's limit is smaller than the number of instances.
//
// So while the pool is silent, all instances together run without slots at most the
// limit, or one request each if that is more.
func (a *Agent) Timeout(at time.Time, w *Waiting) Verdict {
	if w.decided {
		return w.Verdict
	}
	now := a.clock(at)
	u := w.owner
	switch line := a.leaveQueues(w); {
	case line:
		w.Verdict = a.turnAway(u, now)
	case a.far(u, now) && (u.inProgress() < u.limit/a.instances || u.inProgress() <= u.held):
		w.Verdict = a.admit(u, now, w.process, outside)
	default:
		w.Verdict = a.refuse(u, now)
	}
	a.review(u, now)
	return w.Verdict
}

// far reports whether a user is far from their limit, as far as the agent knows. Of a
// limit below the number of instances, one request is so large a part that whoever uses
// it at all is near it: there it counts that a slot was left when the pool last answered.
func (a *Agent) far(u *user, now int64) bool {
	return !u.hot(now) || u.limit < a.instances && u.left > 0
}

// Withdraw takes back a request that waits and need not be decided any more, or gives
// back the slot of one that has just been allowed and will not run.
func (a *Agent) Withdraw(at time.Time, w *Waiting) {
	switch {
	case !w.decided:
		a.leaveQueues(w)
		a.review(w.owner, a.clock(at))
	case w.Verdict.Allowed:
		a.Cancel(at, w.owner.name, w.process)
	}
}

// leaveQueues takes a request out of the queue it waits in, undecided, and reports
// whether that was the line.
func (a *Agent) leaveQueues(w *Waiting) (line bool) {
	u := w.owner
	w.decided = true
	is := func(other *Waiting) bool { return other == w }
	if i := slices.IndexFunc(u.line, is); i >= 0 {
		u.line = slices.Delete(u.line, i, i+1)
		a.lines--
		return true
	}
	u.queue = slices.DeleteFunc(u.queue, is)
	return false
}

// Cancel gives back the slot of a request that was allowed, asked about by that
// process, and will not run after all.
func (a *Agent) Cancel(at time.Time, name string, process int64) {
	u := a.users[name]
	switch {
	case u == nil:
		return
	case a.whose(process) == former && u.draining > 0:
		u.draining--
	case a.whose(process) == stranger && len(u.fresh) > 0:
		u.fresh = u.fresh[:len(u.fresh)-1]
	case len(u.pending) > 0:
		u.pending = u.pending[:len(u.pending)-1]
	}
	a.review(u, a.clock(at))
}

// admit notes a request that HAProxy is about to track, and that takes a slot unless it
// is inside.
func (a *Agent) admit(u *user, now, process int64, where where) Verdict {
	u.since++
	switch where {
	case outside:
		u.outside++
	case beside:
		u.beside++
	}
	switch a.whose(process) {
	case present:
		u.pending = append(u.pending, now)
	case stranger:
		u.fresh = append(u.fresh, now)
	case former:
		u.draining++
	}
	u.note(now)
	return Verdict{Allowed: true}
}

// refuse refuses a request. Refusals of who may wait in line do not count: they come back.
func (a *Agent) refuse(u *user, now int64) Verdict {
	if now >= u.patientTo {
		u.refusals++
	}
	return a.turnAway(u, now)
}

// turnAway refuses a request that HAProxy had better not refuse by itself.
func (a *Agent) turnAway(u *user, now int64) Verdict {
	u.refused++
	u.turned++
	u.unmetAt, u.busyAt = now, now
	return Verdict{Limit: u.limit}
}

// serve decides what can be decided of those who wait: first the line, which
// has waited longer.
func (a *Agent) serve(u *user, now int64) {
	for len(u.line) > 0 && a.roomFor(u, u.line[0]) {
		a.lines--
		u.line = a.decide(u, u.line, a.admitWaiting(u, now, u.line[0]))
	}
	for len(u.queue) > 0 {
		switch {
		case a.roomFor(u, u.queue[0]):
			u.queue = a.decide(u, u.queue, a.admitWaiting(u, now, u.queue[0]))
		case a.full(u, now):
			u.queue = a.decide(u, u.queue, a.refuse(u, now))
		default:
			return
		}
	}
}

// roomFor reports whether a request that waits may start: if there is a slot for it, or
// if it has one already, for it is in what is left of withdrawn places.
func (a *Agent) roomFor(u *user, w *Waiting) bool { return a.free(u) > 0 || a.hasRoom(u, w) }

func (a *Agent) hasRoom(u *user, w *Waiting) bool {
	return w.counted && u.phase == ending && u.rest+u.slots()+u.former <= a.capacity(u)
}

func (a *Agent) admitWaiting(u *user, now int64, w *Waiting) Verdict {
	where := outside
	switch {
	case a.hasRoom(u, w):
		u.inside, where = min(u.rest, u.inside+1), inside
	case w.counted && u.phase == withdrawing:
		where = beside
	}
	return a.admit(u, now, w.process, where)
}

// decide tells the first of a queue its verdict, and returns the rest.
func (a *Agent) decide(u *user, queue []*Waiting, v Verdict) []*Waiting {
	w := queue[0]
	queue[0] = nil
	w.Verdict, w.decided = v, true
	a.out.Decided = append(a.out.Decided, w)
	if len(queue) == 1 {
		return nil
	}
	return queue[1:]
}

// clock is the time of a call. When the clock was set back, what is known moves
// with it, lest everything wait until it is as late again.
func (a *Agent) clock(at time.Time) int64 {
	now := at.UnixNano()
	if back := a.now - now; a.now != 0 && back >= int64(setBack) {
		for _, u := range a.users {
			u.shift(back)
		}
		a.lostAt -= back
		a.deafUntil -= back
		a.settleAt -= back
		for name, p := range a.parked {
			p.lentAt -= back
			a.parked[name] = p
		}
		a.shiftProcesses(back)
		if a.drainUntil > 0 {
			a.drainUntil -= back
		}
	}
	a.now = now
	return now
}

// alone reports whether no other instance can have requests in progress.
func (a *Agent) alone() bool { return a.instances <= 1 }

// countsAlone reports whether the pool need not, or cannot, be asked.
func (a *Agent) countsAlone() bool { return a.lost || a.alone() }

// free is how many more requests of the user may start here now.
func (a *Agent) free(u *user) int { return a.capacity(u) - u.inProgress() }

// capacity is how many requests of the user may be in progress here.
func (a *Agent) capacity(u *user) int {
	switch {
	case u.unlimited:
		return math.MaxInt
	case a.alone():
		return u.limit
	case a.lost && u.hotUntil >= a.lostAt && a.now-a.lostAt >= int64(leaseSpan):
		return a.part(u)
	case a.lost && u.hotUntil >= a.lostAt:
		return u.held
	case a.lost:
		return u.limit
	}
	return min(u.held, u.limit) // what runs is held, even above the limit
}

// part is this instance's even part of the user's slots; the odd ones go to the
// first.
func (a *Agent) part(u *user) int {
	part := u.limit / a.instances
	if a.rank < u.limit%a.instances {
		part++
	}
	return part
}

// user returns what is known of a user, brought up to date, or nil when too many
// are known.
func (a *Agent) user(name string, limit int, seen Count, now int64) *user {
	a.asked(seen.Process, now)
	u := a.users[name]
	if u == nil {
		if _, parked := a.parked[name]; len(a.users) >= a.config.MaxUsers && !parked {
			return nil
		}
		u = a.newUser(name, limit, now)
	}
	a.setLimit(u, limit, a.now)
	if now >= a.deafUntil && a.whose(seen.Process) == present {
		u.advance(seen, a.young(now))
	}
	return u
}

// newUser begins to know a user, whose portion is held unless it may be in doubt.
func (a *Agent) newUser(name string, limit int, now int64) *user {
	u := &user{name: name, limit: max(1, limit)}
	_, u.able = a.lookup(name)
	if p, ok := a.parked[name]; ok {
		u.places = p
		delete(a.parked, name)
		a.inProgress -= p.shown() // review counts it again
	}
	u.allowed, u.portion = a.allowance(u.able, limit), a.portion(u.able, limit)
	if u.held = u.portion; !a.settled(now) {
		u.held = min(u.held, u.inProgress()) // that was lent when it was settled, or was asked for
	}
	u.told = u.held
	a.users[name] = u
	return u
}

// Drain returns what has become due and forgets it. The slices are the caller's.
func (a *Agent) Drain() Output {
	out := a.out
	a.out = Output{}
	return out
}

// Stats are counts of an agent.
type Stats struct {
	Users      int    // known
	InProgress int    // requests of them believed in progress
	InLine     int    // requests that wait for a slot
	Overflowed uint64 // requests admitted uncounted because too many users were known
}

// Stats returns the agent's counts.
func (a *Agent) Stats() Stats {
	return Stats{Users: len(a.users), InProgress: a.inProgress, InLine: a.lines, Overflowed: a.overflow}
}

// InProgress is how many requests of a user the agent believes in progress here,
// those that HAProxy admitted by itself as last told.
func (a *Agent) InProgress(name string) int {
	if u := a.users[name]; u != nil {
		return u.running()
	}
	p := a.parked[name]
	return p.shown()
}
