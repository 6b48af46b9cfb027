package concurrency

import "time"

// bridgeSpan is how long an admitted request may take to appear in HAProxy's
// table, as far as the agent hears of it: measured 1 to 22 ms. One that has not
// by then never came to be, because its client had gone.
const bridgeSpan = time.Second

// A Count is what HAProxy's table says of a user: two numbers that only grow
// while the entry exists, so that of two Counts the later one is the larger.
type Count struct {
	Tracked int64 // requests tracked since the entry exists
	Active  int64 // of these, in progress

	// Process is the HAProxy process that asks, by a number of its own, which grows
	// with the time it was started: one that is reloaded is another process. 0 means
	// unknown. Pushed counts need none.
	Process int64
}

func (c Count) isValid() bool { return c.Active >= 0 && c.Active <= c.Tracked }

// progress is what is in progress of the requests that the agent was asked about. Each
// counts from when it is admitted until HAProxy tells of its end, in one of the numbers
// at any time: pending, then tracked - ended; of another process, strange or draining.
type progress struct {
	tracked, ended int64   // HAProxy's count
	pushed         int64   // tracked, as HAProxy itself last pushed it
	heardAt        int64   // when
	pending        []int64 // when the requests were admitted that HAProxy has not counted yet
	strange        []int64 // the same of processes that the session is not with
	draining       int     // in progress on a HAProxy that was replaced
}

func (p *progress) present() int { return int(p.tracked-p.ended) + len(p.pending) }

func (p *progress) totalAsked() int { return p.present() + len(p.strange) + p.draining }

func (p *progress) addAdmitted(by asker, now int64) {
	switch by {
	case present:
		p.pending = append(p.pending, now)
	// The session may soon be with it, and then they are pending.
	case stranger:
		p.strange = append(p.strange, now)
	// Nobody tells of their ends.
	case former:
		p.draining++
	}
}

func (p *progress) cancel(by asker) {
	switch {
	case by == former && p.draining > 0:
		p.draining--
	case by == stranger && len(p.strange) > 0:
		p.strange = p.strange[:len(p.strange)-1]
	// HAProxy has tracked the others, and will tell of their ends.
	case len(p.pending) > 0:
		p.pending = p.pending[:len(p.pending)-1]
	}
}

// advance takes a later, or older, count of HAProxy's table. One that is young may learn
// at any moment what the one before it had ever tracked, and goes on from there. It
// returns how many requests the agent was not asked about, or does not know any more.
func (p *progress) advance(c Count, young bool) (unasked int) {
	if !c.isValid() {
		return 0
	}
	// Counts come by two ways, and the older one may come later.
	tracked := max(p.tracked, c.Tracked)
	grown := int(tracked - p.tracked)
	arrived := min(grown, len(p.pending))
	if young && grown > len(p.pending) {
		// Most of it is history: no more have come than are in progress beyond those known.
		arrived = min(arrived, max(0, int(c.Active-p.tracked+p.ended)))
	}
	// Nobody says which they are. Taken for the latest, they leave behind those
	// that never come to be, however many follow.
	p.pending = p.pending[:len(p.pending)-arrived]
	p.tracked, p.ended = tracked, max(p.ended, c.Tracked-c.Active)
	return grown - arrived
}

// takePushed takes note of a count that HAProxy is pushing. It pushes in order: fewer requests
// than before are those of an entry that began anew.
func (p *progress) takePushed(c Count, now int64) {
	// Forgotten after a while without requests, or by a HAProxy that was restarted.
	if c.Tracked < p.pushed {
		p.forgetCount()
	}
	p.pushed, p.heardAt = c.Tracked, now
}

func (p *progress) forgetCount() { p.tracked, p.ended, p.pushed = 0, 0, 0 }

// replaceProcess is for a HAProxy that was replaced with n requests. The session is with one now
// whose requests nobody told of.
func (p *progress) replaceProcess(n int) {
	p.draining += n
	p.pending, p.strange = p.strange, nil
	p.forgetCount()
}

// expire drops the requests that never came to be.
func (p *progress) expire(now int64) {
	// In the order of admission, so the oldest ones are in front.
	for _, list := range []*[]int64{&p.pending, &p.strange} {
		n := 0
		for n < len(*list) && now-(*list)[n] >= int64(bridgeSpan) {
			n++
		}
		*list = (*list)[:copy(*list, (*list)[n:])]
	}
}

// nextExpiry is when the first request is to be dropped, or until if that is earlier.
func (p *progress) nextExpiry(until int64) int64 {
	for _, list := range [...][]int64{p.pending, p.strange} {
		if len(list) > 0 {
			until = min(until, list[0]+int64(bridgeSpan))
		}
	}
	return until
}

// Progress takes what HAProxy's table says of a user, with the user's limit (0: not
// limited). It must be called in the order in which HAProxy says it.
func (a *Agent) Progress(at time.Time, name string, limit int, c Count) {
	if !c.isValid() {
		return
	}
	now := a.coreTime(at)
	u := a.known(name)
	if u == nil {
		if c.Active > 0 && limit > 0 {
			u = a.findOrAddUser(name, limit, c, now)
		}
		if u == nil {
			// There is nothing to know, or as many as may be are known already.
			return
		}
	}
	u.progress.takePushed(c, now)
	// By questions it may have come further already.
	u.advance(c, a.justReplaced(now))
	a.setLimit(u, limit, a.instances, now)
	u.peaks.record(now, u.upperBound())
	a.review(u, now)
}

// Synced says that HAProxy has pushed all it knows since an earlier time: whom it
// has not named since has nothing in progress.
func (a *Agent) Synced(at, since time.Time) {
	now := a.coreTime(at)
	before := now - int64(at.Sub(since))
	a.tellEverybody(func(u *user) {
		p := &u.progress
		// Who has started since it was heard of may be too new to be named.
		if p.heardAt < before && p.tracked > p.ended && u.startedAt < p.heardAt {
			p.ended = p.tracked
			a.review(u, a.now)
		}
	})
}
