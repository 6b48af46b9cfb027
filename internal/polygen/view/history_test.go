package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// shown writes a list with "-" for what is not there.
func shown(list []*int64) string {
	var all []string
	for _, n := range list {
		if n == nil {
			all = append(all, "-")
		} else {
			all = append(all, fmt.Sprint(*n))
		}
	}
	return strings.Join(all, " ")
}

// seriesOf is what a history has, by name.
func seriesOf(h api.History) map[string]string {
	all := map[string]string{"in_progress": shown(h.InProgress), "down": shown(h.Down), "up": shown(h.Up)}
	for _, l := range h.Limits {
		all[l.Name] = shown(l.Used)
	}
	return all
}

// What is remembered of alice, who is kept from the beginning.
func TestHistory(t *testing.T) {
	for _, tt := range []struct {
		name    string
		history func(r *rig, next func(time.Duration)) // next waits and samples
		begin   int64                                  // after t0
		want    map[string]string
	}{
		{"nothing heard", func(_ *rig, next func(time.Duration)) { next(time.Second) }, 0,
			map[string]string{"GET": "0", "*": "0", "concurrent": "0", "in_progress": "0", "down": "0", "up": "0"}},
		{"full seconds", func(r *rig, next func(time.Duration)) {
			r.use("alice", 7)
			next(time.Second)
			r.use("alice", 3)
			r.progress("a", "alice", 2, 2, 0)
			next(time.Second)
			r.use("alice", 9) // of a second that is not full
			next(999 * time.Millisecond)
		}, 0, map[string]string{"GET": "7 3", "*": "0 0", "concurrent": "0 2", "in_progress": "0 2"}},
		{"a second is sampled once", func(r *rig, next func(time.Duration)) {
			r.demand(bandwidth.Report{Instance: "a", User: "alice", Moved: [2]int64{5, 6}})
			next(time.Second)
			next(time.Millisecond)
			next(time.Millisecond)
		}, 0, map[string]string{"down": "5", "up": "6", "GET": "0"}},
		{"seconds that were missed", func(r *rig, next func(time.Duration)) {
			r.use("alice", 1)
			next(time.Second)
			r.wait(2 * time.Second)
			r.use("alice", 2)
			next(time.Second)
		}, 0, map[string]string{"GET": "1 - - 2", "in_progress": "0 - - 0"}},
		{"too many were missed", func(r *rig, next func(time.Duration)) {
			next(time.Second)
			r.wait(400 * time.Second)
			r.use("alice", 2)
			next(time.Second)
		}, 401, map[string]string{"GET": "2"}},
		{"a clock that was set back begins anew", func(r *rig, next func(time.Duration)) {
			next(10 * time.Second)
			next(time.Second)
			r.wait(-8 * time.Second)
			r.use("alice", 2)
			next(time.Second)
		}, 3, map[string]string{"GET": "2"}},
		{"one set back by a second waits", func(r *rig, next func(time.Duration)) {
			r.use("alice", 4)
			next(time.Second)
			next(-time.Second)
			next(time.Second)
		}, 0, map[string]string{"GET": "4"}},
		{"a limit that comes and one that goes", func(r *rig, next func(time.Duration)) {
			r.use("alice", 4)
			next(time.Second)
			r.Limits(parse(t, strings.Replace(file, `GET: 10, "*": 20`, `GET: 12, PUT: 9`, 1)))
			r.use("alice", 5)
			r.useOf("PUT", "alice", 6)
			next(time.Second)
		}, 0, map[string]string{"GET": "4 5", "PUT": "- 6", "*": ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, h := newRig(t), NewHistories(2)
			h.Remember(r.now, "alice")
			tt.history(r, func(d time.Duration) { r.wait(d); h.Sample(r.now, r.View) })
			out := h.History(r.now, "alice", r.View)
			if out.Begin != t0.Unix()+tt.begin || out.Step != 1 || out.User != "alice" {
				t.Errorf("history of %q begins at %+d, step %d, want alice's at %+d", out.User, out.Begin-t0.Unix(), out.Step, tt.begin)
			}
			got := seriesOf(out)
			for name, want := range tt.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
		})
	}
}

// Of a minute each second has the count until its end; at the end of the minute that
// is the minute's.
func TestHistoryOfMinutes(t *testing.T) {
	r, h := &rig{View: New(parse(t, many), 10, 10), now: t0}, NewHistories(2)
	h.Remember(r.now, "alice")
	r.wait(57 * time.Second)
	k := ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}
	for i := range 5 { // the minute ends within
		if i == 3 {
			r.Usage(r.now, k, t0.Unix()+60, 7)
		} else if i < 3 {
			r.Usage(r.now, k, t0.Unix(), 50+i)
		}
		r.wait(time.Second)
		h.Sample(r.now, r.View)
	}
	out := h.History(r.now, "alice", r.View)
	for _, l := range out.Limits {
		if l.Name == "GET/minute" && (shown(l.Used) != "50 51 52 7 7" || l.Window != 60 || l.Max != 60) {
			t.Errorf("%+v: %s, want 50 51 52 7 7 of 60 in 60 s", l, shown(l.Used))
		}
	}
	if got := seriesOf(out)["GET/minute"]; got == "" {
		t.Error("there is no history of the limit per minute")
	}
}

// The last 300 seconds are kept, whenever they began.
func TestHistoryIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, h := New(parse(&testing.T{}, file), 10, 10), NewHistories(1)
		h.Remember(t0, "alice")
		seconds := rapid.IntRange(1, 700).Draw(t, "seconds")
		for i := range seconds {
			at := t0.Add(time.Duration(i) * time.Second)
			v.Usage(at, ratelimit.Key{Class: "GET", User: "alice"}, at.Unix(), i)
			h.Remember(at, "alice")
			h.Sample(at.Add(time.Second), v)
		}
		out := h.History(t0.Add(time.Duration(seconds)*time.Second), "alice", v)
		n := min(seconds, 300)
		used := out.Limits[1].Used
		if out.Limits[1].Name != "GET" || len(used) != n || len(out.Down) != n || len(out.InProgress) != n || len(out.Up) != n || out.Begin != t0.Unix()+int64(seconds-n) {
			t.Fatalf("after %d s: %d samples of %s from %+d, want %d", seconds, len(used), out.Limits[1].Name, out.Begin-t0.Unix(), n)
		}
		for i, got := range used {
			if want := int64(seconds - n + i); got == nil || *got != want {
				t.Fatalf("sample %d of %s, want %d", i, shown(used), want)
			}
		}
	})
}

// Who asks has a sample at once, and is remembered from then on.
func TestHistoryBeginsWithTheQuestion(t *testing.T) {
	r, h := newRig(t), NewHistories(2)
	r.use("bob", 3)
	r.wait(time.Second)
	if got := seriesOf(h.History(r.now, "bob", r.View))["GET"]; got != "3" {
		t.Errorf("GET: %q, want the last second's 3", got)
	}
	r.use("bob", 4)
	r.wait(time.Second)
	h.Sample(r.now, r.View)
	if got := seriesOf(h.History(r.now, "bob", r.View))["GET"]; got != "3 4" {
		t.Errorf("GET: %q, want 3 4", got)
	}
}

// Whose history is kept.
func TestHistoriesKept(t *testing.T) {
	type step struct {
		after   time.Duration
		keep    string
		limited string
	}
	for _, tt := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"as many as there may be", []step{{0, "a b", ""}}, "a b"},
		{"the user wanted least recently gives way", []step{{0, "a b c", ""}}, "b c"},
		{"wanted again", []step{{0, "a b", ""}, {time.Second, "a", ""}, {2 * time.Second, "c", ""}}, "a c"},
		{"a limited user is kept", []step{{0, "", "x"}}, "x"},
		{"a limited user does not take the place of a wanted one", []step{{0, "a b", ""}, {time.Second, "", "x y z"}}, "a b"},
		{"a limited user does not take the place of one limited just before", []step{{0, "", "x y"}, {time.Second, "", "z"}}, "x y"},
		{"a limited user takes a place not wanted for 10 s", []step{{0, "a b", ""}, {10 * time.Second, "", "x"}}, "b x"},
		{"a wanted user takes the place of a limited one", []step{{0, "", "x y"}, {time.Second, "a", ""}}, "a y"},
		{"to be limited again counts as wanted again", []step{{0, "a b", ""}, {5 * time.Second, "", "a"}, {10 * time.Second, "c", ""}}, "a c"},
		{"kept for ten minutes", []step{{0, "a", ""}, {10*time.Minute - 1, "", ""}}, "a"},
		{"not kept for longer", []step{{0, "a b", ""}, {time.Minute, "b", ""}, {10 * time.Minute, "", ""}}, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, v := NewHistories(2), New(parse(t, file), 10, 10)
			for _, s := range tt.steps {
				at := t0.Add(s.after)
				for _, key := range strings.Fields(s.keep) {
					h.Remember(at, key)
				}
				for _, key := range strings.Fields(s.limited) {
					h.RememberLimited(at, key)
				}
				h.Sample(at, v)
			}
			var got []string
			for _, key := range []string{"a", "b", "c", "x", "y", "z"} {
				if h.users.lookUp(key) != nil {
					got = append(got, key)
				}
			}
			if kept := strings.Join(got, " "); kept != tt.want || h.Len() != len(got) {
				t.Errorf("kept %s (%d), want %s", kept, h.Len(), tt.want)
			}
		})
	}
}

// A file with very many limits does not make histories large.
func TestHistoryOfManyLimits(t *testing.T) {
	text := "version: 1\ndefault_tier: free\ntiers:\n  free:\n    requests:\n"
	for _, class := range []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"} {
		text += "      " + class + ": {second: 1, minute: 2, hour: 3}\n"
	}
	v, h := New(parse(t, text), 10, 10), NewHistories(1)
	if out := h.History(t0, "alice", v); len(out.Limits) != maxSeries || out.Limits[0].Name != "DELETE" {
		t.Errorf("%d limits, the first %q, want %d from DELETE on", len(out.Limits), out.Limits[0].Name, maxSeries)
	}
}

// Each user has a history of their own.
func TestHistoriesSample(t *testing.T) {
	r, h := newRig(t), NewHistories(3)
	for i, user := range []string{"alice", "bob", "carl"} {
		h.Remember(r.now, user)
		r.use(user, i+1)
	}
	r.wait(time.Second)
	h.Sample(r.now, r.View)
	for i, user := range []string{"alice", "bob", "carl"} {
		if got := seriesOf(h.History(r.now, user, r.View))["GET"]; got != fmt.Sprint(i+1) {
			t.Errorf("%s: GET %q, want %d", user, got, i+1)
		}
	}
}

// A second's samples of 512 users.
func BenchmarkSample(b *testing.B) {
	v, h := crowd(b, 100_000), NewHistories(512)
	for i := range 512 {
		h.Remember(t0, fmt.Sprintf("user-%d", i*100))
	}
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		h.Sample(t0.Add(time.Duration(i%500)*time.Second), v)
	}
}
