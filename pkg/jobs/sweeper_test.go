package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func (r *Runner) sweeps(result string) float64 {
	return testutil.ToFloat64(r.metrics.Sweeps.WithLabelValues(result))
}

// park has a job of a user run and another one wait.
func park(t *testing.T, slots Slots, user string) {
	t.Helper()
	for _, job := range []string{"runs", "waits"} {
		if _, err := slots.Acquire(t.Context(), claimOf(user, user+"."+job, job), Limits{Total: 1}, time.Minute, true); err != nil {
			t.Fatal(err)
		}
	}
}

// One process sweeps; when it ends another one does at once, and when it is killed after
// less time than a reservation lasts.
func TestOneProcessSweepsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := NewMemory(nil)
		ended := 0
		a := newTestRunner(t, RunnerConfig{Slots: slots, Queue: noQueue{}, AfterSweeps: func() { ended++ }})
		b := newTestRunner(t, RunnerConfig{Slots: slots, Queue: noQueue{}})
		stopA := runs(t, a)
		time.Sleep(10 * time.Millisecond)
		runs(t, b)
		time.Sleep(10 * time.Second)
		if got := b.sweeps("done"); got != 0 || a.sweeps("done") < 9 {
			t.Errorf("%v sweeps of the second process and %v of the first in 10 s, want 0 and one a second", got, a.sweeps("done"))
		}
		stopA()
		if ended != 1 {
			t.Errorf("AfterSweeps was called %d times, want 1", ended)
		}
		time.Sleep(1100 * time.Millisecond)
		if b.sweeps("done") == 0 {
			t.Error("nobody sweeps a second after the end of who did")
		}
		if b.sweeps("error") != 0 || a.sweeps("error") != 0 {
			t.Error("a sweep failed")
		}
		// A process that was killed holds the turn until its lease ends.
		c := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}})
		if err := newSweeper(c.runnerParts, c.waker, "killed").sweepInTurn(t.Context()); err != nil {
			t.Fatal(err)
		}
		runs(t, c)
		time.Sleep(turnLease - time.Millisecond)
		if got := c.sweeps("done"); got != 1 {
			t.Errorf("%v sweeps while another process has the turn, want its own", got)
		}
		time.Sleep(time.Second + time.Millisecond)
		if c.sweeps("done") < 2 {
			t.Errorf("nobody sweeps %v after a process was killed that did, want less than a reservation of %v", turnLease+time.Second, c.cfg.Reserve)
		}
	})
}

// deaf are Slots that do not answer some questions.
type deaf struct {
	Slots
	waiting, taken bool
}

func (d *deaf) Waiting(ctx context.Context, after string, n int) ([]string, error) {
	if d.waiting {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Slots.Waiting(ctx, after, n)
}

func (d *deaf) Taken(ctx context.Context, users []string) ([]Slot, error) {
	if d.taken {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Slots.Taken(ctx, users)
}

func TestSlotsThatHangEndASweep(t *testing.T) {
	for _, c := range []struct {
		name  string
		slots deaf
		takes time.Duration
	}{
		{"for all", deaf{waiting: true}, 5 * time.Second},
		{"for a page", deaf{taken: true}, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.slots.Slots = NewMemory(nil)
				for i := range 5 {
					park(t, c.slots.Slots, fmt.Sprint("user", i))
				}
				runner := newTestRunner(t, RunnerConfig{Slots: &c.slots, Queue: noQueue{}})
				began := time.Now()
				err := runner.sweeper.sweepInTurn(t.Context())
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != c.takes {
					t.Errorf("a sweep ends with %v after %v, want %v after %v", err, time.Since(began), context.DeadlineExceeded, c.takes)
				}
			})
		})
	}
}

// What was lost comes back: a wake-up with the next sweep, and parked jobs that the slots have
// forgotten within ten.
func TestASweepMakesGoodWhatWasLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		lose   func(t *testing.T, slots Slots, queue *memoryQueue)
		within time.Duration
	}{
		{"a wake-up", func(t *testing.T, slots Slots, _ *memoryQueue) { // by a worker that died between the two calls
			if _, err := slots.Release(t.Context(), claimOf("ann", "1", "a"), Limits{Total: 1}, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}, time.Second},
		{"a slot that nobody gave back", func(*testing.T, Slots, *memoryQueue) {}, time.Minute + time.Second},
		{"the slots' memory", func(t *testing.T, slots Slots, _ *memoryQueue) {
			if err := slots.Forget(t.Context(), Job{User: "ann", ID: "2"}); err != nil {
				t.Fatal(err)
			}
			if _, err := slots.Release(t.Context(), claimOf("ann", "1", "a"), Limits{Total: 1}, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}, 15 * time.Second}, // ten sweeps, of which the first may come too soon after the refusal
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots, queue := NewMemory(nil), &memoryQueue{}
				runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: queue, ParkFor: time.Hour})
				if _, err := slots.Acquire(t.Context(), claimOf("ann", "1", "a"), Limits{Total: 1}, time.Minute, true); err != nil {
					t.Fatal(err)
				}
				runs(t, runner)
				queue.add("ann", "2")
				ctx, stop := context.WithCancel(t.Context())
				ran := make(chan time.Time, 1)
				var worker sync.WaitGroup
				worker.Go(func() {
					queue.work(ctx, runner, func(context.Context, string, string) error { ran <- time.Now(); return nil })
				})
				defer worker.Wait()
				defer stop()
				time.Sleep(100 * time.Millisecond)
				if usage, err := slots.User(t.Context(), "ann"); err != nil || len(usage.Parked) != 1 {
					t.Fatalf("%+v, %v: want job 2 parked", usage, err)
				}
				began := time.Now()
				c.lose(t, slots, queue)
				if took := (<-ran).Sub(began); took > c.within+20*time.Millisecond {
					t.Errorf("the job that waits ran %v after it was lost, want %v at most", took, c.within)
				}
			})
		})
	}
}

// A job may have lost its user while it waited: its kind is now one of the system's. It runs without a slot, and
// does not keep other jobs from being found.
func TestAParkedJobWithoutAUserIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &memoryQueue{}
		for id, user := range map[string]string{"1": "", "2": "ann"} {
			queue.add(user, id)
			queue.jobs[id].available, queue.jobs[id].delay = false, &Delay{Parked: true}
			queue.jobs[id].until = time.Now().Add(time.Hour)
		}
		runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: queue})
		time.Sleep(runner.cfg.Reserve + time.Second)
		stop := runs(t, runner)
		time.Sleep(time.Second)
		stop()
		for id, job := range queue.jobs {
			if !job.available {
				t.Errorf("job %s of the user %q still waits, want it available", id, job.user)
			}
		}
		if failed, done := runner.sweeps("error"), runner.sweeps("done"); failed != 0 || done == 0 {
			t.Errorf("%v sweeps have failed and %v are done, want none and some", failed, done)
		}
	})
}

// A sweep asks for all users who wait at once, and for one alone only if they have a free slot.
func TestASweepAsksForUsersTogether(t *testing.T) {
	slots := &counted{Slots: NewMemory(nil), calls: map[string]int{}}
	for i := range 5 {
		park(t, slots, fmt.Sprint("user", i))
	}
	runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: awake{}})
	for _, step := range []struct {
		free string
		want map[string]int
	}{
		{"", map[string]int{"taken": 1}},
		{"user3", map[string]int{"taken": 1, "ReserveFree user3": 1}},
		{"", map[string]int{"taken": 1}}, // the slot is reserved
	} {
		if step.free != "" {
			slots.free(t, step.free)
		}
		slots.calls = map[string]int{}
		if err := runner.sweeper.reserveFreeSlots(t.Context()); err != nil || !maps.Equal(slots.calls, step.want) {
			t.Errorf("a sweep after a slot of %q became free: %v, %v, want %v", step.free, slots.calls, err, step.want)
		}
	}
}

// awake is a queue all of whose jobs are available.
type awake struct{ noQueue }

func (awake) Wake(_ context.Context, ids []string) (map[string]WakeResult, error) {
	results := map[string]WakeResult{}
	for _, id := range ids {
		results[id] = WakeAwake
	}
	return results, nil
}

// counted are Slots that count calls of a sweep.
type counted struct {
	Slots
	calls map[string]int
}

func (c *counted) Taken(ctx context.Context, users []string) ([]Slot, error) {
	c.calls["taken"]++
	return c.Slots.Taken(ctx, users)
}

func (c *counted) ReserveFree(ctx context.Context, user string, l Limits, reserve time.Duration) ([]Job, error) {
	c.calls["ReserveFree "+user]++
	return c.Slots.ReserveFree(ctx, user, l, reserve)
}

// free ends the lease of a user's slot, which nobody gives back.
func (c *counted) free(t *testing.T, user string) {
	t.Helper()
	if lost, err := c.Renew(t.Context(), []Claim{claimOf(user, user+".runs", "runs")}, time.Nanosecond); err != nil || len(lost) > 0 {
		t.Fatalf("Renew = %v, %v", lost, err)
	}
	<-time.After(time.Millisecond)
}

// choosy are Slots that do not reserve slots of some users.
type choosy struct {
	Slots
	not string // begins their names
}

func (c *choosy) ReserveFree(ctx context.Context, user string, l Limits, reserve time.Duration) ([]Job, error) {
	if strings.HasPrefix(user, c.not) {
		return nil, errors.New("not for this user")
	}
	return c.Slots.ReserveFree(ctx, user, l, reserve)
}

type twoEach struct{}

func (twoEach) Tier(context.Context, string) (Tier, error) {
	return Tier{Limits: Limits{Total: 2}}, nil
}

// A failure may be about one user alone.
func TestASweepThatFailsForAUserGoesOn(t *testing.T) {
	slots := &choosy{NewMemory(nil), "bad"}
	for _, user := range []string{"bad0", "bad1", "bad2", "zed"} {
		park(t, slots, user)
	}
	runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: awake{}, Tiers: twoEach{}})
	if err := runner.sweeper.sweepInTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if usage, err := slots.User(t.Context(), "zed"); err != nil || len(usage.Reserved) != 1 {
		t.Errorf("the user behind them has %+v, %v, want a reservation", usage, err)
	}
	if got := testutil.ToFloat64(runner.metrics.Errors.WithLabelValues("sweep")); got != 3 {
		t.Errorf("%v failures are counted, want 3", got)
	}
}

// The alert on sweeps needs a 0 to see a process that never sweeps.
func TestAProcessThatNeverSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runner := newTestRunner(t, RunnerConfig{Slots: &deaf{Slots: NewMemory(nil), waiting: true}, Queue: noQueue{}})
		if n := testutil.CollectAndCount(runner.metrics.Sweeps); n != 0 {
			t.Errorf("a process that only inserts has %d series of sweeps, want 0", n)
		}
		runs(t, runner)
		time.Sleep(10 * time.Second)
		if n := testutil.CollectAndCount(runner.metrics.Sweeps); n != 2 || runner.sweeps("done") != 0 {
			t.Errorf("%d series of sweeps, %v of them done, want 2 (done, error) and none", n, runner.sweeps("done"))
		}
	})
}
