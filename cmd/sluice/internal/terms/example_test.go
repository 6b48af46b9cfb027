package terms_test

import (
	"fmt"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
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

// What requests cost reads like what they are, and says when a day begins.
func ExampleDescribeCostUnit() {
	set := load(`version: 1
default_tier: free
windows: {time_zone: Europe/Berlin, day_starts: "06:00", month_starts: 15}
costs:
  tokens:
    actual: {json: usage.total_tokens}
    estimate: {json: max_tokens, default: 1000, classes: {PUT: 4k, GET: 0}}
    classes: [GET, POST, PUT]
  pages: {actual: {header: X-Pages}, failed: estimate}
  calls: {estimate: {header: X-Calls, default: 1}}
tiers:
  free: {costs: {tokens: {second: 9999, minute: 20k, hour: 1M, day: 20M}, calls: {hour: 123}}, requests: {"*": {second: 5, month: 1.5M}}}
  off: {costs: {tokens: {day: 20M, mode: off}, pages: {minute: 100, mode: dry-run}}}
`)
	for _, u := range set.CostUnits() {
		fmt.Printf("%s: %s\n", u.Name, terms.DescribeCostUnit(u))
	}
	for _, name := range set.TierNames() {
		tier, _ := set.TierLimits(name)
		fmt.Printf("%s: %s\n", name, terms.Describe(tier))
	}
	tier, _ := set.TierLimits("free")
	for _, t := range terms.TermsOf(tier) {
		fmt.Println(t.Name, "is", t.Value())
	}
	// Output:
	// calls: of all requests; estimate: the request's x-calls, else 1; actual: as estimated; failed requests cost nothing
	// pages: of all requests; estimate: 0; actual: the answer's x-pages; failed requests cost their estimate
	// tokens: of GET, POST, PUT; estimate: max_tokens in the request's body, else 1 000 (GET 0, PUT 4 000); actual: usage.total_tokens in the answer's body; failed requests cost nothing
	// free: all 5/s, all 1500000/month (from day 15 06:00 Europe/Berlin), 123 calls an hour, 9 999 tokens a second, 20 000 tokens a minute, 1 000 000 tokens an hour, 20 000 000 tokens a day (from 06:00 Europe/Berlin)
	// off: 100 pages a minute (dry-run), tokens/day off
	// requests.* is 5/s
	// requests.*/month is 1500000/month (from day 15 06:00 Europe/Berlin)
	// costs.calls/hour is 123 an hour
	// costs.tokens/second is 9 999 a second
	// costs.tokens/minute is 20 000 a minute
	// costs.tokens/hour is 1 000 000 an hour
	// costs.tokens/day is 20 000 000 a day (from 06:00 Europe/Berlin)
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
