package concurrency_test

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// leased returns an agent of two that holds five slots of alice's ten, one of which is in use.
func leased(t *testing.T, now time.Time) *concurrency.Agent {
	t.Helper()
	a := concurrency.NewAgent(concurrency.Config{Instance: "me"})
	a.Cluster(now.Add(-time.Minute), 2, 0)
	if _, w := a.Start(now, "alice", 10, concurrency.Count{}, concurrency.Places{}); w == nil {
		t.Fatal("the first request does not wait for the pool")
	}
	asks := a.Collect(now, true, nil)
	if len(asks) != 1 {
		t.Fatalf("the agent asks %+v, want one ask", asks)
	}
	a.Reply(now, asks[0], concurrency.Grant{Held: 5, Free: 5})
	if out := a.TakeOutput(); len(out.Decided) != 1 || !out.Decided[0].Verdict.Allowed {
		t.Fatalf("the request is decided as %+v, want allowed", out.Decided)
	}
	return a
}

// Slots are held among several instances alone: what was held before the agent was alone is others' by
// then, and what it admitted alone nobody has granted.
func TestAgentThatWasAloneHoldsNothing(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	a := leased(t, now)
	if held := a.Held("alice"); held == 0 {
		t.Fatal("the agent holds nothing of what it was granted")
	}
	a.Cluster(now, 1, 0)
	if v, w := a.Start(now, "alice", 10, concurrency.Count{}, concurrency.Places{}); w != nil || !v.Allowed {
		t.Errorf("alone the request is decided as %+v, waiting %v; want allowed at once", v, w != nil)
	}
	a.Cluster(now, 2, 0)
	if held := a.Held("alice"); held != 0 {
		t.Errorf("together again it holds %d slots, want 0", held)
	}
	if _, w := a.Start(now, "alice", 10, concurrency.Count{}, concurrency.Places{}); w == nil {
		t.Error("together again a request does not wait for the pool")
	}
	asks := a.Collect(now, true, nil)
	if len(asks) != 1 || asks[0].Active != 2 || asks[0].Want < 3 {
		t.Errorf("the agent asks %+v, want it to tell of the two that run and to want a slot for each of the three", asks)
	}
}

// Another instance more takes no slot that is in use.
func TestAgentAmongMoreKeepsWhatIsInUse(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	a := leased(t, now)
	a.Cluster(now, 3, 0)
	if held := a.Held("alice"); held < 1 {
		t.Errorf("among three it holds %d slots, want at least the one in use", held)
	}
}
