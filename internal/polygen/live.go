package polygen

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
)

const (
	// liveAfter is how long after a full second of the cluster live answers are made: agents have reported the second by then.
	liveAfter = 100 * time.Millisecond
	// maxListed is how many users of a list have a history.
	maxListed = 80
)

// live answers watchers once a second. Watchers with the same question share one answer, and all answers share one look at the
// users. The zero value has no watchers.
type live struct {
	mu        sync.Mutex
	questions map[api.Question]map[chan *api.Message]bool
}

// Watch returns an answer at once and one every second, until stop is called. A slow watcher misses some.
func (p *Polygen) Watch(q api.Question) (answers <-chan *api.Message, stop func(), err error) {
	if err := p.streams.acquire(); err != nil {
		return nil, nil, err
	}
	if q.User != "" {
		p.recall(q.Key())
	}
	c := make(chan *api.Message, 1)
	c <- p.answer(q, lookFor)
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.questions == nil {
		l.questions = make(map[api.Question]map[chan *api.Message]bool)
	}
	if l.questions[q] == nil {
		l.questions[q] = make(map[chan *api.Message]bool)
	}
	l.questions[q][c] = true
	return c, sync.OnceFunc(func() {
		l.mu.Lock()
		if delete(l.questions[q], c); len(l.questions[q]) == 0 {
			delete(l.questions, q)
		}
		l.mu.Unlock()
		p.streams.release()
	}), nil
}

// answerWatchers answers after every full second of the cluster, until ctx ends.
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

func (p *Polygen) everySecond() {
	u := p.lockUsers()
	u.view.Sample(p.clock.Now())
	u.mu.Unlock()
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	age := time.Duration(0) // the first answer looks at the users, and the others share the look
	for q, watchers := range l.questions {
		answer := p.answer(q, age)
		age = lookFor
		for c := range watchers {
			// The newest answer replaces one that was not read. Only this goroutine writes, so there is room.
			select {
			case <-c:
			default:
			}
			c <- answer
		}
	}
}

// answer makes the answer to a question from a look that is younger than an age.
func (p *Polygen) answer(q api.Question, age time.Duration) *api.Message {
	look, now := p.lookAtUsers(age), p.clock.Now()
	u := p.lockUsers()
	a := &api.Live{Totals: look.Totals, Sort: q.Sort, Units: p.costUnits(), Users: look.Top(q.Sort, q.N), Limited: look.Limited(), Instances: u.fleet.instances()}
	for _, listed := range a.Users[:min(maxListed, len(a.Users))] {
		u.view.Remember(now, listed.User)
	}
	if q.User != "" {
		user := u.view.UserLately(now, q.Key())
		u.view.Remember(now, q.Key())
		a.User = &user
	}
	u.mu.Unlock()
	a.From = p.answerHead()
	if a.User != nil {
		p.completeUser(api.Who{User: q.User, IsKey: q.IsKey}, a.User)
	}
	return &api.Message{Event: "live", Value: a}
}
