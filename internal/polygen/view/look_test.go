package view

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// names are the users of a list, in order.
func names(list []api.Summary) string {
	var all []string
	for _, s := range list {
		all = append(all, s.User)
	}
	return strings.Join(all, " ")
}

func TestOverview(t *testing.T) {
	r := newRig(t)
	r.use("old", 3)
	r.wait(time.Second)
	r.use("alice", 10)
	r.throttle("GET", "alice")
	r.use("bob", 4)
	r.progress("a", "carl", 5, 5, 0)
	r.Blocked(r.now, "carl")
	r.demand(bandwidth.Report{Instance: "a", User: "mover", Active: 2, Moved: [2]int64{70, 8}})
	r.demand(bandwidth.Report{Instance: "b", User: "mover", Active: 1, Moved: [2]int64{1, 2}})
	r.wait(time.Second)
	out := r.whole(r.now)
	want := api.Totals{Users: 4, Rate: 14, InProgress: 8, Down: 71, Up: 10, Throttled: 1, Blocked: 1, Seen: 5, Capacity: 1000}
	if diff := cmp.Diff(want, out.Totals); diff != "" {
		t.Errorf("totals differ (-want +got):\n%s", diff)
	}
	for by, want := range map[api.Sort]string{
		api.ByRate: "alice bob", api.ByConcurrent: "carl mover", api.ByDown: "mover alice", api.ByUp: "mover alice", api.ByRecent: "mover carl", api.ByCost("joules"): "",
	} {
		if got := names(out.Top(by, 2)); got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
	if l := out.Limited(); names(l) != "alice carl" || l[0].State != api.Throttled || l[1].State != api.Blocked {
		t.Errorf("limited: %+v, want alice, throttled, and carl, blocked", l)
	}
	if got := out.Top(api.ByRate, 1)[0].State; got != api.Throttled {
		t.Errorf("alice is %s in the list by rate, want throttled", got)
	}
	if out.Unknown != 3 {
		t.Errorf("%d users whom the file does not name, want bob, carl and old", out.Unknown)
	}
	if empty := newRig(t).whole(t0); empty.Totals != (api.Totals{Capacity: 1000}) || len(empty.Limited()) != 0 || len(empty.Top(api.ByRate, 9)) != 0 {
		t.Errorf("of nobody: %+v", empty)
	}
}

// A throttle is shown for a second after it has ended, if the limit is still reached
// in the window that it was for.
func TestLately(t *testing.T) {
	for _, tt := range []struct {
		name  string
		file  string // in force when it is asked
		after time.Duration
		state api.State // to who looks once a second
		now   api.State
	}{
		{"at once", file, 0, api.Throttled, api.Throttled},
		{"the second is over", file, time.Second, api.Throttled, api.OK},
		{"still shown", file, 1999 * time.Millisecond, api.Throttled, api.OK},
		{"too long ago", file, 2 * time.Second, api.OK, api.OK},
		{"the limit was raised since", strings.Replace(file, "GET: 10", "GET: 11", 1), time.Second, api.OK, api.OK},
		{"or removed", strings.Replace(file, "GET: 10, ", "", 1), time.Second, api.OK, api.OK},
		{"or is in a dry run", strings.Replace(file, "GET: 10", "GET: {second: 10, mode: dry-run}", 1), time.Second, api.OK, api.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.use("alice", 10)
			r.throttle("GET", "alice")
			r.wait(tt.after)
			r.Limits(parse(t, tt.file))
			o := r.whole(r.now)
			lately, now, listed := r.UserLately(r.now, "alice"), r.get("alice"), o.Top(api.ByRecent, 1)[0]
			if lately.State != tt.state || listed.State != tt.state || now.State != tt.now {
				t.Errorf("%s, in a list %s, in truth %s, want %s, %[4]s, %s", lately.State, listed.State, now.State, tt.state, tt.now)
			}
			if l := o.Limited(); (len(l) == 1) != (tt.state == api.Throttled) || o.Totals.Throttled != len(l) {
				t.Errorf("limited: %s of %d, want the user if they are throttled", names(l), o.Totals.Throttled)
			}
		})
	}
}

func TestNear(t *testing.T) {
	for _, tt := range []struct {
		name    string
		file    string
		history func(*rig)
		want    *api.Near
	}{
		{"no limits", file, func(r *rig) { r.Progress(r.now, "a", "staff", 1, 0, 0) }, nil},
		{"nothing used: the first", file, func(r *rig) { r.wait(0) }, &api.Near{Limit: "*", Max: 20, Window: 1, Mode: "enforce"}},
		{"the larger part", file, func(r *rig) { r.use("alice", 6); r.useOf("*", "alice", 8); r.wait(time.Second) }, &api.Near{Limit: "GET", Max: 10, Used: 6, Window: 1, Mode: "enforce"}},
		{"the last full second", file, func(r *rig) { r.use("alice", 9); r.wait(time.Second); r.use("alice", 1) }, &api.Near{Limit: "GET", Max: 10, Used: 9, Window: 1, Mode: "enforce"}},
		{"the present one counts only once it is spent", file, func(r *rig) { r.use("alice", 1); r.wait(time.Second); r.use("alice", 9) }, &api.Near{Limit: "GET", Max: 10, Used: 1, Window: 1, Mode: "enforce"}},
		{"the present one, spent", file, func(r *rig) { r.use("alice", 1); r.wait(time.Second); r.use("alice", 10) }, &api.Near{Limit: "GET", Max: 10, Used: 10, Window: 1, Mode: "enforce"}},
		{"in progress", file, func(r *rig) { r.use("alice", 6); r.progress("a", "alice", 4, 5, 0) }, &api.Near{Limit: "concurrent", Max: 5, Used: 4, Mode: "enforce"}},
		{"blocked, and little in progress", file, func(r *rig) {
			r.use("alice", 9)
			r.wait(time.Second)
			r.progress("a", "alice", 4, 5, 0)
			r.Blocked(r.now, "alice")
		},
			&api.Near{Limit: "concurrent", Max: 5, Used: 4, Mode: "enforce"}},
		{"of a minute the present one", many, func(r *rig) {
			k := ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}
			r.Usage(r.now, k, r.now.Unix(), 60)
			r.wait(time.Minute)
			r.Usage(r.now, k, r.now.Unix(), 50)
		}, &api.Near{Limit: "GET/minute", Max: 60, Used: 50, Window: 60, Mode: "enforce"}},
		{"bandwidth", file, func(r *rig) {
			r.demand(bandwidth.Report{Instance: "a", User: "mover", Moved: [2]int64{5 << 20, 5 << 20}})
		},
			&api.Near{Limit: "bandwidth.up", Max: 5 << 20, Used: 5 << 20, Mode: "enforce"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &rig{View: New(parse(t, tt.file), 10), now: t0}
			r.use("alice", 0)
			tt.history(r)
			got := r.recent(r.now.UnixNano(), 1)[0].Near
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("near (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever is used: the lists are those of Top, and the totals are those of everybody.
func TestOverviewIsTop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(parse(&testing.T{}, file), 40)
		for i := range rapid.IntRange(0, 50).Draw(t, "users") {
			name := fmt.Sprintf("u%02d", i)
			v.Usage(t0, ratelimit.Key{Class: "GET", User: name}, t0.Unix(), rapid.IntRange(0, 20).Draw(t, "used"))
			v.Demand(t0, bandwidth.Report{Instance: "a", User: name, Active: rapid.IntRange(0, 9).Draw(t, "active"),
				Moved: [2]int64{rapid.Int64Range(0, 9).Draw(t, "down"), rapid.Int64Range(0, 9).Draw(t, "up")}})
			if rapid.Bool().Draw(t, "blocked") {
				v.Blocked(t0, name)
			}
		}
		now := t0.Add(time.Second)
		orders := []api.Sort{api.ByRate, api.ByRefused, api.ByConcurrent, api.ByDown, api.ByUp, api.ByRecent}
		o := v.whole(now)
		for _, by := range orders {
			n := rapid.IntRange(1, 60).Draw(t, "n")
			if diff := cmp.Diff(v.Top(now, by, n), o.Top(by, n), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("by %s (-Top +Overview):\n%s", by, diff)
			}
		}
		var want api.Totals
		for _, u := range v.Top(now, api.ByRecent, api.MaxTop) {
			want.Users++
			want.Rate += u.Rate
			want.InProgress += u.InProgress
			want.Down += u.Down
			want.Up += u.Up
			if u.State == api.Blocked {
				want.Blocked++
			}
		}
		got := o.Totals
		if math.Abs(got.Rate-want.Rate) > 1e-6 || got.Users != want.Users || got.InProgress != want.InProgress || got.Down != want.Down || got.Up != want.Up || got.Blocked != want.Blocked {
			t.Fatalf("totals %+v, want %+v", got, want)
		}
		if n := len(o.Limited()); n != want.Blocked {
			t.Fatalf("%d limited users, want the %d who are blocked", n, want.Blocked)
		}
	})
}

func TestLimitedAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 150 {
		r.Blocked(r.now, fmt.Sprint(i))
	}
	if o := r.whole(r.now); len(o.Limited()) != api.MaxLimited || o.Totals.Blocked != 150 {
		t.Errorf("%d listed of %d blocked, want %d of 150", len(o.Limited()), o.Totals.Blocked, api.MaxLimited)
	}
}

// The lists are those of sorting all users, also of many more than they have room for.
func TestTopOfMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		best := top{most: rapid.IntRange(1, 5).Draw(t, "most")}
		var all []measured
		for i, n := range rapid.SliceOf(rapid.IntRange(0, 9)).Draw(t, "measures") {
			m := measured{float64(n), &record{key: fmt.Sprint("u", i)}}
			all = append(all, m)
			best.consider(m.measure, m.record)
		}
		slices.SortFunc(all, measured.compare)
		if want, got := all[:min(best.most, len(all))], best.sorted(); !slices.Equal(want, got) {
			t.Fatalf("the best %d are %v, want %v", best.most, got, want)
		}
	})
}

// A look in parts finds what a look at once does if no user comes or goes meanwhile. If some do, no user is found twice.
func TestLookInParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := New(parse(t, file), 20)
		use := func(n int) {
			v.Usage(t0, ratelimit.Key{Class: "GET", User: fmt.Sprint("user", n)}, t0.Unix(), n%12)
		}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 40), 0, 60).Draw(rt, "users") {
			use(n)
		}
		at := t0.Add(time.Second)
		want := v.whole(at)
		changes := rapid.Bool().Draw(rt, "changes")
		l := v.Look(at)
		for l.More(rapid.IntRange(1, 7).Draw(rt, "part")) {
			if changes {
				use(rapid.IntRange(0, 80).Draw(rt, "user"))
			}
		}
		seen := map[string]bool{}
		for _, s := range l.Top(api.ByConcurrent, 30) {
			if seen[s.User] {
				rt.Errorf("%s is there twice", s.User)
			}
			seen[s.User] = true
		}
		if changes {
			return
		}
		for _, by := range []api.Sort{api.ByRate, api.ByConcurrent} {
			if diff := cmp.Diff(want.Top(by, 30), l.Top(by, 30)); diff != "" || l.Totals != want.Totals {
				rt.Errorf("by %s (-at once +in parts):\n%s", by, diff)
			}
		}
	})
}

// A look at 100 000 users, and the lists of a live answer.
func BenchmarkLook(b *testing.B) {
	v := crowd(b, 100_000)
	for i := range 10_000 {
		v.Throttled(t0, ratelimit.Throttle{Key: ratelimit.Key{Class: "GET", User: fmt.Sprintf("user-%d", i*10+9)}, WindowStart: t0.Unix(), End: t0.Unix() + 1})
	}
	for b.Loop() {
		l := v.whole(t0.Add(time.Second))
		l.Top(api.ByRate, 100)
		l.Limited()
	}
}
