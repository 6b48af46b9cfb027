package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// awaitDivision waits until the polygens that run have all parts of the users, divided fairly.
func awaitDivision(t *testing.T, c *cluster.Cluster, running int) {
	t.Helper()
	most := float64((parts.Count + running - 1) / running)
	proctest.Eventually(t, fmt.Sprintf("%d polygens divide the users", running), func() error {
		var all float64
		for _, p := range c.Polygens {
			if !p.Running() {
				continue
			}
			n, err := cluster.ReadMetric(p.Admin, "sluice_polygen_parts")
			if err != nil || n > most {
				return fmt.Errorf("one has %v parts, want %v at most: %w", n, most, err)
			}
			all += n
		}
		if all != parts.Count {
			return fmt.Errorf("together they have %v parts", all)
		}
		return nil
	})
}

// ask sends a user's requests to all instances at once.
func ask(c *cluster.Cluster, user string, requests int) error {
	var all sync.WaitGroup
	failed := make(chan error, requests*len(c.Instances))
	for _, in := range c.Instances {
		for range requests {
			all.Go(func() {
				req, err := http.NewRequest(http.MethodGet, "http://"+in.Address+"/", nil)
				if err != nil {
					failed <- err
					return
				}
				req.Header.Set("X-User", user)
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					failed <- err
					return
				}
				_, err = io.Copy(io.Discard, res.Body)
				failed <- errors.Join(err, res.Body.Close())
			})
		}
	}
	all.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitThrottles has users spend their limits until each polygen that runs has throttled some.
func awaitThrottles(t *testing.T, c *cluster.Cluster, attempt *int) {
	t.Helper()
	const throttled = `sluice_policies_sent_total{kind="throttle",mode="enforce"}`
	before := map[*cluster.Polygen]float64{}
	for _, p := range c.Polygens {
		if p.Running() {
			before[p] = cluster.Metric(t, p.Admin, throttled)
		}
	}
	proctest.Eventually(t, "users of each polygen are refused by HAProxy", func() error {
		for range 8 {
			*attempt++
			if err := ask(c, fmt.Sprint("user-", *attempt), 15); err != nil {
				return err
			}
		}
		for p, n := range before {
			if now, err := cluster.ReadMetric(p.Admin, throttled); err != nil || now == n {
				return fmt.Errorf("%s has sent %v throttles as before: %w", p.Admin, now, err)
			}
		}
		return nil
	})
}

// Three polygens divide the users of two instances. One is killed, and one is added: whoever has a user throttles
// them, in every HAProxy.
func TestPolygensComeAndGo(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 3, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}}}\n"})
	attempt := 0
	awaitDivision(t, c, 3)
	awaitThrottles(t, c, &attempt)
	c.Polygens[0].Kill()
	awaitDivision(t, c, 2)
	awaitThrottles(t, c, &attempt)
	c.Polygens = append(c.Polygens, c.StartPolygen(t, 3))
	awaitDivision(t, c, 3)
	awaitThrottles(t, c, &attempt)
	for _, p := range c.Polygens[1:] {
		if text, err := cluster.Get(p.Admin, "/api/v1/users/user-1"); err != nil {
			t.Errorf("%s says %s, %v", p.Admin, text, err)
		}
	}
}
