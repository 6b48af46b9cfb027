package concurrency_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// Two instances share three slots of alice. The agent of one of them asks the pool, which
// is a map here, and what the other one holds is not granted to it.
func Example() {
	now := time.Unix(1_760_000_000, 0)
	const limit = 3
	pool := map[string]concurrency.Holding{"b": {Held: 1, Active: 1, Seq: 1}}
	agent := concurrency.NewAgent(concurrency.Config{Instance: "a"})
	agent.Cluster(now, 2, 0)

	for range 3 {
		agent.Start(now, "alice", limit, concurrency.Count{}, concurrency.Places{}) // all wait for the pool
	}
	for _, ask := range agent.Collect(now, true, nil) {
		grant := concurrency.Take(pool, 2, "a", ask)
		fmt.Printf("wants %d, holds %d\n", ask.Want, grant.Held)
		agent.Reply(now, ask, grant)
	}
	fmt.Println("decided:", len(agent.TakeOutput().Decided), "in progress:", agent.InProgress("alice"))

	// HAProxy's table says that both have ended: the third one need not wait any longer.
	agent.Progress(now.Add(time.Millisecond), "alice", limit, concurrency.Count{Tracked: 2})
	fmt.Println("decided:", len(agent.TakeOutput().Decided), "in progress:", agent.InProgress("alice"))

	// Output:
	// wants 3, holds 2
	// decided: 2 in progress: 2
	// decided: 1 in progress: 1
}
