package diff_test

import (
	"os"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/diff"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func ExampleWrite() {
	load := func(text string) *limits.Set {
		set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\n"+text))
		if err != nil {
			panic(err)
		}
		return set
	}
	before := load(`
tiers: {free: {requests: {GET: 10}}, pro: {concurrent: 50}, old: {}}
users: {alice: pro, bob: pro, carol: {tier: pro, concurrent: 60}}
`)
	after := load(`
tiers: {free: {requests: {GET: {second: 10, burst: 5}}}, pro: {concurrent: 80}, new: {priority: 1}}
users: {alice: pro, bob: free, carol: {tier: pro, concurrent: 60, until: 2026-12-01}, dave: pro}
`)
	diff.Write(os.Stdout, before, after, time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	// Output:
	// tier free:
	//   requests.GET: 10/s → 10/s (burst 5)
	// tier new: added: not limited, priority 1
	// tier old: removed: not limited
	// tier pro (and 1 named user(s)):
	//   concurrent: 50 → 80
	// user bob: tier pro → free
	//   requests.GET: not limited → 10/s (burst 5)
	//   concurrent: 50 → not limited
	// user carol:
	//   until: never → 2026-12-01T00:00:00Z, then like everybody in tier pro
	// user dave: added, tier pro (not named before, tier free)
	//   requests.GET: 10/s → not limited
	//   concurrent: not limited → 80
}

// What is said of each queue is said of one that is not named.
func ExampleWrite_jobs() {
	load := func(jobs string) *limits.Set {
		set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {jobs: "+jobs+"}}"))
		if err != nil {
			panic(err)
		}
		return set
	}
	before, after := load(`{total: 1}`), load(`{queues: {"*": 1, csv: 2}}`)
	diff.Write(os.Stdout, before, after, time.Now())
	diff.Write(os.Stdout, after, load(`{total: 4, queues: {"*": 2, sync: 3}}`), time.Now())
	// Output:
	// tier free:
	//   jobs.total: 1 → not limited
	//   jobs.queues.*: not limited → 1
	//   jobs.queues.csv: not limited → 2
	// tier free:
	//   jobs.total: not limited → 4
	//   jobs.queues.*: 1 → 2
	//   jobs.queues.sync: 1 → 3
}

// Workers are compared by whom they work for.
func ExampleWrite_workers() {
	load := func(text string) *limits.Set {
		set, err := limitfile.Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}, enterprise: {}}\n"+text))
		if err != nil {
			panic(err)
		}
		return set
	}
	before := load("queues: {csv: [3, 2, 1], sync: [3, 2, 1]}\nworkers: {enterprise: {priority: 10}, free: {default: 1}}")
	after := load("queues: {csv: [3, 2, 2]}\nworkers: {enterprise: {priority: 8, scheduled: 1}, users: {alice: {default: 2}}}")
	diff.Write(os.Stdout, before, after, time.Now())
	// Output:
	// queues of csv: 3 priority, 2 default, 1 scheduled → 3 priority, 2 default, 2 scheduled
	// queues of sync: removed
	// workers for tier enterprise alone: 10 priority in the queues of each service → 8 priority, 1 scheduled in the queues of each service
	// workers for tier free alone: removed
	// workers for user alice alone: added: 2 default in the queues of each service
}
