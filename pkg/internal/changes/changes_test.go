package changes_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/internal/changes"
)

type thing struct {
	changes.Record
	heard []int
}

// Every record hears of every change that comes while it is in the set, once and in order, and of
// all before it is used.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c changes.Changes[*thing]
		var things []*thing
		want := make(map[*thing][]int)
		announced := 0
		pick := func() (int, *thing) {
			i := rapid.IntRange(0, len(things)-1).Draw(t, "thing")
			return i, things[i]
		}
		check := func(of *thing) {
			if !slices.Equal(of.heard, want[of]) {
				t.Fatalf("it has heard of %v, want %v", of.heard, want[of])
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch step := rapid.SampledFrom([]string{"add", "announce", "announce and remove", "use", "first", "remove"}).Draw(t, "step"); {
			case step == "add" || len(things) == 0:
				of := &thing{}
				c.Add(of)
				things = append(things, of)
			case step == "announce":
				n := announced
				announced++
				for _, of := range things {
					want[of] = append(want[of], n)
				}
				c.Announce(func(of *thing) {
					c.CatchUp(of) // which is of no effect
					of.heard = append(of.heard, n)
				})
			case step == "announce and remove":
				i, gone := pick()
				c.Announce(func(of *thing) {
					if of == gone {
						c.Remove(of)
					}
				})
				c.CatchUp(gone)
				check(gone)
				things = slices.Delete(things, i, i+1)
			case step == "use":
				_, of := pick()
				c.CatchUp(of)
				check(of)
			case step == "first":
				if of, any := c.First(); any {
					c.CatchUp(of)
					check(of)
				}
			case step == "remove":
				i, of := pick()
				c.Remove(of)
				things = slices.Delete(things, i, i+1)
			}
		}
		for range things {
			if of, any := c.First(); any {
				c.CatchUp(of)
			}
		}
		if c.Behind() {
			t.Fatal("somebody has missed something when all have caught up")
		}
		for _, of := range things {
			check(of)
		}
	})
}
