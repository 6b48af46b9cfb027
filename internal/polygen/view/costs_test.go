package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const costly = `version: 1
default_tier: free
costs:
  tokens: {estimate: {default: 10}}
  pages: {estimate: {default: 1}}
tiers:
  free: {requests: {GET: 10}, concurrent: 5, costs: {tokens: {minute: 100, day: 1000}, pages: {day: 10}}}
  pro: {costs: {tokens: {minute: 5000}}}
  trial: {costs: {tokens: {minute: 100, day: 1000, mode: dry-run}}}
  staff: {}
users: {pro: pro, trial: trial, staff: staff}
`

func newCostRig(t testing.TB) *rig { return &rig{View: New(parse(t, costly), 1000), now: t0} }

// charge reports that so much was charged in the present window of a limit.
func (r *rig) charge(user, limit string, total int64) { r.chargeAt(r.now, user, limit, total) }

// chargeAt is charge, of the window of another time.
func (r *rig) chargeAt(at time.Time, user, limit string, total int64) {
	for c := range r.set.User(user).Costs() {
		if c.Name() == limit {
			r.Charged(r.now, user, c.Unit, c.Window, c.WindowStart(at.Unix()), total)
		}
	}
}

func limitOf(u api.User, name string) api.Limit {
	return u.Limits[slices.IndexFunc(u.Limits, func(l api.Limit) bool { return l.Name == name })]
}

// What is told of each limit of costs. It is 8 o'clock, in the first second of a minute.
func TestCosts(t *testing.T) {
	const day = 24 * time.Hour
	midnight := t0.Add(-8 * time.Hour)
	early := func(r *rig) {
		r.Limits(parse(t, replaced(costly, "pages: {day: 10}}}", "pages: {day: 10, month: 50}}}")+"windows: {time_zone: Europe/Berlin, day_starts: \"07:00\", month_starts: 20}\n"))
	}
	for _, tt := range []struct {
		name       string
		limit      string
		history    func(*rig)
		used, last int64
		left       int64
		resets     time.Time
	}{
		{"nothing heard", "tokens/day", func(*rig) {}, 0, 0, 1000, midnight.Add(day)},
		{"charged", "tokens/day", func(r *rig) { r.charge("alice", "tokens/day", 300); r.charge("alice", "tokens/day", 400) }, 400, 0, 600, midnight.Add(day)},
		{"given back", "tokens/day", func(r *rig) { r.charge("alice", "tokens/day", 300); r.charge("alice", "tokens/day", 200) }, 200, 0, 800, midnight.Add(day)},
		{"a quiet user, just before midnight", "tokens/day", func(r *rig) {
			r.charge("alice", "tokens/day", 300)
			for range 16*60 - 1 {
				r.wait(time.Minute)
				r.Forget(r.now)
			}
		}, 300, 0, 700, midnight.Add(day)},
		{"the next day", "tokens/day", func(r *rig) { r.charge("alice", "tokens/day", 300); r.wait(16 * time.Hour) }, 0, 300, 1000, midnight.Add(2 * day)},
		{"the day after that", "tokens/day", func(r *rig) { r.charge("alice", "tokens/day", 300); r.wait(40 * time.Hour) }, 0, 0, 1000, midnight.Add(3 * day)},
		{"a day with a beginning of its own", "pages/day", func(r *rig) { early(r); r.charge("alice", "pages/day", 3) }, 3, 0, 7, midnight.Add(30 * time.Hour)},
		{"which goes on after midnight", "pages/day", func(r *rig) { early(r); r.charge("alice", "pages/day", 3); r.wait(22*time.Hour - 1) }, 3, 0, 7, midnight.Add(30 * time.Hour)},
		{"and is heard of after midnight", "pages/day", func(r *rig) {
			early(r)
			r.charge("alice", "pages/day", 3)
			r.wait(20 * time.Hour)
			r.charge("alice", "pages/day", 4)
			r.chargeAt(r.now.Add(-day), "alice", "pages/day", 8)
			r.chargeAt(r.now.Add(day), "alice", "pages/day", 1)
		}, 4, 8, 6, midnight.Add(30 * time.Hour)},
		{"and ends", "pages/day", func(r *rig) { early(r); r.charge("alice", "pages/day", 3); r.wait(22 * time.Hour) }, 0, 3, 10, midnight.Add(54 * time.Hour)},
		{"a month", "pages/month", func(r *rig) { early(r); r.charge("alice", "pages/month", 55) }, 55, 0, 0, midnight.Add(5*day + 6*time.Hour)},
		{"and the next one, with its debt", "pages/month", func(r *rig) {
			early(r)
			r.charge("alice", "pages/month", 55)
			r.wait(5 * day)
		}, 5, 55, 45, midnight.Add(36*day + 6*time.Hour)},
		{"more than the limit", "tokens/minute", func(r *rig) { r.charge("alice", "tokens/minute", 130) }, 130, 0, 0, t0.Add(time.Minute)},
		{"which the next window pays", "tokens/minute", func(r *rig) { r.charge("alice", "tokens/minute", 130); r.wait(time.Minute) }, 30, 130, 70, t0.Add(2 * time.Minute)},
		{"a whole one at most", "tokens/minute", func(r *rig) { r.charge("alice", "tokens/minute", 930); r.wait(time.Minute) }, 100, 930, 0, t0.Add(2 * time.Minute)},
		{"until it has begun", "tokens/minute", func(r *rig) {
			r.charge("alice", "tokens/minute", 130)
			r.wait(time.Minute)
			r.charge("alice", "tokens/minute", 45)
		}, 45, 130, 55, t0.Add(2 * time.Minute)},
		{"a limit that was lowered makes no debt", "tokens/minute", func(r *rig) {
			r.charge("alice", "tokens/minute", 100)
			r.Limits(parse(t, replaced(costly, "minute: 100, day: 1000}, pages", "minute: 60, day: 1000}, pages")))
			r.wait(time.Minute)
		}, 0, 100, 60, t0.Add(2 * time.Minute)},
		{"nor when less is told of it since", "tokens/minute", func(r *rig) {
			r.charge("alice", "tokens/minute", 100)
			r.Limits(parse(t, replaced(costly, "minute: 100, day: 1000}, pages", "minute: 60, day: 1000}, pages")))
			r.charge("alice", "tokens/minute", 98)
			r.wait(time.Minute)
		}, 0, 98, 60, t0.Add(2 * time.Minute)},
		{"another unit", "tokens/day", func(r *rig) { r.charge("alice", "pages/day", 3) }, 0, 0, 1000, midnight.Add(day)},
		{"another user", "tokens/day", func(r *rig) { r.charge("bob", "tokens/day", 3) }, 0, 0, 1000, midnight.Add(day)},
		{"a unit without a limit", "tokens/day", func(r *rig) { r.Charged(r.now, "alice", "joules", limits.Day, midnight.Unix(), 7) }, 0, 0, 1000, midnight.Add(day)},
		{"what Redis has", "tokens/day", func(r *rig) {
			r.Recalled(r.now, r.now, "alice", cost.Pools{{User: "alice", Unit: "tokens", Window: limits.Day, Start: midnight.Unix()}: {Charged: 700, Due: 1000},
				{User: "alice", Unit: "tokens", Window: limits.Day, Start: midnight.Add(-day).Unix()}: {Charged: 900, Due: 1000}})
		}, 700, 900, 300, midnight.Add(day)},
		{"what Redis had before a report", "tokens/day", func(r *rig) {
			began := r.now
			r.wait(time.Millisecond)
			r.charge("alice", "tokens/day", 710)
			r.Recalled(began, r.now, "alice", cost.Pools{{User: "alice", Unit: "tokens", Window: limits.Day, Start: midnight.Unix()}: {Charged: 700, Due: 1000}})
		}, 710, 0, 290, midnight.Add(day)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newCostRig(t)
			tt.history(r)
			got := limitOf(r.get("alice"), tt.limit)
			want := api.Limit{Name: tt.limit, Unit: strings.Split(tt.limit, "/")[0], Max: got.Max, Window: got.Window, Mode: "enforce", Used: tt.used, Last: &tt.last, Left: &tt.left, Resets: &tt.resets}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.limit, diff)
			}
		})
	}
}

// Who has nothing left is refused what costs the unit, until the window ends or something is given back.
func TestSpent(t *testing.T) {
	midnight := t0.Add(16 * time.Hour)
	day := api.Why{Limit: "tokens/day", Reason: api.Cost, Mode: "enforce", Since: t0, Until: &midnight}
	minute := api.Why{Limit: "tokens/minute", Reason: api.Cost, Mode: "enforce", Since: t0, Until: at(time.Minute)}
	for _, tt := range []struct {
		name    string
		user    string
		history func(*rig)
		state   api.State
		why     []api.Why
	}{
		{"something left", "alice", func(r *rig) { r.charge("alice", "tokens/day", 999) }, api.OK, nil},
		{"nothing left", "alice", func(r *rig) { r.charge("alice", "tokens/day", 1000) }, api.Spent, []api.Why{day}},
		{"since it was first so", "alice", func(r *rig) {
			r.charge("alice", "tokens/day", 1000)
			r.wait(time.Hour)
			r.charge("alice", "tokens/day", 1040)
		}, api.Spent, []api.Why{day}},
		{"some given back", "alice", func(r *rig) { r.charge("alice", "tokens/day", 1000); r.charge("alice", "tokens/day", 960) }, api.OK, nil},
		{"until the window ends", "alice", func(r *rig) { r.charge("alice", "tokens/minute", 100); r.wait(time.Minute - 1) }, api.Spent, []api.Why{minute}},
		{"and no longer", "alice", func(r *rig) { r.charge("alice", "tokens/minute", 100); r.wait(time.Minute) }, api.OK, nil},
		{"a debt of a whole window", "alice", func(r *rig) { r.charge("alice", "tokens/minute", 900); r.wait(time.Minute + time.Second) }, api.Spent,
			[]api.Why{{Limit: "tokens/minute", Reason: api.Cost, Mode: "enforce", Since: *at(time.Minute), Until: at(2 * time.Minute)}}},
		{"a limit that was raised", "alice", func(r *rig) {
			r.charge("alice", "tokens/day", 1000)
			r.Limits(parse(t, replaced(costly, "day: 1000}, pages", "day: 1001}, pages")))
		}, api.OK, nil},
		{"one that was lowered", "alice", func(r *rig) {
			r.charge("alice", "tokens/day", 900)
			r.Limits(parse(t, replaced(costly, "day: 1000}, pages", "day: 800}, pages")))
		}, api.Spent, []api.Why{{Limit: "tokens/day", Reason: api.Cost, Mode: "enforce", Since: t0.Add(-8 * time.Hour), Until: &midnight}}},
		{"one that was removed", "alice", func(r *rig) {
			r.charge("alice", "tokens/day", 1000)
			r.Limits(parse(t, replaced(costly, ", day: 1000}, pages", "}, pages")))
		}, api.OK, nil},
		{"a dry run", "trial", func(r *rig) { r.charge("trial", "tokens/day", 1000) }, api.OK,
			[]api.Why{{Limit: "tokens/day", Reason: api.Cost, Mode: "dry-run", Since: t0, Until: &midnight}}},
		{"what a dry run passed is no debt", "trial", func(r *rig) { r.charge("trial", "tokens/minute", 900); r.wait(time.Minute) }, api.OK, nil},
		{"two windows", "alice", func(r *rig) { r.charge("alice", "tokens/day", 1000); r.charge("alice", "tokens/minute", 100) }, api.Spent, []api.Why{minute, day}},
		{"says more than throttled", "alice", func(r *rig) { r.use("alice", 10); r.throttle("GET", "alice"); r.charge("alice", "tokens/day", 1000) }, api.Spent,
			[]api.Why{{Limit: "GET", Reason: api.RequestRate, Cause: "throttle-table", Mode: "enforce", Since: t0, Until: at(time.Second)}, day}},
		{"and less than blocked", "alice", func(r *rig) { r.charge("alice", "tokens/day", 1000); r.Blocked(r.now, "alice") }, api.Blocked,
			[]api.Why{day, {Limit: "concurrent", Reason: api.ConcurrentRequests, Cause: "block-table", Mode: "enforce", Since: t0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newCostRig(t)
			tt.history(r)
			u := r.get(tt.user)
			if diff := cmp.Diff(tt.why, u.Why, cmpopts.EquateEmpty()); u.State != tt.state || diff != "" {
				t.Errorf("state %s, want %s; why differs (-want +got):\n%s", u.State, tt.state, diff)
			}
		})
	}
	// To who looks once a second it is shown for a second after its end.
	r := newCostRig(t)
	r.charge("alice", "tokens/minute", 100)
	for after, want := range map[time.Duration]api.State{time.Minute: api.Spent, time.Minute + time.Second: api.OK} {
		o := r.whole(t0.Add(after))
		spent := want == api.Spent
		if got := r.UserLately(t0.Add(after), "alice").State; got != want || (len(o.Limited()) == 1) != spent || (o.Totals.Spent == 1) != spent {
			t.Errorf("%v later: %s, limited %+v, want %s", after, got, o.Limited(), want)
		}
	}
}

// Those who were charged most of a unit, in their longest windows.
func TestMostCharged(t *testing.T) {
	r := newCostRig(t)
	r.charge("quiet", "tokens/day", 900)
	r.wait(2 * time.Hour)
	r.Forget(r.now)
	r.charge("alice", "tokens/day", 300)
	r.charge("alice", "tokens/minute", 100)
	r.charge("pro", "tokens/minute", 4000)
	r.charge("bob", "tokens/day", 300)
	r.charge("bob", "pages/day", 4)
	r.charge("carl", "tokens/minute", 50) // of the day nothing is known yet
	out := r.whole(r.now)
	said := func(by api.Sort) (all []string) {
		for _, s := range out.Top(by, 4) {
			all = append(all, fmt.Sprintf("%s %s %d/%d", s.User, s.Cost.Name, s.Cost.Used, s.Cost.Max))
		}
		return all
	}
	if diff := cmp.Diff([]string{"pro tokens/minute 4000/5000", "quiet tokens/day 900/1000", "alice tokens/day 300/1000", "bob tokens/day 300/1000"}, said(api.ByCost("tokens"))); diff != "" {
		t.Errorf("by tokens (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"bob pages/day 4/10"}, said(api.ByCost("pages"))); diff != "" {
		t.Errorf("by pages (-want +got):\n%s", diff)
	}
	if list := out.Top(api.ByCost("joules"), 4); len(list) > 0 {
		t.Errorf("by a unit that there is not: %v, want no list", list)
	}
	quiet := out.Top(api.ByCost("tokens"), 4)[1]
	if quiet.Tier != "free" || quiet.Rate != 0 || !quiet.Seen.Equal(t0) || quiet.State != api.OK || quiet.Near.Limit != "tokens/day" {
		t.Errorf("who is quiet: %+v, want what was charged before, seen then", quiet)
	}
	for _, s := range out.Top(api.ByRate, 9) {
		if s.Cost != nil {
			t.Errorf("by rate: %+v, want no cost", s)
		}
	}
}

// What was charged of a day is kept for 25 hours after it was last heard of, of so many users.
func TestCostsAreForgotten(t *testing.T) {
	r := newCostRig(t)
	r.charge("alice", "tokens/day", 300)
	r.wait(25*time.Hour - 1)
	r.Forget(r.now)
	if used := *limitOf(r.get("alice"), "tokens/day").Last; used != 300 {
		t.Errorf("%d of yesterday, want 300", used)
	}
	r.wait(1)
	r.Forget(r.now)
	if n := r.Users(); n != 0 {
		t.Errorf("the charges of %d users a day later, want none", n)
	}
	r.View = New(parse(t, costly), 2)
	for _, user := range []string{"a", "b", "c"} {
		r.charge(user, "tokens/day", 300)
	}
	if dropped := r.Dropped(); dropped != 1 || limitOf(r.get("a"), "tokens/day").Used != 0 || limitOf(r.get("b"), "tokens/day").Used != 300 {
		t.Errorf("dropped %d, want the first of three", dropped)
	}
	r.Recalled(r.now, r.now, "nobody", nil)
	if limitOf(r.get("b"), "tokens/day").Used != 300 {
		t.Error("who was asked about, and charged nothing, takes the place of another")
	}
}

// Users who have used 80 % of their day or more.
func TestBudgets(t *testing.T) {
	r := newCostRig(t)
	for user, total := range map[string]int64{"a": 799, "b": 800, "c": 1200, "trial": 1000} {
		r.charge(user, "tokens/day", total)
	}
	r.charge("a", "pages/day", 7)
	r.charge("pro", "tokens/minute", 5000)
	near := func() map[TierUnit]int { return r.whole(r.now).Near }
	if diff := cmp.Diff(map[TierUnit]int{{"free", "tokens"}: 2, {"free", "pages"}: 0}, near()); diff != "" {
		t.Errorf("near a day's limit (-want +got):\n%s", diff)
	}
	r.wait(16 * time.Hour)
	// 200 of the one who was charged 1200 are a debt.
	if diff := cmp.Diff(map[TierUnit]int{{"free", "tokens"}: 0, {"free", "pages"}: 0}, near()); diff != "" {
		t.Errorf("the next day (-want +got):\n%s", diff)
	}
}

func TestHistoryOfCosts(t *testing.T) {
	r := newCostRig(t)
	for i := range int64(3) {
		r.charge("alice", "tokens/day", 100+i)
		r.Remember(r.now, "alice")
		r.wait(time.Second)
		r.Sample(r.now)
	}
	if got := seriesOf(r.History(r.now, "alice"))["tokens/day"]; got != "100 101 102" {
		t.Errorf("tokens/day: %s, want 100 101 102", got)
	}
}

// What the view says of a limit is what the pools have of it, if it hears of all their changes.
func TestCostsAreThoseOfThePools(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r, pools := newCostRig(t), cost.Pools{}
		for range rapid.IntRange(1, 30).Draw(rt, "changes") {
			r.wait(time.Duration(rapid.IntRange(0, 90).Draw(rt, "seconds")) * time.Second)
			ask := cost.Ask{User: "alice", Forced: rapid.Bool().Draw(rt, "forced"), Second: r.now.Unix()}
			change := rapid.Int64Range(0, 150).Draw(rt, "change")
			if ask.Forced && rapid.Bool().Draw(rt, "refund") {
				change = -change
			}
			for c := range r.set.User("alice").Costs() {
				if c.Unit == "tokens" {
					ask.Entries = append(ask.Entries, cost.Entry{Unit: c.Unit, Window: c.Window, Start: c.WindowStart(ask.Second), Before: c.Previous(ask.Second), Limit: c.Max, Change: change})
				}
			}
			pools.Take(ask)
			for p, total := range pools {
				if p.Start == limitStart(r, p) {
					r.Charged(r.now, p.User, p.Unit, p.Window, p.Start, total.Charged)
				}
			}
			// An ask that changes nothing tells what there is.
			nothing := ask
			nothing.Forced, nothing.Entries = true, slices.Clone(ask.Entries)
			for i := range nothing.Entries {
				nothing.Entries[i].Change = 0
			}
			for i, want := range pools.Take(nothing).Totals {
				name := "tokens/" + nothing.Entries[i].Window.String()
				if got := limitOf(r.get("alice"), name).Used; got != want {
					rt.Fatalf("%s: %d, want %d, as in the pools %v", name, got, want, pools)
				}
			}
		}
	})
}

// limitStart is when the present window of a pool's limit begins.
func limitStart(r *rig, p cost.Pool) int64 {
	return limits.Cost{Window: p.Window}.WindowStart(r.now.Unix())
}

// replaced is a text with another part, which must be there.
func replaced(text, old, with string) string {
	if !strings.Contains(text, old) {
		panic("it has no " + old)
	}
	return strings.Replace(text, old, with, 1)
}
