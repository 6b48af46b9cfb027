package full

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

const upgradeLimits = `
version: 1
default_tier: free
tiers: {free: {requests: {GET: 100}}, busy: {concurrent: 10}}
users: {busy: busy}
`

// Polygens and agents are replaced one at a time, in the order of docs/operations.md, and then HAProxy's files, by a reload, while
// one user offers more than the limit of 100 a second, another one 20, and 40 clients want ten places: no request fails, none is
// refused far below a limit, and limits hold as stated. $SLUICE_BEFORE is the folder of the commands of the version before;
// without it the parts are replaced by themselves.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: upgradeLimits, Master: true, Commands: os.Getenv("SLUICE_BEFORE")}, "busy")
	s.Settle()
	const d = 25 * time.Second
	var open *load.Report
	var runs closed.Report
	ended := make(chan struct{}, 2)
	go func() {
		open = s.Offer(t, "even", 400, d, scene.GETs(append(slices.Repeat([]string{"wild"}, 19), "calm")...))
		ended <- struct{}{}
	}()
	go func() { runs = closed.Run(t.Context(), s.Closed("busy", 40, d)); ended <- struct{}{} }()
	time.Sleep(2 * time.Second)
	began := time.Now()
	s.Upgrade(t)
	for i, p := range s.Polygens {
		p.Stop()
		s.Polygens[i] = s.StartPolygen(t, i)
		scene.AwaitMetric(t, s.Polygens[i].Admin, "sluice_limits_valid", scene.Is(1))
	}
	for _, in := range s.Instances {
		in.Agent.Stop()
		in.StartAgent(t)
		in.AwaitReady(t)
		for _, each := range s.Instances {
			scene.AwaitMetric(t, each.Admin, "sluice_instances_away", scene.Is(0))
		}
	}
	agents := time.Now()
	for _, in := range s.Instances {
		in.WriteConfig(t)
		_ = in.HAProxy.Signal(syscall.SIGUSR2)
		scene.AwaitMetric(t, in.Admin, "sluice_haproxy_draining", func(n float64) bool { return n > 0 })
		in.AwaitReady(t)
	}
	upgraded := time.Now()
	<-ended
	<-ended
	t.Logf("polygens and agents took %v, HAProxies %v", agents.Sub(began), upgraded.Sub(agents))
	scene.CheckAnswered(t, open)
	scene.CheckRuns(t, runs)
	if n := open.User("calm").Ratios(50, 0).FalseRefusals; n > 0 {
		t.Errorf("%d requests of a user far below the limit were refused", n)
	}
	scene.CheckSeconds(t, open, "wild", began.Add(-2*time.Second), agents, 100, 100)
	// A HAProxy that is reloaded may admit its credit of one second again.
	scene.CheckSeconds(t, open, "wild", agents.Add(-time.Second), open.Start.Add(d), 100, 100+2*100/8)
	// A HAProxy without its agent admits up to its half, of which the other instance may hold some.
	if most := s.Runs["busy"].Counts().Most; most > 15 {
		t.Errorf("%d requests ran at once, want the limit of 10 and a HAProxy's half of it at most", most)
	}
	s.AwaitNothingInProgress(t)
}
