package concurrency_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

var t0 = time.Unix(1_700_000_000, 0)

func ms(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }

type count = concurrency.Count

// rig is an agent and the pool of its user u, who may have 10 requests in
// progress.
type rig struct {
	*concurrency.Agent
	t    testing.TB
	pool map[string]concurrency.Holding
	live []string // the other instances
}

func newRig(t testing.TB, instances int) *rig {
	return newRigOf(t, instances, concurrency.Config{})
}

func newRigOf(t testing.TB, instances int, c concurrency.Config) *rig {
	c.Instance = "me"
	r := &rig{Agent: concurrency.NewAgent(c), t: t, pool: make(map[string]concurrency.Holding)}
	r.Cluster(t0.Add(-time.Second), instances, 0)
	return r
}

// start has n requests start at once, and returns how many were admitted, and
// those that wait.
func (r *rig) start(at, n int) (admitted int, waiting []*concurrency.Waiting) {
	for range n {
		v, w := r.Start(ms(at), "u", 10, count{}, concurrency.Places{})
		if w != nil {
			waiting = append(waiting, w)
		} else if v.Allowed {
			admitted++
		} else if v.Limit != 10 {
			r.t.Errorf("at %d: refused by limit %d, want 10", at, v.Limit)
		}
	}
	return admitted, waiting
}

// exchange lets the agent talk to the pool once, and returns what it asked.
func (r *rig) exchange(at int, flush bool) []concurrency.Ask {
	asks := r.Collect(ms(at), flush, nil)
	for _, ask := range asks {
		r.Reply(ms(at), ask, concurrency.Take(r.pool, 1+len(r.live), "me", ask))
	}
	return asks
}

// pass lets time pass, with an exchange each 5 ms.
func (r *rig) pass(from, to int) {
	for at := from; at < to; at += 5 {
		r.Tick(ms(at))
		r.exchange(at, true)
	}
}

// decided returns the verdicts that became known, in order.
func (r *rig) decided() (allowed []bool) {
	for _, w := range r.TakeOutput().Decided {
		allowed = append(allowed, w.Verdict.Allowed)
	}
	return allowed
}

func (r *rig) inProgress(what string, want int) {
	r.t.Helper()
	if got := r.InProgress("u"); got != want {
		r.t.Errorf("%s: InProgress = %d, want %d", what, got, want)
	}
}

func (r *rig) holds(what string, want int) {
	r.t.Helper()
	if agent, pool := r.Held("u"), r.pool["me"].Held; agent != want || pool != want {
		r.t.Errorf("%s: the agent holds %d slots and the pool says %d, want %d", what, agent, pool, want)
	}
}

func TestAgentInProgress(t *testing.T) {
	type step struct {
		at   int
		do   func(r *rig, at time.Time)
		want int // in progress afterwards
	}
	start := func(n int) func(*rig, time.Time) {
		return func(r *rig, at time.Time) {
			for range n {
				r.Start(at, "u", 10, count{}, concurrency.Places{})
			}
		}
	}
	startSeeing := func(tracked, active int64) func(*rig, time.Time) {
		return func(r *rig, at time.Time) {
			r.Start(at, "u", 10, count{Tracked: tracked, Active: active}, concurrency.Places{})
		}
	}
	asks := func(process, tracked, active int64) func(*rig, time.Time) {
		return func(r *rig, at time.Time) {
			r.Start(at, "u", 10, count{Tracked: tracked, Active: active, Process: process}, concurrency.Places{})
		}
	}
	cancelFor := func(process int64) func(*rig, time.Time) {
		return func(r *rig, at time.Time) { r.Cancel(at, "u", process) }
	}
	push := func(tracked, active int64) func(*rig, time.Time) {
		return func(r *rig, at time.Time) { r.Progress(at, "u", 10, count{Tracked: tracked, Active: active}) }
	}
	tick := func(r *rig, at time.Time) { r.Tick(at) }
	cancel := func(r *rig, at time.Time) { r.Cancel(at, "u", 0) }
	restarted := func(r *rig, at time.Time) { r.Restarted(at) }
	replaced := func(r *rig, at time.Time) {
		r.Replaced(at)
		if !r.Draining() {
			r.t.Error("Draining() = false after Replaced, want true")
		}
	}
	drained := func(r *rig, at time.Time) { r.Drained(at) }
	tests := []struct {
		name  string
		steps []step
	}{
		{"admitted requests and those that HAProxy counts are the same", []step{
			{0, start(3), 3}, {2, push(2, 2), 3}, {3, push(3, 3), 3}, {4, push(3, 1), 1}, {5, push(3, 0), 0},
		}},
		{"one that came and went between two pushes", []step{
			{0, start(1), 1}, {2, push(1, 0), 0},
		}},
		{"what HAProxy saw when it asked counts too", []step{
			{0, start(1), 1}, {1, startSeeing(1, 1), 2}, {2, startSeeing(2, 1), 2}, {3, push(3, 2), 2},
		}},
		{"a user known to HAProxy before the agent knows them", []step{
			{0, startSeeing(100, 4), 5}, {1, push(101, 5), 5}, {2, push(101, 0), 0},
		}},
		{"a push of somebody unknown", []step{{0, push(7, 3), 3}, {1, push(8, 2), 2}}},
		{"what a HAProxy said that has ended is not believed", []step{
			{0, push(100, 4), 4}, {10, restarted, 0}, {11, startSeeing(100, 4), 1}, {13, push(1, 1), 1}, {14, push(1, 0), 0},
		}},
		{"whom a sync does not name has nothing in progress", []step{
			{0, push(7, 3), 3}, {10, func(r *rig, at time.Time) { r.Synced(at, ms(0)) }, 3},
			{20, func(r *rig, at time.Time) { r.Synced(at, ms(5)) }, 0}, {30, push(8, 1), 1},
		}},
		{"what was admitted before a reload is the old one's", []step{
			{0, asks(1, 0, 0), 1}, {10, asks(1, 0, 0), 2}, {20, replaced, 2},
			{30, asks(2, 0, 0), 3}, {31, push(1, 1), 3}, {32, push(1, 0), 2}, {1500, tick, 2}, {1600, drained, 0},
		}},
		{"the new HAProxy asks before the session is with it", []step{
			{0, push(142, 4), 4}, {10, asks(1, 142, 4), 5}, // then it has heard of what was ever tracked
			{20, asks(2, 142, 0), 6}, {21, asks(2, 142, 0), 7}, {22, push(143, 3), 5}, {23, asks(1, 143, 3), 6}, {30, replaced, 6},
			{31, push(142, 0), 6}, {32, push(144, 2), 6}, {33, push(144, 1), 5}, {34, push(144, 0), 4}, {1500, tick, 4}, {1600, drained, 0},
		}},
		{"the new HAProxy hears late of what was ever tracked", []step{
			{0, push(142, 4), 4}, {10, asks(1, 142, 4), 5}, {20, replaced, 5}, {21, asks(2, 0, 0), 6}, {22, push(1, 1), 6},
			{23, asks(2, 1, 1), 7}, {24, push(142, 1), 7}, {25, push(143, 2), 7}, {26, asks(2, 143, 2), 8}, {27, push(144, 2), 7}, {1500, tick, 7}, {1600, drained, 2},
		}},
		{"the old one was killed; after that, another is as new", []step{
			{0, asks(1, 0, 0), 1}, {10, asks(2, 0, 0), 2}, {20, restarted, 1}, {31, push(1, 1), 1}, {32, push(1, 0), 0},
			{5000, replaced, 0}, {5010, asks(3, 0, 0), 1}, {5011, push(1, 1), 1}, {5012, push(1, 0), 0}, {5013, drained, 0},
		}},
		{"of a new HAProxy that the session never was with, nothing is left", []step{
			{0, asks(1, 0, 0), 1}, {10, asks(2, 0, 0), 2}, {20, cancelFor(2), 1}, {30, asks(2, 0, 0), 2}, {1500, tick, 0},
		}},
		{"an agent that starts when an old HAProxy still asks", []step{
			{0, push(50, 5), 5}, {1, asks(1, 500, 9), 10}, {5, asks(2, 50, 5), 10}, {1099, tick, 9},
			{1100, asks(2, 51, 6), 7}, {1101, push(52, 7), 7}, {1102, push(52, 0), 0}, {1103, asks(1, 500, 9), 1}, {2200, tick, 0},
		}},
		{"many reloads, and all of the old ones still ask", []step{
			{0, asks(1, 0, 0), 1}, {10, replaced, 1}, {20, asks(2, 0, 0), 2}, {30, replaced, 2}, {40, asks(3, 0, 0), 3}, {50, replaced, 3},
			{60, asks(4, 0, 0), 4}, {70, replaced, 4}, {80, asks(5, 0, 0), 5}, {90, replaced, 5}, {100, asks(6, 0, 0), 6}, {101, push(1, 1), 6},
			{110, asks(1, 9, 9), 7}, {120, asks(6, 1, 1), 8}, {121, push(2, 0), 6}, {1500, asks(6, 2, 0), 7}, {1501, asks(6, 3, 1), 8}, {1502, push(4, 0), 6}, {1600, drained, 0},
		}},
		{"a clock that was set back before a reload", []step{
			{0, asks(9, 0, 0), 1}, {10, replaced, 1}, {20, drained, 0}, {2000, asks(3, 5, 5), 6}, {2001, push(6, 6), 6}, {2002, push(6, 0), 0},
		}},
		{"the old HAProxy goes on asking after the session has left it", []step{
			{0, asks(1, 0, 0), 1}, {10, replaced, 1}, {11, asks(1, 1, 1), 2}, {12, asks(2, 0, 0), 3}, {13, asks(1, 2, 2), 4}, {14, cancelFor(1), 3},
			{15, asks(2, 0, 0), 4}, {16, cancelFor(2), 3}, {20, push(1, 1), 3}, {30, push(1, 0), 2}, {1500, tick, 2}, {1600, drained, 0},
			{1700, asks(1, 9, 9), 1}, {3000, tick, 0},
		}},
		{"a session that is with the same HAProxy again", []step{
			{0, asks(1, 0, 0), 1}, {10, replaced, 1}, {1011, asks(1, 1, 1), 3}, {1012, push(2, 2), 3}, {1013, drained, 2}, {1014, push(2, 0), 0},
		}},
		{"older counts change nothing", []step{
			{0, startSeeing(5, 5), 6}, {1, push(2, 2), 6}, {2, push(4, 4), 6}, {3, push(6, 3), 3}, {4, startSeeing(5, 5), 4},
		}},
		{"a count with more in progress than ever were is none", []step{
			{0, push(2, 2), 2}, {1, push(3, 4), 2}, {2, push(3, -1), 2}, {3, startSeeing(0, 8), 3},
		}},
		{"an entry that begins anew", []step{
			{0, push(50, 2), 2}, {1, push(50, 0), 0}, {2, start(2), 2}, {3, push(1, 1), 2}, {4, push(2, 2), 2}, {5, push(2, 0), 0},
		}},
		{"requests that nobody told of are counted", []step{{0, push(1, 1), 1}, {1, push(9, 9), 9}}},
		{"what never comes to be counts for a second", []step{
			{0, start(2), 2}, {999, tick, 2}, {1010, tick, 0},
		}},
		{"what never comes to be is found among others that do", []step{
			{0, start(1), 1}, // never
			{300, start(1), 2}, {305, push(1, 0), 1},
			{600, start(1), 2}, {605, push(2, 0), 1},
			{900, start(1), 2}, {905, push(3, 0), 1},
			{990, tick, 1}, {1010, tick, 0},
		}},
		{"cancelled", []step{{0, start(2), 2}, {1, cancel, 1}, {2, push(1, 1), 1}, {3, cancel, 1}}},
		{"nothing survives a restart of HAProxy", []step{
			{0, push(9, 5), 5}, {1, start(2), 7}, {2, restarted, 0}, {3, push(1, 1), 1}, {4, push(1, 0), 0},
		}},
		{"after a reload requests go on until they are drained", []step{
			{0, push(9, 5), 5}, {1, replaced, 5}, {2, push(1, 1), 6}, {3, push(1, 0), 5}, {500_000, drained, 0},
		}},
		{"or until they must be over", []step{
			{0, push(9, 5), 5}, {10, replaced, 5}, {600_009, tick, 5}, {600_010, tick, 0},
		}},
		{"a second reload", []step{
			{0, push(9, 5), 5}, {10, replaced, 5}, {20, push(2, 2), 7}, {300_000, replaced, 7}, {600_010, tick, 7}, {900_000, tick, 0},
		}},
		{"a restart ends what is drained", []step{{0, push(9, 5), 5}, {10, replaced, 5}, {20, restarted, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			for i, s := range tt.steps {
				s.do(r, ms(s.at))
				r.inProgress(fmt.Sprint("step ", i), s.want)
			}
			if r.Draining() {
				t.Error("Draining() = true at last, want false")
			}
		})
	}
}

func TestAgentWithoutLimitKnowsNobody(t *testing.T) {
	r := newRig(t, 1)
	r.Progress(ms(0), "u", 0, count{Tracked: 3, Active: 3})
	r.Progress(ms(0), "v", 10, count{Tracked: 3, Active: 0})
	if got := r.Stats().Users; got != 0 {
		t.Errorf("%d users known, want 0", got)
	}
	// Nothing of this is about anybody.
	r.Cancel(ms(1), "u", 0)
	r.Block(ms(1), "u", concurrency.Limit{Max: 10, Release: 9})
	r.Unblock(ms(1), "u")
	r.Share(ms(1), concurrency.Sharing{User: "u", Until: ms(3000)})
	r.Fail(ms(1), concurrency.Ask{User: "u"})
	r.Reply(ms(1), concurrency.Ask{User: "u"}, concurrency.Grant{Held: 3})
	if out := r.TakeOutput(); out.Urgent || out.TableEntries != nil || out.Decided != nil || r.Stats().Users != 0 {
		t.Errorf("news of unknown users led to %+v and %d users, want nothing", out, r.Stats().Users)
	}
}

func TestAgentMaxUsers(t *testing.T) {
	r := newRigOf(t, 1, concurrency.Config{MaxUsers: 2})
	for i, want := range []uint64{0, 0, 1, 2} {
		name := fmt.Sprint("u", i)
		for _, ask := range []func(time.Time, string, int, count, concurrency.Places) (concurrency.Verdict, *concurrency.Waiting){r.Start, r.Hold} {
			if v, w := ask(ms(0), name, 1, count{}, concurrency.Places{}); !v.Allowed && i >= 2 || w != nil && i >= 2 {
				t.Errorf("user %d: %+v, %v, want allowed uncounted", i, v, w)
			}
			if i < 2 {
				break
			}
		}
		if got := r.Stats().Overflowed; got != 2*want {
			t.Errorf("user %d: %d overflowed, want %d", i, got, 2*want)
		}
	}
	r.Progress(ms(1), "u9", 10, count{Tracked: 1, Active: 1})
	if got := r.Stats().Users; got != 2 {
		t.Errorf("%d users known, want 2", got)
	}
}

func TestAgentForgets(t *testing.T) {
	for _, instances := range []int{1, 2} {
		r := newRig(t, instances)
		r.start(0, 12)
		r.exchange(1, true)
		r.Progress(ms(5), "u", 10, count{Tracked: 10, Active: 10})
		r.pass(5, 5000)
		if r.Stats().Users != 1 {
			t.Errorf("%d instances: %d users known while requests run, want 1", instances, r.Stats().Users)
		}
		r.Progress(ms(5000), "u", 10, count{Tracked: 10, Active: 0})
		r.pass(5000, 6000)
		r.holds(fmt.Sprint(instances, " instances, 1 s later"), 0)
		r.pass(6000, 7500)
		if r.Stats().Users != 0 {
			t.Errorf("%d instances: %d users known 2.5 s after the last request, want 0", instances, r.Stats().Users)
		}
	}
}

func TestAgentStatsInProgress(t *testing.T) {
	for _, instances := range []int{1, 2} {
		r := newRig(t, instances)
		r.Start(ms(0), "v", 10, count{}, concurrency.Places{}) // never comes to be
		r.start(0, 3)
		r.exchange(0, true)
		if got := r.Stats().InProgress; got != 4 && instances == 1 {
			t.Errorf("%d in progress of all users, want 4", got)
		}
		r.Progress(ms(5), "u", 10, count{Tracked: 3, Active: 2})
		r.pass(5, 3000)
		if s := r.Stats(); s.InProgress != 2 || s.Users != 1 {
			t.Errorf("%d instances: %+v, want 2 in progress of 1 user", instances, s)
		}
		r.Restarted(ms(3000))
		r.pass(3000, 6000)
		if s := r.Stats(); s.InProgress != 0 || s.Users != 0 {
			t.Errorf("%d instances: %+v, want nobody", instances, s)
		}
	}
}

// TestAgentThatBecomesAloneForgets is about slots that were held before.
func TestAgentThatBecomesAloneForgets(t *testing.T) {
	r := newRig(t, 2)
	r.start(0, 2)
	r.pass(0, 10)
	r.Cluster(ms(10), 1, 0)
	r.pass(10, 4000)
	if r.Stats().Users != 0 {
		t.Errorf("%d users known, want 0", r.Stats().Users)
	}
}

// TestAgentKeepsItsShareWhileItRefuses is about slots that become free while
// clients are known to come back.
func TestAgentKeepsItsShareWhileItRefuses(t *testing.T) {
	r := newRig(t, 2)
	r.start(0, 10)
	r.exchange(1, false)
	r.pass(5, 50)
	r.Progress(ms(50), "u", 10, count{Tracked: 10, Active: 10})
	r.start(90, 1)
	r.TakeOutput()
	for _, tt := range []struct {
		name  string
		share []concurrency.Share
		want  int
	}{
		{"the even part", nil, 5},
		{"its share", []concurrency.Share{{Instance: "me", Slots: 7}, {Instance: "other", Slots: 3}}, 7},
		{"what runs, and one of those that nobody holds, without a share", []concurrency.Share{{Instance: "other", Slots: 10}}, 3},
	} {
		if tt.share != nil {
			r.Share(ms(96), concurrency.Sharing{User: "u", Until: ms(3000), Shares: tt.share})
		}
		r.Progress(ms(97), "u", 10, count{Tracked: 10, Active: 2})
		r.exchange(97, true)
		if got := r.Held("u"); got != tt.want {
			t.Errorf("%s: holds %d, want %d", tt.name, got, tt.want)
		}
	}
	r.Share(ms(98), concurrency.Sharing{User: "u", Until: ms(3000), Shares: []concurrency.Share{{Instance: "me", Slots: 7}}})
	r.pass(98, 145)
	r.holds("used a moment ago", 7)
	r.pass(145, 160)
	r.holds("idle for 50 ms", 2)
}

func TestAgentShareLapses(t *testing.T) {
	for _, tt := range []struct {
		after, want int // ms after polygen's last word, slots
	}{{2950, 9}, {3000, 5}} {
		r := newRig(t, 2)
		r.start(0, 10)
		r.pass(5, 50)
		r.Progress(ms(50), "u", 10, count{Tracked: 10, Active: 10})
		shares := []concurrency.Share{{Instance: "me", Slots: 9}, {Instance: "other", Slots: 1}}
		r.Share(ms(50), concurrency.Sharing{User: "u", Until: ms(1_000_000), Shares: shares})
		end := 50 + tt.after
		for at := 60; at < end; at += 50 {
			r.start(at, 1) // refused
			r.pass(at, min(at+50, end))
		}
		r.Progress(ms(end), "u", 10, count{Tracked: 10, Active: 1})
		r.exchange(end, true)
		r.holds(fmt.Sprint(tt.after, " ms later"), tt.want)
	}
}

// TestAgentFail is about asks that the pool has not heard, or has.
func TestAgentFail(t *testing.T) {
	for _, heard := range []bool{false, true} {
		r := newRig(t, 2)
		_, waiting := r.start(0, 12)
		ask := r.Collect(ms(0), false, nil)[0]
		if heard {
			concurrency.Take(r.pool, 1+len(r.live), "me", ask)
		}
		if again := r.Collect(ms(1), true, nil); len(again) != 0 {
			t.Errorf("heard %v: asked again before the answer: %v", heard, again)
		}
		r.Fail(ms(10), ask)
		if got := r.Held("u"); got != 0 {
			t.Errorf("heard %v: after Fail the agent uses %d slots, want 0", heard, got)
		}
		asks := r.exchange(11, true)
		if len(asks) != 1 || asks[0].Seq <= ask.Seq || asks[0].Refused != 1 {
			t.Fatalf("heard %v: after Fail asked %+v, want anew, and the 2 refusals not a second time", heard, asks)
		}
		r.holds(fmt.Sprint("heard ", heard), 10)
		if got := r.decided(); len(got) != len(waiting) || slices.Contains(got, false) {
			t.Errorf("heard %v: decided %v, want all admitted", heard, got)
		}
		// The first ask arrives again, late.
		if got := concurrency.Take(r.pool, 1+len(r.live), "me", ask); got.Held != 10 || r.pool["me"].Seq != asks[0].Seq {
			t.Errorf("heard %v: a late ask was told %+v, want what is", heard, got)
		}
	}
}

func TestAgentTimeout(t *testing.T) {
	tests := []struct {
		name  string
		given func(r *rig)
		admit int // of 10 requests that time out, with limit 10 and two agents
	}{
		{"of a user not known to be near the limit: the even part", func(*rig) {}, 5},
		{"less what runs", func(r *rig) { r.Progress(ms(0), "u", 10, count{Tracked: 2, Active: 2}) }, 3},
		{"of one whose pool is nearly empty: none", func(r *rig) {
			r.pool["other"] = concurrency.Holding{Held: 9, Seq: 1}
			r.start(0, 1)
			r.exchange(0, false)
		}, 0},
		{"of one who polygen says is near the limit: none", func(r *rig) {
			r.start(0, 1)
			r.Share(ms(0), concurrency.Sharing{User: "u", Until: ms(3000)})
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 2)
			tt.given(r)
			r.TakeOutput()
			_, waiting := r.start(1, 10)
			admitted := 0
			for _, w := range waiting {
				v := r.Timeout(ms(11), w)
				if v.Allowed {
					admitted++
				}
				if again := r.Timeout(ms(12), w); again != v {
					t.Errorf("Timeout = %+v, then %+v", v, again)
				}
			}
			if admitted != tt.admit {
				t.Errorf("%d admitted, want %d", admitted, tt.admit)
			}
			if out := r.TakeOutput(); len(out.Decided) != 0 {
				t.Errorf("%d requests decided again", len(out.Decided))
			}
		})
	}
}

// A request that waits although the pool has answered waits for a slot, not for an answer.
func TestAgentTimeoutAfterAnAnswer(t *testing.T) {
	r := newRig(t, 2)
	r.start(0, 1)
	asks := r.Collect(ms(0), false, nil)
	_, waiting := r.start(1, 1) // which that ask does not speak of
	if len(waiting) != 1 || len(asks) != 1 {
		t.Fatalf("%d requests wait and %d asks are sent, want 1 and 1", len(waiting), len(asks))
	}
	r.Reply(ms(2), asks[0], concurrency.Grant{Held: 1, Free: 9})
	_, later := r.start(2, 1)
	r.Tick(ms(8)) // the pool had too little, and is asked again after a while
	asks = r.Collect(ms(8), true, nil)
	r.Reply(ms(9), asks[0], concurrency.Grant{Held: 1, Free: 9})
	if v := r.Timeout(ms(11), waiting[0]); v.Allowed {
		t.Errorf("Timeout = %+v, want refused", v)
	}
	if v := r.Timeout(ms(12), later[0]); v.Allowed {
		t.Errorf("Timeout of the next one = %+v, want refused", v)
	}
	r.start(13, 1)
	asks = r.Collect(ms(13), false, nil)
	_, waiting = r.start(14, 1)
	if len(asks) > 0 {
		r.Reply(ms(15), asks[0], concurrency.Grant{Held: 1, Free: 9}) // which does not speak of it
	}
	if v := r.Timeout(ms(24), waiting[0]); !v.Allowed {
		t.Errorf("Timeout when the pool is silent = %+v, want allowed", v)
	}
}

// Asks go one after the other: one that is made late, because the pool takes long to answer the one before
// it, is no sign of a pool that is silent.
func TestAgentTimeoutBehindAnotherAsk(t *testing.T) {
	r := newRig(t, 2)
	r.Start(ms(0), "other", 10, count{}, concurrency.Places{})
	asks := r.Collect(ms(0), false, nil)
	_, waiting := r.start(1, 1)
	r.Reply(ms(12), asks[0], concurrency.Grant{Held: 1, Free: 9})
	if asks = r.Collect(ms(12), false, nil); len(waiting) != 1 || len(asks) != 1 || asks[0].User != "u" {
		t.Fatalf("%d requests wait and %+v is asked, want 1 request, and that u's slots are asked for", len(waiting), asks)
	}
	if v := r.Timeout(ms(21), waiting[0]); v.Allowed || v.Cause != cause.RedisLate {
		t.Errorf("Timeout before the answer to an ask that was made late = %+v, want refused: %s", v, cause.RedisLate)
	}
	_, waiting = r.start(22, 1)
	if v := r.Timeout(ms(42), waiting[0]); !v.Allowed {
		t.Errorf("Timeout when nothing was answered since = %+v, want allowed", v)
	}
}

func TestAgentWithdraw(t *testing.T) {
	r := newRig(t, 2)
	_, waiting := r.start(0, 2)
	if len(waiting) != 2 {
		t.Fatalf("%d requests wait, want 2", len(waiting))
	}
	r.Abandon(ms(1), waiting[0]) // before it is decided
	r.exchange(2, false)
	if got := r.decided(); len(got) != 1 || !got[0] {
		t.Fatalf("decided = %v, want the other one allowed", got)
	}
	r.inProgress("while it runs", 1)
	r.Abandon(ms(3), waiting[1]) // just after
	r.inProgress("when it does not run after all", 0)
}

// One that was refused or withdrawn has no slot: to withdraw it gives back nobody else's.
func TestAgentWithdrawGivesBackOnce(t *testing.T) {
	r := newRig(t, 2)
	r.pool["other"] = concurrency.Holding{Held: 9, Seq: 1}
	_, waiting := r.start(0, 3)
	if len(waiting) != 3 {
		t.Fatalf("%d requests wait, want 3", len(waiting))
	}
	r.Abandon(ms(1), waiting[0])
	r.Abandon(ms(1), waiting[0])
	if v := r.Timeout(ms(1), waiting[0]); v.Allowed {
		t.Errorf("Timeout of a withdrawn request = %+v, want not allowed", v)
	}
	r.exchange(2, false)
	if got := r.decided(); !slices.Equal(got, []bool{true}) {
		t.Fatalf("decided = %v, want one allowed, which has the last slot", got)
	}
	if v := r.Timeout(ms(3), waiting[2]); v.Allowed {
		t.Fatalf("Timeout without a slot = %+v, want refused", v)
	}
	r.Abandon(ms(4), waiting[2])
	r.Abandon(ms(4), waiting[0])
	r.inProgress("when others were withdrawn", 1)
}

func TestAgentLineIsBounded(t *testing.T) {
	r := newRigOf(t, 1, concurrency.Config{MaxLine: 2, MaxLines: 3})
	hold := func(user string) bool {
		r.Start(ms(0), user, 1, count{Tracked: 1, Active: 1}, concurrency.Places{})
		v, w := r.Hold(ms(0), user, 1, count{}, concurrency.Places{})
		if w == nil && (v.Allowed || v.Limit != 1) {
			t.Errorf("Hold(%s) = %+v, want refused by 1", user, v)
		}
		return w != nil
	}
	for i, tt := range []struct {
		user string
		want bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", false}, {"c", false}} {
		if got := hold(tt.user); got != tt.want {
			t.Errorf("%d: Hold(%s) waits: %v, want %v", i, tt.user, got, tt.want)
		}
	}
}

// TestAgentLineIsDemand: polygen hears that those in line want slots.
func TestAgentLineIsDemand(t *testing.T) {
	r := newRig(t, 2)
	r.pool["other"] = concurrency.Holding{Held: 10, Seq: 1}
	r.Hold(ms(0), "u", 10, count{}, concurrency.Places{})
	for second := range 3 {
		refused := 0
		for at := 1000 * second; at < 1000*second+1000; at += 5 {
			r.Tick(ms(at))
			for _, ask := range r.exchange(at, true) {
				refused += ask.Refused
			}
		}
		if refused == 0 {
			t.Errorf("second %d: no refusal reported, want some", second)
		}
	}
}

// Between a refusal and the question in line time passes, more of it than between two
// blocks if many come at once on a busy machine.
func TestAgentLineIsNotShieldedWhileItForms(t *testing.T) {
	r := newRig(t, 1)
	r.start(0, 10)
	block := func() []concurrency.TableEntry {
		r.start(1, 20)
		r.Block(ms(2), "u", concurrency.NewLimit(10, 5))
		return r.TakeOutput().TableEntries
	}
	if told := block(); len(told) != 1 || told[0].Until == 0 {
		t.Fatalf("refusals of somebody who may not wait, as far as known: told HAProxy %+v, want blocked", told)
	}
	r.Hold(ms(3), "u", 10, count{}, concurrency.Places{})
	if told := r.TakeOutput().TableEntries; len(told) != 1 || told[0].Until != 0 {
		t.Errorf("the first of them waits: told HAProxy %+v, want not blocked", told)
	}
	if told := block(); len(told) != 0 {
		t.Errorf("others will wait: told HAProxy %+v, want nothing", told)
	}

	r = newRig(t, 1)
	r.start(0, 10)
	r.Patient(ms(0), "u")
	for _, n := range block() {
		if n.Until != 0 {
			t.Errorf("they may all wait: told HAProxy %+v, want not blocked", n)
		}
	}
}

func TestAgentShield(t *testing.T) {
	limit := concurrency.NewLimit(10, 20) // release 8
	type step struct {
		at     int
		refuse int // requests that are refused
		do     func(r *rig, at time.Time)
		native []concurrency.TableEntry
	}
	block := func(r *rig, at time.Time) { r.Block(at, "u", limit) }
	unblock := func(r *rig, at time.Time) { r.Unblock(at, "u") }
	tick := func(r *rig, at time.Time) { r.Tick(at) }
	push := func(active int64) func(*rig, time.Time) {
		return func(r *rig, at time.Time) { r.Progress(at, "u", 10, count{Tracked: 10, Active: active}) }
	}
	s := t0.Unix()
	told := func(until int64) []concurrency.TableEntry {
		return []concurrency.TableEntry{{User: "u", Until: until, Limit: 10, Cap: 10}}
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"five refusals between two blocks make HAProxy refuse", []step{
			{0, 4, block, told(0)}, // only how many it may have alone
			{200, 4, block, nil},
			{400, 5, block, told(s + 2)},
			{600, 0, block, told(s + 2)},
			{1000, 0, block, told(s + 3)},
		}},
		{"lifted at the margin, not before", []step{
			{0, 5, block, told(s + 2)},
			{100, 0, push(9), nil},
			{101, 0, push(8), told(0)},
			{102, 0, push(7), nil},
		}},
		{"lifted at once when it is unblocked", []step{
			{0, 5, block, told(s + 2)},
			{100, 0, unblock, told(0)},
			{101, 0, unblock, nil},
		}},
		{"lapses 2 s after the last repetition", []step{
			{0, 5, block, told(s + 2)},
			{500, 0, block, told(s + 2)},
			{2499, 0, tick, nil},
			{2510, 0, tick, told(0)},
		}},
		{"not when there is room", []step{
			{0, 5, push(9), nil},
			{1, 0, block, told(0)},
		}},
		{"what HAProxy should know is repeated after 10 s", []step{
			{0, 0, block, told(0)}, {9999, 0, block, nil}, {10_000, 0, block, told(0)},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.Progress(ms(0), "u", 10, count{Tracked: 10, Active: 10})
			for i, st := range tt.steps {
				if admitted, _ := r.start(st.at, st.refuse); admitted > 0 {
					t.Fatalf("step %d: admitted %d", i, admitted)
				}
				st.do(r, ms(st.at))
				if diff := cmp.Diff(st.native, r.TakeOutput().TableEntries); diff != "" {
					t.Errorf("step %d: told HAProxy (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestAgentReportsRefusals(t *testing.T) {
	r := newRig(t, 1)
	r.start(0, 13)
	refused := 0
	for at := 0; at < 1000; at += 5 {
		r.Tick(ms(at))
		for _, ask := range r.exchange(at, true) {
			refused += ask.Refused
			if ask.Want != ask.Active {
				t.Errorf("alone it wants %d slots for %d requests", ask.Want, ask.Active)
			}
		}
	}
	if refused != 3 {
		t.Errorf("%d refusals reported, want 3", refused)
	}
}

func TestAgentReportsRefusalsEach100ms(t *testing.T) {
	r := newRig(t, 1)
	r.Progress(ms(0), "u", 10, count{Tracked: 10, Active: 10})
	var reported []int
	for at := 0; at < 500; at++ {
		r.Tick(ms(at))
		if len(r.exchange(at, true)) > 0 {
			reported = append(reported, at)
		}
		if at < 250 {
			r.start(at, 1)
		}
	}
	for i, at := range reported {
		if least := 100 * i; at < least || at > least+10*i {
			t.Errorf("reported at %v ms, want each 100 ms", reported)
			break
		}
	}
	if len(reported) != 4 {
		t.Errorf("reported at %v ms, want four times", reported)
	}
}

// TestAgentRepeatsItself: polygen forgets after 2 s, the pool after 30 s.
func TestAgentRepeatsItself(t *testing.T) {
	for _, tt := range []struct {
		instances, active, seconds, least, most int
	}{
		{1, 10, 10, 18, 21}, // near the limit
		{2, 10, 10, 18, 21},
		{1, 1, 60, 0, 0}, // alone, far from it
		{2, 1, 60, 5, 10},
	} {
		r := newRig(t, tt.instances)
		r.Progress(ms(0), "u", 10, count{Tracked: int64(tt.active), Active: int64(tt.active)})
		asks := 0
		for at := 0; at < 1000*tt.seconds; at += 5 {
			r.Tick(ms(at))
			asks += len(r.exchange(at, true))
		}
		if asks < tt.least || asks > tt.most {
			t.Errorf("%d instances, %d requests, %d s: %d asks, want %d to %d", tt.instances, tt.active, tt.seconds, asks, tt.least, tt.most)
		}
	}
}

func TestAgentNoLongerAloneRegistersWhatRuns(t *testing.T) {
	r := newRig(t, 1)
	r.start(0, 4)
	if asks := r.exchange(1, true); len(asks) != 0 {
		t.Errorf("alone it asked %+v", asks)
	}
	r.Cluster(ms(10), 2, 0)
	asks := r.exchange(10, true)
	if len(asks) != 1 || asks[0].Active != 4 || asks[0].Want < 4 {
		t.Errorf("asked %+v, want 4 requests registered", asks)
	}
	_, waiting := r.start(11, 10)
	r.TakeOutput()
	r.Cluster(ms(12), 1, 0)
	if got := r.decided(); len(got) != len(waiting) {
		t.Errorf("alone again: %d decided of %d", len(got), len(waiting))
	}
	if got := r.InProgress("u"); got != 10 {
		t.Errorf("alone again: %d in progress of 14, want 10", got)
	}
}

func TestAgentLimits(t *testing.T) {
	blocked := func(instances int) *rig {
		r := newRig(t, instances)
		r.Progress(ms(0), "u", 10, count{Tracked: 10, Active: 10})
		r.exchange(0, true)
		r.pass(5, 60)
		r.start(60, 50)
		r.Share(ms(60), concurrency.Sharing{User: "u", Until: ms(3000), Shares: []concurrency.Share{{Instance: "me", Slots: 10}}})
		r.Block(ms(60), "u", concurrency.NewLimit(10, 5))
		if out := r.TakeOutput().TableEntries; len(out) != 1 || out[0].Until == 0 {
			t.Fatalf("%d instances: told HAProxy %+v, want blocked", instances, out)
		}
		return r
	}
	for _, instances := range []int{1, 2} {
		for _, tt := range []struct {
			limit    int
			lifted   bool
			admitted int // of 30 that come then
		}{{20, true, 10}, {10, false, 0}, {5, false, 0}, {0, true, 30}} {
			r := blocked(instances)
			r.Limits(ms(70), func(string) int { return tt.limit })
			r.pass(70, 80)
			out := r.TakeOutput().TableEntries
			if lifted := len(out) > 0 && out[len(out)-1].Until == 0; lifted != tt.lifted {
				t.Errorf("%d instances, limit %d: told HAProxy %+v, want lifted: %v", instances, tt.limit, out, tt.lifted)
			}
			if len(out) > 0 && out[len(out)-1].Limit != tt.limit {
				t.Errorf("%d instances: HAProxy was told limit %d, want %d", instances, out[len(out)-1].Limit, tt.limit)
			}
			admitted := 0
			for range 30 {
				if tt.limit == 0 {
					admitted++ // nobody asks the agent
					continue
				}
				if v, _ := r.Start(ms(81), "u", tt.limit, count{}, concurrency.Places{}); v.Allowed {
					admitted++
				}
			}
			r.exchange(82, true)
			admitted += len(slices.DeleteFunc(r.decided(), func(allowed bool) bool { return !allowed }))
			if instances == 1 && admitted != tt.admitted || admitted > tt.admitted {
				t.Errorf("%d instances, limit %d: %d admitted, want %d", instances, tt.limit, admitted, tt.admitted)
			}
		}
	}
}

// TestAgentShareThatGrowsEndsTheBackoff, for now others give back.
func TestAgentShareThatGrowsEndsTheBackoff(t *testing.T) {
	r := newRig(t, 2)
	r.pool["other"] = concurrency.Holding{Held: 10, Seq: 1}
	r.start(0, 1)
	r.exchange(0, false)
	r.TakeOutput()
	for i, slots := range []int{5, 6} { // 5 is the even part
		r.Share(ms(1), concurrency.Sharing{User: "u", Until: ms(3000), Shares: []concurrency.Share{{Instance: "me", Slots: slots}}})
		if asks := r.exchange(1, false); len(asks) != i {
			t.Errorf("share %d: asked %+v, want %d asks", slots, asks, i)
		}
	}
}

func TestAgentLimitLiftedWhileSomeWait(t *testing.T) {
	for _, instances := range []int{1, 2} {
		r := newRig(t, instances)
		r.Progress(ms(0), "u", 10, count{Tracked: 10, Active: 10})
		r.exchange(0, true)
		r.pass(5, 50)
		for range 3 {
			r.Hold(ms(50), "u", 10, count{}, concurrency.Places{})
		}
		r.Limits(ms(51), func(string) int { return 0 })
		if got := r.decided(); !slices.Equal(got, []bool{true, true, true}) {
			t.Errorf("%d instances: decided %v, want those in line admitted", instances, got)
		}
		r.Progress(ms(60), "u", 0, count{Tracked: 99, Active: 0})
		r.pass(60, 3000)
		r.holds("not limited", 0)
		if got := r.Stats().Users; got != 0 {
			t.Errorf("%d instances: %d users known, want 0", instances, got)
		}
	}
}

// TestAgentOfAClockSetBackSpeaksTheMachinesTime to HAProxy, and understands polygen's.
func TestAgentOfAClockSetBackSpeaksTheMachinesTime(t *testing.T) {
	const hour = 3_600_000
	alone := newRig(t, 1)
	alone.start(hour, 15) // five are refused
	alone.Block(ms(10), "u", concurrency.NewLimit(10, 5))
	if out := alone.TakeOutput().TableEntries; len(out) != 1 || out[0].Until != ms(2010).Unix() {
		t.Errorf("told HAProxy %+v, want blocked until %d", out, ms(2010).Unix())
	}
	r := newRig(t, 2)
	r.Tick(ms(hour))
	r.start(0, 1)
	r.Share(ms(10), concurrency.Sharing{User: "u", Until: ms(1000), Shares: []concurrency.Share{{Instance: "me", Slots: 7}}})
	if asks := r.exchange(20, true); len(asks) != 1 || asks[0].Want != 7 {
		t.Errorf("asks %+v, want for the share of 7", asks)
	}
}

func TestAgentBatchesAreBounded(t *testing.T) {
	r := newRig(t, 2)
	const users = 5000
	for i := range users {
		r.Start(ms(0), fmt.Sprint("u", i), 10, count{}, concurrency.Places{})
	}
	r.TakeOutput()
	first := r.Collect(ms(0), true, nil)
	if len(first) != 4096 || !r.TakeOutput().Urgent {
		t.Fatalf("%d asks at once, want 4096 and urgent", len(first))
	}
	asks := r.Collect(ms(0), false, slices.Clip(first))
	if len(asks) != users || r.TakeOutput().Urgent {
		t.Errorf("%d asks in two batches, want %d and nothing urgent", len(asks), users)
	}
	seen := make(map[string]bool)
	for _, ask := range asks {
		if seen[ask.User] {
			t.Errorf("%s asked twice", ask.User)
		}
		seen[ask.User] = true
	}
}

// An instance above its share that finds one more slot keeps it for whoever comes
// next: it does not give it back and ask again as fast as the pool answers.
func TestAgentAboveItsShareSettles(t *testing.T) {
	r := newRig(t, 2)
	_, waiting := r.start(0, 4)
	for range 4 {
		r.exchange(1, true)
	}
	if len(waiting) != 4 || r.InProgress("u") != 4 {
		t.Fatalf("%d waited, %d in progress, want 4 and 4", len(waiting), r.InProgress("u"))
	}
	r.Share(ms(2), concurrency.Sharing{User: "u", Until: ms(3000), Shares: []concurrency.Share{{Instance: "me", Slots: 2}, {Instance: "other", Slots: 8}}})
	concurrency.Take(r.pool, 0, "other", concurrency.Ask{User: "u", Seq: 1, Want: 6, Active: 6, Limit: 10})
	r.exchange(40, true)
	_, waiting = r.start(50, 1) // finds none
	asks := len(r.exchange(51, true))
	for _, w := range waiting {
		r.Timeout(ms(60), w)
	}
	concurrency.Take(r.pool, 0, "other", concurrency.Ask{User: "u", Seq: 2, Want: 5, Active: 5, Limit: 10})
	for range 100 {
		r.Tick(ms(150))
		asks += len(r.exchange(150, true))
	}
	if asks > 6 {
		t.Errorf("asked %d times within two instants, want a few times", asks)
	}
}

// When more is held than there is, as after a loss, a slot that becomes free above
// the share goes back, however many requests wait for one.
func TestAgentGivesBackWhatIsTooMuch(t *testing.T) {
	r := newRig(t, 2)
	r.Lost(ms(0), true)
	if n, _ := r.start(0, 7); n != 7 {
		t.Fatalf("%d of 7 admitted while the pool was lost, want all", n)
	}
	r.Progress(ms(10), "u", 10, count{Tracked: 7, Active: 7})
	concurrency.Take(r.pool, 0, "other", concurrency.Ask{User: "u", Seq: 1, Want: 5, Active: 5, Limit: 10})
	r.Lost(ms(20), false)
	r.pass(20, 40)
	r.holds("registered", 7)
	for i := range 4 {
		at := 40 + 10*i
		r.Progress(ms(at), "u", 10, count{Tracked: 7, Active: int64(6 - i)})
		admitted, _ := r.start(at, 3)
		r.pass(at, at+10)
		if want := max(5, 6-i); r.InProgress("u") > want || admitted > 0 && i < 2 {
			t.Errorf("after %d ends: %d admitted at once, %d in progress; want no more than %d", i+1, admitted, r.InProgress("u"), want)
		}
	}
	r.holds("at last", 5)
}

// While all instances hold more than there are, as when a request was counted twice, a slot that
// becomes free is nobody's, of a share too: another instance may hold more than its own.
func TestAgentGivesUpSlotsOfItsShare(t *testing.T) {
	r := newRig(t, 2)
	r.start(0, 3)
	r.exchange(0, true)
	r.start(1, 1) // in the slot that is kept idle
	concurrency.Take(r.pool, 0, "other", concurrency.Ask{User: "u", Seq: 1, Want: 7, Active: 7, Limit: 10})
	r.Progress(ms(1), "u", 10, count{Tracked: 4, Active: 4})
	r.start(2, 3) // more than there are
	r.pass(5, 50)
	r.holds("of 10, of which the other one holds 7", 4)
	r.Progress(ms(50), "u", 10, count{Tracked: 4, Active: 3})
	r.pass(50, 70)
	r.inProgress("when one has ended, though its share is 5", 3)
	r.holds("when one has ended, though its share is 5", 3)
}

// TestAgentAskPace changes what an agent wants of the pool with each answer: asks for one user have a bound.
func TestAgentAskPace(t *testing.T) {
	r := newRig(t, 2)
	concurrency.Take(r.pool, 2, "other", concurrency.Ask{User: "u", Seq: 1, Want: 4, Active: 4, Limit: 10})
	asks := 0
	for at := range 1000 {
		if at%5 == 0 {
			r.Tick(ms(at))
			r.start(at, 10)
			asks += len(r.exchange(at, true))
		}
		for i := range 10 {
			r.Share(ms(at), concurrency.Sharing{User: "u", Until: ms(at + 1000), Shares: []concurrency.Share{{Instance: "me", Slots: 10 * (i % 2)}}})
			asks += len(r.exchange(at, false))
		}
	}
	if postponed := r.Stats().Postponed; asks > 700 || asks < 500 || postponed == 0 {
		t.Errorf("asked %d times in a second, %d postponed; want 500 to 700 and some", asks, postponed)
	}
}
