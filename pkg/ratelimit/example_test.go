package ratelimit_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Two agents share a limit of three requests a second. The pool of the second is a number
// here: what it has handed out. Another agent has taken one token of it, so two of three
// requests that wait at this one are admitted.
func Example() {
	now := time.Unix(1_760_000_000, 0)
	rates := []limits.Rate{{Class: "GET", Window: limits.Second, Max: 3}}
	agent := ratelimit.NewAgent(ratelimit.Config{})
	agent.Cluster(now, 2, 0)
	handedOut := 1

	for range 3 {
		agent.Start(now, "alice", rates, ratelimit.NoCredit) // all wait for the pool
	}
	for _, ask := range agent.Collect(now, true, nil) {
		grant := ratelimit.Take(handedOut, ask)
		fmt.Printf("needs %d, gets %d\n", ask.Need, grant.Tokens)
		handedOut = grant.Total
		agent.Reply(now, ask, grant)
	}
	for _, decided := range agent.TakeOutput().Decided {
		fmt.Println("allowed:", decided.Verdict.Allowed)
	}

	// Output:
	// needs 3, gets 2
	// allowed: true
	// allowed: true
	// allowed: false
}
