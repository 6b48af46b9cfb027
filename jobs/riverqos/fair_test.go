package riverqos_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

func TestALongBacklogHoldsNobodyUp(t *testing.T) {
	r := start(t)
	first := r.insert(1000, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	r.finished(r.insert(3, task{User: "bob"}, "slow_default")) // though all of ann's hang
	if got, want := r.states()["gated"], len(first)-1; got != want {
		t.Errorf("%d jobs of ann's are gated, want %d", got, want)
	}
	r.atMost("ann", 1)
}

func TestASlowQueueDoesNotBlockAFastOne(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		name    string
		options []option
	}{
		{"through the gate", nil},
		{"parked and woken", []option{ungated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, c.options...)
			r.tiers.set("ann", jobs.Limits{Total: 3, Queues: map[string]int{"slow": 2}})
			r.insert(20, task{User: "ann", Do: "hang"}, "slow_default")
			r.runs("ann", 2)
			r.finished(r.insert(10, task{User: "ann", Do: "brief"}, "fast_default"))
			r.atMost("ann", 3)
		})
	}
}

// A service has three queues. Jobs that wait for a worker of one do not hold those of
// the same user in another up.
func TestAQueueWithoutWorkersDoesNotBlockItsService(t *testing.T) {
	r := start(t)
	r.insert(2, task{User: "ann"}, "slow_scheduled")
	r.finished(r.insert(3, task{User: "ann", Do: "brief"}, "slow_default"))
	r.atMost("ann", 1)
}

func TestARaisedLimitTakesEffect(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []option
	}{
		{"through the gate", []option{sweeping}},
		{"parked and woken", []option{sweeping, ungated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.options...)
			ids := r.insert(5, task{User: "ann", Do: "hang"}, "slow_default")
			r.runs("ann", 1)
			r.tiers.set("ann", jobs.Limits{Total: 4})
			r.runs("ann", 4)
			close(r.gate("hang"))
			r.finished(ids)
			r.atMost("ann", 4)
		})
	}
}

func TestALoweredLimitTakesEffect(t *testing.T) {
	r := start(t, ungated)
	r.tiers.set("ann", jobs.Limits{Total: 4})
	ids := r.insert(4, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 4)
	more := r.insert(4, task{User: "ann", Do: "gate"}, "fast_default")
	r.inLine("ann", 4)
	r.tiers.set("ann", jobs.Limits{Total: 1})
	close(r.gate("hang"))
	r.finished(ids)
	r.runs("ann", 1)
	r.mu.Lock()
	r.most["ann"] = 0
	r.mu.Unlock()
	close(r.gate("gate"))
	r.finished(more)
	r.atMost("ann", 1)
}

func TestAJobWithoutUserIsGovernedByNothing(t *testing.T) {
	r := start(t)
	ids := r.insert(5, task{Do: "hang"}, "slow_default")
	r.runs("", 5)
	close(r.gate("hang"))
	r.finished(ids)
	if got := r.states()["gated"]; got != 0 {
		t.Errorf("%d jobs are gated, want 0", got)
	}
}

func TestTheSlotIsGivenBackHoweverAJobEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		do    string
		state string // of the job then
	}{
		{"", "completed"},
		{"fail", "retryable"},
		{"panic", "retryable"},
		{"cancel", "cancelled"},
		{"snooze", "scheduled"},
	} {
		for name, options := range map[string][]option{"gated": {late}, "parked": {late, ungated}} {
			t.Run(c.do+" "+name, func(t *testing.T) {
				t.Parallel()
				r := start(t, options...)
				r.insert(1, task{User: "ann", Do: c.do}, "slow_default")
				r.finished(r.insert(3, task{User: "ann"}, "slow_default"))
				r.atMost("ann", 1)
				testkit.Eventually(t, "it is over", func() error {
					if got := r.states(); got[c.state] == 0 {
						return fmt.Errorf("states are %v, want one that is %s", got, c.state)
					}
					if u := r.usage("ann"); len(u.Held)+len(u.Reserved)+len(u.Parked) != 0 {
						return fmt.Errorf("User(ann) = %+v, want none", u)
					}
					return nil
				})
			})
		}
	}
}

// late retries in an hour.
func late(_ *riverqos.Config, c *river.Config) { c.RetryPolicy = hour{} }

type hour struct{}

func (hour) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(time.Hour) }

func TestAnOutageOfTheSlotsCostsNoAttempt(t *testing.T) {
	t.Parallel() // it mostly waits
	broken := &breakable{Slots: jobs.NewMemory(nil)}
	r := start(t, sweeping, func(c *riverqos.Config, _ *river.Config) { c.Runner.Slots = broken })
	held := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	broken.down.Store(true)
	others := r.insert(2, task{User: "bob"}, "slow_default")
	testkit.Eventually(t, "a job is refused", func() error { return r.counted("sluice_jobs_refused_total", "unreachable") })
	close(r.gate("hang")) // its slot cannot be given back now
	r.finished(held)
	more := r.insert(1, task{User: "ann"}, "slow_default")
	broken.down.Store(false)
	r.finished(append(others, more...))
	r.atMost("ann", 1)
	r.atMost("bob", 1)
	if n := r.spent(); n != 1 {
		t.Errorf("a job spent %d attempts, want 1", n)
	}
}

// breakable are Slots that do not answer when they are down.
type breakable struct {
	jobs.Slots
	down atomic.Bool
}

var errDown = errors.New("down")

func (b *breakable) Acquire(ctx context.Context, c jobs.Claim, l jobs.Limits, lease time.Duration, park bool) (jobs.Verdict, error) {
	if b.down.Load() {
		return jobs.Verdict{}, errDown
	}
	return b.Slots.Acquire(ctx, c, l, lease, park)
}

func (b *breakable) Renew(ctx context.Context, claims []jobs.Claim, lease time.Duration) ([]jobs.Claim, error) {
	if b.down.Load() {
		return nil, errDown
	}
	return b.Slots.Renew(ctx, claims, lease)
}

func (b *breakable) Release(ctx context.Context, c jobs.Claim, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	if b.down.Load() {
		return nil, errDown
	}
	return b.Slots.Release(ctx, c, l, reserve)
}

func (b *breakable) Waiting(ctx context.Context, after string, n int) ([]string, error) {
	if b.down.Load() {
		return nil, errDown
	}
	return b.Slots.Waiting(ctx, after, n)
}
