package bandwidth

import (
	"cmp"
	"math/bits"
	"slices"
)

// A Demand is what one instance could use of a user's limit.
type Demand struct {
	Instance string
	Weight   int   // requests in progress there; 0 wants nothing
	Most     int64 // bytes per second that it can use; 0 means any number
}

// A Share is what one instance may use of a user's limit, in bytes per second.
type Share struct {
	Instance string
	Bytes    int64
}

// maxWeight is more requests than anyone has in progress; weights add up to an int64.
const maxWeight = 1 << 31

// divide gives each instance with a weight a share of the limit: in proportion to
// the weights, but none more than it can use while another one could use it (water
// filling). Each has least beforehand, if all of them can have as much. What nobody
// can use is divided by weight all the same, as room to grow. The shares add up to
// the limit but for the fractions of a byte, if there is any demand. The result is
// sorted by instance and does not depend on the order of the demands.
func divide(limit, least int64, demands []Demand) []Share {
	var in []Demand
	for _, d := range demands {
		if d.Weight > 0 {
			// Weights come from other processes, and their sum must not overflow.
			d.Weight = min(d.Weight, maxWeight)
			in = append(in, d)
		}
	}
	if len(in) == 0 || limit <= 0 {
		return nil
	}
	slices.SortFunc(in, func(a, b Demand) int { return cmp.Compare(a.Instance, b.Instance) })
	// So many instances that least for each would be more than the limit have even parts.
	least = min(least, limit/int64(len(in)))

	out := make([]Share, len(in))
	left := limit
	for i, d := range in {
		out[i] = Share{Instance: d.Instance, Bytes: least}
		left -= least
	}
	// First no more than each can use.
	left = fillByWeight(out, in, left, func(d Demand, has int64) int64 {
		if d.Most == 0 {
			return left
		}
		return max(0, d.Most-has)
	})
	// The rest is of no use to anybody now, and whoever wants more soon has it without a message.
	fillByWeight(out, in, left, func(Demand, int64) int64 { return left })
	return out
}

// fillByWeight divides an amount by weight among those who have room for it, and returns
// what is left. An instance that is filled leaves the rest of its part to the others, so
// it takes at most as many rounds as there are instances.
func fillByWeight(out []Share, in []Demand, amount int64, room func(d Demand, has int64) int64) int64 {
	full := make([]bool, len(in))
	for range in {
		weight := int64(0)
		for i, d := range in {
			if !full[i] {
				weight += int64(d.Weight)
			}
		}
		filled, rest := false, amount
		for i, d := range in {
			if full[i] {
				continue
			}
			// Compared with its part of what is left, so no order of instances is preferred.
			if most := room(d, out[i].Bytes); most <= fraction(amount, int64(d.Weight), weight) {
				full[i], filled = true, true
				out[i].Bytes += most
				rest -= most
			}
		}
		if filled {
			amount = rest
			continue // the others' parts have grown
		}
		for i, d := range in {
			if !full[i] {
				p := fraction(amount, int64(d.Weight), weight)
				out[i].Bytes += p
				rest -= p
			}
		}
		return rest
	}
	return amount
}

// fraction is amount × weight ÷ whole, exactly; weight is at most whole.
func fraction(amount, weight, whole int64) int64 {
	// In 128 bits: by floats, shares of large limits could add up to more than the limit.
	high, low := bits.Mul64(uint64(amount), uint64(weight))
	quotient, _ := bits.Div64(high, low, uint64(whole))
	return int64(quotient)
}
