package polygen

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestReactions(t *testing.T) {
	set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: a\nendpoints: [e]\ntiers: {a: {requests: {GET: 5}, endpoints: {\"*\": {requests: {GET: 5}}}}, dry: {mode: dry-run, requests: {GET: 5}}}\nusers: {dry: dry}\n"))
	if err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	all := func(*ratelimit.Throttle) []string { return nil }
	get := func(user string) ratelimit.Key { return ratelimit.Key{Class: "GET", User: user} }
	spend := func(r *reactions, at time.Time, users ...string) []policy.Addressed {
		var throttles []ratelimit.Throttle
		for _, user := range users {
			r.markSpent(get(user), at.Unix(), at)
			throttles = append(throttles, ratelimit.Throttle{Key: get(user), WindowStart: at.Unix(), Limit: 5})
		}
		return r.confirmations(at.Add(ms), set, throttles, all)
	}
	says := func(instance, user string, at time.Duration) bus.Confirmed {
		return bus.Confirmed{Instance: instance, At: start.Add(at), Second: start.Unix(), Key: get(user)}
	}

	t.Run("it took until the last instance", func(t *testing.T) {
		r := reactions{instances: []string{"one", "two"}}
		if asked := spend(&r, start, "u"); len(asked) != 1 || asked[0].To != nil || asked[0].Message != (policy.Confirm{Key: get("u"), Second: 1000}) {
			t.Fatalf("asked %v, want u", asked)
		}
		for _, tt := range []struct {
			name string
			says bus.Confirmed
			want time.Duration
		}{
			{"the slow one first", says("two", "u", 9*ms), 0},
			{"again", says("two", "u", 99*ms), 0},
			{"one that nobody knows", says("three", "u", 9*ms), 0},
			{"of another user", says("one", "v", 9*ms), 0},
			{"of another window", bus.Confirmed{Instance: "one", At: start, Second: 999, Key: get("u")}, 0},
			{"the last one", says("one", "u", 3*ms), 9 * ms},
			{"too late", says("one", "u", 3*ms), 0},
		} {
			if took, done := r.confirmed(tt.says); took != tt.want || done != (tt.want > 0) {
				t.Errorf("%s: took %v, %v, want %v", tt.name, took, done, tt.want)
			}
		}
		if n := r.giveUp(start.Add(time.Hour)); n != 0 {
			t.Errorf("gave up %d, want none", n)
		}
	})
	t.Run("of those that serve the user", func(t *testing.T) {
		r := reactions{instances: []string{"one", "two"}}
		r.markSpent(get("u"), start.Unix(), start)
		asked := r.confirmations(start, set, []ratelimit.Throttle{{Key: get("u"), WindowStart: start.Unix(), Limit: 5}}, func(*ratelimit.Throttle) []string { return []string{"two"} })
		if len(asked) != 1 || !slices.Equal(asked[0].To, []string{"two"}) {
			t.Errorf("asked %v, want two", asked)
		}
		if took, done := r.confirmed(says("two", "u", ms)); took != ms || !done {
			t.Errorf("took %v, %v, want %v", took, done, ms)
		}
	})
	t.Run("one that refused before Redis counted took no time", func(t *testing.T) {
		r := reactions{instances: []string{"one"}}
		spend(&r, start, "u")
		if took, done := r.confirmed(says("one", "u", -ms)); took != 0 || !done {
			t.Errorf("took %v, %v, want 0", took, done)
		}
	})
	t.Run("not everywhere in time", func(t *testing.T) {
		r := reactions{instances: []string{"one", "two"}}
		spend(&r, start, "u")
		r.confirmed(says("one", "u", ms))
		if early, late := r.giveUp(start.Add(reactionSpan)), r.giveUp(start.Add(ms+reactionSpan)); early != 0 || late != 1 {
			t.Errorf("gave up %d, then %d, want 0, then 1", early, late)
		}
	})
	t.Run("of instances that are gone", func(t *testing.T) {
		r := reactions{instances: []string{"one", "two"}}
		spend(&r, start, "u")
		r.confirmed(says("one", "u", ms))
		r.instances = []string{"one"}
		if n := r.giveUp(start.Add(time.Hour)); n != 0 {
			t.Errorf("gave up %d whose last instance is gone, want none", n)
		}
		r.markSpent(get("v"), start.Unix(), start)
		r.confirmations(start, set, []ratelimit.Throttle{{Key: get("v"), WindowStart: start.Unix(), Limit: 5}}, func(*ratelimit.Throttle) []string { return []string{} })
		if n := r.giveUp(start.Add(time.Hour)); n != 0 || len(r.followed) != 0 {
			t.Errorf("gave up %d of a user whom nobody serves, %d left, want none", n, len(r.followed))
		}
	})
	t.Run("ten a second", func(t *testing.T) {
		r := reactions{instances: []string{"one"}}
		asked := 0
		for i := range 30 {
			asked += len(spend(&r, start.Add(time.Duration(i)*ms), fmt.Sprint("u", i)))
		}
		if asked != reactionsPerSecond {
			t.Errorf("asked for %d in a second, want %d", asked, reactionsPerSecond)
		}
		if asked := spend(&r, start.Add(1100*ms), "v"); len(asked) != 1 {
			t.Errorf("asked for %d in the next second, want 1", len(asked))
		}
		if asked := spend(&r, start.Add(-time.Hour), "w"); len(asked) != 1 {
			t.Errorf("asked for %d after the clock was set back, want 1", len(asked))
		}
	})
	for _, tt := range []struct {
		name string
		r    reactions
		user string
		ask  time.Time
	}{
		{"a limit in a dry run", reactions{instances: []string{"one"}}, "dry", start},
		{"one over all endpoints, of which no HAProxy hears,", reactions{instances: []string{"one"}}, "@*/u", start},
		{"no instance", reactions{}, "u", start},
		{"a window that has not begun", reactions{instances: []string{"one"}}, "u", start.Add(-time.Second)},
	} {
		t.Run(tt.name+" is not followed", func(t *testing.T) {
			tt.r.markSpent(get(tt.user), start.Unix(), start)
			if asked := tt.r.confirmations(tt.ask, set, []ratelimit.Throttle{{Key: get(tt.user), WindowStart: start.Unix(), Limit: 5}}, all); len(asked) != 0 {
				t.Errorf("asked %v, want nothing", asked)
			}
		})
	}
	t.Run("one of an earlier decision is not followed", func(t *testing.T) {
		r := reactions{instances: []string{"one"}}
		r.markSpent(get("u"), start.Unix(), start)
		r.confirmations(start, set, nil, all)
		if asked := r.confirmations(start, set, []ratelimit.Throttle{{Key: get("u"), WindowStart: start.Unix(), Limit: 5}}, all); len(asked) != 0 {
			t.Errorf("asked %v, want nothing", asked)
		}
	})
}
