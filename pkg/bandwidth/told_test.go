package bandwidth_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

func downLimit(n int64) bandwidth.Limit { return bandwidth.Limit{Bytes: [2]int64{bandwidth.Down: n}} }

func amongTwo() *bandwidth.Agent {
	a := bandwidth.NewAgent(bandwidth.Config{Instance: "me"})
	a.Cluster(t0, 2)
	return a
}

// tickUntil does what is due, each 5 ms, and returns the last report that was made.
func tickUntil(a *bandwidth.Agent, from, to time.Time) (last bandwidth.Report) {
	for at := from; !at.After(to); at = at.Add(5 * time.Millisecond) {
		a.Tick(at)
		for _, r := range a.Collect(at, nil) {
			last = r
		}
	}
	return last
}

func TestAgentRests(t *testing.T) {
	a := amongTwo()
	rest := func(at time.Time) time.Duration { return a.IdleFor(at, time.Minute) }
	if got := rest(t0); got != time.Minute {
		t.Errorf("without users it rests for %v, want a minute", got)
	}
	a.Start(t0, "alice", downLimit(1000))
	if got := rest(t0); got != 0 {
		t.Errorf("with a report to make it rests for %v, want 0", got)
	}
	a.Collect(t0, nil)
	a.Tick(t0)
	if got := rest(t0); got <= 0 || got > 200*time.Millisecond {
		t.Errorf("with a request that HAProxy has not told of it rests for %v, want at most the 200 ms for which it counts", got)
	}
	end := t0.Add(2 * time.Second)
	if r := tickUntil(a, t0, end); r.Active != 0 {
		t.Fatalf("the last report has %d in progress, want 0", r.Active)
	}
	if got := rest(end); got <= 0 || got > bandwidth.ForgetSpan {
		t.Errorf("with a user who is to be forgotten it rests for %v, want at most until then", got)
	}
}

// What concerns more users than hear of it at once keeps it from resting until all have.
func TestAgentRestsWhenAllHaveHeard(t *testing.T) {
	a := amongTwo()
	const users = 2500
	for i := range users {
		a.Start(t0, fmt.Sprint("user ", i), downLimit(1000))
	}
	a.Collect(t0, nil)
	a.Tick(t0)
	a.Restarted(t0)
	a.Collect(t0, nil)
	if got := a.IdleFor(t0, time.Minute); got != 0 {
		t.Errorf("when some of %d have heard it rests for %v, want 0", users, got)
	}
	tickUntil(a, t0, t0.Add(10*time.Millisecond))
	if got := a.IdleFor(t0, time.Minute); got == 0 {
		t.Error("when all have heard it does not rest")
	}
}

func TestAgentKnowsWhatIsInProgress(t *testing.T) {
	a, limit := amongTwo(), downLimit(1000)
	count := func(from bandwidth.Source, active, moved int64) {
		a.Progress(t0, "alice", limit, from, bandwidth.Count{Active: active, Moved: [2]int64{moved, 0}})
	}
	want := func(active int64) {
		t.Helper()
		if got := a.Active("alice"); got != active {
			t.Errorf("Active = %d, want %d", got, active)
		}
	}
	want(0)
	count(bandwidth.Asked, 0, 5)
	if n := a.KnownUsers(); n != 0 {
		t.Errorf("%d users are known by a count of nothing, want 0", n)
	}
	count(bandwidth.Held, 2, 5)
	want(2)
	count(bandwidth.Asked, 3, 5)
	want(5)
	a.Restarted(t0)
	want(0)
	count(bandwidth.Asked, 1, 0)
	want(1)
}

// Who was heard of lately is remembered, by whichever way.
func TestAgentRemembers(t *testing.T) {
	limit := downLimit(1000)
	for name, heard := range map[string]func(a *bandwidth.Agent, at time.Time){
		"a question": func(a *bandwidth.Agent, at time.Time) { a.Start(at, "alice", limit) },
		"a count": func(a *bandwidth.Agent, at time.Time) {
			a.Progress(at, "alice", limit, bandwidth.Asked, bandwidth.Count{})
		},
	} {
		a := amongTwo()
		a.Start(t0, "alice", limit)
		again := t0.Add(4 * time.Second)
		tickUntil(a, t0, again)
		heard(a, again)
		tickUntil(a, again, again.Add(bandwidth.ForgetSpan-100*time.Millisecond))
		if n := a.KnownUsers(); n != 1 {
			t.Errorf("%s: %d users are known within the span, want 1", name, n)
		}
		tickUntil(a, again.Add(bandwidth.ForgetSpan), again.Add(2*bandwidth.ForgetSpan))
		if n := a.KnownUsers(); n != 0 {
			t.Errorf("%s: %d users are known after the span, want 0", name, n)
		}
	}
}

// moveSteadily has a user move so many bytes a second, and returns the last report.
func moveSteadily(a *bandwidth.Agent, limit bandwidth.Limit, from bandwidth.Source, begun, perSecond int64, since, until time.Time) (last bandwidth.Report) {
	for at := since; at.Before(until); at = at.Add(100 * time.Millisecond) {
		moved := begun + perSecond*at.Sub(since).Milliseconds()/1000
		a.Progress(at, "alice", limit, from, bandwidth.Count{Active: 1, Moved: [2]int64{moved, 0}})
		if r := tickUntil(a, at, at.Add(95*time.Millisecond)); r.User != "" {
			last = r
		}
	}
	return last
}

// What is lent is needed beside what an instance can use.
func TestAgentAddsWhatIsLent(t *testing.T) {
	a, limit := amongTwo(), downLimit(1_000_000)
	a.Start(t0, "alice", limit)
	until := t0.Add(4 * time.Second)
	before := moveSteadily(a, limit, bandwidth.Asked, 0, 100_000, t0, until)
	if before.Most[bandwidth.Down] == 0 {
		t.Fatalf("the report is %+v, want one of what can be used", before)
	}
	a.Lent(until, "alice", limit, [2]int64{50_000, 0})
	a.Restate()
	after := a.Collect(until, nil)[0]
	// With twelve per cent of headroom.
	if got := after.Most[bandwidth.Down] - before.Most[bandwidth.Down]; got != 56_000 {
		t.Errorf("with 50000 lent %d more can be used, want 56000", got)
	}
	if got := after.Moved[bandwidth.Down] - before.Moved[bandwidth.Down]; got != 50_000 {
		t.Errorf("with 50000 lent %d more are moved, want 50000", got)
	}
}

// What a source had counted before it was heard of has not moved now.
func TestAgentLeavesOutWhatASourceHadCounted(t *testing.T) {
	a, limit := amongTwo(), downLimit(1_000_000)
	a.Start(t0, "alice", limit)
	until := t0.Add(2 * time.Second)
	moveSteadily(a, limit, bandwidth.Asked, 0, 100_000, t0, until)
	r := moveSteadily(a, limit, bandwidth.Held, 1<<40, 100_000, until, until.Add(3*time.Second))
	if got := r.Moved[bandwidth.Down]; got < 90_000 || got > 110_000 {
		t.Errorf("moved %d, want about 100000", got)
	}
}

// A limit that is gone and comes back is divided again at once.
func TestWatchDividesALimitThatComesBack(t *testing.T) {
	w := bandwidth.NewWatch()
	for step, limit := range [][2]int64{{1000, 0}, {0, 1000}, {1000, 0}} {
		at := t0.Add(time.Duration(step) * time.Second)
		w.Observe(at, bandwidth.Report{Instance: "a", User: "alice", Active: 1}, limit)
		shares := w.Sharings()
		if len(shares) != 1 || shares[0].Shares[0].Bytes != 1000 {
			t.Errorf("step %d: divided %+v, want all of the limit for the one instance", step, shares)
		}
	}
}
