package bandwidth_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// Two instances share 90 MB/s of alice's downloads. Two transfers run at one of them and one at
// the other, so polygen's Watch gives the first one twice as much.
func Example() {
	now := time.Unix(1_760_000_000, 0)
	limit := [2]int64{bandwidth.Down: 90_000_000}
	watch := bandwidth.NewWatch()
	watch.Instances(now, []string{"a", "b"})

	watch.Observe(now, bandwidth.Report{Instance: "a", User: "alice", Active: 2}, limit)
	watch.Observe(now, bandwidth.Report{Instance: "b", User: "alice", Active: 1}, limit)
	watch.Tick(now.Add(time.Second))
	for _, sharing := range watch.Sharings() {
		for _, share := range sharing.Shares {
			fmt.Printf("%s %s at %s: %.0f MB/s\n", sharing.User, sharing.Direction, share.Instance, float64(share.Bytes)/1e6)
		}
	}

	// Until an instance is told, its transfers begin with an even part.
	agent := bandwidth.NewAgent(bandwidth.Config{Instance: "a"})
	agent.Cluster(now, 2)
	begin := agent.Start(now, "alice", bandwidth.Limit{Bytes: limit})
	fmt.Printf("before it is told, a has %.0f MB/s\n", float64(begin[bandwidth.Down])/1e6)

	// Output:
	// alice down at a: 60 MB/s
	// alice down at b: 30 MB/s
	// before it is told, a has 45 MB/s
}
