package riverqos_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// hanging are tiers that do not answer, once they hang.
type hanging struct {
	jobs.Tiers
	hang  atomic.Bool
	waits atomic.Int64 // so many questions that were given time
}

func (h *hanging) Tier(ctx context.Context, user string) (jobs.Tier, error) {
	if !h.hang.Load() {
		return h.Tiers.Tier(ctx, user)
	}
	if ctx.Err() == nil {
		h.waits.Add(1)
	}
	<-ctx.Done()
	return jobs.Tier{}, ctx.Err()
}

func TestTiersThatHangDoNotBlockAnInsertForEachUser(t *testing.T) {
	h := &hanging{Tiers: &tiers{}}
	h.hang.Store(true)
	pool, _ := fresh(t)
	fair, err := riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: h}}.TiersWithin(50 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Middleware: fair.Middleware(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var params []river.InsertManyParams
	for i := range 6 {
		params = append(params, river.InsertManyParams{Args: task{User: fmt.Sprint("user", i)}})
	}
	if _, err := client.InsertMany(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if got := h.waits.Load(); got != 1 {
		t.Errorf("an insert for 6 users waited for %d of their tiers, want 1", got)
	}
}

// Users who are asked about one after another are each given time, as long as there are
// answers: an insert for many is not cut.
func TestTiersThatAnswerSlowlyAreAskedAboutEverybody(t *testing.T) {
	const slow = 20 * time.Millisecond
	pool, _ := fresh(t)
	var ends []time.Time
	fair, err := riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: tiersFunc(func(ctx context.Context, _ string) (jobs.Tier, error) {
		end, _ := ctx.Deadline()
		ends = append(ends, end)
		time.Sleep(slow)
		return jobs.Tier{Limits: jobs.Limits{Total: 5}}, nil
	})}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Middleware: fair.Middleware(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.InsertMany(t.Context(), []river.InsertManyParams{{Args: task{User: "ann"}}, {Args: task{User: "bob"}}}); err != nil {
		t.Fatal(err)
	}
	if len(ends) != 2 || ends[1].Sub(ends[0]) < slow {
		t.Errorf("the questions about two users end at %v, want two, the second %v later or more", ends, slow)
	}
}

type tiersFunc func(context.Context, string) (jobs.Tier, error)

func (f tiersFunc) Tier(ctx context.Context, user string) (jobs.Tier, error) { return f(ctx, user) }

func TestTiersThatHangDoNotBlockASweepForEachUser(t *testing.T) {
	for name, options := range map[string][]option{"of those who wait": {ungated}, "of those behind the gate": nil, "of crowds": nil} {
		t.Run(name, func(t *testing.T) {
			r := &rig{TB: t, reg: prometheus.NewRegistry()}
			h := &hanging{Tiers: &tiers{}}
			pool, _ := fresh(t)
			cfg := riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: h, Registry: r.reg}}.SweptEvery(time.Hour).TiersWithin(50 * time.Millisecond)
			for _, o := range options {
				o(&cfg, nil)
			}
			for i := range 6 {
				user := fmt.Sprint("user", i)
				switch name {
				case "of those who wait":
					park(t, cfg.Runner.Slots, user)
				case "of those behind the gate":
					gatedIn(t, pool, user)
				default:
					_, err := pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue)
						SELECT '{}', 'task', 25, jsonb_build_object('sluice:user', $1::text), 'slow_default' FROM generate_series(1, 3)`, user)
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			fair, err := riverqos.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			h.hang.Store(true)
			stop := running(t, fair)
			testkit.Eventually(t, "a sweep is done", func() error { return r.counted("sluice_jobs_sweeps_total", "done") })
			stop()
			if got := h.waits.Load(); got != 1 {
				t.Errorf("a sweep of 6 users waited for %d of their tiers, want 1", got)
			}
		})
	}
}

func TestAUserWhoIsNotTextIsOneOfTheirOwn(t *testing.T) {
	r := start(t, sweeping, func(c *riverqos.Config, _ *river.Config) {
		c.User = func(kind string, args, metadata []byte) (string, bool) {
			user, ok := riverqos.FromArgs("user")(kind, args, metadata)
			return strings.ReplaceAll(user, "?", "\xff"), ok
		}
	})
	first := r.insert(2, task{User: "a?", Do: "hang"}, "slow_default")
	second := r.insert(2, task{User: "b?", Do: "hang"}, "slow_default")
	r.insert(3, task{User: "ann", Do: "hang"}, "slow_default")
	for _, user := range []string{"a?", "b?", "ann"} {
		r.runs(user, 1)
	}
	// A sweep may let one of each user try.
	if got := r.states(); got["running"] != 3 || got["gated"] == 0 || got["gated"]+got["parked"]+got["available"] != 4 {
		t.Errorf("states are %v, want 3 running and 4 that wait, one of ann's gated: the gate can count", got)
	}
	if got := r.value("sluice_jobs_errors_total", "count"); got != 0 {
		t.Errorf("%v inserts got no answer from the gate, want 0", got)
	}
	var users []string
	err := r.pool.QueryRow(t.Context(), "SELECT array_agg(DISTINCT metadata->>'sluice:user' ORDER BY metadata->>'sluice:user') FROM river_job").Scan(&users)
	want := []string{fmt.Sprintf("~%X", sha256.Sum256([]byte("a\xff"))), fmt.Sprintf("~%X", sha256.Sum256([]byte("b\xff"))), "ann"}
	slices.Sort(want)
	slices.Sort(users)
	if err != nil || !slices.Equal(users, want) {
		t.Errorf("the jobs are %q's (%v), want %q", users, err, want)
	}
	close(r.gate("hang"))
	r.finished(append(first, second...))
	r.atMost("a?", 1)
	r.atMost("b?", 1)
}

func TestALimitBelowOneIsOne(t *testing.T) {
	limits := jobs.Limits{Total: 3, Queues: map[string]int{"slow": 0, "fast": -1}}
	r := start(t, sweeping)
	r.tiers.set("ann", limits)
	r.tiers.set("bob", jobs.Limits{Total: -3})
	ids := r.insert(2, task{User: "ann", Do: "brief"}, "slow_default")
	ids = append(ids, r.insert(2, task{User: "ann", Do: "brief"}, "fast_default")...)
	ids = append(ids, r.insert(2, task{User: "bob", Do: "brief"}, "fast_default")...)
	r.finished(ids)
	r.atMost("bob", 1)
	if got := fmt.Sprint(r.value("sluice_jobs_refused_total", "unreachable"), r.value("sluice_jobs_errors_total", "release"), r.value("sluice_jobs_sweeps_total", "error")); got != "0 0 0" {
		t.Errorf("refused, not given back, and sweeps that failed: %s, want 0 0 0", got)
	}
	if limits.Queues["slow"] != 0 || limits.Queues["fast"] != -1 {
		t.Errorf("the tiers' own limits are %v now, want those that they were", limits.Queues)
	}
}

// park has a job of a user run and another one wait.
func park(t *testing.T, s jobs.Slots, user string) {
	t.Helper()
	for n := range 2 {
		c := jobs.Claim{Job: jobs.Job{User: user, ID: fmt.Sprint(n + 1), Queue: "slow"}, Holder: fmt.Sprint(user, n)}
		if _, err := s.Acquire(t.Context(), c, jobs.Limits{Total: 1}, time.Hour, true); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALimitMayBeAsLargeAsNumbersAre(t *testing.T) {
	r := start(t, sweeping)
	ids := r.insert(5, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	r.tiers.set("ann", jobs.Limits{Total: math.MaxInt})
	r.runs("ann", 5)
	close(r.gate("hang"))
	r.finished(ids)
}

// A statement changes some thousand jobs, so that it ends in time; a sweep all.
func TestASweepChangesAnyNumberOfJobs(t *testing.T) {
	skipIfShort(t)
	const n = 11_000
	for _, c := range []struct {
		name, state, wait string
		limit             int
		want              map[string]int
	}{
		{"it closes the gate", "available", "null", 1, map[string]int{"available": 1, "gated": n - 1}},
		{"it lets through", "scheduled", `"gated"`, jobs.Unlimited, map[string]int{"available": n}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &rig{TB: t, reg: prometheus.NewRegistry()}
			r.pool, _ = fresh(t)
			_, err := r.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue, state, scheduled_at)
				SELECT '{}', 'task', 25, jsonb_build_object('sluice:user', 'ann', 'sluice:wait', $2::jsonb), 'slow_default', $1::river_job_state,
					CASE WHEN $1::text = 'scheduled' THEN now() + interval '1 h' ELSE now() END
				FROM generate_series(1, $3::int)`, c.state, c.wait, n)
			if err != nil {
				t.Fatal(err)
			}
			fair, err := riverqos.New(riverqos.Config{Pool: r.pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Registry: r.reg, Tiers: tiersFunc(func(context.Context, string) (jobs.Tier, error) {
				return jobs.Tier{Limits: jobs.Limits{Total: c.limit}}, nil
			})}}.SweptEvery(time.Hour).AnsweredWithin(testkit.Patience)) // the next sweep would be in an hour
			if err != nil {
				t.Fatal(err)
			}
			defer running(t, fair)()
			if err := testkit.Poll(3*testkit.Patience, func() error { return r.counted("sluice_jobs_sweeps_total", "done") }); err != nil {
				t.Fatalf("a sweep is done: %v", err)
			}
			if got := r.states(); !maps.Equal(got, c.want) {
				t.Errorf("states are %v, want %v", got, c.want)
			}
		})
	}
}
