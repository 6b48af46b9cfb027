package concurrency

import (
	"cmp"
	"slices"
)

// A Demand is how many slots one instance could use for a user.
type Demand struct {
	Instance string
	Slots    int
}

// A Share is how many of a user's slots one instance should hold.
type Share struct {
	Instance string
	Slots    int
}

// shares divides a limit among the instances that want slots: nobody gets less
// than he wants while another one gets more than he (max-min fairness), and what
// nobody wants is divided evenly, as room to grow. The shares add up to the
// limit unless nobody wants anything. Slots that do not divide evenly go, one
// each, to those with the most credit. What they withhold from each instance of its
// even part, or give beyond it, is returned too: added to the credits from time to
// time, it lets the odd slots change hands.
//
// The result is sorted by instance and does not depend on the order of demands.
func shares(limit int, demands []Demand, credits map[string]float64) (s []Share, withheld map[string]float64) {
	out := make([]Share, 0, len(demands))
	for _, d := range demands {
		if d.Slots > 0 {
			out = append(out, Share{Instance: d.Instance})
		}
	}
	if len(out) == 0 || limit <= 0 {
		return nil, nil
	}
	slices.SortFunc(out, func(a, b Share) int { return cmp.Compare(a.Instance, b.Instance) })
	want := make(map[string]int, len(demands))
	for _, d := range demands {
		want[d.Instance] = d.Slots
	}

	// Fill up the least demands first; who wants no more leaves the rest to the others.
	byWant := make([]int, len(out))
	for i := range byWant {
		byWant[i] = i
	}
	slices.SortStableFunc(byWant, func(a, b int) int {
		return cmp.Compare(want[out[a].Instance], want[out[b].Instance])
	})
	left := limit
	for n, i := range byWant {
		even := left / (len(byWant) - n)
		if w := want[out[i].Instance]; w <= even {
			out[i].Slots = w
			left -= w
			continue
		}
		return out, divide(out, byWant[n:], left, credits)
	}
	return out, divide(out, byWant, left, credits) // all have what they want
}

// divide adds slots to some of the shares, evenly but for those left over, and
// returns what it withholds from each.
func divide(out []Share, among []int, slots int, credits map[string]float64) map[string]float64 {
	even, odd := slots/len(among), slots%len(among)
	fair := float64(slots) / float64(len(among))
	order := slices.Clone(among)
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(credits[out[b].Instance], credits[out[a].Instance]),
			cmp.Compare(out[a].Instance, out[b].Instance),
		)
	})
	withheld := make(map[string]float64, len(order))
	for n, i := range order {
		got := even
		if n < odd {
			got++
		}
		out[i].Slots += got
		withheld[out[i].Instance] = fair - float64(got)
	}
	return withheld
}
