package concurrency

import (
	"testing"
	"time"
)

func TestWatchIsBounded(t *testing.T) {
	w := NewWatch(0)
	w.maxUsers = 2
	at := time.Unix(1_760_000_000, 0)
	for _, user := range []string{"alice", "bob", "carol", "alice"} {
		w.Observe(at, Report{Instance: "a", User: user, Active: 1, Limit: 1})
	}
	d := w.Decisions()
	if len(d.Blocks) != 2 || d.Blocks[0].User != "alice" || d.Blocks[1].User != "bob" || w.Dropped() != 1 {
		t.Errorf("blocks = %+v, %d dropped; want alice, bob, and 1", d.Blocks, w.Dropped())
	}
	at = at.Add(reportSpan)
	w.Tick(at)
	w.Observe(at, Report{Instance: "a", User: "carol", Active: 1, Limit: 1})
	if users, _ := w.WatchedUsers(); users != 1 || w.Dropped() != 1 {
		t.Errorf("%d users, %d dropped; want carol, when the others are gone", users, w.Dropped())
	}
}
