package terms_test

import (
	"fmt"

	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func load(text string) *limits.Set {
	set, err := limitfile.Parse("limits.yaml", []byte(text))
	if err != nil {
		panic(err)
	}
	return set
}

// A line has what is limited and what departs from the defaults, in the order of the limit
// file's documentation.
func ExampleDescribe() {
	set := load(`version: 1
default_tier: free
tiers:
  free:
    bandwidth: {up: 1500, down: 10MiB}
    requests: {PUT: {second: 4, burst: 9, minute: 60}, "*": 20, GET: {second: 7, mode: dry-run}}
    concurrent: 5
    over_limit: {concurrent: wait 2s}
    priority: 3
  staff: {priority: 1}
  nothing: {requests: {GET: {second: 7, mode: off}}}
`)
	for _, name := range set.TierNames() {
		tier, _ := set.TierLimits(name)
		fmt.Printf("%s: %s\n", name, terms.Describe(tier))
	}
	// Output:
	// free: all 20/s, GET 7/s (dry-run), PUT 4/s (burst 9), PUT 60/minute, 5 in progress (more wait 2s), down 10 MiB/s, up 1500 B/s, priority 3
	// nothing: GET off
	// staff: not limited, priority 1
}

// At an endpoint, what is other there.
func ExampleDescribeBeside() {
	set := load(`version: 1
default_tier: free
endpoints: [uploads, downloads]
tiers:
  free:
    requests: {GET: 100}
    concurrent: 5
    endpoints:
      uploads: {requests: {GET: 10}, concurrent: unlimited}
`)
	everywhere, _ := set.TierLimits("free")
	for _, endpoint := range set.Endpoints() {
		here, _ := set.TierAt(endpoint, "free")
		fmt.Printf("%s: %s\n", endpoint, terms.DescribeBeside(everywhere, here))
	}
	// Output:
	// downloads: the same
	// uploads: GET 10/s, concurrent not limited; else the same
}

// A limit for each service is told in the place of a total that there is not, or beside it.
func ExampleJobSentence() {
	set := load(`version: 1
default_tier: free
tiers:
  both: {jobs: {total: 4, queues: {"*": 2, csv: 3, sync: unlimited}, class: priority}}
  each: {jobs: {queues: {"*": 1}}}
  free: {}
  more: {jobs: {queues: {"*": 1, csv: 2}}, mode: dry-run}
  named: {jobs: {total: 4, queues: {csv: 3}}}
  total: {jobs: {total: 4, queues: {"*": 1}}}
`)
	for _, name := range set.TierNames() {
		tier, _ := set.TierLimits(name)
		fmt.Printf("%s: %s\n", name, terms.JobSentence(terms.OfJobs(tier.Jobs())))
	}
	// Output:
	// both: jobs 4 (3 in csv, not limited in sync, 2 in each other service, priority)
	// each: jobs 1 in each service
	// free: jobs 1
	// more: jobs 1 in each service (dry-run, 2 in csv)
	// named: jobs 4 (3 in csv)
	// total: jobs 4 (1 in each service)
}
