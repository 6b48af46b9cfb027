package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
	"github.com/sluice-qos/sluice/test/simulation"
)

// That Left is never negative and never above a limit and its burst is checked after
// each request of each simulated cluster; see cluster.request.

func TestLeft(t *testing.T) {
	minute := limits.Rate{Class: "GET", Window: limits.Minute, Max: 9}
	for _, row := range []struct {
		name  string
		asked []limits.Rate
		do    func(a *ratelimit.Agent, at time.Time)
		want  int
		of    string // "" if there is no limit
	}{
		{"no limits", nil, func(*ratelimit.Agent, time.Time) {}, 0, ""},
		{"a user who was never seen has all", get(7), func(*ratelimit.Agent, time.Time) {}, 7, "GET"},
		{"a burst counts", []limits.Rate{{Class: "GET", Max: 7, Burst: 5}}, func(*ratelimit.Agent, time.Time) {}, 12, "GET"},
		{"what was admitted is gone", get(7), func(a *ratelimit.Agent, at time.Time) {
			a.Start(at, "u", get(7), ratelimit.NoCredit)
			a.Start(at, "u", get(7), ratelimit.NoCredit)
		}, 5, "GET"},
		{"what was refused is not", get(2), func(a *ratelimit.Agent, at time.Time) {
			for range 5 {
				a.Start(at, "u", get(2), ratelimit.NoCredit)
			}
		}, 0, "GET"},
		{"another user's requests are not theirs", get(7), func(a *ratelimit.Agent, at time.Time) { a.Start(at, "v", get(7), ratelimit.NoCredit) }, 7, "GET"},
		{"another second has its own", get(7), func(a *ratelimit.Agent, at time.Time) { a.Start(at.Add(-time.Second), "u", get(7), ratelimit.NoCredit) }, 7, "GET"},
		{"a lowered limit leaves none", get(1), func(a *ratelimit.Agent, at time.Time) {
			for range 3 {
				a.Start(at, "u", get(9), ratelimit.NoCredit)
			}
			a.Start(at, "u", get(1), ratelimit.NoCredit)
		}, 0, "GET"},
		{"a limit that is lower than it was counts at once", get(4), func(a *ratelimit.Agent, at time.Time) { a.Start(at, "u", get(9), ratelimit.NoCredit) }, 4, "GET"},
		{"what was admitted without the pool counts", []limits.Rate{minute}, func(a *ratelimit.Agent, at time.Time) {
			a.Lost(at, true)
			for range 3 {
				a.Start(at, "u", []limits.Rate{minute}, ratelimit.NoCredit)
			}
			a.Lost(at, false)
		}, 6, "GET/minute"},
		{"a limit lowered without the pool leaves none", get(1), func(a *ratelimit.Agent, at time.Time) {
			a.Cluster(at.Add(-2*time.Second), 2, 0)
			a.Lost(at, true)
			for range 3 {
				a.Start(at, "u", get(9), ratelimit.NoCredit)
			}
			a.Start(at, "u", get(1), ratelimit.NoCredit)
		}, 0, "GET"},
		{"the tightest limit counts", []limits.Rate{{Class: "GET", Max: 9}, {Class: limits.All, Max: 4}}, func(*ratelimit.Agent, time.Time) {}, 4, "*"},
		{"of equal ones the longest", []limits.Rate{minute, {Class: "GET", Max: 9}}, func(*ratelimit.Agent, time.Time) {}, 9, "GET/minute"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			row.do(a, simulation.Start)
			left, of, ok := a.Left(simulation.Start, "u", row.asked)
			if left != row.want || ok != (row.of != "") || ok && of.Name() != row.of {
				t.Errorf("Left = %d of %s, %v, want %d of %q", left, of.Name(), ok, row.want, row.of)
			}
		})
	}
}

// An agent that counts by itself says exactly what is left, and one that is the only
// one to lease from a pool as well, once the pool has answered.
func TestLeftIsExactAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := []limits.Rate{{Class: "GET", Max: rapid.IntRange(1, 50).Draw(t, "max")}}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 1:
			rates[0].Window = limits.Minute
		case 2:
			rates[0].Burst = rapid.IntRange(1, 50).Draw(t, "burst")
		}
		a, pool := ratelimit.NewAgent(ratelimit.Config{}), newPools()
		at := simulation.Start
		settle := func() {
			for asks := a.Collect(at, true, nil); len(asks) > 0; asks = a.Collect(at, true, nil) {
				for _, ask := range asks {
					a.Reply(at, ask, pool.take(at, ask))
				}
			}
		}
		admitted, want := 0, rates[0].Max+rates[0].Burst
		for range rapid.IntRange(1, 120).Draw(t, "requests") {
			if next := at.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 5, 80}).Draw(t, "ms")) * time.Millisecond); next.Add(100*time.Millisecond).Unix() == at.Unix() {
				at = next
			}
			before, _, _ := a.Left(at, "u", rates)
			v, w := a.Start(at, "u", rates, ratelimit.NoCredit)
			settle()
			a.Tick(at)
			settle()
			if w != nil {
				v = w.Verdict
			}
			if v.Allowed {
				admitted++
			}
			left, _, _ := a.Left(at, "u", rates)
			a.Tick(at.Add(60 * time.Millisecond)) // what lies idle is about to go back
			again, _, _ := a.Left(at, "u", rates)
			settle()
			if left != want-admitted || again != left {
				t.Fatalf("Left = %d, then %d, after %d of %d requests were admitted, want %d", left, again, admitted, want, want-admitted)
			}
			if v.Allowed != (before > 0) {
				t.Fatalf("verdict %+v with %d left before", v, before)
			}
		}
	})
}

// Over several agents it is what the agent holds and what the pool had.
func TestLeftOfTheCluster(t *testing.T) {
	at := simulation.Start
	a := ratelimit.NewAgent(ratelimit.Config{})
	a.Cluster(at.Add(-2*time.Second), 2, 0)
	_, w := a.Start(at, "u", get(100), ratelimit.NoCredit)
	for _, ask := range a.Collect(at, false, nil) {
		a.Reply(at, ask, ratelimit.Grant{Tokens: 5, Total: 30}) // another one has 25
	}
	if !w.Verdict.Allowed {
		t.Fatal("refused, want it allowed")
	}
	if left, _, _ := a.Left(at, "u", get(100)); left != 4+70 {
		t.Errorf("Left = %d, want the 4 that it holds and the 70 that the pool had", left)
	}
	a.Lost(at, true)
	if left, _, _ := a.Left(at, "u", get(100)); left != 99 {
		t.Errorf("Left = %d while the pool is lost, want all of a cool user's but the one admitted", left)
	}
}
