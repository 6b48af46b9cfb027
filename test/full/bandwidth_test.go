package full

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// All that users beyond the quota move at once is what one user may move.
func TestBandwidthOfUnknownUsers(t *testing.T) {
	t.Parallel()
	const d = 3 * time.Second
	s := scene.Start(t, cluster.Options{SPOAArgs: []string{"--unknown-users", "1"}, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 3MiB}}}\n"})
	var all []transfer.Stream
	for i := range 6 {
		all = append(all, s.Streams(fmt.Sprint("random-", i), 1, false)...)
	}
	scene.CheckRate(t, transfer.Run(t.Context(), s.Bytes, all, d), "one user of the quota, and five others", time.Second, d, 2*3)
}

// Files for limits without bandwidth cannot hold bodies: a first limit of bandwidth is reported.
func TestFirstLimitOfBandwidthIsReported(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Limits: "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 5}}\n"})
	in := s.Instances[0]
	s.SetLimits(t, "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 3MiB}}}\n")
	testkit.Eventually(t, "requests whose bodies are not held are counted", func() error {
		if res, _ := scene.Get(t, in.Address, "alice"); res.StatusCode != http.StatusOK {
			t.Errorf("%s, want 200", res.Status)
		}
		if in.Metric(t, "sluice_bandwidth_unheld_requests_total") == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	testkit.Eventually(t, "the agent's log says it", func() error {
		if log := in.Agent.Output(); !strings.Contains(log, "a user's bandwidth is not limited here") {
			return fmt.Errorf("it says %s", log)
		}
		return nil
	})
}
