package concurrency_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// TestCause has a request refused in each way that there is. The limit is 10.
func TestCause(t *testing.T) {
	// next is the verdict of one request more, which must not wait for the pool.
	next := func(t *testing.T, r *rig, at int) concurrency.Verdict {
		t.Helper()
		v, w := r.Start(ms(at), "u", 10, count{}, concurrency.Places{})
		if w != nil {
			t.Fatal("the request waits")
		}
		return v
	}
	for _, tt := range []struct {
		name      string
		want      cause.Cause
		instances int
		refuse    func(*testing.T, *rig) concurrency.Verdict
	}{
		{"an agent that is alone runs the limit", cause.OwnCount, 1, func(t *testing.T, r *rig) concurrency.Verdict {
			r.start(0, 10)
			return next(t, r, 0)
		}},
		{"the pool has no slot, and who holds idle ones had time to give them back", cause.Pool, 2, func(t *testing.T, r *rig) concurrency.Verdict {
			r.pool["other"] = concurrency.Holding{Held: 10, Active: 10, Seq: 1}
			_, waiting := r.start(0, 1)
			for at := 1; at < 40; at += 5 {
				r.exchange(at, true)
				r.Tick(ms(at))
			}
			return waiting[0].Verdict
		}},
		{"the pool has no slot, and who holds idle ones may yet give them back", cause.Pool, 2, func(t *testing.T, r *rig) concurrency.Verdict {
			r.pool["other"] = concurrency.Holding{Held: 10, Active: 2, Seq: 1}
			_, waiting := r.start(0, 1)
			r.exchange(1, true)
			return r.Timeout(ms(20), waiting[0])
		}},
		{"Redis is lost, and the limit runs here", cause.RedisLost, 2, func(t *testing.T, r *rig) concurrency.Verdict {
			r.Lost(ms(0), true)
			r.start(0, 10)
			return next(t, r, 0)
		}},
		{"Redis does not answer, and this agent's part runs", cause.RedisLate, 2, func(t *testing.T, r *rig) (v concurrency.Verdict) {
			_, waiting := r.start(0, 6) // its part is 5
			for _, w := range waiting {
				v = r.Timeout(ms(10), w)
			}
			return v
		}},
		{"as many wait as the limit could admit", cause.QueueFull, 2, func(t *testing.T, r *rig) concurrency.Verdict {
			r.start(0, 10)
			return next(t, r, 0)
		}},
		{"some wait in line", cause.LineFull, 1, func(t *testing.T, r *rig) concurrency.Verdict {
			r.start(0, 10)
			r.Hold(ms(0), "u", 10, count{}, concurrency.Places{})
			return next(t, r, 1)
		}},
		{"nothing became free while it waited in line", cause.LineTimeout, 1, func(t *testing.T, r *rig) concurrency.Verdict {
			r.start(0, 10)
			_, w := r.Hold(ms(0), "u", 10, count{}, concurrency.Places{})
			return r.Timeout(ms(1000), w)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if v := tt.refuse(t, newRig(t, tt.instances)); v.Allowed || v.Cause != tt.want {
				t.Errorf("verdict = %+v, want it refused with the cause %q", v, tt.want)
			}
		})
	}
}

// TestCauseOfALineThatIsFull: nobody may wait beside so many.
func TestCauseOfALineThatIsFull(t *testing.T) {
	r := newRigOf(t, 1, concurrency.Config{MaxLine: 1})
	r.start(0, 10)
	r.Hold(ms(0), "u", 10, count{}, concurrency.Places{})
	if v, w := r.Hold(ms(0), "u", 10, count{}, concurrency.Places{}); w != nil || v.Cause != cause.LineFull {
		t.Errorf("Hold beside a full line = %+v, %v, want it refused with the cause %q", v, w, cause.LineFull)
	}
}

// TestCauseOfAWithdrawalWithoutAnswer: a request waits to know what HAProxy has in progress.
func TestCauseOfAWithdrawalWithoutAnswer(t *testing.T) {
	limit := 10
	r := newCreditRig(t, 1, &limit)
	r.start(0, 1)
	lent := r.Lend(ms(0), "u")
	var w *concurrency.Waiting
	for here := lent + 1; w == nil && here < 20; here++ { // each finds no place
		_, w = r.ask(200, limit, count{}, places{true, here, lent})
	}
	if w == nil {
		t.Fatal("no request waits")
	}
	if v := r.Timeout(ms(210), w); v.Allowed || v.Cause != cause.CreditUnknown {
		t.Errorf("verdict = %+v, want it refused with the cause %q", v, cause.CreditUnknown)
	}
}
