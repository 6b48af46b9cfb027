package check

import (
	"slices"
	"sort"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
)

type ending struct {
	user string
	terms.End
}

// keepSoonest adds an ending to those that are sorted by time, and keeps the first ones.
func keepSoonest(sorted []ending, e ending, most int) []ending {
	// Behind those of the same time, so that the first in the file stays the first.
	i := sort.Search(len(sorted), func(i int) bool { return e.At.Before(sorted[i].At) })
	sorted = slices.Insert(sorted, i, e)
	return sorted[:min(len(sorted), most)]
}
