package bandwidth

import "time"

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
	after := u.count
	u.count.Moved = before.Moved // what a beginning or an end is judged by
	a.updateWeight(u, now, u.active(now))
	u.count = after
	u.countAt = now
	if from == Held && u.taughtAt == 0 {
		a.updateTable(u, now) // nobody has asked, which is when a share is told otherwise
	}
	a.measure(u, now)
	a.schedule(u, now)
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
