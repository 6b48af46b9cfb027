package polygen

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestMetricsOfTheFleet(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil)
	want := g.set.Load().Version()
	at := time.Unix(1000, 0)
	g.observe(at, redisbus.Registry{Now: at, Instances: []string{"a", "b", "c"}, Versions: map[string]string{"a": want, "b": "other"}})
	if n, behind := testutil.ToFloat64(g.metrics.instances), testutil.ToFloat64(g.metrics.behind); n != 3 || behind != 2 {
		t.Errorf("%v instances, %v behind, want 3 and 2", n, behind)
	}
	if got := testutil.ToFloat64(g.metrics.limitsInfo.WithLabelValues(want)); got != 1 || testutil.CollectAndCount(g.metrics.limitsInfo) != 1 {
		t.Errorf("sluice_polygen_limits_info of %s = %v, want 1 and no other version", want, got)
	}
}

// What polygen decides by is told when it changes, and so is whom it throttles.
func TestMetricsOfDecisions(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil)
	set := parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}}}\n")
	g.adoptFile(set)
	if got := testutil.ToFloat64(g.metrics.limitsInfo.WithLabelValues(set.Version())); got != 1 || testutil.CollectAndCount(g.metrics.limitsInfo) != 1 {
		t.Errorf("sluice_polygen_limits_info of the new version = %v, want 1 and no other version", got)
	}
	now := g.clock.Now()
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{
		{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: now.Unix(), Total: 10},
	}})
	g.sendPolicies(t.Context())
	if n := g.lookAtUsers(0).Totals.Throttled; n != 1 {
		t.Errorf("%d users are throttled, want alice", n)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- g.decide(ctx, nil, nil) }()
	testkit.Eventually(t, "rounds of polygen's loop", func() error {
		families, err := g.registry.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			if f.GetName() == "sluice_polygen_loop_seconds" && f.Metric[0].GetHistogram().GetSampleCount() > 0 {
				return nil
			}
		}
		return errors.New("none yet")
	})
	stop()
	if err := <-done; err != nil {
		t.Errorf("decide() = %v, want nil", err)
	}
}
