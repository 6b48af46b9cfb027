package simulation_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/internal/simulation"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// judge sees all that is admitted, runs and moves, and knows what of it may not be.
type judge struct {
	world    *world
	admits   map[pool]*admissions
	vain     map[pool]int // tokens that were granted, whoever heard of it
	running  [][]int      // requests at the origin, by user and instance
	changed  []time.Time  // when a request last began or ended, by user
	requests int
	passed   int
	loose    []span // in which faults allow more than the limits
	busier   []span // the same of requests in progress
	problems []string
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
)

func newJudge(w *world) judge {
	j := judge{world: w, admits: make(map[pool]*admissions), vain: make(map[pool]int), changed: make([]time.Time, len(w.users))}
	for range w.users {
		j.running = append(j.running, make([]int, w.instances))
	}
	// Until all have joined.
	j.loose = append(j.loose, span{0, 1500 * time.Millisecond})
	for _, e := range w.events {
		if w.mayExceed(e) {
			j.loose = append(j.loose, span{e.at - time.Second, e.end() + settleSpan})
		}
		if w.mayExceed(e) || e.kind == crashAgent {
			j.busier = append(j.busier, span{e.at, e.end() + settleSpan + 3*time.Second})
		}
	}
	return j
}

// mayExceed reports whether the limits may be exceeded by an event: what docs/failures.md says. All
// others cost use of the limits at most.
func (h history) mayExceed(e event) bool {
	switch e.kind {
	case load, duplicate, shuffle, cutPolygen, pausePolygen, crashPolygen, setMachineClock:
		return false
	case slowAgent:
		// Two round trips are shorter than a request waits.
		return 2*(2*e.by+h.roundTrip*3/2) > 10*time.Millisecond
	case crashAgent, crashInstance, leave:
		// Who is left alone, or was, counts by itself.
		return h.instances <= 2
	}
	return true
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
		p := pool{r.token.Second - r.token.Second%rate.Window.Seconds(), keyOf(r.user, rate)}
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

// runs is a request that begins at the origin, or ends.
func (j *judge) runs(user int, e *edge, more int) {
	j.running[user][e.number] += more
	j.changed[user] = j.world.Now
	if more < 0 {
		return
	}
	most, all := j.world.users[user].concurrent, j.inProgress(user)
	if excused(j.busier, j.world.since(), j.world.since()) || j.world.since() < 1500*time.Millisecond {
		most = (j.world.instances+2)*most + j.world.instances
	}
	if all > most {
		j.wrong("user %d had %d requests in progress, of %d", user, all, most)
	}
}

func (j *judge) inProgress(user int) (n int) {
	for _, of := range j.running[user] {
		n += of
	}
	return n
}

// died is an instance, with its requests.
func (j *judge) died(e *edge) {
	for user := range j.running {
		j.running[user][e.number] = 0
		j.changed[user] = j.world.Now
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
		}
		j.start()
	})
}

// shares holds the speed of all transfers to the limit, when nothing has changed for a while.
func (j *judge) shares(user int) {
	w := j.world
	limit := w.users[user].down
	if limit == 0 || w.Now.Sub(j.changed[user]) < 1500*time.Millisecond {
		return
	}
	for _, e := range w.events {
		if e.kind != load && excused([]span{{e.at, e.end() + settleSpan}}, w.since(), w.since()) {
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
		return true // the minute may be used up
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
		most = max(most, w.judge.inProgress(user))
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
