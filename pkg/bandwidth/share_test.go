package bandwidth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	tests := []struct {
		name    string
		limit   int64
		least   int64
		demands []Demand
		want    []Share
	}{
		{"nobody", 100, 1, nil, nil},
		{"nobody wants any", 100, 1, []Demand{{Instance: "a"}}, nil},
		{"no limit to divide", 0, 0, []Demand{{"a", 1, 0}}, nil},
		{"one has all", 100, 1, []Demand{{"a", 7, 0}}, []Share{{"a", 100}}},
		{"one has all, even if it cannot use it", 100, 1, []Demand{{"a", 7, 3}}, []Share{{"a", 100}}},
		{"by requests in progress, sorted", 100, 0, []Demand{{"b", 1, 0}, {"a", 3, 0}}, []Share{{"a", 75}, {"b", 25}}},
		{"who can use less leaves the rest to others", 100, 0, []Demand{{"a", 1, 10}, {"b", 1, 0}, {"c", 2, 0}},
			[]Share{{"a", 10}, {"b", 30}, {"c", 60}}},
		{"an instance filled by what another left leaves its rest too", 100, 0, []Demand{{"a", 1, 10}, {"b", 1, 28}, {"c", 2, 0}},
			[]Share{{"a", 10}, {"b", 28}, {"c", 62}}},
		{"what nobody can use is room to grow", 100, 0, []Demand{{"a", 1, 10}, {"b", 3, 30}}, []Share{{"a", 25}, {"b", 75}}},
		{"the least for who can use less", 100, 5, []Demand{{"a", 1, 1}, {"b", 1, 0}}, []Share{{"a", 5}, {"b", 95}}},
		{"the least for who has few requests", 1000, 5, []Demand{{"a", 1, 0}, {"b", 999, 0}}, []Share{{"a", 5}, {"b", 994}}},
		{"more instances than leasts", 10, 5, []Demand{{"a", 1, 0}, {"b", 1, 0}, {"c", 1, 0}, {"d", 1, 0}},
			[]Share{{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}}},
		{"more requests than there can be", 1 << 40, 0, []Demand{{"a", 1 << 31, 0}, {"b", 1 << 62, 0}, {"c", 1 << 62, 1 << 62}, {"d", 1 << 62, 0}},
			[]Share{{"a", 1 << 38}, {"b", 1 << 38}, {"c", 1 << 38}, {"d", 1 << 38}}},
		{"as much as a limit can be", 1 << 40, 1 << 33, []Demand{{"a", 1 << 30, 0}, {"b", 1 << 30, 0}}, []Share{{"a", 1 << 39}, {"b", 1 << 39}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, divide(tt.limit, tt.least, tt.demands)); diff != "" {
				t.Errorf("divide(%d, %d, %v) (-want +got):\n%s", tt.limit, tt.least, tt.demands, diff)
			}
		})
	}
}

func TestDivideIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Range(1, 1<<40)).Draw(t, "limit")
		least := rapid.Int64Range(0, limit/10).Draw(t, "least")
		var demands []Demand
		wanting := int64(0)
		for i := range rapid.IntRange(0, 12).Draw(t, "instances") {
			d := Demand{
				Instance: fmt.Sprint(i),
				Weight:   rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 1<<31)).Draw(t, "weight"),
				Most:     rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, limit)).Draw(t, "most"),
			}
			demands = append(demands, d)
			if d.Weight > 0 {
				wanting++
			}
		}
		shares := divide(limit, least, demands)
		shuffled := slices.Clone(demands)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)).Shuffle(len(shuffled), func(i, j int) {
			shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		})
		if diff := cmp.Diff(shares, divide(limit, least, shuffled)); diff != "" {
			t.Fatalf("another order divides otherwise (-first +other):\n%s", diff)
		}
		if !slices.IsSortedFunc(shares, func(a, b Share) int { return strings.Compare(a.Instance, b.Instance) }) || int64(len(shares)) != wanting {
			t.Fatalf("divide = %v, want one share for each of %d, sorted", shares, wanting)
		}
		sum, lacking, over := int64(0), "", ""
		of := map[string]int64{}
		for _, s := range shares {
			sum += s.Bytes
			of[s.Instance] = s.Bytes
			if s.Bytes < min(least, limit/wanting) {
				t.Errorf("the share of %s is %d, less than the least %d", s.Instance, s.Bytes, least)
			}
		}
		if wanting > 0 && (sum > limit || sum < limit-2*wanting) {
			t.Errorf("the shares add up to %d, want %d but for fractions", sum, limit)
		}
		for _, a := range demands {
			if a.Weight == 0 {
				continue
			}
			// One more byte for each is what fractions may be.
			if a.Most == 0 || of[a.Instance] < a.Most-wanting {
				lacking = a.Instance
			}
			if a.Most > 0 && of[a.Instance] > max(a.Most, least)+2*wanting {
				over = a.Instance
			}
			for _, b := range demands {
				if b.Weight >= a.Weight && b.Most == 0 && of[b.Instance] < of[a.Instance]-wanting-1 {
					t.Errorf("%s with %d requests has %d, %s with %d has %d", a.Instance, a.Weight, of[a.Instance], b.Instance, b.Weight, of[b.Instance])
				}
			}
		}
		if lacking != "" && over != "" {
			t.Errorf("%s has more than it can use, and %s could use more: %v of %v", over, lacking, shares, demands)
		}
	})
}
