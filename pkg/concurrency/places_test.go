package concurrency_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

type places = concurrency.Places

// newCreditRig is a rig whose user may have 10 requests in progress, or what the rig's
// limit says, and whose HAProxy may have credit. The instances have been known for long.
func newCreditRig(t testing.TB, instances int, limit *int) *rig {
	r := newRigOf(t, 1, concurrency.Config{Lookup: func(string) (int, bool) { return *limit, true }})
	r.Cluster(t0.Add(-time.Minute), instances, 0)
	for i := range instances - 1 {
		r.live = append(r.live, fmt.Sprint("other", i))
	}
	return r
}

// ask is one question; it returns "yes", "no" or "wait".
func (r *rig) ask(at, limit int, seen count, p places) (string, *concurrency.Waiting) {
	v, w := r.Start(ms(at), "u", limit, seen, p)
	switch {
	case w != nil:
		return "wait", w
	case v.Allowed:
		return "yes", nil
	}
	return "no", nil
}

func (r *rig) wantAsk(at int, p places, want string) *concurrency.Waiting {
	r.t.Helper()
	got, w := r.ask(at, 10, count{}, p)
	if got != want {
		r.t.Fatalf("at %d: a question with %+v: %s, want %s", at, p, got, want)
	}
	return w
}

func (r *rig) wantWithdraw(at int, want ...string) {
	r.t.Helper()
	if got := r.TakeOutput().Withdraw; !slices.Equal(got, want) {
		r.t.Fatalf("at %d: Withdraw = %v, want %v", at, got, want)
	}
}

func (r *rig) bound(what string, want int) {
	r.t.Helper()
	if got := r.Bound("u"); got != want {
		r.t.Fatalf("%s: at most %d in progress, want %d", what, got, want)
	}
}

// TestLend has a first request bring places, of limits alone and in clusters.
func TestLend(t *testing.T) {
	for _, tt := range []struct{ instances, limit, want int }{
		{1, 1, 1}, {1, 2, 1}, {1, 3, 2}, {1, 10, 5}, {1, 20, 14}, {1, 100, 75},
		{2, 10, 1}, {2, 100, 12}, {4, 100, 6}, {60, 100, 1}, {61, 100, 0},
	} {
		r := newCreditRig(t, tt.instances, &tt.limit)
		_, w := r.ask(0, tt.limit, count{}, places{})
		r.exchange(0, true)
		if w != nil && !w.Verdict.Allowed {
			t.Fatalf("%+v: the first request is not allowed", tt)
		}
		if got := r.Lendable(ms(0), "u"); got != (tt.want > 0) {
			t.Errorf("%+v: Lendable = %v", tt, got)
		}
		if got := r.Lend(ms(0), "u"); got != tt.want {
			t.Errorf("%d instances, limit %d: Lend = %d, want %d", tt.instances, tt.limit, got, tt.want)
		}
	}
}

// TestLendable has requests for which HAProxy must not be given places.
func TestLendable(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*rig)
		want bool
	}{
		{"nobody", func(*rig) {}, false},
		{"the first request", func(r *rig) { r.start(0, 1) }, true},
		{"the second", func(r *rig) { r.start(0, 2) }, true},
		{"the third, more than half of the places", func(r *rig) { r.start(0, 3) }, false},
		{"one was refused", func(r *rig) { r.start(-4999, 11); r.Progress(ms(-4000), "u", 10, count{Tracked: 10}); r.start(0, 1) }, false},
		{"one was, five seconds ago", func(r *rig) { r.start(-5000, 11); r.Progress(ms(-4000), "u", 10, count{Tracked: 10}); r.start(0, 1) }, true},
		{"one waited in line", func(r *rig) {
			r.start(-6000, 10)
			r.Hold(ms(-4999), "u", 10, count{}, places{})
			r.Progress(ms(-4000), "u", 10, count{Tracked: 11})
			r.start(0, 1)
		}, false},
		{"asked by a process that is not the session's", func(r *rig) {
			r.Start(ms(-1), "u", 10, count{Process: 1}, places{})
			r.Start(ms(0), "u", 10, count{Process: 2}, places{})
		}, false},
		{"the limit is lifted", func(r *rig) { r.start(0, 1); r.Limits(ms(0), func(string) int { return 0 }) }, false},
		{"the pool is lost", func(r *rig) { r.start(0, 1); r.Lost(ms(0), true) }, false},
		{"places that are lent", func(r *rig) { r.start(0, 1); r.Lend(ms(0), "u") }, false},
		{"places that were lent long ago", func(r *rig) {
			r.start(-2000, 1)
			r.Lend(ms(-2000), "u")
			r.Start(ms(0), "u", 10, count{}, places{true, 1, 5})
		}, true},
		{"places that are withdrawn", func(r *rig) {
			r.start(-2000, 1)
			r.Lend(ms(-2000), "u")
			r.Recall(ms(-1000), "u")
			r.start(0, 1)
		}, false},
		{"some of them are in use", func(r *rig) {
			r.start(-2000, 1)
			r.Lend(ms(-2000), "u")
			r.Recall(ms(-1000), "u")
			r.Withdrawn(ms(-999), "u", 1)
			r.start(0, 1)
		}, false},
		{"none is in use", func(r *rig) {
			r.start(-2000, 1)
			r.Lend(ms(-2000), "u")
			r.Recall(ms(-1000), "u")
			r.Withdrawn(ms(-999), "u", 0)
			r.start(0, 1)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			limit := 10
			r := newCreditRig(t, 1, &limit)
			tt.do(r)
			if got := r.Lendable(ms(0), "u"); got != tt.want {
				t.Errorf("Lendable = %v, want %v", got, tt.want)
			}
		})
	}
	r := newRig(t, 1)
	r.start(0, 1)
	if r.Lendable(ms(0), "u") {
		t.Error("lendable, and nobody can have credit")
	}
}

// TestPlacesWhileTheAgentSeemedDead has HAProxy admit more than its places.
func TestPlacesWhileTheAgentSeemedDead(t *testing.T) {
	limit := 100
	r := newCreditRig(t, 2, &limit)
	r.ask(0, 100, count{}, places{})
	r.Lend(ms(0), "u") // 12
	r.ask(1000, 100, count{}, places{true, 41, 12})
	r.wantWithdraw(1000, "u")
	r.Withdrawn(ms(1001), "u", 41)
	r.bound("40 by HAProxy, and one waits", 40)
}

// TestPlacesOfSeveral has an instance of a cluster hold its portion without a word to the
// pool, until the pool is nearly empty.
func TestPlacesOfSeveral(t *testing.T) {
	limit := 100
	r := newCreditRig(t, 4, &limit)
	if got, _ := r.ask(0, 100, count{}, places{}); got != "yes" {
		t.Fatalf("the first request: %s, want yes", got)
	}
	if got := r.Lend(ms(0), "u"); got != 6 {
		t.Fatalf("Lend = %d, want 6", got)
	}
	for at := 0; at < 3000; at += 5 {
		r.Tick(ms(at))
		if asks := r.exchange(at, true); len(asks) > 0 {
			t.Fatalf("at %d the pool is asked %+v, want nothing", at, asks)
		}
		if at == 1000 {
			r.Progress(ms(at), "u", 100, count{Tracked: 1})
		}
	}
	if got := r.Stats().Users; got != 0 {
		t.Errorf("%d users are known, want none but their places", got)
	}
	r.bound("the places are remembered", 6)

	// Others use all there is.
	r.Share(ms(3000), concurrency.Sharing{User: "u", Until: ms(6000), Shares: []concurrency.Share{{Instance: "other0", Slots: 100}}})
	r.wantWithdraw(3000, "u")
	r.Withdrawn(ms(3001), "u", 2)
	r.pass(3005, 3020)
	r.holds("two are in progress", 2)
	r.Withdrawn(ms(3020), "u", 0)
	r.pass(3020, 3040)
	if h, ok := r.pool["me"]; !ok || h.Held != 0 {
		t.Errorf("the pool has %+v, %v, want a field that says none", h, ok)
	}

	// The field is repeated while nothing else says so, and the portion is asked for when the
	// user has been far from the limit for a while.
	r.pool["other0"] = concurrency.Holding{Held: 50}
	r.pass(3040, 10_990)
	r.holds("not yet", 0)
	r.pass(10_990, 11_510)
	r.holds("far from the limit for 5 s", 6)
	r.pass(11_510, 16_000)
	if got := r.Stats().Users; got != 0 {
		t.Errorf("%d users are known, want none", got)
	}
}

// TestPlacesUnsettled has an instance that has just joined ask before it uses its portion.
func TestPlacesUnsettled(t *testing.T) {
	limit := 100
	r := newCreditRig(t, 4, &limit)
	r.Cluster(ms(-1000), 5, 0)
	r.live = append(r.live, "other3")
	r.pool["other0"] = concurrency.Holding{Held: 82} // and 5 of each other one
	_, w := r.ask(0, 100, count{}, places{})
	if w == nil {
		t.Fatal("the first request does not wait for the pool")
	}
	r.exchange(0, false)
	if got := r.pool["me"].Held; got != 3 {
		t.Errorf("the pool grants %d, want 3: what the others leave", got)
	}
	if got := r.Lend(ms(1), "u"); got != 0 {
		t.Errorf("Lend = %d near the limit, want 0", got)
	}
	r2 := newCreditRig(t, 4, &limit)
	if got, _ := r2.ask(-30_001, 100, count{}, places{}); got != "wait" {
		t.Errorf("29.999 s after the instances have changed: %s, want wait", got)
	}
}

// TestPlacesTellNativesApart has a question that was asked after the withdrawal say how
// many of HAProxy's count were asked about.
func TestPlacesTellNativesApart(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.wantAsk(0, places{}, "yes")
	r.Lend(ms(0), "u")
	r.wantAsk(1, places{}, "yes") // outside
	r.Recall(ms(100), "u")
	r.wantWithdraw(100, "u")
	r.wantAsk(101, places{}, "yes")
	r.Withdrawn(ms(102), "u", 4) // the first, and three of HAProxy's own
	r.bound("three more were asked about, and the first may be one of them", 6)
	r.Progress(ms(110), "u", 10, count{Tracked: 3, Active: 2}) // one has ended: which?
	r.bound("the one may have been in the count, or outside", 6)

	two := count{Tracked: 4, Active: 3} // HAProxy has let one pass without an answer
	if got, _ := r.ask(250, 10, two, places{}); got != "yes" {
		t.Fatalf("a question: %s, want yes", got)
	}
	r.bound("four of HAProxy's own at most, and four that were asked about", 8)
	r.Progress(ms(260), "u", 10, count{Tracked: 5, Active: 1})
	r.bound("three of these have ended", 5)
}

// TestLimitLoweredBelowWhatIsHeld leaves idle slots that are too many unused.
func TestLimitLoweredBelowWhatIsHeld(t *testing.T) {
	r := newRig(t, 2)
	for at := range 5 {
		r.start(at, 1)
		r.exchange(at, true)
	}
	if held := r.Held("u"); held < 6 {
		t.Fatalf("%d slots are held, want some idle", held)
	}
	r.Limits(ms(10), func(string) int { return 5 })
	if v, _ := r.Start(ms(10), "u", 5, count{}, places{}); v.Allowed {
		t.Errorf("a sixth is admitted, with a limit of 5 and %d slots held", r.Held("u"))
	}
}

// rest has the agent forget all of a user but the places.
func (r *rig) rest(at int) {
	r.t.Helper()
	r.Progress(ms(at), "u", 10, count{Tracked: 1})
	r.pass(at, at+2500)
	if got := r.Stats().Users; got != 0 {
		r.t.Fatalf("%d users are known, want none but their places", got)
	}
	r.TakeOutput()
}

// TestPlacesWhenTheLimitsChange has the limit of a user whose HAProxy has 5 places change,
// or the number of instances.
func TestPlacesWhenTheLimitsChange(t *testing.T) {
	for _, resting := range []bool{false, true} {
		for _, tt := range []struct {
			name string
			do   func(r *rig, limit *int)
			want []string // whose places are withdrawn
		}{
			{"raised", func(r *rig, limit *int) { *limit = 20 }, nil},
			{"lowered, but not below the places", func(r *rig, limit *int) { *limit = 5 }, nil},
			{"lowered", func(r *rig, limit *int) { *limit = 4 }, []string{"u"}},
			{"lifted", func(r *rig, limit *int) { *limit = 0 }, []string{"u"}},
			{"no longer alone", func(r *rig, limit *int) { r.Cluster(ms(3000), 2, 0) }, []string{"u"}},
			{"no longer alone, with a portion above the places", func(r *rig, limit *int) {
				*limit = 40
				r.Limits(ms(3000), func(string) int { return 40 })
				r.Cluster(ms(3000), 2, 0)
			}, nil},
		} {
			t.Run(fmt.Sprintf("%s/at rest %v", tt.name, resting), func(t *testing.T) {
				limit := 10
				r := newCreditRig(t, 1, &limit)
				r.start(0, 1)
				r.Lend(ms(0), "u")
				r.Progress(ms(1), "u", 10, count{Tracked: 1, Active: 1})
				if resting {
					r.rest(100)
				}
				tt.do(r, &limit)
				r.Limits(ms(3000), func(string) int { return limit })
				r.wantWithdraw(3000, tt.want...)
				r.bound("until they are", 5)
			})
		}
	}
}

// TestNatives shows people what HAProxy admits by itself.
func TestNatives(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.Natives(ms(0), "u", 7)
	r.inProgress("nobody", 0)
	r.start(0, 1)
	r.Natives(ms(0), "u", 7)
	r.inProgress("no places", 1)
	r.Lend(ms(0), "u")
	r.Natives(ms(0), "u", 3)
	r.inProgress("three and one", 4)
	if free, ok := r.FreeSlots("u"); free != 6 || !ok {
		t.Errorf("Free = %d, %v, want 6", free, ok)
	}
	r.Natives(ms(0), "u", 9)
	r.inProgress("no more than the places", 5)
	r.rest(100)
	r.Natives(ms(3000), "u", 4)
	r.inProgress("at rest", 4)
	if got := r.Stats().InProgress; got != 4 {
		t.Errorf("in progress of all = %d, want 4", got)
	}
	r.Natives(ms(3000), "u", -1)
	r.inProgress("none", 0)
	r.start(3000, 1)
	if got := r.Stats().InProgress; got != 1 {
		t.Errorf("in progress of all = %d, want 1", got)
	}
}

// TestPlacesOfTooMany lends places only while half of the users are known that may be.
func TestPlacesOfTooMany(t *testing.T) {
	r := newRigOf(t, 1, concurrency.Config{MaxUsers: 4, Lookup: func(string) (int, bool) { return 10, true }})
	for i, want := range []int{5, 5, 0} {
		at, name := 5000*i, fmt.Sprint("u", i)
		r.Start(ms(at), name, 10, count{}, places{})
		if got := r.Lend(ms(at), name); got != want {
			t.Errorf("user %d: Lend = %d, want %d", i, got, want)
		}
		r.pass(at, at+4000)
	}
	r.Withdrawn(ms(20_000), "u0", 0)
	r.pass(20_000, 23_000)
	r.Start(ms(23_000), "u2", 10, count{}, places{})
	if got := r.Lend(ms(23_000), "u2"); got != 5 {
		t.Errorf("when there is room: Lend = %d, want 5", got)
	}
}

// TestPlacesUnknown has HAProxy say that it has places which this agent never lent.
func TestPlacesUnknown(t *testing.T) {
	limit := 100
	for _, tt := range []struct{ instances, bound int }{{1, 75 + 1}, {2, 48 + 1}} {
		r := newCreditRig(t, tt.instances, &limit)
		p := places{true, 2, 75}
		if tt.instances > 1 {
			p.Places = 12
		}
		if got, _ := r.ask(0, 100, count{}, p); got != "yes" {
			t.Errorf("%d instances: %s, want yes", tt.instances, got)
		}
		r.wantWithdraw(0, "u")
		r.bound("all that it may have admitted", tt.bound)
		r.Withdrawn(ms(1), "u", 1)
		r.bound("it was counted", 2) // it may have been tracked after the count was read
		r.Withdrawn(ms(6), "u", 0)
		r.bound("one is in progress", 1)
	}
}

// TestPlacesForgotten has HAProxy not know of places that were lent.
func TestPlacesForgotten(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.wantAsk(0, places{}, "yes")
	r.Lend(ms(0), "u")
	r.wantAsk(99, places{}, "yes")
	r.Tick(ms(200))
	r.wantWithdraw(200)
	r.wantAsk(201, places{}, "yes")
	r.wantWithdraw(201, "u")
	r.Withdrawn(ms(202), "u", 0)
	r.bound("three", 3)
}

// TestPlacesWithdrawnUnasked has the daemon withdraw by itself.
func TestPlacesWithdrawnUnasked(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.wantAsk(0, places{}, "yes")
	r.Lend(ms(0), "u")
	r.Withdrawn(ms(1), "u", 0)
	r.bound("at once, when HAProxy has not tracked the first one yet", 1)
	r.wantAsk(2, places{}, "yes")
	r.bound("a second one", 2)
	r.Tick(ms(105))
	r.wantWithdraw(105)
	r.Progress(ms(107), "u", 10, count{Tracked: 2})
	r.bound("all has ended", 0)

	r.wantAsk(6000, places{}, "yes")
	r.Lend(ms(6000), "u")
	r.Withdrawn(ms(6200), "u", 4)
	r.wantWithdraw(6200)
	r.bound("four, of which one may have been asked about", 5)
}
