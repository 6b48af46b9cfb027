package load

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	busy := admitted(0, 0.003)
	busy.User, busy.Target = 1, 1
	late := refused(0.5, 0.6)
	late.Scheduled = at(0.4)
	broken := admitted(0.1, 0.2)
	broken.Failure = Closed
	plain503 := admitted(0, 0.001)
	plain503.Status = 503
	slowDown := plain503
	slowDown.Reason = 1
	r := &Report{
		Users:   []string{"alice", "bob"},
		Reasons: []string{"", "request-rate"},
		Results: []Result{busy, late, broken, plain503, slowDown, lost(0, 1, TimedOut), {Scheduled: at(0), Received: at(1), Failure: Dropped}},
	}
	sizes := map[string]int{}
	for name, part := range map[string]*Report{
		"admitted": r.Admitted(), "refused": r.Refused(), "alice": r.User("alice"), "bob": r.User("bob"),
		"nobody": r.User("nobody"), "target 0": r.Target(0), "target 1": r.Target(1),
	} {
		sizes[name] = len(part.Results)
	}
	want := map[string]int{"admitted": 2, "refused": 2, "alice": 6, "bob": 1, "nobody": 0, "target 0": 6, "target 1": 1}
	if diff := cmp.Diff(want, sizes); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]int{200: 2, 429: 1, 503: 2}, r.Statuses()); diff != "" {
		t.Errorf("Statuses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[Failure]int{Closed: 1, TimedOut: 1, Dropped: 1}, r.Failures()); diff != "" {
		t.Errorf("Failures (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Distribution{ms, ms, 3 * ms, 200 * ms}, r.Latency()); diff != "" {
		t.Errorf("Latency (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Distribution{ms, ms, 3 * ms, 100 * ms}, r.Service()); diff != "" {
		t.Errorf("Service (-want +got):\n%s", diff)
	}
}

func TestQuantile(t *testing.T) {
	d := Distribution{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]time.Duration{-1: 1, 0: 1, 0.1: 1, 0.11: 2, 0.5: 5, 0.9: 9, 0.99: 10, 1: 10, 2: 10} {
		if got := d.Quantile(q); got != want {
			t.Errorf("Quantile(%v) = %d, want %d", q, got, want)
		}
	}
	if got := (Distribution{}).Quantile(0.5); got != 0 {
		t.Errorf("Quantile of none = %d, want 0", got)
	}
}
