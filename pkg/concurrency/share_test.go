package concurrency_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

func TestShares(t *testing.T) {
	type demands = map[string]int
	tests := []struct {
		name    string
		limit   int
		demands demands
		want    demands
	}{
		{"nobody", 10, nil, nil},
		{"no demand, no share", 10, demands{"a": 0, "b": 0}, nil},
		{"all to the only one", 10, demands{"a": 1, "b": 0}, demands{"a": 10}},
		{"evenly among the greedy", 10, demands{"a": 10, "b": 10}, demands{"a": 5, "b": 5}},
		{"what one does not want, the others get", 10, demands{"a": 2, "b": 10, "c": 10}, demands{"a": 2, "b": 4, "c": 4}},
		{"what nobody wants is room to grow", 10, demands{"a": 2, "b": 4}, demands{"a": 4, "b": 6}},
		{"the odd one to the first", 10, demands{"a": 10, "b": 10, "c": 10}, demands{"a": 4, "b": 3, "c": 3}},
		{"fewer than there are instances", 2, demands{"a": 9, "b": 9, "c": 9}, demands{"a": 1, "b": 1, "c": 0}},
		{"not limited", 0, demands{"a": 9}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, divided(tt.limit, tt.demands, map[string]float64{}, 1)); diff != "" {
				t.Errorf("shares(%d, %v) (-want +got):\n%s", tt.limit, tt.demands, diff)
			}
		})
	}
}

// divided is shares by name, with the demands in some order.
func divided(limit int, demands map[string]int, credits map[string]float64, seed uint64) map[string]int {
	var in []concurrency.Demand
	for name, n := range demands {
		in = append(in, concurrency.Demand{Instance: name, Slots: n})
	}
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	var out map[string]int
	last := ""
	shares, withheld := concurrency.Divide(limit, in, credits)
	for name, slots := range withheld {
		credits[name] += slots
	}
	for _, s := range shares {
		if s.Instance <= last {
			panic("shares are not sorted by instance")
		}
		if out == nil {
			out = make(map[string]int)
		}
		out[s.Instance], last = s.Slots, s.Instance
	}
	return out
}

func TestSharesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		demands := map[string]int{}
		credits := map[string]float64{}
		total := 0
		for i := range rapid.IntRange(0, 8).Draw(t, "instances") {
			name := fmt.Sprint("i", i)
			demands[name] = rapid.IntRange(0, limit).Draw(t, "demand")
			credits[name] = rapid.Float64Range(-2, 2).Draw(t, "credit")
			total += demands[name]
		}
		got := divided(limit, demands, maps.Clone(credits), 1)
		if diff := cmp.Diff(got, divided(limit, demands, credits, 2)); diff != "" {
			t.Fatalf("the order of the demands matters:\n%s", diff)
		}
		sum := 0
		for a, n := range got {
			sum += n
			if demands[a] == 0 {
				t.Fatalf("%s gets %d and wants none", a, n)
			}
			for b, m := range got {
				if n < min(demands[a], m-1) {
					t.Fatalf("%s gets %d of %d while %s gets %d", a, n, demands[a], b, m)
				}
				if demands[a] == demands[b] && n-m > 1 {
					t.Fatalf("%s gets %d and %s %d for equal demands", a, n, b, m)
				}
				if total <= limit && (n < demands[a] || (n-demands[a])-(m-demands[b]) > 1) {
					t.Fatalf("of %d slots for all, %s gets %d and %s %d for %v", limit, a, n, b, m, demands)
				}
			}
		}
		if total > 0 && sum != limit {
			t.Fatalf("shares of %v add up to %d, want %d", demands, sum, limit)
		}
	})
}

func TestSharesEvenOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, n := rapid.IntRange(1, 30).Draw(t, "limit"), rapid.IntRange(1, 8).Draw(t, "instances")
		demands, credits, got := map[string]int{}, map[string]float64{}, map[string]int{}
		for i := range n {
			demands[fmt.Sprint("i", i)] = limit
		}
		const rounds = 50
		for seed := range uint64(rounds) {
			for name, slots := range divided(limit, demands, credits, seed) {
				got[name] += slots
			}
		}
		for name, sum := range got {
			if fair := float64(rounds*limit) / float64(n); float64(sum) < fair-1.001 || float64(sum) > fair+1.001 {
				t.Fatalf("%s got %d in %d rounds, want %.1f", name, sum, rounds, fair)
			}
		}
	})
}
