package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Arrivals returns the times, from the start of a run, at which requests are
// due at a mean rate of so many a second, in ascending order and before total.
type Arrivals func(rate float64, total time.Duration, rng *rand.Rand) []time.Duration

// Uniform arrivals are the same distance apart.
func Uniform(rate float64, total time.Duration, _ *rand.Rand) []time.Duration {
	var times []time.Duration
	for i := 0; ; i++ {
		at := time.Duration(float64(i) / rate * float64(time.Second))
		if at >= total {
			return times
		}
		times = append(times, at)
	}
}

// Poisson arrivals come independently of each other, like those of many
// clients. Their number is fixed by the seed and only on average rate × total.
func Poisson(rate float64, total time.Duration, rng *rand.Rand) []time.Duration {
	var times []time.Duration
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate * float64(time.Second)
		if at >= float64(total) || len(times) == MaxRequests {
			return times
		}
		times = append(times, time.Duration(at))
	}
}

// A Weight is a target's part of the load at a time since the start of a run,
// relative to the other targets' weights then. Negative weights count as zero.
// While all are zero every target gets the same.
type Weight func(at time.Duration) float64

// Patterns names the patterns that Spread knows.
var Patterns = []string{"even", "90/10", "jump"}

// Spread returns targets that share the load by a pattern: "even" gives each
// the same, "90/10" the first nine tenths and the others the rest, and "jump"
// everything to one, the next one each second. Each request chooses its target
// by the seed and independently of its user, like the clients of a balancer in
// front of several HAProxies.
func Spread(pattern string, addresses ...string) ([]Target, error) {
	if !slices.Contains(Patterns, pattern) {
		return nil, fmt.Errorf("pattern %q: want one of %q", pattern, Patterns)
	}
	targets := make([]Target, len(addresses))
	for i, address := range addresses {
		targets[i].Address = address
		switch pattern {
		case "90/10":
			w := 0.9
			if i > 0 {
				w = 0.1 / float64(len(addresses)-1)
			}
			targets[i].Weight = func(time.Duration) float64 { return w }
		case "jump":
			targets[i].Weight = func(at time.Duration) float64 {
				if int(at/time.Second)%len(addresses) == i {
					return 1
				}
				return 0
			}
		}
	}
	return targets, nil
}

// choose returns the target of a request due at a time; x is its luck, in [0, 1).
// weights is scratch space, one for each target.
func choose(targets []Target, at time.Duration, x float64, weights []float64) int {
	sum := 0.0
	for i, t := range targets {
		w := 1.0
		if t.Weight != nil {
			w = t.Weight(at)
		}
		if !(w > 0) { // NaN too
			w = 0
		}
		weights[i] = w
		sum += w
	}
	if sum == 0 {
		return int(x * float64(len(targets)))
	}
	last := 0
	for i, w := range weights {
		if w == 0 {
			continue
		}
		if x -= w / sum; x < 0 {
			return i
		}
		last = i
	}
	return last // what rounding left over
}

// plan makes one Result of each request, with its time and target. Times count
// from zero: the start is added when it is known.
func plan(s Spec) []Result {
	rng := rand.New(rand.NewPCG(s.Seed, 0x51c3))
	times := s.Arrivals(s.Rate, s.Duration, rng)
	weights := make([]float64, len(s.Targets))
	results := make([]Result, len(times))
	for i, at := range times {
		results[i] = Result{
			Scheduled: int64(at),
			Target:    uint16(choose(s.Targets, at, rng.Float64(), weights)),
		}
	}
	return results
}
