package concurrency_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// A watchStep is one thing that a Watch hears, and what it decides then.
type watchStep struct {
	at       int // ms
	do       func(w *concurrency.Watch, at int)
	blocks   bool
	unblocks bool
	sharing  []concurrency.Share
}

func TestWatch(t *testing.T) {
	report := func(instance string, active, limit int) func(*concurrency.Watch, int) {
		return func(w *concurrency.Watch, at int) {
			w.Observe(ms(at), concurrency.Report{Instance: instance, User: "u", Active: active, Limit: limit})
		}
	}
	refusing := func(instance string, active, refused int) func(*concurrency.Watch, int) {
		return func(w *concurrency.Watch, at int) {
			w.Observe(ms(at), concurrency.Report{Instance: instance, User: "u", Active: active, Refused: refused, Limit: 10})
		}
	}
	allRefuse := func(w *concurrency.Watch, at int) {
		for _, name := range []string{"a", "b", "c"} {
			refusing(name, 2, 1)(w, at)
		}
	}
	byHand := func(w *concurrency.Watch, at int) { w.Unblock(ms(at), "u") }
	tick := func(w *concurrency.Watch, at int) { w.Tick(ms(at)) }
	live := func(names ...string) func(*concurrency.Watch, int) {
		return func(w *concurrency.Watch, at int) { w.Instances(ms(at), names) }
	}
	type shares = []concurrency.Share
	tests := []struct {
		name  string
		limit int
		steps []watchStep
	}{
		{"limit 1: blocked at 1, let in at 0", 1, []watchStep{
			{at: 0, do: report("a", 1, 1), blocks: true},
			{at: 1, do: report("a", 0, 1), unblocks: true},
		}},
		{"limit 2: the margin is one request", 2, []watchStep{
			{at: 0, do: report("a", 1, 2)},
			{at: 1, do: report("a", 2, 2), blocks: true},
			{at: 2, do: report("a", 1, 2), unblocks: true},
		}},
		{"limit 10: the margin is one request", 10, []watchStep{
			{at: 0, do: report("a", 9, 10)},
			{at: 1, do: report("b", 1, 10), blocks: true},
			{at: 2, do: report("a", 8, 10), unblocks: true},
			{at: 3, do: report("a", 7, 10)},
		}},
		{"limit 100: the margin is five", 100, []watchStep{
			{at: 0, do: report("a", 99, 100)},
			{at: 1, do: report("a", 100, 100), blocks: true},
			{at: 2, do: report("a", 96, 100)},
			{at: 3, do: report("a", 95, 100), unblocks: true},
			{at: 4, do: report("a", 94, 100)},
		}},
		{"repeated each 200 ms, between margin and limit too", 100, []watchStep{
			{at: 0, do: report("a", 100, 100), blocks: true},
			{at: 100, do: tick},
			{at: 150, do: report("a", 98, 100)},
			{at: 200, do: tick, blocks: true},
			{at: 300, do: tick},
			{at: 400, do: tick, blocks: true},
			{at: 500, do: report("a", 95, 100), unblocks: true},
			{at: 600, do: tick},
			{at: 700, do: tick},
		}},
		{"blocked again after 1.1 s at the soonest", 10, []watchStep{
			{at: 0, do: report("a", 10, 10), blocks: true},
			{at: 500, do: report("a", 9, 10), unblocks: true},
			{at: 501, do: report("a", 10, 10)},
			{at: 600, do: tick},
			{at: 1099, do: tick},
			{at: 1100, do: tick, blocks: true},
		}},
		{"unless it is a flood", 10, []watchStep{
			{at: 0, do: report("a", 10, 10), blocks: true},
			{at: 10, do: refusing("a", 10, 1000)}, // before it is unblocked
			{at: 500, do: report("a", 9, 10), unblocks: true},
			{at: 501, do: refusing("a", 10, 119)},
			{at: 502, do: refusing("a", 10, 1), blocks: true},
		}},
		{"who flips between two looks has what was said last", 10, []watchStep{
			{at: 0, do: func(w *concurrency.Watch, at int) {
				report("a", 10, 10)(w, at)
				report("a", 5, 10)(w, at)
			}, unblocks: true},
			{at: 1100, do: report("a", 10, 10), blocks: true},
			{at: 2200, do: func(w *concurrency.Watch, at int) {
				report("a", 5, 10)(w, at)
				refusing("a", 10, 120)(w, at)
			}, blocks: true},
		}},
		{"an instance that is silent for 2 s has none", 10, []watchStep{
			{at: 0, do: report("a", 6, 10)},
			{at: 1000, do: report("b", 4, 10), blocks: true},
			{at: 1999, do: tick, blocks: true},
			{at: 2000, do: tick, unblocks: true},
		}},
		{"a user who is not heard of is let in", 10, []watchStep{
			{at: 0, do: report("a", 10, 10), blocks: true},
			{at: 1900, do: tick, blocks: true},
			{at: 2000, do: tick, unblocks: true},
			{at: 2200, do: tick},
		}},
		{"an instance that left has none", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: report("a", 6, 10)},
			{at: 2, do: report("b", 4, 10), blocks: true},
			{at: 3, do: live("a", "b")},
			{at: 4, do: live("b"), unblocks: true},
		}},
		{"a limit that is raised, lowered and lifted", 10, []watchStep{
			{at: 0, do: report("a", 10, 10), blocks: true},
			{at: 1, do: report("a", 10, 20), unblocks: true},
			{at: 1200, do: report("a", 10, 8), blocks: true},
			{at: 1201, do: report("a", 10, 0), unblocks: true},
			{at: 1300, do: tick},
		}},
		{"a limit that is lifted is not shared", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: refusing("a", 9, 1)},
			{at: 2, do: report("a", 9, 0)},
			{at: 100, do: tick},
		}},
		{"what is not limited is not watched", 0, []watchStep{
			{at: 0, do: report("a", 1000, 0)},
		}},
		{"shares from 70 % of the limit on", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: report("a", 6, 10)},
			{at: 100, do: tick},
			{at: 101, do: report("b", 1, 10)},
			{at: 200, do: tick, sharing: shares{{Instance: "a", Slots: 8}, {Instance: "b", Slots: 2}}},
			{at: 300, do: tick},
			{at: 350, do: report("b", 4, 10), blocks: true},
			{at: 400, do: tick, sharing: shares{{Instance: "a", Slots: 6}, {Instance: "b", Slots: 4}}},
			{at: 500, do: tick},
		}},
		{"who refuses wants more, for half a second", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: report("a", 9, 10)},
			{at: 2, do: refusing("b", 1, 1), blocks: true},
			{at: 100, do: tick, sharing: shares{{Instance: "a", Slots: 5}, {Instance: "b", Slots: 5}}},
			{at: 502, do: tick, sharing: shares{{Instance: "a", Slots: 9}, {Instance: "b", Slots: 1}}, blocks: true},
		}},
		{"refusals alone are reason to share", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: refusing("b", 0, 1)},
			{at: 100, do: tick, sharing: shares{{Instance: "b", Slots: 10}}},
			{at: 501, do: tick},
		}},
		{"shares are repeated each second", 10, []watchStep{
			{at: 0, do: live("a", "b")},
			{at: 1, do: report("a", 8, 10)},
			{at: 100, do: tick, sharing: shares{{Instance: "a", Slots: 10}}},
			{at: 1000, do: report("a", 8, 10)},
			{at: 1099, do: tick},
			{at: 1100, do: tick, sharing: shares{{Instance: "a", Slots: 10}}},
		}},
		{"the odd slot changes hands with the repetition, and nothing is sent in between", 10, []watchStep{
			{at: 0, do: live("a", "b", "c")},
			{at: 1, do: allRefuse},
			{at: 100, do: tick, sharing: shares{{Instance: "a", Slots: 4}, {Instance: "b", Slots: 3}, {Instance: "c", Slots: 3}}},
			{at: 200, do: tick},
			{at: 400, do: allRefuse},
			{at: 500, do: tick},
			{at: 800, do: allRefuse},
			{at: 1000, do: tick},
			{at: 1100, do: tick, sharing: shares{{Instance: "a", Slots: 3}, {Instance: "b", Slots: 4}, {Instance: "c", Slots: 3}}},
			{at: 1200, do: tick},
		}},
		{"alone there is nothing to share", 10, []watchStep{
			{at: 0, do: live("a")},
			{at: 1, do: report("a", 8, 10)},
			{at: 100, do: tick},
		}},
		{"let in by hand, and judged anew by what is reported then", 10, []watchStep{
			{at: 0, do: report("a", 6, 10)},
			{at: 1, do: report("b", 6, 10), blocks: true},
			{at: 2, do: byHand, unblocks: true},
			{at: 300, do: tick},
			{at: 301, do: report("a", 6, 10)},
			{at: 302, do: report("b", 6, 10), blocks: true},
		}},
		{"let in by hand before the block was sent", 10, []watchStep{
			{at: 0, do: func(w *concurrency.Watch, at int) {
				report("a", 10, 10)(w, at)
				byHand(w, at)
			}, unblocks: true},
		}},
		{"let in by hand, and blocked again before that was said", 10, []watchStep{
			{at: 0, do: report("a", 10, 10), blocks: true},
			{at: 1, do: func(w *concurrency.Watch, at int) {
				byHand(w, at)
				report("a", 10, 10)(w, at)
			}, unblocks: true, blocks: true},
			{at: 1200, do: func(w *concurrency.Watch, at int) { // nothing of it is left
				report("a", 5, 10)(w, at)
				refusing("a", 10, 120)(w, at)
			}, blocks: true},
		}},
		{"let in by hand who is not known to be blocked", 10, []watchStep{
			{at: 0, do: byHand, unblocks: true},
			{at: 100, do: tick},
		}},
		{"a clock set back by an hour", 10, []watchStep{
			{at: 3_600_000, do: report("a", 10, 10), blocks: true},
			{at: 0, do: tick},
			{at: 200, do: tick, blocks: true},
			{at: 1900, do: tick, blocks: true},
			{at: 2000, do: tick, unblocks: true},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := concurrency.NewWatch(0)
			for i, st := range tt.steps {
				st.do(w, st.at)
				got := w.Decisions()
				if blocks := len(got.Blocks) == 1 && got.Blocks[0].User == "u"; blocks != st.blocks || !blocks && len(got.Blocks) > 0 {
					t.Errorf("step %d: blocks = %v, want one: %v", i, got.Blocks, st.blocks)
				}
				if unblocks := len(got.Unblocks) == 1 && got.Unblocks[0] == "u"; unblocks != st.unblocks || !unblocks && len(got.Unblocks) > 0 {
					t.Errorf("step %d: unblocks = %v, want one: %v", i, got.Unblocks, st.unblocks)
				}
				var want []concurrency.Sharing
				if st.sharing != nil {
					want = []concurrency.Sharing{{User: "u", Until: ms(st.at + 3000), Shares: st.sharing}}
				}
				if diff := cmp.Diff(want, got.Sharings, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(concurrency.Sharing{}, "Before", "Others")); diff != "" {
					t.Errorf("step %d: sharings (-want +got):\n%s", i, diff)
				}
				if got.IsEmpty() == (st.blocks || st.unblocks || st.sharing != nil) {
					t.Errorf("step %d: Empty() = %v of %+v", i, got.IsEmpty(), got)
				}
			}
		})
	}
}

// An instance whose share has ended is told, and all others are from time to time.
func TestWatchSharingConcerns(t *testing.T) {
	w := concurrency.NewWatch(0)
	w.Instances(t0, []string{"a", "b", "c"})
	for _, step := range []struct {
		at        int // ms
		active    map[string]int
		concerned string
		others    bool
	}{
		{0, map[string]int{"a": 5, "b": 5}, "[a b]", true},
		{100, map[string]int{"b": 0, "a": 10}, "[a b]", false},
		{200, map[string]int{"a": 10, "b": 0, "c": 1}, "[a c]", false},
		{1600, map[string]int{"a": 10, "b": 0, "c": 1}, "[a c]", true},
	} {
		for instance, active := range step.active {
			w.Observe(ms(step.at), concurrency.Report{Instance: instance, User: "u", Active: active, Limit: 10})
		}
		w.Tick(ms(step.at))
		got := w.Decisions().Sharings
		if len(got) != 1 || fmt.Sprint(got[0].Concerned()) != step.concerned || got[0].Others != step.others {
			t.Errorf("%d ms: %+v, want one sharing that concerns %s, and the others: %v", step.at, got, step.concerned, step.others)
		}
	}
}

func TestWatchTellsTheLimit(t *testing.T) {
	w := concurrency.NewWatch(20)
	w.Observe(t0, concurrency.Report{Instance: "a", User: "u", Active: 10, Limit: 10})
	want := []concurrency.Block{{User: "u", Limit: concurrency.Limit{Max: 10, Release: 8}}}
	if diff := cmp.Diff(want, w.Decisions().Blocks); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

func TestWatchForgets(t *testing.T) {
	w := concurrency.NewWatch(0)
	w.Observe(ms(0), concurrency.Report{Instance: "a", User: "u", Active: 10, Limit: 10})
	w.Observe(ms(0), concurrency.Report{Instance: "a", User: "v", Active: 9, Limit: 10})
	if all, blocked := w.WatchedUsers(); all != 2 || blocked != 1 {
		t.Errorf("Users() = %d, %d, want 2, 1", all, blocked)
	}
	w.Tick(ms(2000))
	if all, blocked := w.WatchedUsers(); all != 0 || blocked != 0 {
		t.Errorf("Users() = %d, %d after 2 s, want 0, 0", all, blocked)
	}
	w.Observe(ms(3000), concurrency.Report{Instance: "a", User: "u", Active: 10, Limit: 10})
	w.Instances(ms(3000), nil)
	w.Tick(ms(3000))
	if all, _ := w.WatchedUsers(); all != 0 {
		t.Errorf("Users() = %d without instances, want 0", all)
	}
}

func TestWatchDecisionsAreSorted(t *testing.T) {
	w := concurrency.NewWatch(0)
	w.Instances(ms(0), []string{"a", "b"})
	users := []string{"c", "a", "d", "b"}
	for _, active := range []int{10, 1} {
		for _, user := range users {
			w.Observe(ms(0), concurrency.Report{Instance: "a", User: user, Active: active, Refused: 1, Limit: 10})
		}
		if active == 10 {
			w.Tick(ms(0))
		}
		d := w.Decisions()
		for i, want := range []string{"a", "b", "c", "d"} {
			switch {
			case active == 10 && (d.Blocks[i].User != want || d.Sharings[i].User != want):
				t.Errorf("decision %d is of %s and %s, want %s", i, d.Blocks[i].User, d.Sharings[i].User, want)
			case active < 10 && d.Unblocks[i] != want:
				t.Errorf("unblock %d is of %s, want %s", i, d.Unblocks[i], want)
			}
		}
	}
}

// TestWatchInvariants: blocked only at the limit, let in at or below the margin
// and 2 s after the last report at the latest; a block that holds is repeated in
// time, which is looked at each 5 ms.
func TestWatchInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := concurrency.NewLimit(rapid.IntRange(1, 40).Draw(t, "limit"), 5)
		w := concurrency.NewWatch(5)
		active := map[string]int{}
		heard := map[string]int{}
		blocked, said := false, 0
		at := 0
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			at += rapid.IntRange(0, 100).Draw(t, "ms")
			if rapid.Bool().Draw(t, "report") {
				name := fmt.Sprint("i", rapid.IntRange(0, 2).Draw(t, "instance"))
				active[name], heard[name] = rapid.IntRange(0, limit.Max).Draw(t, "active"), at
				w.Observe(ms(at), concurrency.Report{Instance: name, User: "u", Active: active[name], Refused: rapid.IntRange(0, 60).Draw(t, "refused"), Limit: limit.Max})
			} else {
				w.Tick(ms(at))
			}
			least, most := 0, 0 // in progress; the watch may not have looked at the clock
			for name, n := range active {
				most += n
				if at-heard[name] < 2000 {
					least += n
				}
			}
			d := w.Decisions()
			switch {
			case len(d.Blocks) > 0 && !blocked && most < limit.Max:
				t.Fatalf("blocked with %d in progress, of %d", most, limit.Max)
			case len(d.Unblocks) > 0 && least > limit.Release:
				t.Fatalf("unblocked with %d in progress, margin %d", least, limit.Release)
			case len(d.Blocks) > 0:
				blocked, said = true, at
			case len(d.Unblocks) > 0:
				blocked = false
			}
			if blocked && most <= limit.Release {
				t.Fatalf("blocked with %d in progress, margin %d", most, limit.Release)
			}
			if w.Tick(ms(at)); blocked && at-said >= 205 && w.Decisions().IsEmpty() {
				t.Fatalf("the block was last said %d ms ago", at-said)
			} else if blocked && at-said >= 205 {
				said = at
			}
		}
		w.Tick(ms(at + 2005))
		w.Decisions()
		if all, blocked := w.WatchedUsers(); all+blocked != 0 {
			t.Fatalf("%d users watched and %d blocked 2 s later, want none", all, blocked)
		}
	})
}

// To look at whom something is due decides what to look at everybody would.
func TestWatchMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		due, all := concurrency.NewWatch(5), concurrency.NewWatch(5)
		live := []string{"i0", "i1", "i2"}
		at := 0
		for _, w := range []*concurrency.Watch{due, all} {
			w.Instances(ms(at), live)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			at += 5 * rapid.IntRange(0, 19).Draw(t, "times 5 ms")
			r := concurrency.Report{
				Instance: live[rapid.IntRange(0, len(live)-1).Draw(t, "instance")], User: string(rune('u' + rapid.IntRange(0, 1).Draw(t, "user"))),
				Active: rapid.IntRange(0, 8).Draw(t, "active"), Refused: rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "refused"), Limit: 10,
			}
			gone := rapid.IntRange(0, 9).Draw(t, "gone") == 0
			for _, w := range []*concurrency.Watch{due, all} {
				w.Observe(ms(at), r)
				if gone {
					w.Instances(ms(at), live[:2])
					w.Instances(ms(at), live)
				}
			}
			for range rapid.IntRange(0, 25).Draw(t, "ticks") {
				at += 100 - at%100
				all.LookAtAll()
				for _, w := range []*concurrency.Watch{due, all} {
					w.Tick(ms(at))
				}
				if diff := cmp.Diff(all.Decisions(), due.Decisions()); diff != "" {
					t.Fatalf("at %d ms (-everybody +whom it is due for):\n%s", at, diff)
				}
			}
		}
	})
}
