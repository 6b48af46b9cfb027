package polygen

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// liveAfter is how long after a full second of the cluster live answers are made:
	// what agents used in it has been reported then.
	liveAfter = 100 * time.Millisecond
	// maxListed users of a list, the first ones, have a history. All orders' together,
	// and those whom all streams ask for, find room in maxHistories.
	maxListed = 80
	// lookAtOnce is how many users are looked at without letting go: a fraction of a
	// millisecond.
	lookAtOnce = 1000
	// shortList is how long lists are made at least, so that most questions share one.
	shortList = 100
)

// live answers those who watch, once a second. All who ask the same share one answer,
// and all answers one look at the users. Its zero value has no watchers.
type live struct {
	mu        sync.Mutex
	questions map[view.Question]*watched

	// The last look at all users:
	overview view.Overview
	at       time.Time
	lists    map[view.Sort]int // how long its lists were made
}

// watched is a question, its last answer, and those who watch.
type watched struct {
	answer   *view.Message
	watchers map[chan *view.Message]bool
}

// Watch returns an answer at once and one every second, until stop is called. Who is
// too slow misses some.
func (p *Polygen) Watch(q view.Question) (answers <-chan *view.Message, stop func(), err error) {
	if err := p.streams.open(); err != nil {
		return nil, nil, err
	}
	if set := p.set.Load(); q.User != "" && !q.IsKey && hides(set, q.User) {
		q.User, _ = p.find(set, q.User, q.Endpoint)
		q.IsKey = true
	}
	switch { // finds out where the user's limits come from
	case q.User != "" && !q.IsKey:
		p.User(q.User, q.Endpoint)
	case limits.IsHidden(q.User):
		p.UserOfKey(q.User, q.Endpoint)
	}
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.questions[q]
	if w == nil {
		if l.questions == nil {
			l.questions = make(map[view.Question]*watched)
		}
		w = &watched{watchers: make(map[chan *view.Message]bool)}
		l.questions[q] = w
		p.look(p.clock.Now(), topFor)
		w.answer = p.answer(q)
	}
	c := make(chan *view.Message, 1)
	c <- w.answer
	w.watchers[c] = true
	return c, sync.OnceFunc(func() {
		l.mu.Lock()
		delete(w.watchers, c)
		if len(w.watchers) == 0 {
			delete(l.questions, q)
		}
		l.mu.Unlock()
		p.streams.close()
	}), nil
}

// watch looks at the users after every full second of the cluster, until ctx ends.
func (p *Polygen) watch(ctx context.Context) error {
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
		p.second()
	}
}

// second is what is done once a second: histories go on, and who watches is answered.
func (p *Polygen) second() {
	now := p.clock.Now()
	l := &p.live
	l.mu.Lock()
	if len(l.questions) > 0 {
		p.look(now, 0)
	} else {
		l.overview, l.lists = view.Overview{}, nil // nobody holds it
	}
	p.seen.mu.Lock()
	p.seen.adopt(p.set.Load())
	p.seen.past.Sample(now, p.seen.view)
	p.seen.mu.Unlock()
	for q, w := range l.questions {
		w.answer = p.answer(q)
		for c := range w.watchers {
			select {
			case <-c: // one that was not read
			default:
			}
			c <- w.answer // nobody else writes
		}
	}
	l.mu.Unlock()
	p.events.tellLost(now)
}

// look makes sure that the overview is not older than that, and has what the questions
// need. The lock of live must be held.
func (p *Polygen) look(now time.Time, old time.Duration) {
	l := &p.live
	need := make(map[view.Sort]int)
	for q := range l.questions {
		length := shortList
		if q.N > shortList {
			length = view.MaxTop
		}
		need[q.Sort] = max(need[q.Sort], length)
	}
	if age := now.Sub(l.at); age >= 0 && age < old {
		enough := true
		for by, n := range need {
			enough = enough && l.lists[by] >= n
		}
		if enough {
			return
		}
		for by, n := range l.lists { // lest questions that come and go have the users looked at ever again
			need[by] = max(need[by], n)
		}
	}
	s := p.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt(p.set.Load())
	look := s.view.Look(now, need)
	s.finish(look)
	l.overview, l.at, l.lists = look.Overview(), now, maps.Clone(need)
	p.keep(now)
}

// keep has histories of those who are shown. Both locks must be held.
func (p *Polygen) keep(now time.Time) {
	l, past := &p.live, p.seen.past
	for _, s := range l.overview.Limited {
		past.Limited(now, s.Key())
	}
	for _, list := range l.overview.Tops {
		for i := min(len(list), maxListed) - 1; i >= 0; i-- {
			past.Keep(now, list[i].Key())
		}
	}
	for q := range l.questions {
		if q.User != "" {
			past.Keep(now, q.Key())
		}
	}
}

// answer makes the answer of a question from the overview. The lock of live must be held.
func (p *Polygen) answer(q view.Question) *view.Message {
	o := &p.live.overview
	users := o.Tops[q.Sort]
	a := &view.Live{
		From: p.from(), Totals: o.Totals, Sort: q.Sort, Users: users[:min(q.N, len(users))], Limited: o.Limited,
		Instances: p.Instances().Instances,
	}
	if q.User != "" {
		a.User = p.userLately(q)
	}
	return &view.Message{Event: "live", Value: a}
}

// userLately is the user whom a question asks for.
func (p *Polygen) userLately(q view.Question) *view.User {
	p.seen.mu.Lock()
	out := p.seen.view.UserLately(p.clock.Now(), q.Key())
	p.seen.mu.Unlock()
	out.From = p.from()
	if !q.IsKey {
		out.Name = view.Name{User: q.User, Endpoint: q.Endpoint, Href: view.Path(q.User, q.Endpoint)}
	}
	if !q.IsKey || limits.IsHidden(q.User) {
		p.seen.where.ofAtOnce(p.set.Load(), &out)
	}
	return &out
}
