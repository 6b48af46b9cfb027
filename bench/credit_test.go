package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// sum adds up the values of a metric over its labels and the instances.
func sum(b *testing.B, c *cluster.Cluster, name, labels string) (total float64) {
	b.Helper()
	for _, in := range c.Instances {
		text, err := cluster.Get(in.Admin, "/metrics")
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(text) {
			var value float64
			series, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			if !strings.HasPrefix(series, name+"{") || !strings.Contains(series, labels) {
				continue
			}
			if _, err := fmt.Sscan(number, &value); err != nil {
				b.Fatalf("metric %q: %v", line, err)
			}
			total += value
		}
	}
	return total
}

// BenchmarkLoadWithoutAgents kills or stops all agents for five seconds, while users whom
// they know and users whom they do not offer twenty times their limits.
func BenchmarkLoadWithoutAgents(b *testing.B) {
	const limit, users, times, away = 20, 5, 20, 5 * time.Second
	for range b.N {
		t := newTable(fmt.Sprintf("All agents away for %v; %d users with a limit of %d a second, who offer %d times that", away, users, limit, times),
			"instances", "agents", "users", "seconds", "admitted ÷ limit: mean", "worst")
		for _, instances := range []int{1, 2} {
			for _, known := range []bool{true, false} {
				for _, how := range []string{"killed", "stopped"} {
					c := cluster.Start(b, cluster.Options{Instances: instances, Limits: limitFile(limit), MaxWait: shippedWait})
					c.Settle()
					targets, err := load.Spread("even", c.Addresses()...)
					if err != nil {
						b.Fatal(err)
					}
					var gone atomic.Int64 // Unix nanoseconds; 0: not yet
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						time.Sleep(2500 * time.Millisecond) // the load begins within a second
						gone.Store(time.Now().UnixNano())
						for _, in := range c.Instances {
							if how == "killed" {
								in.Agent.Kill()
							} else {
								_ = in.Agent.Signal(syscall.SIGSTOP)
							}
						}
					}()
					r, err := load.Run(b.Context(), load.Spec{
						Targets: targets, Rate: limit * users * times, Duration: 8 * time.Second, Align: true, Timeout: testkit.Patience,
						Requests: func(i int) load.Request {
							name := fmt.Sprint("user-", i%users)
							if at := gone.Load(); !known && (at == 0 || time.Now().UnixNano() < at+int64(time.Second)) {
								name = "nobody" // the others begin when no agent is there any more
							}
							return load.Request{User: name, Headers: []byte("X-User: " + name + "\r\n")}
						},
					})
					if err != nil {
						b.Fatal(err)
					}
					<-ended
					at := time.Unix(0, gone.Load())
					seconds, total, worst := 0, 0.0, 0.0
					for u := range users {
						counts := r.User(fmt.Sprint("user-", u)).Attribute(limit, clockSlack)
						seconds = 0
						for s := at.Unix() + 2; s < at.Add(away).Unix(); s++ {
							n := float64(counts.At(s)) / limit
							total, worst = total+n, max(worst, n)
							seconds++
						}
					}
					t.row(fmt.Sprint(instances), how, map[bool]string{true: "known", false: "unknown"}[known], fmt.Sprint(seconds),
						fmt.Sprintf("%.2f", total/float64(max(1, seconds*users))), fmt.Sprintf("%.2f", worst))
					c.Stop()
				}
			}
		}
	}
}

// BenchmarkLoadConnections opens thousands of connections at once, each with one request: more questions than the
// agent answers in time. The limits of all users together are 1000 a second.
func BenchmarkLoadConnections(b *testing.B) {
	const connections, together = 6000, 1000
	for range b.N {
		t := newTable(fmt.Sprintf("%d connections within 100 ms; the users may have %d a second together", connections, together),
			"users", "seen before", "admitted in the worst second", "and in all", "refused", "failed", "p50 ms", "max ms")
		for _, users := range []int{1, 100} {
			for _, known := range []bool{false, true} {
				c := cluster.Start(b, cluster.Options{Limits: limitFile(together / users), MaxWait: shippedWait})
				time.Sleep(connectionsSettle)
				request := func(i int) load.Request {
					name := fmt.Sprint("user-", i%users)
					return load.Request{User: name, Headers: []byte("X-User: " + name + "\r\n")}
				}
				targets := []load.Target{{Address: c.Addresses()[0]}}
				if known {
					_, err := load.Run(b.Context(), load.Spec{Targets: targets, Rate: float64(users), Duration: 3 * time.Second, Requests: request})
					if err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1300 * time.Millisecond))) // all in one second
				r, err := load.Run(b.Context(), load.Spec{
					Targets: targets, Rate: connections * 10, Duration: 100 * time.Millisecond,
					Conns: connections, Ahead: 1, Requests: request, Timeout: testkit.Patience,
				})
				if err != nil {
					b.Fatal(err)
				}
				inSecond := make(map[int64]int)
				for i := range users {
					for _, row := range r.User(fmt.Sprint("user-", i)).Ratios(together/users, clockSlack).Rows {
						inSecond[row.Second] += row.Admitted
					}
				}
				service := r.Service()
				t.row(fmt.Sprint(users), map[bool]string{true: "yes", false: "no"}[known], fmt.Sprint(slices.Max(slices.Collect(maps.Values(inSecond)))),
					fmt.Sprint(len(r.Admitted().Results)), fmt.Sprint(len(r.Refused().Results)), fmt.Sprint(len(r.Failures())),
					fmt.Sprintf("%.1f", service.Quantile(0.5).Seconds()*1000), fmt.Sprintf("%.1f", service.Quantile(1).Seconds()*1000))
				c.Stop()
			}
		}
	}
}

// connectionsSettle is how long after its start a cluster gives credit.
const connectionsSettle = 3 * time.Second
