// Package integration runs whole clusters of real processes: redis-server, our
// commands, and HAProxy on the shipped files.
//
// Most of the time they wait, and run in parallel. Those have the machine for themselves
// that load it as much as they can, that must get many answers within one second, or that
// set variables of the environment.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// limitFile gives every user the same limit for GET, and user "other" none.
func limitFile(get int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers:\n  free: {requests: {GET: %d}}\n  none: {}\nusers: {other: none}\n", get)
}

// clockSlack is by how much the instant at which an agent decides may lie
// outside the time between a request's sending and its answer, by the clock of
// Redis: the clocks are one, the agents' estimates of it are not.
const clockSlack = 2 * time.Millisecond

// offer sends GETs of one user to the cluster's instances, as offerSpec does.
func offer(t *testing.T, c *cluster.Cluster, user, pattern string, rate float64, d time.Duration) *load.Report {
	t.Helper()
	return offerSpec(t, c, specOf(t, c, user, pattern, rate, d))
}

// calmWithin is how long offerSpec waits for a machine that is not too busy.
const calmWithin = 2 * time.Minute

// calmStall is how late this process may be in a load that is judged: what is offered and
// admitted in one second is not answered in the next one then.
const calmStall = 150 * time.Millisecond

// offerSpec runs a load. It does so again should the machine stand still, or an agent take
// Redis for lost meanwhile, as it does when the machine is so busy that an answer takes
// 100 ms: limits per second are exact only with Redis.
func offerSpec(t *testing.T, c *cluster.Cluster, s load.Spec) *load.Report {
	t.Helper()
	for end := time.Now().Add(calmWithin); ; time.Sleep(time.Second) {
		proctest.Eventually(t, "no agent has lost Redis", func() error {
			for _, in := range c.Instances {
				if lost, err := cluster.ReadMetric(in.Admin, "sluice_redis_lost"); err == nil && lost != 0 {
					return fmt.Errorf("%s has", in.Name)
				}
			}
			return nil
		})
		before := redisLosses(c)
		last := time.Now().After(end)
		r, stall := runWatched(t, c, s, last)
		losses := redisLosses(c) - before
		if losses == 0 && stall < calmStall || last {
			return r
		}
		t.Logf("the machine stood still for %v, and agents took Redis for lost %v times: once more", stall, losses)
	}
}

// redisLosses is how often the agents that run took Redis for lost.
func redisLosses(c *cluster.Cluster) (n float64) {
	for _, in := range c.Instances {
		if losses, err := cluster.ReadMetric(in.Admin, "sluice_redis_losses_total"); err == nil {
			n += losses
		}
	}
	return n
}

// exactStall is the longest stall through which counts are exact: for a second an agent
// believes in a request that it has admitted and HAProxy does not count yet.
const exactStall = 900 * time.Millisecond

// stoodStill reports whether the machine stood still for longer than that.
func stoodStill(t *testing.T, c *cluster.Cluster) bool {
	t.Helper()
	stall := c.LongestStall()
	if stall > exactStall {
		t.Logf("the machine stood still for %v: too long for exact counts", stall)
	}
	return stall > exactStall
}

// busy reports whether the agents took Redis for lost more often than it was, or the
// machine stood still for too long: then they are not exact.
func busy(t *testing.T, c *cluster.Cluster, was float64) bool {
	t.Helper()
	n := redisLosses(c)
	if n > was {
		t.Logf("the agents took Redis for lost %v times: the machine is too busy for exact counts", n)
	}
	return n > was || stoodStill(t, c)
}

// offerOnce is offer that does not do so again.
func offerOnce(t *testing.T, c *cluster.Cluster, user, pattern string, rate float64, d time.Duration) *load.Report {
	t.Helper()
	return runSpec(t, c, specOf(t, c, user, pattern, rate, d))
}

func specOf(t *testing.T, c *cluster.Cluster, user, pattern string, rate float64, d time.Duration) load.Spec {
	t.Helper()
	targets, err := load.Spread(pattern, c.Addresses()...)
	if err != nil {
		t.Fatal(err)
	}
	return load.Spec{
		Targets: targets, Rate: rate, Duration: d, Align: true,
		Requests: load.Users("GET", "/", user), Timeout: proctest.Patience,
	}
}

// runWatched is runSpec, and for how long the machine stood still meanwhile. Unless the load
// is the last one, it ends as soon as that makes it worthless.
func runWatched(t *testing.T, c *cluster.Cluster, s load.Spec, last bool) (*load.Report, time.Duration) {
	t.Helper()
	c.Settle()
	most := calmStall
	if last {
		most = math.MaxInt64
	}
	var stalls proctest.Stalls
	ctx, cancel := stalls.Bound(t.Context(), most)
	defer cancel()
	r, err := load.Run(ctx, s)
	if err != nil && (r == nil || !proctest.Stalled(ctx)) {
		t.Fatal(err)
	}
	return r, stalls.Longest()
}

func runSpec(t *testing.T, c *cluster.Cluster, s load.Spec) *load.Report {
	t.Helper()
	c.Settle()
	r, err := load.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkAnswered fails the test if a request failed or got another answer than
// 200 or 429.
func checkAnswered(t *testing.T, r *load.Report) {
	t.Helper()
	if f := r.Failures(); len(f) > 0 {
		t.Errorf("failures: %v of %d requests, want none", f, len(r.Results))
	}
	for status, n := range r.Statuses() {
		if status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Errorf("%d answers have status %d, want 200 or 429 only", n, status)
		}
	}
}

// checkLimit fails the test if any second broke the limit, or if less than
// least (a fraction) of what the limit allowed was admitted.
func checkLimit(t *testing.T, r *load.Report, limit int, least float64) {
	t.Helper()
	ratios := r.Ratios(limit, clockSlack)
	if ratios.Excess > 0 {
		t.Errorf("%d requests over the limit of %d", ratios.Excess, limit)
	}
	possible, admitted := 0, 0
	for _, row := range ratios.Rows {
		admitted += row.Admitted
		if row.Whole {
			possible += min(limit, row.Offered)
		}
	}
	if float64(admitted) < least*float64(possible) {
		t.Errorf("admitted %d of the %d that the limit of %d allowed, want at least %.0f %%", admitted, possible, limit, 100*least)
	}
	if ratios.FalseRefusals > 0 {
		t.Errorf("%d requests refused below the limit", ratios.FalseRefusals)
	}
	if t.Failed() {
		for _, row := range ratios.Rows {
			t.Logf("%+v", row)
		}
	}
}

// get sends one request and returns the answer and its body.
func get(t *testing.T, address, user string) (*http.Response, string) {
	t.Helper()
	return do(t, "GET", address, user)
}

// do sends one request to an address, whose path may follow, and returns the answer and its body.
func do(t *testing.T, method, address, user string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["X-User"] = []string{user}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

// publish sends a message on a Redis channel, as anybody who can reach Redis may.
func publish(t *testing.T, redis, channel, message string) {
	t.Helper()
	conn, err := net.Dial("tcp", redis)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(proctest.Patience))
	fmt.Fprintf(conn, "*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(channel), channel, len(message), message)
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil || !bytes.HasPrefix(answer[:n], []byte(":")) {
		t.Fatalf("PUBLISH answered %q, %v", answer[:n], err)
	}
}
