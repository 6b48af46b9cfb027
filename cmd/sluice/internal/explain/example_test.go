package explain_test

import (
	"os"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/explain"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func ExampleWrite() {
	set, err := limitfile.Parse("limits.yaml", []byte(`version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10, "*": 20}, jobs: {total: 2}}
  pro: {requests: {GET: 100, PUT: 50}, concurrent: 50}
  tenant: {jobs: {queues: {"*": 1}}}
users:
  alice: {tier: pro, concurrent: 60, comment: launch}
  acme: {tier: tenant, jobs: {queues: {csv: 3, sync: unlimited}}}
workers:
  pro: {priority: 4, scheduled: 1}
  users: {alice: {priority: 2}}
`))
	if err != nil {
		panic(err)
	}
	for _, q := range []explain.Question{
		{User: "alice", File: "limits.yaml"},
		{User: "bob", Class: "PUT", File: "limits.yaml"},
		{User: "acme", File: "limits.yaml"},
	} {
		if err := explain.Write(os.Stdout, set, q, nil); err != nil {
			panic(err)
		}
	}
	// Output:
	// user alice: limits.yaml:8, of tier pro (limits.yaml:5)
	//   comment: launch
	//   priority jobs have workers of their own, in the queues SERVICE_priority-user-alice, for user alice (limits.yaml:12)
	//   scheduled jobs have workers of their own, in the queues SERVICE_scheduled-pro, for tier pro (limits.yaml:11)
	//   requests.GET  100/s     tier pro, limits.yaml:5
	//   requests.PUT  50/s      tier pro, limits.yaml:5
	//   concurrent    60        override, limits.yaml:8
	//   jobs.total    3         not stated: what tiers named pro have
	//   jobs.class    priority  not stated: what tiers named pro have
	// user bob: not named in limits.yaml, so of the default tier free (limits.yaml:4)
	// a PUT request counts against:
	//   requests.*  20/s  default tier free, limits.yaml:4
	// user acme: limits.yaml:9, of tier tenant (limits.yaml:6)
	//   no limit of requests
	//   jobs.total        not limited  not stated: jobs.queues.* is in its place
	//   jobs.queues.*     1            tier tenant, limits.yaml:6
	//   jobs.queues.csv   3            override, limits.yaml:9
	//   jobs.queues.sync  not limited  override, limits.yaml:9
}
