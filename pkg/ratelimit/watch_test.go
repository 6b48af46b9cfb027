package ratelimit_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestWatch(t *testing.T) {
	get := ratelimit.Key{Class: "GET", User: "u"}
	put := ratelimit.Key{Class: "PUT", User: "u"}
	long := ratelimit.Key{Class: "GET", User: "u", Window: limits.Minute}
	day := ratelimit.Key{Class: "GET", User: "u", Window: limits.Day}
	s := t0.Unix()
	midnight := s - s%86400
	m := s - 20 // the minute's beginning
	type step struct {
		at       int // ms
		forget   bool
		instance string
		key      ratelimit.Key
		second   int64
		total    int
		limit    int
		calendar *limits.Calendar
		hints    []ratelimit.Hint
		spent    []ratelimit.Throttle
	}
	hint := func(k ratelimit.Key, at, instances int) []ratelimit.Hint {
		return []ratelimit.Hint{{Key: k, Until: ms(at + 3000), Instances: instances}}
	}
	spent := func(k ratelimit.Key, sec int64) []ratelimit.Throttle {
		return []ratelimit.Throttle{{Key: k, WindowStart: sec, End: sec + k.Window.Seconds(), Limit: 10}}
	}
	tests := []struct {
		name   string
		strict bool
		steps  []step
	}{
		{"hot from 80 % of the limit, spent at the limit, each once", false, []step{
			{at: 1, instance: "a", key: get, second: s, total: 7, limit: 10},
			{at: 2, instance: "b", key: get, second: s, total: 8, limit: 10, hints: hint(get, 2, 0)},
			{at: 3, instance: "a", key: get, second: s, total: 9, limit: 10},
			{at: 4, instance: "a", key: get, second: s, total: 10, limit: 10, spent: spent(get, s)},
			{at: 5, instance: "a", key: get, second: s, total: 10, limit: 10},
			{at: 6, instance: "a", key: get, second: s, total: 9, limit: 10},
			{at: 7, instance: "a", key: get, second: s, total: 10, limit: 10},
		}},
		{"the hint is repeated before it ends, the throttle in the next second", false, []step{
			{at: 0, instance: "a", key: get, second: s, total: 10, limit: 10, hints: hint(get, 0, 0), spent: spent(get, s)},
			{at: 999, instance: "a", key: get, second: s, total: 10, limit: 10},
			{at: 1000, instance: "a", key: get, second: s + 1, total: 10, limit: 10, spent: spent(get, s+1)},
			{at: 1499, instance: "a", key: get, second: s + 1, total: 10, limit: 10},
			{at: 1500, instance: "a", key: get, second: s + 1, total: 10, limit: 10, hints: hint(get, 1500, 0)},
		}},
		{"sooner for an instance that has begun to serve the user; after 3 s all of them are known", false, []step{
			{at: 0, instance: "a", key: get, second: s, total: 8, limit: 10, hints: hint(get, 0, 0)},
			{at: 1, instance: "b", key: get, second: s, total: 8, limit: 10},
			{at: 499, instance: "a", key: get, second: s, total: 8, limit: 10},
			{at: 500, instance: "a", key: get, second: s, total: 8, limit: 10, hints: hint(get, 500, 0)},
			{at: 1100, instance: "b", key: get, second: s + 1, total: 8, limit: 10},
			{at: 3499, instance: "b", key: get, second: s + 3, total: 8, limit: 10, hints: hint(get, 3499, 2)},
			{at: 4099, instance: "a", key: get, second: s + 4, total: 8, limit: 10, hints: hint(get, 4099, 2)},
		}},
		{"strict: hot from half of the limit", true, []step{
			{at: 0, instance: "a", key: get, second: s, total: 4, limit: 10},
			{at: 1, instance: "a", key: get, second: s, total: 5, limit: 10, hints: hint(get, 1, 0)},
		}},
		{"keys do not touch each other", false, []step{
			{at: 0, instance: "a", key: get, second: s, total: 10, limit: 10, hints: hint(get, 0, 0), spent: spent(get, s)},
			{at: 0, instance: "a", key: put, second: s, total: 3, limit: 10},
			{at: 1, instance: "a", key: put, second: s, total: 10, limit: 10, hints: hint(put, 1, 0), spent: spent(put, s)},
		}},
		{"what is not limited is not watched", false, []step{
			{at: 0, instance: "a", key: get, second: s, total: 1000, limit: 0},
		}},
		{"old seconds decide nothing", false, []step{
			{at: 5000, instance: "a", key: get, second: s, total: 1000, limit: 10},
		}},
		{"a second of the far future decides nothing", false, []step{
			{at: 0, instance: "a", key: get, second: s + 3600, total: 10, limit: 10},
			{at: 1, instance: "a", key: get, second: s, total: 10, limit: 10, hints: hint(get, 1, 0), spent: spent(get, s)},
		}},
		{"a minute is called spent once, for as long as it lasts", false, []step{
			{at: 0, instance: "a", key: long, second: m, total: 10, limit: 10, hints: hint(long, 0, 0), spent: spent(long, m)},
			{at: 4000, forget: true, instance: "a", key: long, second: m, total: 10, limit: 10, hints: hint(long, 4000, 1)},
			{at: 39_300, forget: true, instance: "a", key: long, second: m, total: 10, limit: 10, hints: hint(long, 39_300, 1)},
			{at: 39_990, instance: "a", key: long, second: m + 60, total: 10, limit: 10, spent: spent(long, m+60)},
			{at: 40_900, instance: "a", key: long, second: m, total: 10, limit: 10, hints: hint(long, 40_900, 1)},
			{at: 42_000, instance: "a", key: long, second: m, total: 10, limit: 10},
		}},
		{"a minute that begins in between is none", false, []step{
			{at: 0, instance: "a", key: long, second: s, total: 10, limit: 10},
		}},
		{"nor is a day by another calendar", false, []step{
			{at: 0, instance: "a", key: day, second: midnight, total: 10, limit: 10, calendar: berlin},
			{at: 0, instance: "a", key: day, second: midnight - 3600, total: 10, limit: 10, calendar: berlin, hints: hint(day, 0, 0),
				spent: []ratelimit.Throttle{{Key: day, WindowStart: midnight - 3600, End: midnight + 23*3600, Limit: 10}}},
		}},
		{"nor is one that is over, or of the future", false, []step{
			{at: 0, instance: "a", key: long, second: m - 60, total: 10, limit: 10},
			{at: 0, instance: "a", key: long, second: m + 60, total: 10, limit: 10},
			{at: 0, instance: "a", key: long, second: 1<<63 - 4, total: 10, limit: 10},
			{at: 0, instance: "a", key: day, second: 1<<63 - 4, total: 10, limit: 10},
		}},
		{"the second asked for ahead of its time is watched", false, []step{
			{at: 990, instance: "a", key: get, second: s + 1, total: 10, limit: 10, hints: hint(get, 990, 0), spent: spent(get, s+1)},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := ratelimit.NewWatch(tt.strict)
			for i, st := range tt.steps {
				if st.forget {
					w.Forget(ms(st.at))
				}
				w.Observe(ms(st.at), st.instance, st.key, st.second, st.total, limits.Rate{Max: st.limit, Calendar: st.calendar})
				hints, spent := w.Decisions()
				if diff := cmp.Diff(st.hints, hints); diff != "" {
					t.Errorf("step %d: hints (-want +got):\n%s", i, diff)
				}
				if diff := cmp.Diff(st.spent, spent); diff != "" {
					t.Errorf("step %d: throttles (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestWatchForgets(t *testing.T) {
	w := ratelimit.NewWatch(false)
	k := ratelimit.Key{Class: "GET", User: "u"}
	w.Observe(ms(0), "gone", k, t0.Unix(), 1, limits.Rate{Max: 10})
	w.Observe(ms(2000), "here", k, t0.Unix()+2, 1, limits.Rate{Max: 10})
	w.Forget(ms(3500))
	w.Observe(ms(3500), "here", k, t0.Unix()+3, 10, limits.Rate{Max: 10})
	if hints, _ := w.Decisions(); len(hints) != 1 || hints[0].Instances != 1 {
		t.Errorf("hints = %v, want one with one instance", hints)
	}
	for i, want := range []int{1, 1, 0} {
		w.Forget(ms(6499 + 3000*i))
		if got := w.WatchedKeys(); got != want {
			t.Errorf("WatchedKeys() = %d at %d, want %d", got, 6499+3000*i, want)
		}
	}
}

// Of more agents than have requests of the user in a window, none is a newcomer that needs a hint of its own.
func TestWatchHintsOfManyAgents(t *testing.T) {
	w := ratelimit.NewWatch(false)
	k := ratelimit.Key{Class: "GET", User: "u"}
	for _, step := range []struct {
		at       int // ms
		instance string
		hints    int
	}{
		{1, "a", 1}, {2, "b", 0}, {501, "c", 1}, // three: a newcomer
		{502, "d", 0}, {503, "e", 0}, {1002, "f", 0}, {2001, "f", 1}, // six: after hintGap
	} {
		w.Observe(ms(step.at), step.instance, k, t0.Unix()+int64(step.at/1000), 2, limits.Rate{Max: 2})
		if hints, _ := w.Decisions(); len(hints) != step.hints {
			t.Errorf("%d ms: %d hints, want %d", step.at, len(hints), step.hints)
		}
	}
}

func TestWatchDecisionsAreSorted(t *testing.T) {
	w := ratelimit.NewWatch(false)
	for _, k := range []ratelimit.Key{{Class: "PUT", User: "b"}, {Class: "GET", User: "b"}, {Class: "PUT", User: "a"}} {
		w.Observe(t0, "i", k, t0.Unix(), 10, limits.Rate{Max: 10})
	}
	want := []ratelimit.Key{{Class: "PUT", User: "a"}, {Class: "GET", User: "b"}, {Class: "PUT", User: "b"}}
	hints, spent := w.Decisions()
	for i, k := range want {
		if hints[i].Key != k || spent[i].Key != k {
			t.Errorf("decision %d is of %v and %v, want %v", i, hints[i].Key, spent[i].Key, k)
		}
	}
}
