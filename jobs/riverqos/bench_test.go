package riverqos_test

import (
	"context"
	crand "crypto/rand"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// The figures that the documents state: go test -run '^$' -bench . -benchtime 1x
// The worker processes are those of the tests, with five workers each.

func backends(b *testing.B, bench func(b *testing.B, o fleetOptions)) {
	for _, backend := range []string{"postgres", "redis"} {
		b.Run(backend, func(b *testing.B) {
			o := fleetOptions{Lease: 3 * time.Second, Workers: 5}
			if backend == "redis" {
				_, o.Redis = testkit.Redis(b)
			}
			bench(b, o)
		})
	}
}

// BenchmarkTenJobs is how long ten jobs of 1 s take a user with one slot, and a user
// with three.
func BenchmarkTenJobs(b *testing.B) {
	backends(b, func(b *testing.B, o fleetOptions) {
		for b.Loop() {
			f := startFleet(b, 1, o)
			for _, user := range []string{"free", "pro"} {
				began := time.Now()
				f.insert(10, user, time.Second)
				f.asks("jobs that ended", endedOf, 10, user)
				b.ReportMetric(time.Since(began).Seconds(), "s/"+user)
				b.ReportMetric(float64(f.ask(mostOf, user)), "most-at-once/"+user)
			}
			f.stop()
		}
	})
}

// BenchmarkBehindAThousand is how long jobs of other users wait from their insert to
// their start while a thousand jobs of 1 s of the first wait.
func BenchmarkBehindAThousand(b *testing.B) {
	backends(b, func(b *testing.B, o fleetOptions) {
		for b.Loop() {
			f := startFleet(b, 1, o)
			f.insert(1000, "first", time.Second)
			f.asks("jobs of the first that began", begunOf+" AND ended IS NULL", 1, "first")
			const n = 100
			for range n {
				// River's client announces at most one insert into a queue in 100 ms: a job that
				// comes sooner after another one waits for the next poll, fair or not.
				<-time.After(120*time.Millisecond + rand.N(100*time.Millisecond))
				f.insert(1, "other"+crand.Text(), 0)
			}
			f.asks("jobs of others that ended", "SELECT count(*) FROM worked WHERE usr <> $1 AND ended IS NOT NULL", n, "first")
			waits := f.waitsOfOthers("first")
			b.ReportMetric(at(waits, 50), "p50-ms")
			b.ReportMetric(at(waits, 95), "p95-ms")
			b.ReportMetric(at(waits, 100), "max-ms")
			f.stop()
		}
	})
}

// BenchmarkKill9 is how long after kill -9 of a worker with a lease of 3 s the next job
// of its user starts.
func BenchmarkKill9(b *testing.B) {
	backends(b, func(b *testing.B, o fleetOptions) {
		for b.Loop() {
			var took []float64
			for range 5 {
				f := startFleet(b, 2, o)
				f.insert(1, "ann", time.Hour)
				f.asks("jobs of ann that began", begunOf, 1, "ann")
				f.insert(1, "ann", 0)
				<-time.After(rand.N(2 * time.Second)) // anywhere between two renewals
				pid := f.ask("SELECT pid FROM worked WHERE usr = 'ann'")
				killed := time.Now()
				for _, p := range f.workers {
					if p.Pid() == pid {
						p.Kill()
					}
				}
				f.asks("jobs of ann that began", begunOf, 2, "ann")
				took = append(took, time.Since(killed).Seconds())
				f.stop()
			}
			slices.Sort(took)
			b.ReportMetric(at(took, 50), "p50-s")
			b.ReportMetric(at(took, 100), "max-s")
		}
	})
}

func (f *fleet) stop() {
	for _, p := range f.workers {
		p.Stop()
	}
}

// waitsOfOthers are those of jobs that are not a user's in ms, sorted.
func (f *fleet) waitsOfOthers(user string) []float64 {
	f.Helper()
	rows, err := f.pool.Query(context.Background(), `SELECT extract(epoch FROM begun - created_at)::float8 * 1000
		FROM worked JOIN river_job ON id = job WHERE usr <> $1 ORDER BY 1`, user)
	if err != nil {
		f.Fatal(err)
	}
	waits, err := pgx.CollectRows(rows, pgx.RowTo[float64])
	if err != nil {
		f.Fatal(err)
	}
	return waits
}

// at is a percentile of sorted values.
func at(sorted []float64, percent int) float64 { return sorted[(len(sorted)-1)*percent/100] }
