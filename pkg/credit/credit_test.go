package credit_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/credit"
)

func TestPortion(t *testing.T) {
	for _, c := range []struct {
		name                   string
		limit, instances, each int
	}{
		{"alone, all of it", 10, 1, 10},
		{"alone, the smallest limit", 1, 1, 1},
		{"no instance known yet", 10, 0, 10},
		{"a negative number of instances", 10, -3, 10},
		{"no limit", 0, 1, 0},
		{"no limit among several", 0, 4, 0},
		{"a negative limit alone", -1, 1, 0},
		{"a negative limit among several", -100, 4, 0},
		{"a quarter of the even part", 1000, 4, 62},
		{"an unlimited user", 1 << 30, 2, 1 << 27},
		{"at least one", 10, 4, 1},
		{"three fifths at one each", 10, 6, 1},
		{"more than three fifths at one each", 10, 7, 0},
		{"the smallest limit of two instances", 4, 2, 1},
		{"below the smallest limit of two instances", 3, 2, 0},
	} {
		if got := credit.Portion(c.limit, c.instances); got != c.each {
			t.Errorf("%s: Portion(%d, %d) = %d, want %d", c.name, c.limit, c.instances, got, c.each)
		}
	}
}

// TestPortionReserves holds the bounds for all limits that a limit file may have.
func TestPortionReserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 1<<30).Draw(t, "limit")
		instances := rapid.IntRange(2, 2000).Draw(t, "instances")
		if rapid.Bool().Draw(t, "small") {
			limit = rapid.IntRange(1, 5*instances).Draw(t, "small limit")
		}
		each := credit.Portion(limit, instances)
		if each < 0 || 5*each*instances > 3*limit {
			t.Errorf("Portion(%d, %d) = %d: %d of the limit is reserved, want at most three fifths", limit, instances, each, each*instances)
		}
		if each > 1 && 4*each*instances > limit {
			t.Errorf("Portion(%d, %d) = %d: more than a quarter of the limit is reserved", limit, instances, each)
		}
		if more := credit.Portion(limit, instances+1); more > each {
			t.Errorf("Portion(%d, %d) = %d and with one instance more %d", limit, instances, each, more)
		}
		if more := credit.Portion(limit+1, instances); more < each {
			t.Errorf("Portion(%d, %d) = %d and with a limit larger by 1 %d", limit, instances, each, more)
		}
	})
}

// TestMostReserved holds it against all numbers of instances.
func TestMostReserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(2, 200).Draw(t, "most")
		limit := rapid.OneOf(rapid.IntRange(-1, 1000), rapid.IntRange(1, 1<<30)).Draw(t, "limit")
		bound := credit.MostReserved(limit, most)
		if bound < 0 || 5*bound > 3*max(0, limit) {
			t.Errorf("MostReserved(%d, %d) = %d, want at most three fifths", limit, most, bound)
		}
		for n := 2; n <= most; n++ {
			if all := n * credit.Portion(limit, n); all > bound {
				t.Errorf("MostReserved(%d, %d) = %d, and %d instances have %d", limit, most, bound, n, all)
			}
		}
	})
}
