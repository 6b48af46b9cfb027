package bandwidth

import (
	"testing"
	"time"
)

func TestWatchIsBounded(t *testing.T) {
	w := NewWatch()
	w.maxUsers = 2
	at := time.Unix(1_760_000_000, 0)
	for _, user := range []string{"alice", "bob", "carol", "alice"} {
		w.Observe(at, Report{Instance: "a", User: user, Active: 1}, [2]int64{1000, 0})
	}
	if got := w.Sharings(); len(got) != 2 || got[0].User != "alice" || got[1].User != "bob" || w.Dropped() != 1 {
		t.Errorf("sharings = %+v, %d dropped; want alice's and bob's, and 1", got, w.Dropped())
	}
}
