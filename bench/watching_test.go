package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// BenchmarkLoadWatching offers 10 000 requests per second of 100 000 users in turn,
// and measures what it takes to see them, and what being watched costs the requests:
// runs with and without watchers alternate.
func BenchmarkLoadWatching(b *testing.B) {
	const rate, users = 10_000, 100_000
	origin := testkit.FreeAddr(b)
	file := filepath.Join(b.TempDir(), "origin.cfg")
	if err := os.WriteFile(file, []byte(cheapOrigin), 0o644); err != nil {
		b.Fatal(err)
	}
	testkit.HAProxy(b, file, origin, "BIND="+origin)
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprintf("user-%06d", i)
	}
	for range b.N {
		c := cluster.Start(b, cluster.Options{Limits: limitFile(1000), MaxWait: shippedWait, Origin: origin})
		targets, err := load.Spread("even", c.Addresses()...)
		if err != nil {
			b.Fatal(err)
		}
		offer := func(d time.Duration) *load.Report {
			report, err := load.Run(b.Context(), load.Spec{
				Targets: targets, Rate: rate, Duration: d, Arrivals: load.Poisson, Seed: 1, Requests: load.Users("GET", "/", names...),
			})
			if err != nil {
				b.Fatal(err)
			}
			return report
		}
		offer(users / rate * 1500 * time.Millisecond) // everybody is seen, and half of them again

		polygen, agent := c.Polygens[0], c.Instances[0]
		t := newTable(fmt.Sprintf("Seeing %g users, of %g known, under %d requests/s", cluster.Metric(b, polygen.Admin, "sluice_seen_users"), float64(users), rate),
			"what", "KiB", "p50 ms", "max ms")
		during(func() *load.Report { return offer(12 * time.Second) }, func(stop <-chan struct{}) {
			for _, q := range []struct{ what, address, path string }{
				{"polygen's /metrics", polygen.Admin, "/metrics"},
				{"an agent's /metrics", agent.Admin, "/metrics"},
				{"the top 100 by rate", polygen.Admin, "/api/v1/users?n=100"},
				{"the top 100 by time", polygen.Admin, "/api/v1/users?n=100&sort=recent"},
				{"one user", polygen.Admin, "/api/v1/users/user-000001"},
			} {
				size, took := ask(b, "http://"+q.address+q.path, 20, 50*time.Millisecond)
				t.row(q.what, fmt.Sprintf("%.1f", float64(size)/1024), fmt.Sprintf("%.1f", took[len(took)/2].Seconds()*1000), fmt.Sprintf("%.1f", took[len(took)-1].Seconds()*1000))
			}
			<-stop
		})

		t = newTable("What watching costs: top, one user and policies as streams, five pages of each, and /metrics each second, or nobody; 8 s",
			"watchers", "p50 µs", "p99 µs", "p99.9 µs", "agent µs/request", "polygen ms/s", "failed")
		for _, watched := range []bool{false, true, false, true, false, true} {
			spent := func() (agents, polygens time.Duration) {
				return used(b, agent.Agent), used(b, polygen.Process)
			}
			agentBefore, polygenBefore := spent()
			watch := func(stop <-chan struct{}) { <-stop }
			if watched {
				watch = func(stop <-chan struct{}) { watchers(b, polygen.Admin, agent.Admin, stop) }
			}
			report := during(func() *load.Report { return offer(8 * time.Second) }, watch)
			agentAfter, polygenAfter := spent()
			took := report.Latency()
			t.row(map[bool]string{false: "nobody", true: "15 streams"}[watched], micro(took.Quantile(.5)), micro(took.Quantile(.99)), micro(took.Quantile(.999)),
				fmt.Sprintf("%.2f", float64(agentAfter-agentBefore)/float64(time.Microsecond)/float64(len(report.Results))),
				fmt.Sprintf("%.1f", (polygenAfter-polygenBefore).Seconds()*1000/8),
				fmt.Sprint(len(report.Results)-len(report.Admitted().Results)))
		}
		c.Stop()
	}
}

// during runs what is measured beside something else, which it then stops.
func during[T any](measured func() T, beside func(stop <-chan struct{})) T {
	stop := make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() { beside(stop) })
	result := measured()
	close(stop)
	other.Wait()
	return result
}

// used is the CPU time of a process.
func used(b *testing.B, p *testkit.Process) time.Duration {
	b.Helper()
	d, err := p.CPU()
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// ask asks so many times and returns the size of the last answer, and the times, sorted.
func ask(b *testing.B, url string, times int, pause time.Duration) (size int, took []time.Duration) {
	for range times {
		began := time.Now()
		res, err := http.Get(url)
		if err != nil {
			b.Error(err)
			return 0, []time.Duration{0}
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			b.Errorf("%s: %s, %v", url, res.Status, err)
		}
		size = len(body)
		took = append(took, time.Since(began))
		time.Sleep(pause)
	}
	slices.Sort(took)
	return size, took
}

// watchers are five people with each of the streams, and a Prometheus.
func watchers(b *testing.B, polygen, agent string, stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for i := range 5 {
		for _, path := range []string{"/api/v1/live?n=50", fmt.Sprintf("/api/v1/live?n=100&sort=recent&user=user-%06d", i), "/api/v1/policies"} {
			all.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+polygen+path, nil)
				if err != nil {
					b.Error(err)
					return
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode != http.StatusOK {
					b.Errorf("%s: %s", path, res.Status)
				}
				_, _ = io.Copy(io.Discard, res.Body) // until ctx ends
			})
		}
	}
	for done := false; !done; {
		ask(b, "http://"+polygen+"/metrics", 1, 0)
		ask(b, "http://"+agent+"/metrics", 1, 0)
		select {
		case <-stop:
			done = true
		case <-time.After(time.Second):
		}
	}
	cancel()
	all.Wait()
}
