package integration

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// askedAbout is how many requests the agents were asked about, and allowed.
func askedAbout(t *testing.T, c *cluster.Cluster) (n float64) {
	t.Helper()
	for _, in := range c.Instances {
		n += in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`)
	}
	return n
}

// awaitCredit has a user make requests at each instance until an answer brings credit, and waits until it is in force.
func awaitCredit(t *testing.T, c *cluster.Cluster, user string) {
	t.Helper()
	for _, in := range c.Instances {
		before := in.Metric(t, "sluice_credit_grants_total")
		proctest.Eventually(t, "the user has credit", func() error {
			sleepOnce(t, in.Address, user)
			if in.Metric(t, "sluice_credit_grants_total") == before {
				return errors.New("no answer has brought credit")
			}
			return nil
		})
	}
	time.Sleep(1100 * time.Millisecond) // it begins with the next second
}

// Each HAProxy asks about a user once, and admits the user's requests by credit from then on. Users who come from
// nowhere and are far above the limit are not admitted beyond it in any second.
func TestCreditAfterOneQuestion(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			const users, limit, rounds = 100, 100, 4
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: limitFile(limit)})
			c.Settle()
			awaitCredit(t, c, "first")
			before := askedAbout(t, c)
			for range rounds {
				for i := range users {
					for _, in := range c.Instances {
						if res, _ := get(t, in.Address, fmt.Sprint("cold-", i)); res.StatusCode != http.StatusOK {
							t.Errorf("cold-%d got %d", i, res.StatusCode)
						}
					}
				}
				time.Sleep(1100 * time.Millisecond) // credit begins with the second behind the answer
			}
			// No credit is given around the end of a second, so some users are asked about twice.
			if n := (askedAbout(t, c) - before) / float64(users*instances); n < 1 || n > 1.5 {
				t.Errorf("HAProxy asked %.2f questions about each user with %d requests, want 1, and 1.5 at most", n, rounds)
			}
			for _, tt := range []struct {
				pattern string
				rate    float64
			}{{"even", 2000}, {"even", 150}, {"jump", 300}, {"90/10", 80}} {
				if instances == 1 && tt.pattern != "even" {
					continue
				}
				r := offer(t, c, fmt.Sprintf("%s-%g", tt.pattern[:2], tt.rate), tt.pattern, tt.rate, 3*time.Second)
				checkAnswered(t, r)
				checkLimit(t, r, limit, 0.97)
			}
		})
	}
}

// awaitAlone waits until the first instance knows that the second one has left.
func awaitAlone(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	c.Instances[1].Agent.Stop()
	proctest.Eventually(t, "the first is alone", func() error {
		n, away := c.Instances[0].Metric(t, "sluice_instances"), c.Instances[0].Metric(t, "sluice_instances_away")
		if n != 1 || away != 0 {
			return fmt.Errorf("%v instances, and %v that may come back", n, away)
		}
		return nil
	})
	time.Sleep(time.Second) // it gives credit of the whole limit
}

// A second instance joins one whose HAProxy has all of the user's limit, while the user is far above it: in the
// seconds of the join it may admit the limit once more, and in no other. From then on both have their portions.
func TestInstanceJoinsOneThatWasAlone(t *testing.T) {
	t.Parallel()
	const limit = 100
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(limit)})
	awaitAlone(t, c)
	both := c.Instances
	c.Instances = both[:1]

	var began, joined time.Time
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(3 * time.Second)
		began = time.Now()
		both[1].StartAgent(t)
		both[1].AwaitReady(t)
		joined = time.Now()
	}()
	r := offerOnce(t, c, "wild", "even", 1000, 8*time.Second)
	<-done
	checkAnswered(t, r)
	c.Instances = both
	most := mostWithRedis(t, c)
	counts := r.Attribute(limit, clockSlack)
	seconds := 0
	agreed := joined.Add(2*time.Second + 2*c.LongestStall()).Unix()
	for sec := r.Results[0].Sent / int64(time.Second); sec <= r.Results[len(r.Results)-1].Sent/int64(time.Second); sec++ {
		may := most
		if sec >= began.Unix() && sec <= agreed {
			may += limit
		} else {
			seconds++
		}
		if n := counts.At(sec); n > may {
			t.Errorf("second %d from the join: %d requests were admitted, want at most %d", sec-joined.Unix(), n, may)
		}
	}
	if seconds == 0 {
		t.Error("the join took all of the load's seconds")
	}
	r = offer(t, c, "cold", "even", 500, 2*time.Second)
	checkAnswered(t, r)
	checkLimit(t, r, limit, 0.97)
}

// placesFile limits requests in progress and, so high that it is never reached, a rate.
func placesFile(limit int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers:\n  free: {requests: {GET: 100000}, concurrent: %d}\n  none: {}\nusers: {other: none}\n", limit)
}

// sleepOnce is a request of a user that is let through, and ends at once.
func sleepOnce(t *testing.T, address, user string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/sleep/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", user)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s got %d, want 200", user, res.StatusCode)
	}
}

// startLong starts requests of a user at an instance that go on until the test ends, and waits until all run.
func startLong(t *testing.T, o *closed.Origin, address, user string, n int) {
	t.Helper()
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := fmt.Fprintf(conn, "GET /sleep/120000 HTTP/1.1\r\nHost: x\r\nX-User: %s\r\nConnection: close\r\n\r\n", user); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Eventually(t, "they run", func() error {
		if active := o.Counts().Active; active != n {
			return fmt.Errorf("%d, want %d", active, n)
		}
		return nil
	})
}

// placesOf is how many requests of a user a HAProxy may have in progress by credit.
func placesOf(t *testing.T, in *cluster.Instance, user string) int {
	t.Helper()
	entry, err := in.Tell("show table sluice_credit key " + user)
	_, text, found := strings.Cut(entry, " gpt3=")
	n, notNumber := 0, errors.New("no places")
	if found {
		_, notNumber = fmt.Sscan(text, &n)
	}
	if err != nil || notNumber != nil {
		t.Fatalf("%s: entry %q, %v", in.Name, entry, errors.Join(err, notNumber))
	}
	return n
}

// Places are in use by requests that go on, and that HAProxy admitted by credit, when limits change, another agent
// takes over, HAProxy is reloaded, or a second instance joins: requests that follow, at whichever instance, find what
// those leave of the limit.
func TestPlacesInUse(t *testing.T) {
	t.Parallel()
	const limit, used = 20, 6
	for _, tt := range []struct {
		name      string
		instances int
		counts    bool // all places count until the requests have ended, for their end is not seen
		do        func(*testing.T, *cluster.Cluster, *cluster.Instance)
	}{
		{"limits change", 1, false, func(t *testing.T, c *cluster.Cluster, in *cluster.Instance) {
			c.SetLimits(t, placesFile(limit)+"exempt: {users: [wilma]}\n")
			proctest.Eventually(t, "the agent has the new limits", func() error {
				if n := strings.Count(in.Agent.Output(), "limits in force"); n != 2 {
					return fmt.Errorf("it has put limits into force %d times", n)
				}
				return nil
			})
		}},
		{"another agent", 1, false, func(t *testing.T, _ *cluster.Cluster, in *cluster.Instance) {
			in.Agent.Stop()
			in.StartAgent(t)
			in.AwaitReady(t)
		}},
		{"a reload", 1, true, func(t *testing.T, _ *cluster.Cluster, in *cluster.Instance) {
			if err := in.HAProxy.Signal(syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
			proctest.Eventually(t, "the agent has noticed", func() error {
				if in.Metric(t, "sluice_haproxy_draining") != 1 {
					return errors.New("it has not")
				}
				return nil
			})
		}},
		{"another instance", 2, false, func(t *testing.T, c *cluster.Cluster, in *cluster.Instance) {
			c.Instances[1].StartAgent(t)
			c.Instances[1].AwaitReady(t)
			proctest.Eventually(t, "the pool knows", func() error {
				if out, err := slotsInRedis(c); err != nil || !strings.Contains(out, "held") {
					return fmt.Errorf("it has %q: %v", out, err)
				}
				return nil
			})
			in.Address = c.Instances[1].Address
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, origin := counting(t, limit)
			c := cluster.Start(t, cluster.Options{Instances: tt.instances, Limits: placesFile(limit), Origin: origin, Master: true})
			if tt.instances > 1 {
				awaitAlone(t, c)
			}
			first := c.Instances[0]
			all := c.Instances
			c.Instances = all[:1]
			awaitCredit(t, c, "held")
			c.Instances = all
			before := first.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`)
			startLong(t, o, first.Address, "held", used)
			if n := first.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) - before; n != 0 {
				t.Logf("HAProxy asked about %v of %d requests", n, used) // these count in any case
			}
			most := limit
			if tt.counts {
				most -= placesOf(t, first, "held") - used
			}
			in := *first
			tt.do(t, c, &in)
			o.Begin()
			r := closed.Run(t.Context(), closed.Spec{Addresses: []string{in.Address}, User: "held", Clients: 40, Work: short, Duration: 4 * time.Second, Seed: 1})
			checkStatuses(t, r)
			if counts := o.Counts(); counts.Most != most && !busy(t, c, 0) {
				t.Errorf("with %d requests that go on, at most %d ran at once, want %d", used, counts.Most, most)
			}
		})
	}
}
