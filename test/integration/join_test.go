package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// An instance that joins another one under load gets its part of each limit, and none is exceeded once HAProxy asks it.
func TestInstanceJoins(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: faultLimits}, "busy")
	first, second := s.Instances[0], s.Instances[1]
	second.Agent.Stop()
	scene.AwaitMetric(t, first.Admin, "sluice_instances", scene.Is(1))

	const begins, settled, judged = 4 * time.Second, 6 * time.Second, 3 * time.Second
	var bytes transfer.Report
	var open *load.Report
	var all sync.WaitGroup
	s.Settle()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	start := time.Now()
	all.Go(func() {
		bytes = transfer.Run(ctx, s.Bytes, []transfer.Stream{
			{Address: first.Address, User: "mover"}, {Address: second.Address, User: "mover", Begin: begins}}, testkit.Patience)
	})
	all.Go(func() { open = s.OfferUntil(ctx, t, 204, scene.GETs(append(repeat("wild", 50), "calm")...)) })
	second.StartAgent(t)
	awaitSteady(t, s)
	joined := time.Now()
	from := max(settled, time.Since(start)).Truncate(time.Second) + time.Second
	time.Sleep(time.Until(start.Add(from + judged)))
	stop()
	all.Wait()
	scene.CheckAnswered(t, open)
	// The first one may admit its credit of the whole limit in the seconds of the join.
	scene.CheckSeconds(t, open, "wild", start, joined, 20, 2*20)
	scene.CheckSeconds(t, open, "wild", joined, start.Add(from+judged), 20, 20)
	if n := open.User("calm").Ratios(10, 0).FalseRefusals; n > 0 {
		t.Errorf("%d requests of a user far below the limit were refused", n)
	}
	scene.CheckRate(t, bytes.Of(0, 1), "alone", time.Second, 3*time.Second, 1)
	scene.CheckRate(t, bytes, "together", from, from+judged, 1)
	checkExact(t, s)
}
