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
