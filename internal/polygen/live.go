package polygen

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// liveAfter is how long after a full second of the cluster live answers are made: by
	// then agents have reported what they used in it.
	liveAfter = 100 * time.Millisecond
	// maxListed is how many users of a list, from the first one on, have a history. Those of
	// all orders together, and the users whom all streams ask for, find room in maxHistories.
	maxListed = 80
	// lookAtOnce is how many users are looked at before the lock is let go: that takes a
	// fraction of a millisecond.
	lookAtOnce = 1000
	// shortList is how many users a list has at least, so that most questions share one.
	shortList = 100
)

// live answers watchers once a second. Watchers with the same question share one answer,
// and all answers share one look at the users. The zero value has no watchers.
type live struct {
	mu        sync.Mutex
	questions map[api.Question]*watched

	overview view.Overview    // of the last look at all users
	at       time.Time        // when that was
	lists    map[api.Sort]int // how many users its lists were to have, by order
}

// watched is the last answer of a question, and its watchers.
type watched struct {
	answer   *api.Message
	watchers map[chan *api.Message]bool
}

// Watch returns an answer at once and one every second, until stop is called. A watcher
// that is too slow misses some.
func (p *Polygen) Watch(q api.Question) (answers <-chan *api.Message, stop func(), err error) {
	if err := p.streams.acquire(); err != nil {
		return nil, nil, err
	}
	// Once here: the answers do not wait for Redis.
	if q.User != "" {
		p.recallCosts(q.Key())
	}
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.questions[q]
	if w == nil {
		if l.questions == nil {
			l.questions = make(map[api.Question]*watched)
		}
		w = &watched{watchers: make(map[chan *api.Message]bool)}
		l.questions[q] = w
		// Whoever opens a page should see it at once, and twenty pages that are opened together should not mean
		// twenty looks at all users.
		p.lookAtUsers(p.clock.Now(), topFor)
		w.answer = p.answer(q)
	}
	// Room for the newest answer, which replaces one that was not read.
	c := make(chan *api.Message, 1)
	c <- w.answer
	w.watchers[c] = true
	return c, sync.OnceFunc(func() {
		l.mu.Lock()
		delete(w.watchers, c)
		// Else its answer would be made for nobody every second.
		if len(w.watchers) == 0 {
			delete(l.questions, q)
		}
		l.mu.Unlock()
		p.streams.release()
	}), nil
}

// answerWatchers looks at the users after every full second of the cluster, until ctx ends.
func (p *Polygen) answerWatchers(ctx context.Context) error {
	for {
		now := p.clock.Now()
		next := now.Add(-liveAfter).Truncate(time.Second).Add(time.Second + liveAfter)
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		p.everySecond()
	}
}

// everySecond is what is done once a second: histories get a sample, and watchers an answer.
func (p *Polygen) everySecond() {
	now := p.clock.Now()
	l := &p.live
	l.mu.Lock()
	if len(l.questions) > 0 {
		p.lookAtUsers(now, 0)
	} else {
		// Lists of a thousand users may be some megabytes, and most of the time nobody watches.
		l.overview, l.lists = view.Overview{}, nil
	}
	s := p.lockDashboard()
	s.past.Sample(now, s.view)
	s.mu.Unlock()
	for q, w := range l.questions {
		w.answer = p.answer(q)
		for c := range w.watchers {
			// A watcher who is slow misses an answer, and has the newest one. Nobody else writes, so there is room
			// after that.
			select {
			case <-c:
			default:
			}
			c <- w.answer
		}
	}
	l.mu.Unlock()
	p.events.tellLost(now)
}

// lookAtUsers makes the overview anew if it is as old as that, or lacks what the questions need.
// The lock of live must be held.
func (p *Polygen) lookAtUsers(now time.Time, old time.Duration) {
	l := &p.live
	need := make(map[api.Sort]int)
	for q := range l.questions {
		need[q.Sort] = max(need[q.Sort], listLength(q.N))
	}
	if age := now.Sub(l.at); age >= 0 && age < old {
		enough := true
		for by, n := range need {
			enough = enough && l.lists[by] >= n
		}
		if enough {
			return
		}
		// Lists of before are made again, or two questions that take turns would each cause a
		// look at all users every time.
		for by, n := range l.lists {
			need[by] = max(need[by], n)
		}
	}
	s := p.lockDashboard()
	look := s.view.BeginLook(now, need)
	s.finish(look)
	l.overview, l.at, l.lists = look.Overview(), now, maps.Clone(need)
	s.rememberShown(now, l.overview)
	for q := range l.questions {
		if q.User != "" {
			s.past.Remember(now, q.Key())
		}
	}
	s.mu.Unlock()
}

// rememberShown keeps histories of the users who are shown. The lock must be held.
func (s *dashboard) rememberShown(now time.Time, o view.Overview) {
	for _, u := range o.Limited {
		s.past.RememberLimited(now, u.User)
	}
	for _, list := range o.Tops {
		// The first one last, so that it is forgotten last.
		for i := min(len(list), maxListed) - 1; i >= 0; i-- {
			s.past.Remember(now, list[i].User)
		}
	}
}

// answer makes the answer of a question from the overview. The lock of live must be held.
func (p *Polygen) answer(q api.Question) *api.Message {
	o := &p.live.overview
	users := o.Tops[q.Sort]
	a := &api.Live{
		From: p.answerHead(), Totals: o.Totals, Sort: q.Sort, Units: p.costUnits(), Users: users[:min(q.N, len(users))], Limited: o.Limited,
		Instances: p.Instances().Instances,
	}
	if q.User != "" {
		a.User = p.userLately(q)
	}
	return &api.Message{Event: "live", Value: a}
}

// userLately is the user whom a question asks for.
func (p *Polygen) userLately(q api.Question) *api.User {
	p.dashboard.mu.Lock()
	out := p.dashboard.view.UserLately(p.clock.Now(), q.Key())
	p.dashboard.mu.Unlock()
	out.From = p.answerHead()
	if !q.IsKey {
		out.Name = api.NameOfUser(q.User)
		tellOrigin(limitfile.OriginOf(p.set.Load(), q.User), &out)
	}
	return &out
}
