package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

func beside(o cluster.Options) cluster.Options {
	o.Beside = proctest.Theirs
	return o
}

// In a configuration of somebody's own a limit of the request rate is as exact as in ours, other users pass, refusals say
// why, and requests go where its own rules send them.
func TestRequestRateBesideYourOwn(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, beside(cluster.Options{Instances: instances, Limits: limitFile(100)}))
			r := offer(t, c, "alice", "even", 400, 5*time.Second)
			checkAnswered(t, r)
			checkLimit(t, r, 100, .9)
			if res, _ := get(t, c.Instances[0].Address, "other"); res.StatusCode != http.StatusOK || res.Header.Get("X-Backend") != "app" {
				t.Errorf("another user gets %d from %q, want 200 from app", res.StatusCode, res.Header.Get("X-Backend"))
			}
			checkRoutes(t, c.Instances[0].Address)
		})
	}
}

// checkRoutes sends requests that are let through, and such as are asked about, to both backends.
func checkRoutes(t *testing.T, address string) {
	t.Helper()
	for i := range 6 {
		for path, backend := range map[string]string{"/": "app", "/files/a": "files"} {
			res, err := http.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if got := res.Header.Get("X-Backend"); res.StatusCode != http.StatusOK || got != backend {
				t.Errorf("request %d of %s: %d from %q, want 200 from %s", i, path, res.StatusCode, got, backend)
			}
		}
	}
	res, err := http.Get("http://" + address + "/private")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden || res.Header.Get("Sluice-Reason") != "" {
		t.Errorf("what a rule of its own denies gets %d (Sluice-Reason %q), want that rule's 403", res.StatusCode, res.Header.Get("Sluice-Reason"))
	}
}

func TestRefusalSaysWhyBesideYourOwn(t *testing.T) {
	t.Parallel()
	in := cluster.Start(t, beside(cluster.Options{Limits: limitFile(5)})).Instances[0]
	proctest.Eventually(t, "a refusal", func() error {
		res, body := get(t, in.Address, "alice")
		if res.StatusCode == http.StatusOK {
			return fmt.Errorf("admitted")
		}
		if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Sluice-Reason") != "request-rate" ||
			res.Header.Get("Ratelimit-Policy") != `"GET";q=5;w=1` || res.Header.Get("Retry-After") != "1" || !strings.Contains(body, "Retry after 1 s") {
			t.Errorf("refused with %d %v %q, want 429 and why", res.StatusCode, res.Header, body)
		}
		return nil
	})
}

// Users below their limits are let through by HAProxy itself, those whose bandwidth is limited as well.
func TestCreditBesideYourOwn(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]string{"of requests": limitFile(1000), "of bandwidth": bandwidthLimits(100)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, beside(cluster.Options{Limits: limits}))
			in := c.Instances[0]
			const question = `sluice_requests_total{limit="",verdict="allowed"}`
			// Until a second after the first answer that brings credit it is asked about each request.
			proctest.Eventually(t, "HAProxy admits alice by itself", func() error {
				before := in.Metric(t, question)
				r := offer(t, c, "alice", "even", 100, 2*time.Second)
				checkAnswered(t, r)
				if n := len(r.Refused().Results); n > 0 {
					t.Errorf("%d requests below the limit were refused", n)
				}
				if asked := in.Metric(t, question) - before; asked > 20 {
					return fmt.Errorf("the agent was asked about %v of 200 requests", asked)
				}
				return nil
			})
		})
	}
}

func TestProgressBesideYourOwn(t *testing.T) {
	t.Parallel()
	const limit = 10
	counted, origin := counting(t, limit)
	o := cluster.Options{Limits: progressLimits(limit), Origin: origin, SPOAArgs: []string{"--local-peer", "edge-1"}}
	// It has a name among its peers, which the agent is told.
	o.Beside = strings.Replace(proctest.Theirs, "global\n", "global\n    localpeer edge-1\n", 1)
	c := cluster.Start(t, o)
	r := closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 50, Work: short, Duration: 4 * time.Second, Seed: 1})
	checkStatuses(t, r)
	if most := counted.Counts().Most; most != limit && !busy(t, c, 0) {
		t.Errorf("at most %d requests ran at once, want %d", most, limit)
	}
	if r.Statuses[http.StatusTooManyRequests] == 0 {
		t.Error("nothing was refused")
	}
	checkNothingInProgress(t, c)
	// And those whose tier waits for room are served instead.
	r = closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "patty", Clients: 20, Work: short, Duration: 3 * time.Second, Seed: 1})
	if checkStatuses(t, r); r.Statuses[http.StatusTooManyRequests] > 0 {
		t.Errorf("%d requests that may wait were refused", r.Statuses[http.StatusTooManyRequests])
	}
}

func TestBandwidthBesideYourOwn(t *testing.T) {
	t.Parallel()
	const limit, d = 4, 5 * time.Second
	for _, up := range []bool{false, true} {
		t.Run(fmt.Sprint("up ", up), func(t *testing.T) {
			t.Parallel()
			c, o := moving(t, beside(cluster.Options{Limits: bandwidthLimits(limit)}))
			checkRate(t, transfer.Run(t.Context(), o, streams(c, "alice", 8, up), d), "in all", time.Second, d, limit*mib)
		})
	}
}

// A limit file's dry runs and endpoints work there as well, and a rule above the lines says which endpoint it is.
func TestLimitFileBesideYourOwn(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	in := cluster.Start(t, cluster.Options{
		Beside: strings.Replace(proctest.Theirs, "frontend web\n", "frontend web\n    http-request set-var(txn.sluice_endpoint) url_param(at)\n", 1),
		Limits: `
version: 1
default_tier: free
tiers:
  free: {requests: {GET: {hour: 3}}, endpoints: {uploads: {requests: {GET: {hour: 2}}}}}
  pro: {requests: {GET: {hour: 5}}}
  tried: {requests: {GET: {hour: 3}}, mode: dry-run}
endpoints: [uploads]
users: {alice: pro, tess: tried}
`,
	}).Instances[0]
	for _, tt := range []struct {
		name, path, user string
		admitted         int
	}{
		{"by default", "/", "bob", 3},
		{"at an endpoint", "/?at=uploads", "bob", 2},
		{"at one that is not declared", "/?at=mirror", "bob", 0}, // where bob has used up their limit
		{"named", "/", "alice", 5},
		{"a dry run", "/", "tess", 8},
	} {
		if admitted := admittedOf(t, 8, in.Address+tt.path, tt.user); admitted != tt.admitted {
			t.Errorf("%s: %d of 8 requests are admitted, want %d", tt.name, admitted, tt.admitted)
		}
	}
	proctest.Eventually(t, "what would have been refused is counted", func() error {
		if n := in.Metric(t, `sluice_dry_run_refused_total{limit="GET/hour"}`); n != 5 {
			return fmt.Errorf("%v requests would have been refused, want 5 of 8", n)
		}
		return nil
	})
}

// admittedOf is how many of so many requests, one after the other, are answered by an origin.
func admittedOf(t *testing.T, n int, address, user string) (admitted int) {
	t.Helper()
	for range n {
		res, _ := do(t, http.MethodGet, address, user)
		if res.StatusCode == http.StatusOK {
			admitted++
		}
	}
	return admitted
}

// Without its agent HAProxy goes on, with its part of the limits.
func TestAgentKilledBesideYourOwn(t *testing.T) {
	t.Parallel()
	c, r, at := underLoad(t, func() *cluster.Cluster {
		return cluster.Start(t, beside(cluster.Options{Limits: limitFile(100), MaxWait: shortWait}))
	}, func(c *cluster.Cluster) { c.Instances[0].Agent.Kill() })
	checkAnswered(t, r)
	checkCalm(t, r, shortWait)
	checkQuick(t, after(r, at.Add(time.Second)), "later than a second after the agent's death")
	c.Instances[0].StartAgent(t)
	c.Instances[0].AwaitReady(t)
	checkRecovered(t, c, 400)
}
