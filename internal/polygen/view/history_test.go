package view

import (
	"fmt"
	"slices"
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
			r := newRig(t)
			r.use("alice", 0)
			r.Remember(r.now, "alice")
			tt.history(r, func(d time.Duration) { r.wait(d); r.Sample(r.now) })
			out := r.History(r.now, "alice")
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
	r := &rig{View: New(parse(t, many), 10), now: t0}
	r.use("alice", 0)
	r.Remember(r.now, "alice")
	r.wait(57 * time.Second)
	k := ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}
	for i := range 5 { // the minute ends within
		if i == 3 {
			r.Usage(r.now, k, t0.Unix()+60, 7)
		} else if i < 3 {
			r.Usage(r.now, k, t0.Unix(), 50+i)
		}
		r.wait(time.Second)
		r.Sample(r.now)
	}
	series := r.History(r.now, "alice").Limits
	l := series[slices.IndexFunc(series, func(l api.LimitSeries) bool { return l.Name == "GET/minute" })]
	if shown(l.Used) != "50 51 0 7 7" || l.Window != 60 || l.Max != 60 {
		t.Errorf("%+v: %s, want 50 51 0 7 7 of 60 in 60 s", l, shown(l.Used))
	}
}

// The last 300 seconds are kept, whenever they began.
func TestHistoryIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(parse(&testing.T{}, file), 10)
		seconds := rapid.IntRange(1, 700).Draw(t, "seconds")
		for i := range seconds {
			at := t0.Add(time.Duration(i) * time.Second)
			v.Usage(at, ratelimit.Key{Class: "GET", User: "alice"}, at.Unix(), i)
			v.Remember(at, "alice")
			v.Sample(at.Add(time.Second))
		}
		out := v.History(t0.Add(time.Duration(seconds)*time.Second), "alice")
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

// Who asks has a sample at once, and the history is kept from then on.
func TestHistoryBeginsWithTheQuestion(t *testing.T) {
	r := newRig(t)
	r.use("bob", 3)
	r.wait(time.Second)
	if got := seriesOf(r.History(r.now, "bob"))["GET"]; got != "3" {
		t.Errorf("GET: %q, want the last second's 3", got)
	}
	r.use("bob", 4)
	r.wait(time.Second)
	r.Sample(r.now)
	if got := seriesOf(r.History(r.now, "bob"))["GET"]; got != "3 4" {
		t.Errorf("GET: %q, want 3 4", got)
	}
	if got := seriesOf(r.History(r.now, "nobody"))["GET"]; got != "0" || r.Users() != 1 {
		t.Errorf("of nobody: %q, %d users, want 0 and bob alone", got, r.Users())
	}
}

// Histories of users who were asked for replace those wanted least recently; limited users have them while there is room.
func TestHistoriesKept(t *testing.T) {
	r := &rig{View: New(parse(t, file), 2*MaxHistories), now: t0}
	name := func(i int) string { return fmt.Sprint("u", i) }
	for i := range MaxHistories + 2 {
		r.use(name(i), 1)
	}
	r.throttle("GET", name(0))
	for i := range MaxHistories {
		r.wait(time.Millisecond)
		r.Remember(r.now, name(i+1))
	}
	r.throttle("GET", name(MaxHistories+1))
	kept := func(i int) bool { return r.lookUp(name(i)).history != nil }
	if len(r.kept) != MaxHistories || kept(0) || !kept(1) || !kept(MaxHistories) || kept(MaxHistories+1) {
		t.Errorf("%d histories, the first %v, the last %v, want those that were asked for", len(r.kept), kept(0), kept(MaxHistories+1))
	}
	r.wait(time.Duration(historySpan) - time.Millisecond)
	if r.Sample(r.now); len(r.kept) != 1 || !kept(MaxHistories) {
		t.Errorf("%d histories after ten minutes, want the one asked for last", len(r.kept))
	}
	r.wait(time.Duration(forgetAfter))
	r.keepHistory(r.now.UnixNano(), r.lookUp(name(0)), false)
	if r.Forget(r.now); len(r.kept) != 0 {
		t.Errorf("%d histories of forgotten users", len(r.kept))
	}
}

// A file with very many limits does not make histories large.
func TestHistoryOfManyLimits(t *testing.T) {
	text := "version: 1\ndefault_tier: free\ntiers:\n  free:\n    requests:\n"
	for _, class := range []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"} {
		text += "      " + class + ": {second: 1, minute: 2, hour: 3}\n"
	}
	if out := New(parse(t, text), 10).History(t0, "alice"); len(out.Limits) != maxSeries || out.Limits[0].Name != "DELETE" {
		t.Errorf("%d limits, the first %q, want %d from DELETE on", len(out.Limits), out.Limits[0].Name, maxSeries)
	}
}
