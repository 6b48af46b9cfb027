package polygen

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/policy"
)

func TestUntracedRoundsCostNothing(t *testing.T) {
	p := newGenerator(t, "127.0.0.1:1", "a", nil).Polygen
	messages := []policy.Addressed{{Message: policy.Unblock{User: "alice"}}}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		p.round.began = time.Now()
		sent, span := p.tracePublishing(ctx, messages)
		span.End(nil)
		if len(sent) != len(messages) {
			t.Errorf("%d messages are sent, want %d", len(sent), len(messages))
		}
		p.endRound(ctx)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestPolicyCounts(t *testing.T) {
	got := map[string]int64{}
	for _, a := range policyCounts([]policy.Addressed{{Message: policy.Unblock{}}, {Message: policy.Throttle{}}, {Message: policy.Throttle{}}, {Message: policy.Hot{}}}) {
		got[string(a.Key)] = a.Value.AsInt64()
	}
	want := map[string]int64{"sluice.policies.unblock": 1, "sluice.policies.throttle": 2, "sluice.policies.hot": 1, "sluice.policies.total": 4}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policyCounts (-want +got):\n%s", diff)
	}
}

// BenchmarkUntracedRound is one round of decide that sends nothing.
func BenchmarkUntracedRound(b *testing.B) {
	p := newGenerator(b, "127.0.0.1:1", "a", nil).Polygen
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		p.round.began = time.Now()
		p.sendPolicies(ctx)
		p.endRound(ctx)
	}
}
