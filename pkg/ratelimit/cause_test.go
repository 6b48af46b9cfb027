package ratelimit_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestCause has a request refused in each way that there is.
func TestCause(t *testing.T) {
	key := ratelimit.Key{Class: "GET", User: "u"}
	alone := func() *ratelimit.Agent { return shared(1) }
	pair := func() *ratelimit.Agent { return shared(2) }
	// last starts n requests at once, and returns the verdict of the last one, which must not wait.
	last := func(t *testing.T, a *ratelimit.Agent, at, n, limit int, c ratelimit.Credit) ratelimit.Verdict {
		t.Helper()
		for range n - 1 {
			a.Start(ms(at), "u", get(limit), c)
		}
		v, w := a.Start(ms(at), "u", get(limit), c)
		if w != nil {
			t.Fatal("the last request waits")
		}
		return v
	}
	for _, tt := range []struct {
		name   string
		want   cause.Cause
		refuse func(*testing.T) ratelimit.Verdict
	}{
		{"an agent that is alone has admitted the limit", cause.OwnCount, func(t *testing.T) ratelimit.Verdict {
			return last(t, alone(), 0, 5, 4, ratelimit.NoCredit)
		}},
		{"the same without Redis, of which it needs nothing", cause.OwnCount, func(t *testing.T) ratelimit.Verdict {
			a := alone()
			a.Lost(ms(0), true)
			return last(t, a, 0, 5, 4, ratelimit.NoCredit)
		}},
		{"the pool has nothing left", cause.Pool, func(t *testing.T) ratelimit.Verdict {
			a := pair()
			a.Start(ms(0), "u", get(4), ratelimit.NoCredit)
			exchange(a, ms(1), map[poolKey]int{{t0.Unix(), key}: 4})
			return last(t, a, 2, 1, 4, ratelimit.NoCredit)
		}},
		{"Redis is lost, and the limit is used up here", cause.RedisLost, func(t *testing.T) ratelimit.Verdict {
			a := pair()
			a.Lost(ms(0), true)
			return last(t, a, 0, 5, 4, ratelimit.NoCredit)
		}},
		{"Redis does not answer, and this agent's part is used up", cause.RedisLate, func(t *testing.T) (v ratelimit.Verdict) {
			a := pair()
			for range 3 { // of 4 its part is 2
				_, w := a.Start(ms(0), "u", get(4), ratelimit.NoCredit)
				v = a.Timeout(ms(10), w)
			}
			return v
		}},
		{"as many wait as the limit could admit", cause.QueueFull, func(t *testing.T) ratelimit.Verdict {
			return last(t, pair(), 0, 5, 4, ratelimit.NoCredit)
		}},
		{"HAProxy had the limit as credit and has used it up", cause.CreditSpent, func(t *testing.T) ratelimit.Verdict {
			return last(t, alone(), 0, 1, 4, ratelimit.Spent)
		}},
		{"HAProxy does not say what it has used", cause.CreditUnknown, func(t *testing.T) ratelimit.Verdict {
			a := alone()
			_, w := a.Start(ms(0), "u", get(4), ratelimit.Uncertain)
			return a.Timeout(ms(10), w)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if v := tt.refuse(t); v.Allowed || v.Cause != tt.want {
				t.Errorf("verdict = %+v, want it refused with the cause %q", v, tt.want)
			}
		})
	}
}
