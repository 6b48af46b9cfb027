package jobs_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

func BenchmarkPairs(b *testing.B) { slotstest.Pairs(b, jobs.NewMemory(nil)) }
