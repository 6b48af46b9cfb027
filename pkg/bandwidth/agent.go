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
	// DryRun says that nothing is held back: shares are what would be.
	DryRun bool
}

// Limited reports whether there is a limit in any direction.
func (l Limit) Limited() bool { return l.Bytes != [2]int64{} }

// Source is one of the tables in which HAProxy counts what a user has in progress. No
// request is in two of them.
type Source int

// The sources.
const (
	Asked Source = iota // requests that the agent was asked about
	Held                // requests admitted by credit, since a body of theirs is held to a share
)

// A Count is what one of HAProxy's tables says of a user: requests in progress, and
// bytes that only grow while the entry exists.
type Count struct {
	Active int64
	Moved  [2]int64 // by Direction
}

// TableEntry is what HAProxy's table of shares is to say of a user: bytes per second
// by Direction, 0 where the user is not limited.
type TableEntry struct {
	User   string
	Share  [2]int64
	DryRun bool // the share is only what would be
}

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

// Start returns the shares, by Direction, that a request of a user begins with; 0
// where the user is not limited.
func (a *Agent) Start(at time.Time, name string, limit Limit) [2]int64 {
	u := a.findOrAddUser(name, limit)
	if u == nil {
		return a.standard(limit)
	}
	now := at.UnixNano()
	u.idleAt = now
	// HAProxy tells of the request only after it has begun, and the others' shares depend on it.
	a.updateWeight(u, now, max(1, u.active(now))) // as good as begun: polygen should know
	a.updateTable(u, now)
	a.schedule(u, now)
	return u.taught
}

// Lend returns the shares, by Direction, that requests admitted by credit begin with: the
// same ones for every instance, whatever polygen divides meanwhile, for HAProxy keeps
// them for as long as the credit. Who has transfers in flight is held to what Entries say.
func (a *Agent) Lend(limit Limit) [2]int64 { return a.standard(limit) }

// Lent takes how many bytes per second a user moves, by Direction, of requests admitted by
// credit that are not held. It is demand, if less timely: polygen is to leave them room.
// Very little is none, or every user of small answers would be reported twice a second: of
// all instances together that is less than the smallest share.
func (a *Agent) Lent(at time.Time, name string, limit Limit, rate [2]int64) {
	for _, d := range Directions {
		// Split over the instances, for each of them may have as little.
		if rate[d] <= limit.Bytes[d]/leastPart/int64(a.instances) || limit.Bytes[d] == 0 {
			rate[d] = 0
		}
	}
	u := a.known(name)
	if u == nil {
		// Who has nothing to tell need not be known.
		if rate == [2]int64{} {
			return
		}
		if u = a.findOrAddUser(name, limit); u == nil {
			return
		}
	}
	now := at.UnixNano()
	u.limit = limit
	// Without other requests nobody sees this one end, so it only lasts a minute: see lentNow.
	u.lent, u.lentAt, u.idleAt = rate, now, now
	if u.active(now) > 0 || u.weight > 0 {
		a.updateWeight(u, now, u.active(now))
	}
	a.schedule(u, now)
}

// Active is how many requests of a user are in progress in both sources.
func (a *Agent) Active(name string) int64 {
	if u := a.known(name); u != nil {
		return u.count.Active
	}
	return 0
}

// active is how many requests count as in progress. Those by credit that are not held are
// over before anyone tells: together they count as one.
func (u *user) active(now int64) int64 {
	// One, however many they were: a share by requests in progress is for transfers that last.
	if u.lentNow(Down, now) > 0 || u.lentNow(Up, now) > 0 {
		return u.count.Active + 1
	}
	return u.count.Active
}

func (u *user) lentNow(d Direction, now int64) int64 {
	if passed(now, u.lentAt, lentFor) {
		return 0
	}
	return u.lent[d]
}

// addCount adds up both sources. What the second one had counted before it was heard of is
// left out, or it would seem to have moved just now.
func (u *user) addCount(from Source, c Count) {
	for _, d := range Directions {
		// The first count of a source has bytes of before. Taken as they are, they would look like a burst.
		if !u.counted[from] && u.countAt > 0 {
			u.offset[d] -= c.Moved[d]
		}
	}
	u.counts[from], u.counted[from] = c, true
	u.count = Count{Active: u.counts[Asked].Active + u.counts[Held].Active}
	for _, d := range Directions {
		u.count.Moved[d] = u.counts[Asked].Moved[d] + u.counts[Held].Moved[d] + u.offset[d]
	}
}

// Progress takes what one of HAProxy's tables says of a user.
func (a *Agent) Progress(at time.Time, name string, limit Limit, from Source, c Count) {
	now := at.UnixNano()
	u := a.known(name)
	if u == nil {
		// HAProxy pushes its whole table after a reconnection: entries without requests are history.
		if c.Active == 0 || !limit.Limited() {
			return
		}
		if u = a.findOrAddUser(name, limit); u == nil {
			return
		}
	}
	u.limit = limit
	u.idleAt = now
	before := u.count
	u.addCount(from, c)
	// An entry that says once more that nothing is in progress changes nothing.
	if after := u.count; after.Active > 0 || before.Active > 0 || u.weight > 0 {
		u.count.Moved = before.Moved // what a beginning or an end is judged by
		a.updateWeight(u, now, u.active(now))
		u.count = after
	}
	u.countAt = now
	if from == Held && u.taughtAt == 0 {
		a.updateTable(u, now) // nobody has asked, which is when a share is told otherwise
	}
	a.measure(u, now)
	a.schedule(u, now)
}

// Restarted says that HAProxy has begun anew, with nothing in progress: it has
// ended, or another one has taken over, and nobody tells what that one moves.
func (a *Agent) Restarted(at time.Time) {
	now := at.UnixNano()
	a.tellEverybody(func(u *user) {
		// A new HAProxy counts from 0: the old counts would look like bytes that were taken back.
		u.counts, u.counted, u.offset = [2]Count{}, [2]bool{}, [2]int64{}
		u.count, u.countAt, u.weight, u.next = Count{}, 0, 0, 0
		u.lent = [2]int64{}
		for d := range u.meters {
			u.meters[d].restart()
		}
		u.taughtAt = 0
		a.report(u)
		a.schedule(u, now)
		a.out.Urgent = true
	})
}

// Cluster tells the agent how many instances there are, itself included.
func (a *Agent) Cluster(at time.Time, instances int) {
	now := at.UnixNano()
	was := a.instances
	a.instances = max(1, instances)
	// Between several and several the default share changes with the next time it is taught; polygen
	// divides anew as soon as it has heard of the change.
	if (was == 1) == (a.instances == 1) {
		return
	}
	a.tellEverybody(func(u *user) {
		if was == 1 && u.weight > 0 {
			// It had all of it, and keeps it until polygen divides.
			u.share, u.shareAt = u.limit.Bytes, [2]int64{now, now}
		}
		a.updateTable(u, now)
		a.report(u)
		a.out.Urgent = true
	})
	a.out.Urgent = true
}

// Share takes polygen's division of a user's limit. An instance that is not named
// has no share any more.
func (a *Agent) Share(at time.Time, s Sharing) {
	u := a.known(s.User)
	if u == nil || s.Direction < Down || s.Direction > Up {
		return
	}
	now := at.UnixNano()
	// Who is not named wants nothing, as polygen knows, and begins with the default share again.
	u.share[s.Direction] = 0
	for _, share := range s.Shares {
		if share.Instance == a.config.Instance {
			u.share[s.Direction], u.shareAt[s.Direction] = share.Bytes, now
		}
	}
	a.updateTable(u, now)
	a.schedule(u, now)
}

// Limits tells the agent that limits may have changed: what each known user's is
// now. A share shrinks with its limit at once, and grows when polygen says so.
func (a *Agent) Limits(at time.Time, limitOf func(user string) Limit) {
	now := at.UnixNano()
	a.tellEverybody(func(u *user) {
		limit := limitOf(u.name)
		// Most users' limits are as they were, and a report for each would be a burst of messages.
		if limit == u.limit {
			return
		}
		for _, d := range Directions {
			// At once and by itself, for polygen may know of the new limit a second later.
			if old := u.limit.Bytes[d]; limit.Bytes[d] < old {
				u.share[d] = int64(float64(u.share[d]) * float64(limit.Bytes[d]) / float64(old))
			}
		}
		// The table's entry says whether bodies are held, and the share may be the same.
		if limit.DryRun != u.limit.DryRun {
			u.taughtAt = 0
		}
		u.limit = limit
		a.updateTable(u, now)
		a.report(u)
		a.out.Urgent = true
	})
}

// tellEverybody has all users hear of a change: each before anything else is done with them, and all
// within some Ticks. To look at all of them at once would hold up whoever waits for the agent's lock.
func (a *Agent) tellEverybody(change func(*user)) {
	a.changes.Announce(change)
	a.advanceChanges()
}

// advanceChanges has some users hear of what concerns everybody.
func (a *Agent) advanceChanges() {
	for range catchUpAtOnce {
		u, any := a.changes.First()
		if !any {
			return
		}
		a.changes.CatchUp(u)
	}
}

// known is what is known of a user, who has heard of all that concerns everybody, or nil.
func (a *Agent) known(name string) *user {
	u := a.users[name]
	if u != nil {
		a.changes.CatchUp(u)
	}
	return u
}

// updateWeight takes how many requests are in progress. Those that have ended count on
// for holdSpan.
func (a *Agent) updateWeight(u *user, now, active int64) {
	before := u.weight
	switch {
	// More counts at once, and fewer only after holdSpan: between two short requests a user has none.
	case active >= u.weight:
		u.weight, u.next, u.since = active, 0, now
	case passed(now, u.since, holdSpan):
		// Down to the most of the last holdSpan, not to what is in progress just now.
		u.weight, u.next, u.since = max(u.next, active), active, now
	default:
		u.next = max(u.next, active)
	}
	for d := range u.meters {
		m := &u.meters[d]
		switch {
		// What was measured is of fewer requests, which may have used less.
		case u.weight > before:
			m.restartLook()
			// Where the bytes before are not known, the first count begins the measurement.
			if before == 0 && u.countAt > 0 {
				m.startRequests(now, u.count.Moved[d])
			}
		case u.weight == 0 && before > 0:
			m.endRequests(u.countAt, u.count.Moved[d], u.limit.Bytes[d])
		}
	}
	// A beginning or an end moves whole shares; all else can wait for reportEvery.
	if (u.weight == 0) != (u.lastReport.Active == 0) {
		a.report(u)
		// The others' shares follow from this report. Alone, nobody waits for it: it only
		// shows what is in progress.
		a.out.Urgent = a.out.Urgent || a.instances > 1
	}
}

// measure has the meters see the count. What they find out is reported soon.
func (a *Agent) measure(u *user, now int64) {
	if u.weight == 0 {
		return
	}
	for d := range u.meters {
		// Not at once: several judgements within reportEvery are one report.
		if u.meters[d].observe(now, u.count.Moved[d], u.limit.Bytes[d]) {
			a.agenda.Put(u, u.reported+int64(reportEvery))
		}
	}
}

// polygenShare is polygen's share of one direction; 0 if there is none.
func (u *user) polygenShare(d Direction, now int64) int64 {
	// Without a word for a minute polygen is gone, and an old division may be anybody's.
	if u.limit.Bytes[d] == 0 || passed(now, u.shareAt[d], ShareFor) {
		return 0
	}
	// The limit may have been lowered since.
	return min(u.share[d], u.limit.Bytes[d])
}

// inForce is the user's share here and now.
func (a *Agent) inForce(u *user, now int64) [2]int64 {
	share := a.standard(u.limit)
	if a.instances > 1 {
		for _, d := range Directions {
			if given := u.polygenShare(d, now); given > 0 {
				share[d] = given
			}
		}
	}
	return share
}

// standard is the share of an instance that polygen has given none: the limit, if
// there is only one.
func (a *Agent) standard(l Limit) (share [2]int64) {
	for _, d := range Directions {
		switch {
		case l.Bytes[d] == 0:
		// Nobody else moves anything, and nobody divides.
		case a.instances == 1:
			share[d] = l.Bytes[d]
		case l.Default[d] > 0:
			// The limit may be the user's own, and below the default share of their tier.
			share[d] = min(l.Default[d], l.Bytes[d])
		default:
			share[d] = max(1, l.Bytes[d]/int64(a.instances))
		}
	}
	return share
}

// updateTable writes the user's share into HAProxy's table if it is not there.
func (a *Agent) updateTable(u *user, now int64) {
	share := a.inForce(u, now)
	// Each entry is a message to HAProxy, which holds it for ShareFor.
	if share == u.taught && !passed(now, u.taughtAt, teachAgain) {
		return
	}
	u.taught, u.taughtAt = share, now
	for d := range u.meters {
		// From here on the meters judge by this share, though HAProxy may take a moment to follow.
		u.meters[d].enforce(now, share[d])
	}
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{User: u.name, Share: share, DryRun: u.limit.DryRun})
}

func (a *Agent) report(u *user) {
	if !u.marked {
		u.marked = true
		a.reports = append(a.reports, u)
	}
}

// Collect appends the reports that are due. An agent that is alone reports, too:
// nobody divides anything then, but polygen shows what is in progress and moves.
func (a *Agent) Collect(at time.Time, reports []Report) []Report {
	now := at.UnixNano()
	for i, u := range a.reports {
		// Else a user who is forgotten stays reachable from the array.
		a.reports[i] = nil
		if a.users[u.name] != u {
			continue
		}
		a.changes.CatchUp(u) // while it is marked, lest it be appended
		u.marked = false
		u.lastReport, u.reported = a.makeReport(u, now), now
		a.schedule(u, now)
		reports = append(reports, u.lastReport)
	}
	a.reports = a.reports[:0]
	return reports
}

func (a *Agent) makeReport(u *user, now int64) Report {
	r := Report{Instance: a.config.Instance, User: u.name, Active: int(u.weight)}
	for _, d := range Directions {
		if u.limit.Bytes[d] > 0 {
			r.Moved[d], r.Most[d], r.Share[d] = u.meters[d].moved, u.meters[d].usableRate, u.polygenShare(d, now)
			u.addLent(&r, d, now)
		}
	}
	return r
}

// addLent adds what moves by credit to a report. Without transfers that is all that the
// instance could use, whatever it once moved.
func (u *user) addLent(r *Report, d Direction, now int64) {
	lent := u.lentNow(d, now)
	if lent == 0 {
		return
	}
	// With the headroom of a brief look: the rate is that of some past seconds.
	need := max(1, lent/100*briefHeadroomPercent)
	r.Moved[d] += lent
	switch {
	case u.count.Active == 0:
		// As of any demand: so that it can show that it needs more.
		r.Most[d] = need + u.limit.Bytes[d]/leastPart
	case r.Most[d] > 0:
		r.Most[d] += need
	}
	// A demand for all of the limit is one for any number.
	if r.Most[d] >= u.limit.Bytes[d] {
		r.Most[d] = 0
	}
}

// demandChanged reports whether the user's demand is another one than was said.
func (a *Agent) demandChanged(u *user, now int64) bool {
	r := a.makeReport(u, now)
	for _, d := range Directions {
		// By less than this polygen would not send other shares either.
		if differs(r.Most[d], u.lastReport.Most[d], u.limit.Bytes[d]/changePart) {
			return true
		}
	}
	return r.Active != u.lastReport.Active
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

// schedule has the user looked at when something may be due.
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
