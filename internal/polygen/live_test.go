package polygen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// alone is a generator that nothing happens to but what a test does.
func alone(t *testing.T) *generator { return newGenerator(t, "127.0.0.1:1", "polygen", nil) }

// hear gives a generator use of alice, bob and mover, now.
func (g *generator) hear() {
	now := g.clock.Now()
	g.observe(now, redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{
		{User: "alice", Held: 6, Active: 5, Refused: 2, Limit: 5}, {User: "bob", Held: 2, Active: 2, Limit: 5},
	}})
	g.observe(now, redisbus.Demand{{Instance: "one", User: "mover", Active: 1, Moved: [2]int64{7, 8}, Share: [2]int64{9, 10}}})
	g.observe(now, redisbus.Registry{Instances: []string{"one", "two"}, Now: now, Problems: map[string]string{"two": "no peers session with HAProxy"}})
	g.sendPolicies(context.Background())
}

func liveOf(t *testing.T, answers <-chan *api.Message) *api.Live {
	t.Helper()
	select {
	case m := <-answers:
		if m.Event != "live" {
			t.Errorf("event %s, want live", m.Event)
		}
		return m.Value.(*api.Live)
	case <-time.After(testkit.Patience):
		t.Fatal("no answer")
		return nil
	}
}

// Who begins to watch has an answer at once, with all that was heard and decided.
func TestWatch(t *testing.T) {
	g := alone(t)
	g.hear()
	answers, stop, err := g.Watch(api.Question{Sort: api.ByConcurrent, N: 1, User: "mover"})
	testkit.Must(t, err)
	defer stop()
	a := liveOf(t, answers)
	if want := (api.Totals{Users: 3, InProgress: 8, Down: 7, Up: 8, Blocked: 1, Seen: 3, Capacity: maxKnownUsers}); a.Totals != want {
		t.Errorf("totals %+v, want %+v", a.Totals, want)
	}
	if a.Polygen != "polygen" || a.Sort != api.ByConcurrent || len(a.Users) != 1 || a.Users[0].User != "alice" || a.Users[0].Near.Limit != "concurrent" {
		t.Errorf("%+v of %s by %s, want alice, by concurrent", a.Users, a.Polygen, a.Sort)
	}
	if len(a.Limited) != 1 || a.Limited[0].User != "alice" || a.Limited[0].State != api.Blocked {
		t.Errorf("limited: %+v, want alice, blocked", a.Limited)
	}
	if len(a.Instances) != 2 || a.Instances[0].Problem != "" || a.Instances[1].Problem != "no peers session with HAProxy" {
		t.Errorf("instances %+v, want the problem of the second", a.Instances)
	}
	if u := a.User; u == nil || u.User != "mover" || u.Down != 7 || u.Entry == nil || u.Entry.Line != 7 || u.Limits[0].Origin == nil || u.Polygen != "polygen" {
		t.Errorf("user %+v, want mover, and where mover's limits come from", u)
	}
	stop()
	stop() // as good as once
	if got := g.streams.n.Load(); got != 0 || len(g.live.questions) != 0 {
		t.Errorf("%d streams and %d questions after the end, want none", got, len(g.live.questions))
	}
}

// All who ask the same get the same answer, made once, and all answers of a second are
// made from one look at the users.
func TestAnswersAreShared(t *testing.T) {
	g := alone(t)
	g.hear()
	questions := []api.Question{{Sort: api.ByRate, N: 5}, {Sort: api.ByRate, N: 5}, {Sort: api.ByDown, N: 500}}
	var streams []<-chan *api.Message
	for _, q := range questions {
		answers, stop, err := g.Watch(q)
		testkit.Must(t, err)
		defer stop()
		streams = append(streams, answers)
		liveOf(t, answers)
	}
	for range 3 {
		g.everySecond()
		var got []*api.Message
		for _, s := range streams {
			got = append(got, <-s)
		}
		if got[0] != got[1] || got[0] == got[2] {
			t.Errorf("answers %p and %p of one question, %p of another, want one for each question", got[0], got[1], got[2])
		}
		if &got[0].JSON()[0] != &got[1].JSON()[0] {
			t.Error("the answer was encoded twice")
		}
	}
	if list := got(t, g, api.Question{Sort: api.ByDown, N: 1}); len(list.Users) != 1 {
		t.Errorf("%d users, want the one that was asked for", len(list.Users))
	}
}

// got is the first answer to a question.
func got(t *testing.T, g *generator, q api.Question) *api.Live {
	t.Helper()
	answers, stop, err := g.Watch(q)
	testkit.Must(t, err)
	defer stop()
	return liveOf(t, answers)
}

// Questions that come together share a look at the users.
func TestLooksAreShared(t *testing.T) {
	g := alone(t)
	look := g.lookAtUsers(lookFor)
	if g.lookAtUsers(time.Hour) != look {
		t.Error("a young look was not used again")
	}
	if g.lookAtUsers(0) == look {
		t.Error("an old look was used again")
	}
}

// A watcher that has not read for a while gets the newest answer when it does.
func TestSlowWatcherMissesSome(t *testing.T) {
	g := alone(t)
	answers, stop, err := g.Watch(api.Question{Sort: api.ByRate, N: 5})
	testkit.Must(t, err)
	defer stop()
	for range 3 {
		g.everySecond()
	}
	g.hear()
	g.everySecond()
	if a := liveOf(t, answers); a.Totals.Seen != 3 || len(answers) != 0 {
		t.Errorf("%d users seen, %d answers wait, want the newest answer alone, with 3", a.Totals.Seen, len(answers))
	}
}

// There are 64 streams of either kind, and one that ends makes room.
func TestStreamsAreBounded(t *testing.T) {
	g := alone(t)
	var stops []func()
	open := func(i int) error {
		var stop func()
		var err error
		if i%2 == 0 {
			_, stop, err = g.Watch(api.Question{Sort: api.ByRate, N: 1 + i})
		} else {
			_, stop, err = g.Policies(api.Filter{})
		}
		if err == nil {
			stops = append(stops, stop)
		}
		return err
	}
	for i := range maxStreams {
		if err := open(i); err != nil {
			t.Fatalf("stream %d: %v", i+1, err)
		}
	}
	for i := range 2 {
		if err := open(i); !errors.Is(err, errStreams) {
			t.Errorf("stream 65: %v, want %v", err, errStreams)
		}
	}
	stops[5]()
	if err := open(1); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for _, stop := range stops {
		stop()
	}
	if n := g.streams.n.Load(); n != 0 || g.events.any.Load() {
		t.Errorf("%d streams after all have ended, readers %v, want none", n, g.events.any.Load())
	}
}

// While it runs there is an answer every second, and histories go on.
func TestLiveRuns(t *testing.T) {
	g := newGenerator(t, redis(t), "polygen", nil).run(t)
	answers, stop, err := g.Watch(api.Question{Sort: api.ByRate, N: 5, User: "bob"})
	testkit.Must(t, err)
	defer stop()
	last := liveOf(t, answers).Time
	testkit.Eventually(t, "answers after each full second", func() error { // some are late on a slow machine
		before := last
		last = liveOf(t, answers).Time
		if last.Sub(before) < 500*time.Millisecond || last.Nanosecond() < int(liveAfter) {
			return fmt.Errorf("one at %v after one at %v", last, before)
		}
		return nil
	})
}

// Where limits come from is found out again after the file has changed, though the
// answers do not wait for it.
func TestLiveOrigin(t *testing.T) {
	g := newGenerator(t, redis(t), "polygen", nil).run(t)
	answers, stop, err := g.Watch(api.Question{Sort: api.ByRate, N: 5, User: "mover"})
	testkit.Must(t, err)
	defer stop()
	if u := liveOf(t, answers).User; u.Entry == nil || u.Entry.Line != 7 {
		t.Errorf("entry %+v, want line 7", u.Entry)
	}
	g.write(t, strings.Replace(tenGets, "users:", "\n\nusers:", 1))
	testkit.Must(t, g.Reload())
	testkit.Eventually(t, "the entry is in line 9", func() error {
		if u := liveOf(t, answers).User; u.Entry == nil || u.Entry.Line != 9 {
			return fmt.Errorf("entry %+v", u.Entry)
		}
		return nil
	})
}

// Whose history is kept: of those who are limited, listed and asked about.
func TestHistories(t *testing.T) {
	g := alone(t)
	now := g.clock.Now()
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{{Key: ratelimit.Key{Class: "GET", User: "throttled"}, Second: now.Unix(), Total: 10}}})
	g.hear()
	got(t, g, api.Question{Sort: api.ByConcurrent, N: 3, User: "bob"})
	for range 2 {
		g.everySecond()
	}
	for _, user := range []string{"throttled", "alice", "bob", "mover"} {
		if h := g.History(user); h.User != user || h.Polygen != "polygen" || len(h.Down) == 0 {
			t.Errorf("History(%s) = %+v, want samples", user, h)
		}
	}
	if h := g.History("a/b"); h.User != "a/b" || h.Href != "/api/v1/users/a%2Fb" || len(h.Limits) != 3 || len(h.Down) != 1 {
		t.Errorf("History(a/b) = %+v, want one sample", h)
	}
	if key := g.Polygen.History(api.Who{User: "mover", IsKey: true}); len(key.Limits) != 2 || key.Href != "/api/v1/users/mover" {
		t.Errorf("History() of the key mover = %+v, want two limits", key)
	}
}
