package riverqos_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// unswept are slots that no sweep can read.
type unswept struct{ jobs.Slots }

func (unswept) Waiting(context.Context, string, int) ([]string, error) {
	return nil, errors.New("nobody knows who waits")
}

// The alert on sweeps needs a 0 to see it.
func TestAProcessThatNeverSwept(t *testing.T) {
	const name = "sluice_jobs_sweeps_total"
	r := &rig{TB: t, reg: prometheus.NewRegistry()}
	pool, _ := fresh(t)
	fair, err := riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: unswept{jobs.NewMemory(nil)}, Tiers: &tiers{}, Registry: r.reg}})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(r.reg, name); err != nil || n != 0 {
		t.Errorf("a process that only inserts has %d series of sweeps, %v, want 0", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := fair.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	defer ran.Wait()
	defer cancel()
	testkit.Eventually(t, "a sweep fails", func() error { return r.counted(name, "error") })
	if n, err := testutil.GatherAndCount(r.reg, name); err != nil || n != 2 || r.value(name, "done") != 0 {
		t.Errorf("%d series of sweeps, %v, %v of them done, want 2 (done, error) and none", n, err, r.value(name, "done"))
	}
}
