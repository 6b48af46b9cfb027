package integration

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// awaitCreditByDefault waits until every HAProxy has credit for users of the default tier.
func awaitCreditByDefault(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, in := range c.Instances {
		proctest.Eventually(t, "users of the default tier have credit", func() error {
			if v, err := cluster.ReadMetric(in.Admin, "sluice_credit_by_default"); err != nil || v != 1 {
				return fmt.Errorf("%s: %v, %v", in.Name, v, err)
			}
			return nil
		})
	}
	time.Sleep(4 * time.Second) // it begins in the third second after that at the latest
}

// Users whom nobody has asked about have credit from their first request on, and those who come
// from nowhere and are far above the limit are not admitted beyond it in any second.
func TestCreditByDefault(t *testing.T) {
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			const users, limit = 300, 100
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: limitFile(limit)})
			awaitCreditByDefault(t, c)
			asked := func() (n float64) {
				for _, in := range c.Instances {
					n += in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`)
				}
				return n
			}
			before := asked()
			for i := range users {
				for _, in := range c.Instances {
					if res, _ := get(t, in.Address, fmt.Sprint("cold-", i)); res.StatusCode != http.StatusOK {
						t.Errorf("cold-%d got %d", i, res.StatusCode)
					}
				}
			}
			if n := asked() - before; n > 0.02*float64(users*instances) {
				t.Errorf("HAProxy asked about %v of %d requests of users who were not seen before, want at most 2 %%", n, users*instances)
			}
			// A user with limits of their own is asked about.
			before = asked()
			if res, _ := get(t, c.Instances[0].Address, "other"); res.StatusCode != http.StatusOK || asked() != before+1 {
				t.Errorf("other got %d, and HAProxy asked about %v requests, want 1", res.StatusCode, asked()-before)
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
	r := offerOnce(t, c, "wild", "even", 1000, 10*time.Second)
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
