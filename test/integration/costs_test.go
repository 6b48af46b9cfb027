package integration

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// Long requests, streams among them, never cost more than the limit: each one's estimate is charged when it starts. The rest of
// an estimate goes back when the answer tells what the request cost: each correction that was lost would keep half of one.
func TestCosts(t *testing.T) {
	t.Parallel()
	// Less than one estimate is left in the end: no correction may be lost.
	const limit, enough = 20_000, 19_000
	for _, instances := range []int{1, 3} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			// The day begins twelve hours from now: none ends meanwhile.
			starts := time.Now().UTC().Add(12 * time.Hour).Format("15:04")
			s := scene.Start(t, cluster.Options{Instances: instances, Limits: fmt.Sprintf(`
version: 1
default_tier: free
costs:
  tokens:
    estimate: {json: max_tokens, default: 1000}
    actual: {json: usage.total_tokens}
    day_starts: "%s"
tiers:
  free: {costs: {tokens: {day: %d}}}
`, starts, limit)})
			var spent atomic.Int64
			// chat may cost 1000 tokens and costs half of them and one. Its answer takes half a second.
			chat := func(n int) error {
				res, body, err := scene.Send(t.Context(), http.MethodPost, s.Addresses()[n%instances]+"/v1/chat/completions?ms_per_token=1", "alice",
					fmt.Sprintf(`{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000, "stream": %t}`, n%2 == 0), "Content-Type", "application/json")
				switch {
				case err != nil:
					return err
				case res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Sluice-Reason") == "cost":
					return nil
				case res.StatusCode != http.StatusOK:
					return fmt.Errorf("%s %s: %.200s", res.Status, res.Header.Get("Sluice-Reason"), body)
				}
				said := totalTokens.FindStringSubmatch(body)
				if said == nil {
					return fmt.Errorf("the answer does not say what it cost: %.200s", body)
				}
				tokens, err := strconv.ParseInt(said[1], 10, 64)
				spent.Add(tokens)
				return err
			}
			testkit.Eventually(t, "tokens that were not spent are used again", func() error {
				failed := make(chan error)
				for n := range 40 {
					go func() { failed <- chat(n) }()
				}
				for range 40 {
					if err := <-failed; err != nil {
						t.Error(err)
					}
				}
				if spent.Load() < enough {
					return fmt.Errorf("%d of %d tokens", spent.Load(), limit)
				}
				return nil
			})
			if spent.Load() > limit {
				t.Errorf("the answers cost %d tokens, of a limit of %d", spent.Load(), limit)
			}
		})
	}
}
