package concurrency_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

func TestNewLimit(t *testing.T) {
	for _, tt := range []struct{ most, margin, release int }{
		{1, 5, 0}, {2, 5, 1}, {10, 5, 9}, {20, 5, 19}, {21, 5, 19}, {100, 5, 95}, {1000, 5, 950},
		{10, 1, 9}, {10, 20, 8}, {10, 100, 0}, {10, 300, 0},
	} {
		want := concurrency.Limit{Max: tt.most, Release: tt.release}
		if got := concurrency.NewLimit(tt.most, tt.margin); got != want {
			t.Errorf("NewLimit(%d, %d) = %+v, want %+v", tt.most, tt.margin, got, want)
		}
	}
	for _, most := range []int{0, -1} {
		if got := concurrency.NewLimit(most, 5); got != (concurrency.Limit{}) {
			t.Errorf("NewLimit(%d, 5) = %+v, want the zero Limit", most, got)
		}
	}
}
