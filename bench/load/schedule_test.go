package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestArrivals(t *testing.T) {
	tests := []struct {
		name     string
		arrivals Arrivals
		rate     float64
		total    time.Duration
		want     []time.Duration
	}{
		{"uniform is evenly spaced from zero", Uniform, 100, 50 * ms, []time.Duration{0, 10 * ms, 20 * ms, 30 * ms, 40 * ms}},
		{"uniform sends at zero however slow", Uniform, 0.001, time.Second, []time.Duration{0}},
		{"uniform ends before the total", Uniform, 1000, 2 * ms, []time.Duration{0, ms}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.arrivals(tt.rate, tt.total, nil)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("arrivals(%v, %v) (-want +got):\n%s", tt.rate, tt.total, diff)
			}
		})
	}
	if got := len(Uniform(10_000, time.Minute, nil)); got != 600_000 {
		t.Errorf("Uniform(10000, 1m) has %d arrivals, want 600000: no time is lost to rounding", got)
	}
}

func TestPoissonIsFixedByItsSeed(t *testing.T) {
	const rate, total = 1000, 20 * time.Second
	of := func(seed uint64) []time.Duration { return Poisson(rate, total, rand.New(rand.NewPCG(seed, 0))) }
	a := of(1)
	if !slices.Equal(a, of(1)) {
		t.Error("the same seed gives different arrivals")
	}
	if slices.Equal(a, of(2)) {
		t.Error("different seeds give the same arrivals")
	}
	if !slices.IsSorted(a) || a[0] < 0 || a[len(a)-1] >= total {
		t.Errorf("arrivals from %v to %v are not in order or not before %v", a[0], a[len(a)-1], total)
	}
	// Seed 1 is fixed, so this is no matter of luck. The number of arrivals and the
	// share of gaps that exceed the mean (1/e) are Poisson's within 4 standard deviations.
	long := 0
	for i := 1; i < len(a); i++ {
		if a[i]-a[i-1] > time.Second/rate {
			long++
		}
	}
	n := float64(len(a))
	if math.Abs(n-20_000) > 4*math.Sqrt(20_000) || math.Abs(float64(long)-n/math.E) > 4*math.Sqrt(n*(1-1/math.E)/math.E) {
		t.Errorf("%v arrivals with %d gaps above the mean, want about 20000 and %.0f", n, long, n/math.E)
	}
}

func TestSpread(t *testing.T) {
	tests := []struct {
		name, pattern string
		targets       int
		at            time.Duration
		want          []float64 // part of the load of each target
	}{
		{"even", "even", 4, 0, []float64{0.25, 0.25, 0.25, 0.25}},
		{"90/10 over two", "90/10", 2, time.Second, []float64{0.9, 0.1}},
		{"90/10 over three", "90/10", 3, 0, []float64{0.9, 0.05, 0.05}},
		{"90/10 alone", "90/10", 1, 0, []float64{1}},
		{"jump begins at the first", "jump", 3, 999 * ms, []float64{1, 0, 0}},
		{"jump moves with the second", "jump", 3, time.Second, []float64{0, 1, 0}},
		{"jump comes back", "jump", 3, 3 * time.Second, []float64{1, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			targets, err := Spread(tt.pattern, make([]string, tt.targets)...)
			if err != nil {
				t.Fatal(err)
			}
			const n = 10_000 // evenly spaced luck gives the exact parts
			got := make([]float64, tt.targets)
			for i := range n {
				got[choose(targets, tt.at, (float64(i)+0.5)/n, make([]float64, tt.targets))] += 1.0 / n
			}
			for i := range got {
				if math.Abs(got[i]-tt.want[i]) > 1e-6 {
					t.Errorf("parts at %v = %v, want %v", tt.at, got, tt.want)
					break
				}
			}
		})
	}
	if _, err := Spread("odd", "a"); err == nil || err.Error() != `pattern "odd": want one of ["even" "90/10" "jump"]` {
		t.Errorf("Spread(odd) = %v", err)
	}
}

func TestChooseAvoidsTargetsWithoutWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.SampledFrom([]float64{0, -1, 0.1, 1, 7, math.NaN()}), 1, 5).Draw(t, "weights")
		x := rapid.Float64Range(0, 1).Filter(func(x float64) bool { return x < 1 }).Draw(t, "x")
		var targets []Target
		positive := false
		for _, w := range weights {
			targets = append(targets, Target{Weight: func(time.Duration) float64 { return w }})
			positive = positive || w > 0
		}
		got := choose(targets, 0, x, make([]float64, len(weights)))
		if got < 0 || got >= len(weights) || (positive && !(weights[got] > 0)) {
			t.Errorf("choose(%v, %v) = %d", weights, x, got)
		}
	})
}

// burst returns arrivals that come all at once, every so often.
func burst(every time.Duration) Arrivals {
	return func(rate float64, total time.Duration, rng *rand.Rand) []time.Duration {
		times := Uniform(rate, total, rng)
		for i := range times {
			times[i] -= times[i] % every
		}
		return times
	}
}
