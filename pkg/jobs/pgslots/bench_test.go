package pgslots_test

import (
	"fmt"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

// BenchmarkPairs runs on a server that is set up as it comes, fsync included.
func BenchmarkPairs(b *testing.B) {
	dsn := testkit.Postgres(b, "fsync=on").DSN
	for _, size := range []int{4, 8, 16, 32} {
		b.Run(fmt.Sprintf("connections=%d", size), func(b *testing.B) {
			slots, _ := fresh(b, open(b, dsn, size))
			slotstest.Pairs(b, slots)
		})
	}
}
