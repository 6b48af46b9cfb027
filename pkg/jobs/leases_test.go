package jobs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// unsureSlots may forget who has a slot, and not answer to Renew.
type unsureSlots struct {
	Slots
	silent atomic.Bool
}

func (s *unsureSlots) forget(t *testing.T, claim Claim) {
	t.Helper()
	if _, err := s.Release(t.Context(), claim, Limits{Total: 1}, time.Hour); err != nil {
		t.Fatal(err)
	}
}

func (s *unsureSlots) Renew(ctx context.Context, claims []Claim, lease time.Duration) ([]Claim, error) {
	if s.silent.Load() {
		return nil, errors.New("no answer")
	}
	return s.Slots.Renew(ctx, claims, lease)
}

func TestLeases(t *testing.T) {
	one, claim := Limits{Total: 1}, claimOf("ann", "app.1", "a")
	for _, c := range []struct {
		name   string
		after  func(t *testing.T, slots *unsureSlots) // happens when a job has run for a second
		lostIn time.Duration                          // when the job has lost its slot, in seconds of its life; 0 is never
	}{
		{"they are renewed for as long as the job runs", func(*testing.T, *unsureSlots) {}, 0},
		{"slots that forgot the job give it a new one", func(t *testing.T, slots *unsureSlots) {
			slots.forget(t, claim)
		}, 0},
		{"another job has the place in slots that forgot", func(t *testing.T, slots *unsureSlots) {
			slots.forget(t, claim)
			if verdict, err := slots.Acquire(t.Context(), claimOf("ann", "app.2", "b"), one, time.Hour, false); err != nil || !verdict.Granted {
				t.Fatalf("Acquire() = %+v, %v, want it granted", verdict, err)
			}
		}, 5 * time.Second}, // at the first renewal
		{"another attempt has the job's slot", func(t *testing.T, slots *unsureSlots) {
			if verdict, err := slots.Acquire(t.Context(), claimOf("ann", "app.1", "b"), one, time.Hour, false); err != nil || !verdict.Granted {
				t.Fatalf("Acquire() = %+v, %v, want it granted", verdict, err)
			}
		}, 5 * time.Second},
		{"slots that do not answer until the lease is over", func(_ *testing.T, slots *unsureSlots) {
			slots.silent.Store(true)
		}, 15 * time.Second},
		{"slots that answer again in time", func(_ *testing.T, slots *unsureSlots) {
			slots.silent.Store(true)
			time.AfterFunc(10*time.Second, func() { slots.silent.Store(false) })
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := &unsureSlots{Slots: NewMemory(nil)}
				runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: noQueue{}})
				leases := runner.leases
				running, stop := context.WithCancel(t.Context())
				defer stop()
				go leases.runRenewals(running)

				if verdict, err := slots.Acquire(t.Context(), claim, one, runner.cfg.Lease, false); err != nil || !verdict.Granted {
					t.Fatalf("Acquire() = %+v, %v, want it granted", verdict, err)
				}
				began := time.Now()
				job, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				leases.addLease(&lease{claim: claim, limits: one, until: began.Add(runner.cfg.Lease), cancel: cancel})
				time.Sleep(time.Second)
				c.after(t, slots)

				var lostIn time.Duration
				select {
				case <-job.Done():
					if cause := context.Cause(job); !errors.Is(cause, ErrLeaseLost) {
						t.Errorf("the job's context ended: %v, want %v", cause, ErrLeaseLost)
					}
					lostIn = time.Since(began)
				case <-time.After(time.Hour):
				}
				if lostIn != c.lostIn {
					t.Errorf("the job lost its slot after %v, want %v", lostIn, c.lostIn)
				}
				lost := testutil.ToFloat64(runner.metrics.Lost)
				if want := map[bool]float64{true: 0, false: 1}[c.lostIn == 0]; lost != want {
					t.Errorf("%v leases are counted as lost, want %v", lost, want)
				}
				if held := leases.remove(claim.Holder); held != (c.lostIn == 0) {
					t.Errorf("remove() = %v, want %v", held, c.lostIn == 0)
				}
				// Nobody gives a slot back that was regained, unless the job had ended by then.
				if left := len(leases.releaser.unreleased); left != 0 {
					t.Errorf("%d slots are to be given back, want 0", left)
				}
			})
		})
	}
}
