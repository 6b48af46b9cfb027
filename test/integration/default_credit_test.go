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
