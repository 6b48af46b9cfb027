package simulation_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
	"github.com/sluice-qos/sluice/test/simulation"
)

// judge sees all that is admitted, runs and moves, and knows what of it may not be.
type judge struct {
	world    *world
	admits   map[pool]*admissions
	vain     map[pool]int // tokens that were granted, whoever heard of it
	users    []judged
	requests int
	passed   int
	loose    []span // in which faults allow more than the limits
	busier   []span // the same of requests in progress
	faults   []span // in which, and behind which, limits may be used badly
	problems []string
}

// judged is what the judge knows of a user.
type judged struct {
	running []int     // requests at the origin, by instance
	changed time.Time // when one of them last began or ended
	taught  time.Time // when a HAProxy was last taught another share
	idle    time.Time // since when none is in progress
	room    time.Time // since when less than half of what may be is in progress
	refused struct {
		first, last time.Time // for want of a slot, again and again
		rate        time.Time // last by a rate: such a request may have had a slot for a moment
	}
	blocked time.Time // since when polygen says so
}

func (u *judged) inProgress() (n int) {
	for _, of := range u.running {
		n += of
	}
	return n
}

// admissions are those of a key in a window.
type admissions struct {
	n           int
	first, last time.Duration
}

type span struct{ from, to time.Duration }

const (
	// settleSpan is for how long a fault may have consequences: until an instance is taken for gone, and all
	// have heard of it.
	settleSpan = 4 * time.Second
	// quietSpan is how long nothing happens before it is judged what is left, and forgetSpan the same if
	// Redis has forgotten what it had: slots of which it alone knows are free after 30 s.
	quietSpan, forgetSpan = 12 * time.Second, 45 * time.Second
	// toldAgainSpan is within how long instances tell a pool again what they hold.
	toldAgainSpan = 11 * time.Second
	// sharedWithin is how soon half of the slots are where they are wanted: those that are idle go back
	// after 50 ms, who has none asks for some each 40 ms, and polygen divides them anew half a second
	// after the last refusal.
	sharedWithin = 600 * time.Millisecond
	// unblockedWithin is how soon polygen says that a user is below the limit again, of whom nothing is in
	// progress. Far below it instances tell nothing, so what one told last counts for two seconds.
	unblockedWithin = 2300 * time.Millisecond
)

func newJudge(w *world) judge {
	j := judge{world: w, admits: make(map[pool]*admissions), vain: make(map[pool]int)}
	for range w.users {
		j.users = append(j.users, judged{running: make([]int, w.instances)})
	}
	// Until all have joined.
	j.loose = append(j.loose, span{0, 1500 * time.Millisecond})
	j.faults = append(j.faults, j.loose...)
	for _, e := range w.events {
		if e.kind != load {
			j.faults = append(j.faults, span{e.at - time.Second, e.end() + settleSpan + 3*time.Second})
		}
		if w.mayExceed(e) {
			j.loose = append(j.loose, span{e.at - time.Second, e.end() + settleSpan})
		}
		if w.mayExceed(e) || e.kind == crashAgent || e.kind == leave {
			settled := settleSpan + 3*time.Second
			if e.kind == emptyRedis || e.kind == failover {
				settled = toldAgainSpan
			}
			j.busier = append(j.busier, span{e.at, e.end() + settled})
		}
	}
	return j
}

// mayExceed reports whether the limits may be exceeded by an event: what docs/failures.md says. All
// others cost use of the limits at most.
func (h history) mayExceed(e event) bool {
	switch e.kind {
	case load, loseAgent, losePolygen, duplicate, shuffle, cutPolygen, pausePolygen, crashPolygen, setMachineClock:
		return false
	case slowAgent:
		// Two round trips are shorter than a request waits.
		return 2*(2*e.by+h.roundTrip*3/2) > 10*time.Millisecond
	case crashAgent, crashInstance, leave:
		// Who is left alone, or was, counts by itself.
		return h.instances-h.absences() <= 1
	}
	return true
}

// absences is how often an agent is away.
func (h history) absences() (n int) {
	for _, e := range h.events {
		switch e.kind {
		case crashAgent, crashInstance, leave:
			n++
		}
	}
	return n
}

// excused reports whether a fault of the list may have to do with a time.
func excused(list []span, from, to time.Duration) bool {
	for _, s := range list {
		if from <= s.to && to >= s.from {
			return true
		}
	}
	return false
}

func (j *judge) wrong(format string, args ...any) {
	j.problems = append(j.problems, fmt.Sprintf("%7.3f s  ", j.world.since().Seconds())+fmt.Sprintf(format, args...))
}

func (j *judge) offered() { j.requests++ }

// admitted is a request that begins.
func (j *judge) admitted(e *edge, r *request) {
	j.passed++
	w := j.world
	for _, rate := range w.users[r.user].rates {
		begin, _ := rate.Bounds(r.token.Second)
		p := pool{begin, keyOf(r.user, rate)}
		a := j.admits[p]
		if a == nil {
			a = &admissions{first: w.since()}
			j.admits[p] = a
		}
		a.n++
		a.last = w.since()
		most := rate.Max + rate.Burst
		if excused(j.loose, a.first-time.Second, a.last) {
			most = w.instances*(most+1) + 2*most*len(j.loose)
		}
		if a.n > most {
			j.wrong("user %d had request %d of %d in the %s %d", r.user, a.n, most, rate.Window, p.second%1000)
		}
		// Each token is in one place, so the pool has counted what was admitted. Alone an agent counts.
		if strict := !excused(j.loose, a.first-time.Second, a.last); strict && rate.Burst == 0 && (w.instances > 2 || rate.Window != limits.Second) && w.redis.totals[p] < a.n {
			j.wrong("user %d had request %d in the %s %d, of which the pool has counted %d", r.user, a.n, rate.Window, p.second%1000, w.redis.totals[p])
		}
		if rate.Burst > 0 {
			j.savedUp(r.user, rate, p.second)
		}
	}
	if d := w.Now.Sub(r.asked); d > processingTimeout {
		j.wrong("user %d waited %v for an answer", r.user, d)
	}
}

// savedUp holds a burst to its limit over any span of seconds: n of them may have n limits and the burst.
func (j *judge) savedUp(user int, rate limits.Rate, last int64) {
	sum := 0
	for n := range int64(20) {
		a := j.admits[pool{last - n, keyOf(user, rate)}]
		if a == nil {
			continue
		}
		if excused(j.loose, a.first-time.Second, j.world.since()) {
			return
		}
		sum += a.n
		if most := int(n+1)*rate.Max + rate.Burst; sum > most {
			j.wrong("user %d had %d requests in %d seconds, of %d", user, sum, n+1, most)
		}
	}
}

// refused is a request that an agent has refused.
func (j *judge) refused(r *request) {
	w, u, limit := j.world, &j.users[r.user], j.world.users[r.user].concurrent
	if r.tokenAsked && r.tokenWaits == nil && !r.token.Allowed {
		u.refused.rate = w.Now
	}
	if r.slotWaits != nil || r.slot.Allowed {
		return
	}
	if w.Now.Sub(u.refused.last) > 150*time.Millisecond {
		u.refused.first = w.Now
	}
	u.refused.last = w.Now
	since := latest(u.refused.first, u.room, u.refused.rate)
	if d := w.Now.Sub(since); d > sharedWithin && few(u.inProgress(), limit) && !j.faulty(since) {
		j.wrong("requests of user %d are refused for %v, and only %d of %d are in progress", r.user, d, u.inProgress(), limit)
	}
}

func latest(times ...time.Time) (t time.Time) { return slices.MaxFunc(times, time.Time.Compare) }

// faulty reports whether a fault may have to do with how limits were used since a time.
func (j *judge) faulty(since time.Time) bool {
	return excused(j.faults, since.Sub(simulation.Start), j.world.since())
}

// runs is a request that begins at the origin, or ends.
func (j *judge) runs(user int, e *edge, more int) {
	w, u, limit := j.world, &j.users[user], j.world.users[user].concurrent
	u.running[e.number] += more
	all := u.inProgress()
	u.note(w.Now, limit, all, all-more)
	if more < 0 {
		return
	}
	most, excuse := limit, excused(j.busier, w.since(), w.since()) || w.since() < 1500*time.Millisecond
	if excuse {
		most = (w.instances+2)*most + w.instances
	}
	if all > most {
		j.wrong("user %d had %d requests in progress, of %d", user, all, most)
	}
	if a := e.agent; a != nil && !excuse && w.instances > 1 {
		if held := w.redis.slots[userName(user)][a.name].Held; u.running[e.number] > held {
			j.wrong("%s had %d requests of user %d in progress, and holds %d slots", a.name, u.running[e.number], user, held)
		}
	}
}

// note is for another number of requests in progress.
func (u *judged) note(now time.Time, limit, n, before int) {
	u.changed = now
	if few(n, limit) && !few(before, limit) {
		u.room = now
	}
	if n == 0 {
		u.idle = now
	}
}

// few reports whether n requests in progress are less than half of a limit, by more than one.
func few(n, limit int) bool { return 2*n < limit-1 }

// died is an instance, with its requests.
func (j *judge) died(e *edge) {
	for i := range j.users {
		u, before := &j.users[i], j.users[i].inProgress()
		u.running[e.number] = 0
		u.note(j.world.Now, j.world.users[i].concurrent, u.inProgress(), before)
	}
}

// told is polygen's word about a user's requests in progress.
func (j *judge) told(user string, blocked bool) {
	switch u := &j.users[userNumber(user)]; {
	case !blocked:
		u.blocked = time.Time{}
	case u.blocked.IsZero():
		u.blocked = j.world.Now
	}
}

// blocks looks whether somebody is still blocked who has nothing in progress.
func (j *judge) blocks(user int) {
	w, u := j.world, &j.users[user]
	// Whoever is refused by a rate may have had a slot for a moment.
	since := latest(u.idle, u.blocked, u.refused.rate)
	if !u.blocked.IsZero() && u.inProgress() == 0 && w.Now.Sub(since) > unblockedWithin && !j.faulty(u.blocked) {
		j.wrong("polygen blocks user %d, with nothing in progress for %v", user, w.Now.Sub(since))
	}
}

func (j *judge) granted(asks []ratelimit.Ask, grants []ratelimit.Grant) {
	for i, g := range grants {
		j.vain[pool{asks[i].WindowStart, asks[i].Key}] += g.Tokens
		if asks[i].Burst == 0 && g.Tokens > 0 && g.Total > asks[i].Limit {
			j.wrong("a pool of %d had %d handed out, and granted %d", asks[i].Limit, g.Total, g.Tokens)
		}
	}
}

// divided is a division of bandwidth.
func (j *judge) divided(p *polygen, s bandwidth.Sharing) {
	sum := int64(0)
	for _, share := range s.Shares {
		sum += share.Bytes
	}
	if limit := j.world.users[userNumber(s.User)].down; sum > limit {
		j.wrong("%s divides %d of %d bytes/s", p.name, sum, limit)
	}
}

// start looks at the shares now and then.
func (j *judge) start() {
	j.world.After(250*time.Millisecond, func() {
		for user := range j.world.users {
			j.shares(user)
			j.blocks(user)
		}
		j.start()
	})
}

// shares holds the speed of all transfers to the limit, when nothing has changed for a while.
func (j *judge) shares(user int) {
	w := j.world
	limit := w.users[user].down
	// What is taught is in force after 120 ms.
	if u := &j.users[user]; limit == 0 || w.Now.Sub(u.changed) < 1500*time.Millisecond || w.Now.Sub(u.taught) < 150*time.Millisecond {
		return
	}
	for _, e := range w.events {
		settled := e.end() + settleSpan
		if e.kind == loseAgent {
			// The next report shows what was lost.
			settled = e.end() + time.Second
		}
		if e.kind != load && excused([]span{{e.at, settled}}, w.since(), w.since()) {
			return
		}
	}
	sum, any := 0.0, false
	for _, e := range w.edges {
		if row := &e.haproxy.rows[user]; row.transferring > 0 {
			sum, any = sum+row.share, true
		}
	}
	if any && (sum > float64(limit) || sum < 0.9*float64(limit)) {
		j.wrong("user %d may move %.0f bytes/s, of %d", user, sum, limit)
	}
}

// probe lets the history happen and then, when all has been quiet for a while, has each user alone
// use their limits, and looks at what is left when that is over.
func (w *world) probe() {
	until := func(d time.Duration) bool {
		for end := simulation.Start.Add(d); w.Now.Before(end) && len(w.judge.problems) == 0; {
			next := simulation.Start.Add(w.since().Truncate(50*time.Millisecond) + 50*time.Millisecond)
			w.At(next, func() {})
			w.Until(next.Add(1))
		}
		return len(w.judge.problems) == 0
	}
	at := w.end() + quietSpan
	for _, e := range w.events {
		switch e.kind {
		case emptyRedis, failover, setRedisClock:
			at = w.end() + forgetSpan
		}
	}
	// Somebody is there now and then, at one instance: what others hold must not last for as long.
	for user := range w.users {
		for d := w.end(); d < at-8*time.Second; d += 3 * time.Second {
			w.After(d, func() { w.edges[w.seed%uint64(w.instances)].haproxy.request(user, time.Millisecond, nil) })
		}
	}
	if !until(at) || !w.left() {
		return
	}
	for user, l := range w.users {
		at = max(at, w.since()) + 2*time.Second
		if !until(at) || !w.aloneBySecond(user, l, until) {
			return
		}
		at = max(at, w.since()) + 2*time.Second
		if !until(at) || !w.aloneInProgress(user, l, until) {
			return
		}
		at = max(at, w.since())
	}
	if until(at + quietSpan) {
		w.left()
	}
}

// left reports whether nothing is left of the load.
func (w *world) left() bool {
	j := &w.judge
	for _, e := range w.edges {
		a := e.agent
		if a == nil || !a.serving || a.lost || a.instances != w.instances {
			j.wrong("instance %d does not serve among all others", e.number)
			continue
		}
		if a.waiting != 0 || len(a.forTokens)+len(a.forSlots) != 0 {
			j.wrong("%d requests still wait at %s", a.waiting, a.name)
		}
		for user := range w.users {
			if n := a.slots.InProgress(userName(user)); n != 0 {
				j.wrong("%s believes %d requests of user %d in progress", a.name, n, user)
			}
			if h := w.redis.slots[userName(user)][a.name]; h.Held != 0 && !w.redis.expired(userName(user), w.redis.now().UnixMilli()) {
				j.wrong("%s holds %d slots of user %d", a.name, h.Held, user)
			}
		}
	}
	return len(j.problems) == 0
}

// aloneBySecond has a user send three times their limit in a second, at one instance.
func (w *world) aloneBySecond(user int, l userLimits, until func(time.Duration) bool) bool {
	rate := l.rates[0]
	if len(l.rates) > 1 {
		return true // the longer window may be used up
	}
	e := w.edges[int(w.seed%uint64(w.instances))]
	// From the beginning of a second of the cluster's on.
	now := w.redis.now()
	first := now.Truncate(time.Second).Add(time.Second).Sub(now) + 20*time.Millisecond
	admitted := 0
	for i := range 3 * rate.Max {
		w.After(first+time.Duration(i)*900*time.Millisecond/time.Duration(3*rate.Max), func() {
			e.haproxy.request(user, 100*time.Microsecond, func(ok bool) {
				if ok {
					admitted++
				}
			})
		})
	}
	if !until(w.since() + 2*time.Second) {
		return false
	}
	if admitted < rate.Max-rate.Max/20 {
		w.judge.wrong("user %d alone had %d requests of %d in a second", user, admitted, rate.Max)
	}
	return len(w.judge.problems) == 0
}

// aloneInProgress has a user try to have as many requests in progress as they may.
func (w *world) aloneInProgress(user int, l userLimits, until func(time.Duration) bool) bool {
	if len(l.rates) > 1 {
		return true
	}
	e := w.edges[int(w.seed/7%uint64(w.instances))]
	within := 2*time.Second + time.Duration(2*l.concurrent/l.rates[0].Max)*time.Second
	begin, most := w.Now, 0
	var try func()
	try = func() {
		most = max(most, w.judge.users[user].inProgress())
		if w.Now.Sub(begin) < within {
			e.haproxy.request(user, within-w.Now.Sub(begin)+time.Second, func(bool) {})
			w.After(time.Second/time.Duration(3*min(l.rates[0].Max, 100)), try)
		}
	}
	try()
	if !until(w.since() + within) {
		return false
	}
	if most < l.concurrent {
		w.judge.wrong("user %d alone had %d requests of %d in progress after %v", user, most, l.concurrent, within)
	}
	return len(w.judge.problems) == 0
}
