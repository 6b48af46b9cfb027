package view

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const file = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10, "*": 20}, concurrent: 5}
  mover: {bandwidth: {down: 10MiB, up: 5MiB}}
  staff: {}
users: {alice: free, mover: mover, staff: staff}
`

func parse(t testing.TB, text string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits", []byte(text))
	testkit.Must(t, err)
	return set
}

// t0 is the begin of a minute.
var t0 = time.Unix(1_800_000_000, 0).UTC()

// rig plays a history.
type rig struct {
	*View
	now time.Time
}

func newRig(t testing.TB) *rig { return &rig{View: New(parse(t, file), 1000), now: t0} }

func (r *rig) wait(d time.Duration)      { r.now = r.now.Add(d) }
func (r *rig) get(user string) api.User  { return r.User(r.now, user) }
func (r *rig) use(user string, n int)    { r.useOf("GET", user, n) }
func (r *rig) demand(d bandwidth.Report) { r.Demand(r.now, d) }

func (r *rig) useOf(class, user string, n int) {
	r.Usage(r.now, ratelimit.Key{Class: class, User: user}, r.now.Unix(), n)
}

func (r *rig) progress(instance, user string, active, slots, refused int) {
	r.Progress(r.now, instance, user, active, slots, refused)
}

func (r *rig) throttle(class, user string) {
	r.Throttled(r.now, ratelimit.Throttle{Key: ratelimit.Key{Class: class, User: user}, WindowStart: r.now.Unix(), End: r.now.Unix() + 1, Limit: 10})
}

// The counts of a limit, second by second.
func TestCounts(t *testing.T) {
	for _, tt := range []struct {
		name       string
		history    func(*rig)
		used, last int64
	}{
		{"nothing heard", func(*rig) {}, 0, 0},
		{"in this second", func(r *rig) { r.use("alice", 3); r.use("alice", 7) }, 7, 0},
		{"what was given back counts no more", func(r *rig) { r.use("alice", 7); r.use("alice", 4) }, 4, 0},
		{"in the one before", func(r *rig) { r.use("alice", 7); r.wait(time.Second); r.use("alice", 2) }, 2, 7},
		{"in the one before, and nothing since", func(r *rig) { r.use("alice", 7); r.wait(time.Second) }, 0, 7},
		{"two seconds ago", func(r *rig) { r.use("alice", 7); r.wait(2 * time.Second) }, 0, 0},
		{"three seconds ago", func(r *rig) { r.use("alice", 7); r.wait(3 * time.Second) }, 0, 0},
		{"a report that comes late", func(r *rig) {
			r.use("alice", 2)
			r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice"}, r.now.Unix()-1, 9)
		}, 2, 9},
		{"an ask ahead of the next second", func(r *rig) {
			r.use("alice", 5)
			r.wait(time.Second)
			r.use("alice", 6)
			r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice"}, r.now.Unix()+1, 1)
		}, 6, 5},
		{"what was asked ahead counts from then on", func(r *rig) {
			r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice"}, r.now.Unix()+1, 3)
			r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice"}, r.now.Unix()-2, 9) // far too late
			r.wait(time.Second)
		}, 3, 0},
		{"a second of a clock of its own", func(r *rig) {
			r.use("alice", 5)
			for _, off := range []int64{-2, 2, 3, -r.now.Unix() - 1, 1 << 40} {
				r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice"}, r.now.Unix()+off, 100)
			}
		}, 5, 0},
		{"another class", func(r *rig) { r.useOf("*", "alice", 7); r.useOf("PUT", "alice", 8) }, 0, 0},
		{"another user", func(r *rig) { r.use("bob", 7) }, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.history(r)
			if l := limitOf(r.get("alice"), "GET"); l.Used != tt.used || *l.Last != tt.last || l.Max != 10 {
				t.Errorf("GET: %d of %d, %d in the last second, want %d of 10, %d", l.Used, l.Max, *l.Last, tt.used, tt.last)
			}
		})
	}
}

// What a user is told to be, and why.
func TestState(t *testing.T) {
	start := t0
	for _, tt := range []struct {
		name    string
		history func(*rig)
		state   api.State
		why     []api.Why
	}{
		{"never heard of", func(*rig) {}, api.OK, nil},
		{"below the limit", func(r *rig) { r.use("alice", 9) }, api.OK, nil},
		{"throttled until the second ends", func(r *rig) { r.use("alice", 10); r.throttle("GET", "alice"); r.wait(999 * time.Millisecond) },
			api.Throttled, []api.Why{{Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: start, Until: at(time.Second)}}},
		{"although some was given back since", func(r *rig) { r.use("alice", 10); r.throttle("GET", "alice"); r.use("alice", 7) },
			api.Throttled, []api.Why{{Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: start, Until: at(time.Second)}}},
		{"and no longer", func(r *rig) { r.use("alice", 10); r.throttle("GET", "alice"); r.wait(time.Second) }, api.OK, nil},
		{"unless the limit was raised", func(r *rig) {
			r.use("alice", 10)
			r.throttle("GET", "alice")
			r.Limits(parse(t, strings.Replace(file, "GET: 10", "GET: 11", 1)))
		}, api.OK, nil},
		{"or removed", func(r *rig) {
			r.use("alice", 10)
			r.throttle("GET", "alice")
			r.Limits(parse(t, strings.Replace(file, "GET: 10, ", "", 1)))
		}, api.OK, nil},
		{"by two limits", func(r *rig) {
			r.use("alice", 10)
			r.useOf("*", "alice", 20)
			r.throttle("GET", "alice")
			r.throttle("*", "alice")
		}, api.Throttled, []api.Why{
			{Limit: "*", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: start, Until: at(time.Second)},
			{Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: start, Until: at(time.Second)}}},
		{"a class that is not limited throttles nobody", func(r *rig) { r.throttle("PUT", "alice") }, api.OK, nil},
		{"blocked since the first block", func(r *rig) { r.Blocked(r.now, "alice"); r.wait(200 * time.Millisecond); r.Blocked(r.now, "alice") },
			api.Blocked, []api.Why{{Limit: "concurrent", Reason: api.ConcurrentRequests, Cause: cause.BlockTable, Mode: "enforce", Since: start}}},
		{"blocked says more than throttled", func(r *rig) { r.use("alice", 10); r.throttle("GET", "alice"); r.Blocked(r.now, "alice") },
			api.Blocked, []api.Why{{Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce", Since: start, Until: at(time.Second)},
				{Limit: "concurrent", Reason: api.ConcurrentRequests, Cause: cause.BlockTable, Mode: "enforce", Since: start}}},
		{"unblocked", func(r *rig) { r.Blocked(r.now, "alice"); r.Unblocked(r.now, "alice") }, api.OK, nil},
		{"unblocked without a block", func(r *rig) { r.Unblocked(r.now, "alice") }, api.OK, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.history(r)
			u := r.get("alice")
			if diff := cmp.Diff(tt.why, u.Why, cmpopts.EquateEmpty()); u.State != tt.state || diff != "" {
				t.Errorf("state %s, want %s; why differs (-want +got):\n%s", u.State, tt.state, diff)
			}
		})
	}
}

func at(d time.Duration) *time.Time {
	t := t0.Add(d)
	return &t
}

const many = `version: 1
default_tier: free
tiers:
  free:
    requests:
      GET: {second: 10, burst: 5, minute: 60, hour: 7200}
      PUT: {second: 10, mode: dry-run}
    concurrent: {limit: 5, mode: dry-run}
    bandwidth: {down: 10MiB, up: 5MiB}
users: {alice: free}
`

// A dry run refuses nobody, and says what it would.
func TestDryRun(t *testing.T) {
	r := &rig{View: New(parse(t, many), 10), now: t0}
	r.useOf("PUT", "alice", 10)
	r.throttle("PUT", "alice")
	r.Blocked(r.now, "alice")
	u := r.get("alice")
	want := []api.Why{{Limit: "PUT", Reason: api.RequestRate, Mode: "dry-run", Since: t0, Until: at(time.Second)},
		{Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "dry-run", Since: t0}}
	if diff := cmp.Diff(want, u.Why); u.State != api.OK || diff != "" {
		t.Errorf("state %s, want ok; why differs (-want +got):\n%s", u.State, diff)
	}
	modes := map[string]string{}
	for _, l := range u.Limits {
		modes[l.Name] = l.Mode
	}
	if diff := cmp.Diff(map[string]string{"GET": "enforce", "GET/minute": "enforce", "GET/hour": "enforce", "PUT": "dry-run",
		"concurrent": "dry-run", "bandwidth.down": "enforce", "bandwidth.up": "enforce"}, modes); diff != "" {
		t.Errorf("modes differ (-want +got):\n%s", diff)
	}
	for _, d := range u.Decisions {
		if d.Mode != "dry-run" {
			t.Errorf("decision %+v, want a dry run", d)
		}
	}
}

// Minutes and hours begin at full ones, and their throttles last until they end.
func TestLongWindows(t *testing.T) {
	r := &rig{View: New(parse(t, many), 10), now: t0}
	key := ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}
	r.Usage(r.now, key, t0.Unix(), 60)
	r.Usage(r.now, ratelimit.Key{Class: "GET", User: "alice", Window: limits.Hour}, t0.Unix(), 100)
	r.wait(45 * time.Second)
	r.Throttled(r.now, ratelimit.Throttle{Key: key, WindowStart: t0.Unix(), End: t0.Unix() + 60, Limit: 60})
	r.throttle("GET", "alice") // its burst says nothing against it
	for _, tt := range []struct {
		after  time.Duration
		why    int
		minute [2]int64 // this one's and the last one's
		rate   float64
	}{
		{0, 2, [2]int64{60, 0}, 1},
		{time.Second, 1, [2]int64{60, 0}, 1},
		{15*time.Second - 1, 1, [2]int64{60, 0}, 1},
		{15 * time.Second, 0, [2]int64{0, 60}, 1}, // all of the last minute is in its place
		{60 * time.Second, 0, [2]int64{0, 60}, 0.25},
		{75 * time.Second, 0, [2]int64{0, 0}, 100.0 / 3600},
	} {
		now := t0.Add(45*time.Second + tt.after)
		u := r.User(now, "alice")
		l := limitOf(u, "GET/minute")
		if got := [2]int64{l.Used, *l.Last}; len(u.Why) != tt.why || got != tt.minute || l.Window != 60 {
			t.Errorf("%v later: %d limits are reached (%+v), minutes %v, want %d and %v", tt.after, len(u.Why), u.Why, got, tt.why, tt.minute)
		}
		if got := r.Top(now, api.ByRate, 1)[0].Rate; got < tt.rate-1e-9 || got > tt.rate+1e-9 {
			t.Errorf("%v later: %v requests per second, want %v", tt.after, got, tt.rate)
		}
	}
}

// Days and months begin by the calendar of the limits, and their counts are kept as long as they last.
func TestDaysAndMonths(t *testing.T) {
	noon := time.Date(2026, 10, 25, 12, 0, 0, 0, time.UTC) // of a day of 25 hours
	r := &rig{now: noon, View: New(parse(t, `version: 1
default_tier: free
windows: {time_zone: Europe/Berlin}
tiers: {free: {requests: {"*": {day: 60, month: 1000}}}}
`), 10)}
	day, month := ratelimit.Key{Class: "*", User: "alice", Window: limits.Day}, ratelimit.Key{Class: "*", User: "alice", Window: limits.Month}
	begin, end := noon.Add(-14*time.Hour), noon.Add(11*time.Hour)
	r.Usage(r.now, day, begin.Unix(), 60)
	r.Usage(r.now, day, noon.Unix(), 7) // by another calendar
	r.Usage(r.now, day, 1<<62, 8)
	r.Usage(r.now, month, time.Date(2026, 9, 30, 22, 0, 0, 0, time.UTC).Unix(), 400)
	r.Throttled(r.now, ratelimit.Throttle{Key: day, WindowStart: begin.Unix(), End: end.Unix(), Limit: 60})
	for _, tt := range []struct {
		at     time.Time
		state  api.State
		used   [2]int64 // of the day and of the month
		length int64    // of the day, in hours
		resets time.Time
	}{
		{noon, api.Throttled, [2]int64{60, 400}, 25, end},
		{end.Add(-1), api.Throttled, [2]int64{60, 400}, 25, end},
		{end, api.OK, [2]int64{0, 400}, 24, end.Add(24 * time.Hour)},
		{time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC), api.OK, [2]int64{}, 24, time.Date(2026, 11, 1, 23, 0, 0, 0, time.UTC)},
	} {
		r.Forget(tt.at)
		u := r.User(tt.at, "alice")
		d, m := limitOf(u, "*/day"), limitOf(u, "*/month")
		if got := [2]int64{d.Used, m.Used}; u.State != tt.state || got != tt.used || d.Window != 3600*tt.length || !d.Resets.Equal(tt.resets) || *d.Left != 60-d.Used {
			t.Errorf("at %v: %s, used %v, the day %+v; want %s, %v and a day of %d hours until %v", tt.at, u.State, got, d, tt.state, tt.used, tt.length, tt.resets)
		}
	}
}

// What instances said, and how long it counts.
func TestPlaces(t *testing.T) {
	report := func(instance string, active int, down int64) bandwidth.Report {
		return bandwidth.Report{Instance: instance, User: "mover", Active: active, Moved: [2]int64{down, 1}, Share: [2]int64{50, 60}}
	}
	for _, tt := range []struct {
		name    string
		history func(*rig)
		want    []api.Place
	}{
		{"nothing", func(*rig) {}, nil},
		{"in progress", func(r *rig) { r.progress("b", "mover", 3, 4, 0); r.progress("a", "mover", 1, 2, 0) },
			[]api.Place{{Instance: "a", InProgress: 1, Slots: 2}, {Instance: "b", InProgress: 3, Slots: 4}}},
		{"the last report counts", func(r *rig) { r.progress("a", "mover", 3, 4, 0); r.progress("a", "mover", 0, 0, 0) },
			[]api.Place{{Instance: "a"}}},
		{"for two seconds", func(r *rig) { r.progress("a", "mover", 3, 4, 0); r.wait(1999 * time.Millisecond) }, []api.Place{{Instance: "a", InProgress: 3, Slots: 4}}},
		{"and no longer", func(r *rig) { r.progress("a", "mover", 3, 4, 0); r.wait(2 * time.Second) }, nil},
		{"demand", func(r *rig) { r.demand(report("a", 2, 100)) },
			[]api.Place{{Instance: "a", InProgress: 2, Down: 100, Up: 1, DownShare: 50, UpShare: 60}}},
		{"demand is news of what is in progress", func(r *rig) { r.progress("a", "mover", 3, 4, 0); r.wait(1); r.demand(report("a", 2, 100)) },
			[]api.Place{{Instance: "a", InProgress: 2, Slots: 4, Down: 100, Up: 1, DownShare: 50, UpShare: 60}}},
		{"or the other way round", func(r *rig) { r.demand(report("a", 2, 100)); r.wait(1); r.progress("a", "mover", 3, 4, 0) },
			[]api.Place{{Instance: "a", InProgress: 3, Slots: 4, Down: 100, Up: 1, DownShare: 50, UpShare: 60}}},
		{"an instance that left runs nothing", func(r *rig) {
			r.progress("a", "mover", 3, 4, 0)
			r.progress("b", "mover", 3, 4, 0)
			r.Instances([]string{"b"})
		},
			[]api.Place{{Instance: "b", InProgress: 3, Slots: 4}}},
		{"a name of any bytes", func(r *rig) { r.progress("\xff", "mover", 1, 1, 0) }, []api.Place{{Instance: "\ufffd", InProgress: 1, Slots: 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.history(r)
			u := r.get("mover")
			if diff := cmp.Diff(tt.want, u.Instances, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("instances differ (-want +got):\n%s", diff)
			}
			var active int
			var down, up int64
			for _, p := range tt.want {
				active, down, up = active+p.InProgress, down+p.Down, up+p.Up
			}
			if u.InProgress != active || u.Down != down || u.Up != up {
				t.Errorf("%d in progress, %d down, %d up, want %d, %d, %d", u.InProgress, u.Down, u.Up, active, down, up)
			}
		})
	}
}

func TestPlacesAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 1000 { // instances that come and go
		r.progress(fmt.Sprint(i), "mover", 1, 1, 0)
		r.wait(100 * time.Millisecond)
	}
	if n := len(r.lookUp("mover").places); n > 21 {
		t.Errorf("%d instances are remembered, want those of 2 s", n)
	}
}

// The last decisions, newest first.
func TestDecisions(t *testing.T) {
	r := newRig(t)
	r.throttle("GET", "alice")
	r.wait(time.Second)
	r.Blocked(r.now, "alice")
	r.Blocked(r.now, "alice")
	r.progress("a", "alice", 5, 5, 3)
	r.wait(900 * time.Millisecond)
	r.progress("a", "alice", 5, 5, 4)
	r.wait(100 * time.Millisecond)
	r.progress("a", "alice", 5, 5, 5)
	r.Unblocked(r.now, "alice")
	want := []api.Decision{
		{Time: *at(2 * time.Second), Kind: api.Unblock, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce"},
		{Time: *at(2 * time.Second), Kind: api.Refused, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce", Count: 5},
		{Time: *at(time.Second), Kind: api.Refused, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce", Count: 7},
		{Time: *at(time.Second), Kind: api.Block, Limit: "concurrent", Reason: api.ConcurrentRequests, Cause: cause.BlockTable, Mode: "enforce"},
		{Time: t0, Kind: api.Throttle, Limit: "GET", Reason: api.RequestRate, Cause: cause.ThrottleTable, Mode: "enforce"},
	}
	if diff := cmp.Diff(want, r.get("alice").Decisions); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}

	var last []time.Time
	for range 50 {
		r.wait(time.Second)
		r.throttle("GET", "alice")
		last = append([]time.Time{r.now}, last...)
	}
	var got []time.Time
	for _, d := range r.get("alice").Decisions {
		got = append(got, d.Time)
	}
	if diff := cmp.Diff(last[:maxDecisions], got); diff != "" {
		t.Errorf("times of the last %d of 50 decisions differ (-want +got):\n%s", maxDecisions, diff)
	}
}

// Too many users: those heard of least recently are forgotten, and counted.
func TestForgetsTheLeastRecent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(parse(&testing.T{}, file), 4)
		var recent []string // the newest last
		var dropped uint64
		for _, key := range rapid.SliceOf(rapid.StringMatching(`[a-h]`)).Draw(t, "keys") {
			v.Progress(t0, "i", key, 1, 1, 0)
			recent = append(slices.DeleteFunc(recent, func(other string) bool { return other == key }), key)
			if len(recent) > 4 {
				recent = recent[1:]
				dropped++
			}
		}
		var got []string
		for _, s := range v.recent(t0.UnixNano(), 9) {
			got = append([]string{s.User}, got...)
		}
		if !cmp.Equal(recent, got, cmpopts.EquateEmpty()) || v.Users() != len(recent) || v.Dropped() != dropped {
			t.Fatalf("%d users %q, dropped %d, want %q and %d", v.Users(), got, v.Dropped(), recent, dropped)
		}
	})
}

func TestUnknown(t *testing.T) {
	hash := limits.Key("~x")
	r := newRig(t)
	r.use("alice", 1) // in the file
	r.use("nobody", 1)
	r.wait(time.Minute)
	r.use("bob", 1)
	r.use("nobody", 2)
	r.use("nobody", 3)
	r.use(hash, 3)
	r.use("~", 3) // no name
	r.use(limits.ExemptKey, 3)
	r.use(limits.UnreadableKey, 3)
	r.use("zoe", 1)
	names := func(by api.Sort, n int) string {
		var all []string
		for _, u := range r.UnknownUsers(by, n) {
			all = append(all, fmt.Sprint(u.User, " ", u.Reports))
		}
		return strings.Join(all, ", ")
	}
	for _, tt := range []struct {
		by   api.Sort
		n    int
		want string
	}{
		{api.ByRecent, 9, "zoe 1, " + hash + " 1, nobody 3, bob 1"},
		{api.ByRecent, 1, "zoe 1"},
		{api.ByActive, 2, "nobody 3, bob 1"},
	} {
		if got := names(tt.by, tt.n); got != tt.want {
			t.Errorf("Unknown(%s, %d) = %s, want %s", tt.by, tt.n, got, tt.want)
		}
	}
	u := r.UnknownUsers(api.ByActive, 1)[0]
	if want := (api.Unknown{Name: api.Name{User: "nobody", Href: "/api/v1/users/nobody"}, Tier: "free", First: t0, Seen: *at(time.Minute), Reports: 3}); u != want {
		t.Errorf("Unknown() = %+v, want %+v", u, want)
	}
	r.Limits(parse(t, strings.Replace(file, "{alice: free", "{alice: free, bob: free", 1)))
	if got := names(api.ByActive, 9); strings.Contains(got, "bob") || !strings.Contains(got, "nobody") {
		t.Errorf("with bob in the file: %s", got)
	}
	r.wait(time.Duration(forgetAfter) - 1)
	r.Forget(r.now)
	if r.Users() == 0 {
		t.Error("all were forgotten before an hour had passed")
	}
	r.wait(1)
	r.Forget(r.now)
	if got := names(api.ByActive, 9); got != "" || r.Users() != 0 {
		t.Errorf("an hour later: %s, want nobody", got)
	}
}

// However many were heard of at once, no second takes long over them.
func TestForgetInParts(t *testing.T) {
	r := &rig{View: New(parse(t, file), 2*maxSwept), now: t0}
	for i := range maxSwept + 1 {
		r.use(fmt.Sprint("user-", i), 1)
	}
	r.wait(time.Duration(forgetAfter))
	for _, want := range []int{1, 0} {
		if r.Forget(r.now); r.Users() != want {
			t.Errorf("%d users are left, want %d", r.Users(), want)
		}
	}
}

// Answers are valid JSON whatever the names, and links name the user exactly.
func TestNamesOfAnyBytes(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a b/c?d#e%2F", "\xff\xfe", "..", ".", "ü", `"`, strings.Repeat("x", 200)} {
		r.use(limits.Key(name), 1)
		if b, err := json.Marshal(r.get(limits.Key(name))); err != nil || !json.Valid(b) {
			t.Errorf("User(%q) as JSON = %s, %v", name, b, err)
		}
	}
	var got []string
	for _, u := range r.Top(r.now, api.ByRecent, 100) {
		got = append(got, u.Href)
	}
	slices.Reverse(got)
	want := []string{
		"/api/v1/users/a%20b%2Fc%3Fd%23e%252F", "/api/v1/users/%FF%FE", "/api/v1/users/%2E%2E", "/api/v1/users/%2E", "/api/v1/users/%C3%BC",
		"/api/v1/users/%22", "/api/v1/users/" + limits.Key(strings.Repeat("x", 200)) + "?by=key",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links differ (-want +got):\n%s", diff)
	}
}

func crowd(b *testing.B, users int) *View {
	v := New(parse(b, file), users)
	for i := range users {
		name := fmt.Sprintf("user-%d", i)
		for _, class := range []string{"GET", "*"} {
			v.Usage(t0, ratelimit.Key{Class: class, User: name}, t0.Unix(), i%100)
		}
		v.Progress(t0, "a", name, i%7, 5, 0)
		v.Demand(t0, bandwidth.Report{Instance: "a", User: name, Active: i % 7, Moved: [2]int64{int64(i), 5}})
	}
	return v
}
