package riverqos_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// A tenant whose import runs for long has their next import wait, and none of their syncs, by
// the shipped example of a limit file.
func TestATenantsJobOfOneServiceDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel() // it mostly waits
	file, err := jobs.OpenLimitFile("../../config/examples/tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fromFile := jobs.FileTiers{Set: file.Set}
	for _, c := range []struct {
		name    string
		tiers   jobs.Tiers
		options []option
	}{
		{"the file, through the gate", fromFile, nil},
		{"the file, parked and woken", fromFile, []option{ungated}},
		{"the file, asleep meanwhile", fromFile, []option{ungated, snoozing}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, append(c.options, func(cfg *riverqos.Config, rc *river.Config) {
				cfg.Runner.Tiers = c.tiers
				rc.Queues = map[string]river.QueueConfig{"csv_default": {MaxWorkers: 5}, "sync_default": {MaxWorkers: 5}}
			})...)
			imports := r.insert(3, task{User: "umbrella", Do: "hang"}, "csv_default")
			r.runs("umbrella", 1)
			r.finished(r.insert(4, task{User: "umbrella", Do: "brief"}, "sync_default")) // while the import hangs
			r.runs("umbrella", 1)
			close(r.gate("hang"))
			r.finished(imports)
			r.atMost("umbrella", 2) // one of each service
			if n := r.spent(); n != 1 {
				t.Errorf("a job spent %d attempts, want 1", n)
			}
		})
	}
}

// A database that falls silent takes no tier away: the last name goes on counting.
func TestTheLastTierCountsWhileItsDatabaseIsAway(t *testing.T) {
	skipIfShort(t)
	t.Parallel() // it mostly waits
	users, dsn := fresh(t)
	createUsers(t, users)
	between := newHole(t, dsn)
	silent, err := pgxpool.New(context.Background(), between.dsn)
	if err != nil {
		t.Fatal(err)
	}
	// Each job asks again.
	tiers := &jobs.NamedTiers{Name: jobs.Query(silent.QueryRow, "SELECT tier FROM users WHERE id = $1"), TTL: 1}
	testkit.Eventually(t, "the tier is known", func() error {
		if got, err := tiers.Tier(t.Context(), "paula"); err != nil || got.Name != "pro" {
			return fmt.Errorf("Tier = %+v, %v, want pro", got, err)
		}
		return nil
	})
	between.silence()
	if got, err := tiers.Tier(t.Context(), "paula"); err == nil || got.Name != "pro" {
		t.Errorf("without its database: Tier = %+v, %v, want pro and an error", got, err)
	}
	r := start(t, func(cfg *riverqos.Config, _ *river.Config) { cfg.Runner.Tiers = tiers })
	slow := r.insert(5, task{User: "paula", Do: "hang"}, "slow_default")
	r.runs("paula", 3)
	close(r.gate("hang"))
	r.finished(slow)
	r.atMost("paula", 3)
}
