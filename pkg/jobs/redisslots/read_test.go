package redisslots

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

func TestAUsageIsReadInOrder(t *testing.T) {
	usage, err := readUsage("alice", []string{
		"p", "0000000000000003", "a", "", "x", "0", "p", "0000000000000010", "a", "", "y", "0", "p", "0000000000000002", "bb", "", "z", "0",
		"h", "0000000000000000", "a", "w", "2", "5", "h", "0000000000000000", "", "w", "1", "5",
	})
	job := func(id, queue string) jobs.Job { return jobs.Job{User: "alice", ID: id, Queue: queue} }
	want := jobs.Usage{
		Held:   []jobs.Slot{{Job: job("1", ""), Holder: "w", Left: 5000}, {Job: job("2", "a"), Holder: "w", Left: 5000}},
		Parked: []jobs.Job{job("z", "bb"), job("x", "a"), job("y", "a")},
	}
	if diff := cmp.Diff(want, usage); err != nil || diff != "" {
		t.Errorf("readUsage: %v (-want +got):\n%s", err, diff)
	}
}

func TestWhatIsNoReplyIsRefused(t *testing.T) {
	for name, reply := range map[string][]string{
		"half a slot":          {"h", "1", "q"},
		"a lease of no number": {"h", "1", "q", "h", "j", "x"},
	} {
		if u, err := readUsage("alice", reply); err == nil {
			t.Errorf("%s: readUsage(%v) = %+v, want an error", name, reply, u)
		}
	}
}
