package riverqos_test

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

// BenchmarkUsers is how long the list of users takes while 100 000 jobs of one user are parked, and ten of
// each of a thousand others are gated.
func BenchmarkUsers(b *testing.B) {
	pool, _ := fresh(b)
	if err := pgslots.Migrate(b.Context(), pool, ""); err != nil {
		b.Fatal(err)
	}
	_, err := pool.Exec(b.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue, state, scheduled_at, metadata)
		SELECT '{}', 'task', 25, 'slow_default', 'scheduled', now() + interval '1 h',
			jsonb_build_object('sluice:user', CASE WHEN i > 10000 THEN 'ann' ELSE 'user' || i % 1000 END, 'sluice:wait', CASE WHEN i > 10000 THEN 'parked' ELSE 'gated' END, 'sluice:since', 1760000000 + i)
		FROM generate_series(1, 110000) AS i`)
	if err != nil {
		b.Fatal(err)
	}
	// As autovacuum does.
	if _, err := pool.Exec(b.Context(), "VACUUM ANALYZE river_job"); err != nil {
		b.Fatal(err)
	}
	var spent time.Duration
	for b.Loop() {
		// A new one each time: a list is the answer to further questions for a second.
		fair, err := riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: pgslots.New(pool, ""), Tiers: &tiers{}}})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		list, err := fair.Users(b.Context(), 100)
		spent += time.Since(began)
		if err != nil || list.Found != 1001 || list.Users[0].User != "ann" || list.Users[0].Waiting != 1000 {
			b.Fatalf("Users() = %+v, %v", list, err)
		}
	}
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "ms/list")
	b.ReportMetric(0, "ns/op")
}
