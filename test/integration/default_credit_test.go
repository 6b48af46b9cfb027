package integration

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/test/cluster"
)

// awaitCreditByDefault waits until every HAProxy gives credit to users of the default tier.
func awaitCreditByDefault(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	awaitByDefault(t, c, proctest.Patience)
}

// awaitByDefault is awaitCreditByDefault within a time.
func awaitByDefault(t *testing.T, c *cluster.Cluster, within time.Duration) {
	t.Helper()
	if err := proctest.Poll(within, func() error {
		if !givenByDefault(c) {
			return errors.New("users of the default tier have no credit")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// It has been told from which second on, which may be none of its threads' yet.
	for _, in := range c.Instances {
		row, err := in.Tell("show table sluice_default key ~from")
		_, text, found := strings.Cut(row, " gpt0=")
		second, notNumber := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || !found || notNumber != nil {
			t.Fatalf("%s: the second in which credit by default begins = %q, %v", in.Name, row, err)
		}
		time.Sleep(time.Until(time.Unix(second, 0).Add(100 * time.Millisecond)))
	}
}

// askedAbout is how many requests the agents were asked about, and allowed.
func askedAbout(t *testing.T, c *cluster.Cluster) (n float64) {
	t.Helper()
	for _, in := range c.Instances {
		n += in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`)
	}
	return n
}

// Users whom nobody has asked about have credit from their first request on, and those who come
// from nowhere and are far above the limit are not admitted beyond it in any second.
func TestCreditByDefault(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			const users, limit = 300, 100
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: limitFile(limit)})
			awaitCreditByDefault(t, c)
			before := askedAbout(t, c)
			for i := range users {
				for _, in := range c.Instances {
					if res, _ := get(t, in.Address, fmt.Sprint("cold-", i)); res.StatusCode != http.StatusOK {
						t.Errorf("cold-%d got %d", i, res.StatusCode)
					}
				}
			}
			if n := askedAbout(t, c) - before; n > 0.02*float64(users*instances) {
				t.Errorf("HAProxy asked about %v of %d requests of users who were not seen before, want at most 2 %%", n, users*instances)
			}
			// A user with limits of their own is asked about.
			before = askedAbout(t, c)
			if res, _ := get(t, c.Instances[0].Address, "other"); res.StatusCode != http.StatusOK || askedAbout(t, c) != before+1 {
				t.Errorf("other got %d, and HAProxy asked about %v requests, want 1", res.StatusCode, askedAbout(t, c)-before)
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

// A second instance joins one whose HAProxy has all of each user's limit by default, while a user is far
// above it: in the seconds of the join it may admit the limit once more, and in no other. From then
// on both have their portions.
func TestInstanceJoinsOneWithCreditByDefault(t *testing.T) {
	t.Parallel()
	const limit = 100
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(limit)})
	alone := c.Instances[0]
	c.Instances[1].Agent.Stop()
	proctest.Eventually(t, "the first is alone", func() error {
		if n := alone.Metric(t, "sluice_instances"); n != 1 {
			return fmt.Errorf("%v instances", n)
		}
		return nil
	})
	time.Sleep(3 * time.Second) // it has noticed that its credit by default is of another number
	both := c.Instances
	c.Instances = both[:1]
	awaitCreditByDefault(t, c)

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

	awaitCreditByDefault(t, c)
	end := time.Now().Add(calmWithin)
	for i := 0; ; i++ {
		before := redisLosses(c)
		r = offerOnce(t, c, fmt.Sprint("cold-", i), "even", 500, 2*time.Second) // another one each time, for once hot they have none
		if redisLosses(c) == before || time.Now().After(end) {
			break
		}
	}
	checkAnswered(t, r)
	checkLimit(t, r, limit, 0.97)
}

// placesFile limits requests in progress and, so high that it is never reached, a rate.
func placesFile(limit int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers:\n  free: {requests: {GET: 100000}, concurrent: %d}\n  none: {}\nusers: {other: none}\n", limit)
}

// Users of whom nobody has asked have places from their first request on, which are in use when
// they come in far greater numbers: no more run at a time than the limit, and no fewer for long.
func TestPlacesByDefault(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			const users, limit = 200, 20
			o, origin := counting(t, limit)
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: placesFile(limit), Origin: origin})
			for _, in := range c.Instances { // which tells the agent with which process it is
				sleepOnce(t, in.Address, "first")
			}
			awaitPlacesByDefault(t, c)
			before := askedAbout(t, c)
			for i := range users {
				for _, in := range c.Instances {
					sleepOnce(t, in.Address, fmt.Sprint("cold-", i))
				}
			}
			switch n := askedAbout(t, c) - before; {
			case !givenByDefault(c): // on a busy machine the instances lose each other: then limits are divided anew
				t.Logf("while HAProxy gave no credit any more, it asked about %v of %d requests", n, users*instances)
			case n > 0.02*float64(users*instances):
				t.Errorf("HAProxy asked about %v of %d requests of users who were not seen before, want at most 2 %%", n, users*instances)
			}
			for round := range 2 { // the first of a user far above the limit, the second of another one
				o.Begin()
				r := closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: fmt.Sprint("hot-", round), Clients: 60, Work: short, Duration: 3 * time.Second, Seed: 1})
				checkStatuses(t, r)
				if counts := o.Counts(); counts.Most != limit && !busy(t, c, 0) {
					t.Errorf("at most %d requests ran at once, want %d", counts.Most, limit)
				}
			}
			checkNothingInProgress(t, c)
		})
	}
}

// givenByDefault reports whether every HAProxy has credit for users of the default tier.
func givenByDefault(c *cluster.Cluster) bool {
	for _, in := range c.Instances {
		if v, err := cluster.ReadMetric(in.Admin, "sluice_credit_by_default"); err != nil || v != 1 {
			return false
		}
	}
	return true
}

// awaitPlacesByDefault is awaitCreditByDefault of a tier that limits requests in progress: several
// instances must have agreed for 30 s on how many they are.
func awaitPlacesByDefault(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	awaitByDefault(t, c, 3*proctest.Patience)
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

// Places are in use by requests that go on, and that nobody was asked about, when limits change, another
// agent takes over, HAProxy is reloaded, or a second instance joins: what comes afterwards, wherever that
// is, finds what they leave of the limit.
func TestPlacesByDefaultThatAreInUse(t *testing.T) {
	t.Parallel()
	const limit = 20
	for _, tt := range []struct {
		name      string
		instances int
		do        func(*testing.T, *cluster.Cluster, *cluster.Instance)
	}{
		{"limits change", 1, func(t *testing.T, c *cluster.Cluster, in *cluster.Instance) {
			c.SetLimits(t, placesFile(limit)+"exempt: {users: [wilma]}\n")
			proctest.Eventually(t, "credit by default ends", func() error {
				if in.Metric(t, "sluice_credit_by_default") != 0 {
					return errors.New("it has not")
				}
				return nil
			})
		}},
		{"another agent", 1, func(t *testing.T, _ *cluster.Cluster, in *cluster.Instance) {
			in.Agent.Stop()
			in.StartAgent(t)
			in.AwaitReady(t)
		}},
		{"a reload", 1, func(t *testing.T, _ *cluster.Cluster, in *cluster.Instance) {
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
		{"another instance", 2, func(t *testing.T, c *cluster.Cluster, in *cluster.Instance) {
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
				c.Instances[1].Agent.Stop()
				proctest.Eventually(t, "the first is alone", func() error {
					if n := c.Instances[0].Metric(t, "sluice_instances"); n != 1 {
						return fmt.Errorf("%v instances", n)
					}
					return nil
				})
			}
			first := c.Instances[0]
			sleepOnce(t, first.Address, "first")
			all := c.Instances
			c.Instances = all[:1]
			awaitPlacesByDefault(t, c)
			c.Instances = all

			used := credit.DefaultPlaces(limit, 1)
			startLong(t, o, first.Address, "held", used)
			if n := first.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`); n != 1 {
				t.Logf("HAProxy asked about %v requests: not only the first", n) // what it asks about counts anyway
			}
			in := *first
			tt.do(t, c, &in)
			o.Begin()
			r := closed.Run(t.Context(), closed.Spec{Addresses: []string{in.Address}, User: "held", Clients: 40, Work: short, Duration: 4 * time.Second, Seed: 1})
			checkStatuses(t, r)
			if counts := o.Counts(); counts.Most != limit && !busy(t, c, 0) {
				t.Errorf("with %d requests that go on, at most %d ran at once, want %d", used, counts.Most, limit)
			}
		})
	}
}
