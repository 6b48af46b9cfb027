package check

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
)

// TestKeep: what is kept are the earliest, sorted, in whatever order they come.
func TestKeep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6}).Draw(t, "order")
		var got []ending
		for _, day := range order {
			got = keepSoonest(got, ending{End: terms.End{At: time.Unix(int64(day), 0)}}, 3)
		}
		if len(got) != 3 {
			t.Fatalf("kept %d of %v, want 3", len(got), order)
		}
		for i, e := range got {
			if e.At.Unix() != int64(i) {
				t.Errorf("kept %v of %v, want the times 0, 1 and 2", got, order)
			}
		}
	})
}
