package agent

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func newTestByTier() *byTier {
	return newByTier(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x_total", Help: "x"}, []string{"tier", "verdict", "limit"}), 3)
}

func TestByTier(t *testing.T) {
	b := newTestByTier()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				b.count(outcome("free", "allowed", ""))
				b.count(outcome("free", "refused", "GET"))
			}
			b.count(outcome("pro", "refused", "GET"))
		})
	}
	all.Wait()
	if err := testutil.CollectAndCompare(b.counters, strings.NewReader(`
# HELP x_total x
# TYPE x_total counter
x_total{limit="",tier="free",verdict="allowed"} 800
x_total{limit="GET",tier="free",verdict="refused"} 800
x_total{limit="GET",tier="pro",verdict="refused"} 8
`)); err != nil {
		t.Error(err)
	}
}

// A limit file with a tier for each user does not make a series for each.
func TestByTierIsBounded(t *testing.T) {
	b := newTestByTier()
	for i := range maxByTier + 50 {
		b.count(outcome(fmt.Sprint("tier", i), "allowed", ""))
	}
	b.count(outcome("late", "refused", "GET"))
	if n := testutil.CollectAndCount(b.counters); n != maxByTier+2 {
		t.Errorf("%d series, want %d", n, maxByTier+2)
	}
	for verdict, want := range map[string]float64{"allowed": 50, "refused": 1} {
		if got := testutil.ToFloat64(b.counters.WithLabelValues(otherTier, verdict, "")); got != want {
			t.Errorf("%s of tier other = %v, want %v", verdict, got, want)
		}
	}
	if n := len(*b.seen.Load()); n != maxByTier+2 {
		t.Errorf("%d counters are remembered, want %d", n, maxByTier+2)
	}
	sum := int64(0)
	for _, n := range b.takeCounts() {
		sum += n
	}
	if sum != maxByTier+51 {
		t.Errorf("%d requests are taken, want all %d", sum, maxByTier+51)
	}
	if again := b.takeCounts(); len(again) > 0 {
		t.Errorf("what was taken is there again: %v", again)
	}
}
