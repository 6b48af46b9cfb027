package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redislimits"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/test/scene"
)

// jobQueue is a job queue in memory, whose workers are goroutines.
type jobQueue struct {
	runner *jobs.Runner
	do     func(context.Context) error

	mu     sync.Mutex
	parked map[string]bool // ids
	failed []error
}

func (q *jobQueue) start(ctx context.Context, id string) {
	go func() {
		err := q.runner.Work(ctx, jobs.Attempt{User: "ann", ID: id, Queue: "analysis_default"}, q.do)
		q.mu.Lock()
		defer q.mu.Unlock()
		var delay *jobs.Delay
		if q.parked[id] = errors.As(err, &delay) && delay.Parked; !q.parked[id] && err != nil && ctx.Err() == nil {
			q.failed = append(q.failed, err)
		}
	}()
}

// Wake implements jobs.Queue.
func (q *jobQueue) Wake(ctx context.Context, ids []string) (map[string]jobs.WakeResult, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	results := map[string]jobs.WakeResult{}
	for _, id := range ids {
		if results[id] = jobs.WakeEarly; q.parked[id] {
			results[id], q.parked[id] = jobs.WakeDone, false
			q.start(context.WithoutCancel(ctx), id)
		}
	}
	return results, nil
}

// Parked implements jobs.Queue.
func (*jobQueue) Parked(context.Context, time.Duration, func([]jobs.Job) error) error { return nil }

// The limit file governs background jobs: as many of a user's run as it says, the others wait and are never rejected, and a job
// wakes when one ends, or when polygen publishes more.
func TestJobsFollowTheLimitFile(t *testing.T) {
	t.Parallel()
	text := func(n int) string {
		return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {jobs: %d}}\n", n)
	}
	s := scene.Start(t, cluster.Options{Limits: text(2)})
	file, err := limitfile.Parse("limits.yaml", []byte(text(1)))
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: s.RedisAddr, ContextTimeoutEnabled: true})
	defer client.Close()
	follow := redislimits.New(client, redislimits.Config{File: func() *limits.Set { return file }})
	var running, most, done atomic.Int64
	end := make(chan struct{}) // a job ends with each
	q := &jobQueue{parked: map[string]bool{}, do: func(context.Context) error {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-end
		done.Add(1)
		running.Add(-1)
		return nil
	}}
	q.runner, err = jobs.NewRunner(jobs.RunnerConfig{Name: "memory", Slots: redisslots.New(client), Tiers: jobs.FileTiers{Set: follow.Set}, Queue: q, Lease: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { _ = follow.Run(ctx) })
	defer loops.Wait()
	defer stop()
	testkit.Eventually(t, "the published limits", func() error {
		if tier, err := (jobs.FileTiers{Set: follow.Set}).Tier(ctx, "ann"); err != nil || tier.Limits.Total != 2 {
			return fmt.Errorf("%d jobs, %w", tier.Limits.Total, err)
		}
		return nil
	})
	loops.Go(func() { _ = q.runner.Run(ctx) })

	const all = 8
	for i := range all {
		q.start(ctx, fmt.Sprint(i))
	}
	runs := func(want int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d jobs run", want), func() error {
			if n := running.Load(); n != want {
				return fmt.Errorf("%d do", n)
			}
			return nil
		})
	}
	runs(2)
	end <- struct{}{}
	runs(2)
	if n := most.Load(); n != 2 {
		t.Errorf("%d jobs ran at once, want 2 at most", n)
	}
	s.SetLimits(t, text(4))
	runs(4)
	for range all - 1 {
		end <- struct{}{}
	}
	runs(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := done.Load(); n != all || most.Load() != 4 || len(q.failed) > 0 {
		t.Errorf("%d jobs of %d are done, at most %d at once, %v failed; want all, 4 and none", n, all, most.Load(), q.failed)
	}
}
