package ratelimit

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// However many names there are, a key that is heard of all the time is known, and the
// number of keys is bounded.
func TestWatchIsBounded(t *testing.T) {
	w := NewWatch(false)
	w.maxKeys = 10
	at := time.Unix(1_760_000_000, 0)
	alice := Key{Class: "GET", User: "alice"}
	for i := range 100 {
		hour := Key{Class: "GET", User: strconv.Itoa(i), Window: limits.Hour}
		begin := at.Unix() / 3600 * 3600
		w.Observe(at, "a", hour, begin, 1, limits.Rate{Max: 1}) // spent, and so of interest for the rest of the hour
		w.Observe(at, "b", alice, at.Unix(), 1, limits.Rate{Max: 10})
		if w.WatchedKeys() > 10 {
			t.Fatalf("%d keys are watched, want 10 at most", w.WatchedKeys())
		}
	}
	w.Decisions()
	at = at.Add(watchSpan)
	w.Observe(at, "b", alice, at.Unix(), 1, limits.Rate{Max: 10})
	w.Observe(at, "a", alice, at.Unix(), 9, limits.Rate{Max: 10})
	if hints, _ := w.Decisions(); len(hints) != 1 || hints[0].Instances != 2 {
		t.Errorf("hints = %+v, want one that both instances share alice", hints)
	}
	if got := w.Dropped() + uint64(w.WatchedKeys()); got < 90 || got > 101 {
		t.Errorf("%d keys are dropped, %d watched; want 101 together, but for some that were heard of again", w.Dropped(), w.WatchedKeys())
	}
}
