package redisslots_test

import (
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

// BenchmarkPairs also says what Redis could do with a processor to itself.
func BenchmarkPairs(b *testing.B) {
	server, addr := testkit.Redis(b)
	client := connect(b, addr)
	before, err := server.CPU()
	if err != nil {
		b.Fatal(err)
	}
	slotstest.Pairs(b, redisslots.New(client))
	after, err := server.CPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/(after-before).Seconds(), "pairs/redis-s")
}
