package spoa

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

const (
	hotLimit  = 4 // requests per second of each user: too few for credit
	hotLimits = `version: 1
default_tier: free
tiers: {free: {requests: {GET: 4}, concurrent: 20, bandwidth: {down: 10MiB}}}
`
	hotServedBy = 3 // agents, each of which is asked about each of its users more often than the limit
)

// BenchmarkScaleHot shows what users at their limits cost a fleet, each served by a few of its
// agents. SLUICE_SCALE_AGENTS (10,40) and SLUICE_SCALE_HOT (100 users) change that. What an agent
// reads grows with the users whom it serves, and with nothing else.
func BenchmarkScaleHot(b *testing.B) {
	users := scaleNumber(b, "SLUICE_SCALE_HOT", 100)
	for range b.N {
		var results []scaleResult
		for _, n := range scaleSizes(b, "10,40") {
			results = append(results, runScale(b, n, hotLoad(users)))
			fmt.Printf("\nA fleet: %d users, each of whom %d agents serve and who ask for twice their limit of %d requests/s\n", users, hotServedBy, hotLimit)
			printScale(results)
		}
	}
	b.ReportMetric(0, "ns/op")
}

func hotLoad(users uint64) scaleLoad {
	return scaleLoad{hotLimits, hotLimit, 2 * hotLimit * float64(users), func(random *rand.Rand) func(int) (int32, int) {
		return func(agents int) (int32, int) {
			user := random.IntN(int(users))
			return int32(user), (user*hotServedBy + random.IntN(hotServedBy)) % agents
		}
	}}
}
