package agent

import (
	"testing"
	"time"
)

func TestRecent(t *testing.T) {
	r, begin := newRecent[int](time.Minute, 2), time.Unix(1_800_000_000, 0)
	r.forget(begin)
	if !r.put("a", 1) || !r.put("b", 2) || r.put("c", 3) || !r.put("a", 4) {
		t.Error("put: want room for two, and for what is there")
	}
	r.forget(begin.Add(time.Minute - 1))
	r.forget(begin.Add(time.Minute))
	if v, ok := r.get("a"); v != 4 || !ok || r.put("c", 3) {
		t.Errorf("a minute later: a = %d %v, want 4, and no room yet", v, ok)
	}
	r.forget(begin.Add(2 * time.Minute))
	if _, ok := r.get("b"); ok || r.len() != 1 || !r.put("c", 3) {
		t.Errorf("after two minutes without a use: b is there %v, %d in all, want room for another", ok, r.len())
	}
	if r.drop("a"); r.len() != 1 {
		t.Errorf("a was dropped: %d left, want 1", r.len())
	}
}
