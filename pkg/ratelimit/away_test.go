package ratelimit_test

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// What HAProxies admit by themselves while their agents are away is nobody else's, and everybody's again in the second
// after the last in which they are.
func TestAwayHaveTheirPart(t *testing.T) {
	sec := h0.Unix()
	for _, tt := range []struct {
		name      string
		instances int
		rates     []limits.Rate
		away      []ratelimit.Away
		want      int
	}{
		{"nobody is away", 3, per(12, 0, 0, 0), nil, 12},
		{"one of three", 3, per(12, 0, 0, 0), []ratelimit.Away{{Of: 3, Through: sec}}, 8},
		{"one of two", 1, per(12, 0, 0, 0), []ratelimit.Away{{Of: 2, Through: sec}}, 6},
		{"one after the other", 2, per(12, 0, 0, 0), []ratelimit.Away{{Of: 4, Through: sec}, {Of: 3, Through: sec}}, 5},
		{"all but this one", 1, per(12, 0, 0, 0), []ratelimit.Away{{Of: 4, Through: sec}, {Of: 3, Through: sec}, {Of: 2, Through: sec}}, 3},
		{"one that is there, of whose part the portion is reserved", 3, per(12, 0, 0, 0), []ratelimit.Away{{Of: 3, Through: sec, Counted: sec}}, 9},
		{"one that is there from the next second on", 3, per(12, 0, 0, 0), []ratelimit.Away{{Of: 3, Through: sec, Counted: sec + 1}}, 8},
		{"one that is back", 3, per(12, 0, 0, 0), []ratelimit.Away{{Of: 3, Through: sec - 1}}, 12},
		{"a limit with no part for it", 3, per(2, 0, 0, 0), []ratelimit.Away{{Of: 3, Through: sec}}, 2},
		{"a limit of a minute is counted by the agents", 3, per(0, 0, 12, 0), []ratelimit.Away{{Of: 3, Through: sec}}, 12},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(tt.instances, tt.rates)
			r.Away(tt.away)
			if got := r.admitted(20, 5*time.Millisecond); got != tt.want {
				t.Errorf("admitted in the second = %d, want %d", got, tt.want)
			}
			if tt.rates[0].Window != limits.Second {
				return
			}
			r.pass(h0.Add(1100 * time.Millisecond).Sub(r.at))
			if got := r.admitted(20, 5*time.Millisecond); got != tt.rates[0].Max {
				t.Errorf("admitted in the next = %d, want all %d", got, tt.rates[0].Max)
			}
		})
	}
}

// Who is alone while another one is away lends its HAProxy nothing: that would be the whole limit.
func TestAwayAndNoCreditOfTheWhole(t *testing.T) {
	r := newRig(1, per(12, 0, 0, 0))
	r.Away([]ratelimit.Away{{Of: 2, Through: h0.Unix() + 1}})
	rates := per(12, 0, 0, 0)
	if now := h0.Add(100 * time.Millisecond); r.Lendable(now, "u", rates) || !r.Lendable(now.Add(2*time.Second), "u", rates) {
		t.Error("an agent that is alone may lend while another one is away, or never again")
	}
}
