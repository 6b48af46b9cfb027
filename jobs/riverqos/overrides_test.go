package riverqos_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redislimits"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

// operated is a worker whose users' limits are those of a polygen, which an operator changes.
type operated struct {
	*rig
	commands, admin string // the folder of the commands, and where polygen's API is
	tiers           jobs.FileTiers
}

// startOperated starts a Redis, whose users are those of deploy/redis/users.acl, a polygen and a
// worker. The tier free has one job at a time.
func startOperated(t testing.TB) *operated {
	t.Helper()
	o := &operated{commands: t.TempDir(), admin: testkit.FreeAddr(t)}
	build := exec.Command("go", "build", "-trimpath", "-o", o.commands, "github.com/sluice-qos/sluice/cmd/polygen", "github.com/sluice-qos/sluice/cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the commands: %v\n%s", err, out)
	}
	_, addr := testkit.RedisWithUsers(t)
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ndefault_tier: free\ntiers: {free: {jobs: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, []string{"SLUICE_REDIS_PASSWORD=sluice-polygen"}, filepath.Join(o.commands, "polygen"),
		"--limits", file, "--redis", addr, "--redis-user", "sluice-polygen", "--admin", o.admin)

	client := redisOf(addr, "sluice-jobs")
	t.Cleanup(func() { client.Close() })
	published := redislimits.New(client, redislimits.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { _ = published.Run(ctx) })
	t.Cleanup(func() { cancel(); following.Wait() })
	o.tiers = jobs.FileTiers{Set: published.Set}
	testkit.Eventually(t, "the published limits are read", func() error {
		if published.Set() == nil {
			return errors.New("they are not")
		}
		return nil
	})
	o.rig = start(t, func(c *riverqos.Config, rc *river.Config) {
		c.Runner.Tiers, c.Runner.Slots = o.tiers, redisslots.New(client)
		rc.Queues["slow_default"] = river.QueueConfig{MaxWorkers: 20}
	})
	return o
}

// override is the operator's command.
func (o *operated) override(args ...string) {
	o.Helper()
	args = append([]string{"override", "--admin", o.admin}, args...)
	// Until polygen serves: it has to read the overrides that there are from Redis first.
	testkit.Eventually(o, "sluice override", func() error {
		if out, err := exec.Command(filepath.Join(o.commands, "sluice"), args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// may waits until a user may run so many jobs at a time.
func (o *operated) may(user string, total int) {
	o.Helper()
	testkit.Eventually(o, "the limit", func() error {
		if tier, err := o.tiers.Tier(context.Background(), user); err != nil || tier.Limits.Total != total {
			return fmt.Errorf("Tier(%s) = %+v, %v, want a total of %d", user, tier, err, total)
		}
		return nil
	})
}

// What an operator sets by hand at a polygen is in force for running workers, and ends by
// itself or by hand.
func TestOverridesByHandReachWorkers(t *testing.T) {
	skipIfShort(t)
	o := startOperated(t)
	long := o.insert(10, task{User: "ann", Do: "hang"}, "slow_default")
	o.insert(5, task{User: "bob", Do: "hang"}, "slow_default")
	o.runs("ann", 1)

	// The worker sweeps every 5 s alone, and River polls as seldom: what follows at once comes of the new limit.
	o.override("ann", "jobs=10", "--for", "5s", "--reason", "launch")
	o.runs("ann", 10)
	o.runs("bob", 1)

	// No limit file changes, nobody removes it, and it ends.
	o.may("ann", 1)
	later := o.insert(3, task{User: "ann", Do: "gate"}, "fast_default")
	close(o.gate("hang"))
	o.finished(long)
	o.runs("ann", 1)
	o.atMost("ann", 10)

	o.override("ann", "jobs=3", "--reason", "launch")
	o.runs("ann", 3)
	close(o.gate("gate"))
	o.finished(later)
	o.override("--remove", "ann")
	o.may("ann", 1)
}

// BenchmarkOverride is how long after `sluice override` nine more jobs of the user run.
func BenchmarkOverride(b *testing.B) {
	o := startOperated(b)
	for b.Loop() {
		var took []float64
		for i := range 10 {
			user := fmt.Sprint("user", i)
			o.insert(10, task{User: user, Do: "hang"}, "slow_default")
			o.runs(user, 1)
			began := time.Now()
			o.override(user, "jobs=10", "--reason", "measured")
			o.runs(user, 10)
			took = append(took, time.Since(began).Seconds()*1000)
			close(o.gate("hang"))
			o.runs(user, 0)
			o.mu.Lock()
			delete(o.free, "hang")
			o.mu.Unlock()
		}
		slices.Sort(took)
		b.ReportMetric(at(took, 50), "p50-ms")
		b.ReportMetric(at(took, 100), "max-ms")
	}
}
