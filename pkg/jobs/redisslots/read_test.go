package redisslots

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// FuzzReadLine: what Redis has is read as what the script has written, or refused.
func FuzzReadLine(f *testing.F) {
	f.Add("001q0000000000000001job")
	f.Add("00000000000000000001\x00\xff")
	f.Add("512")
	f.Add("-01q0000000000000001job")
	f.Add("")
	f.Fuzz(func(t *testing.T, member string) {
		line, err := readLine("alice", []any{member})
		if err != nil {
			return
		}
		if len(line) != 1 || line[0].User != "alice" {
			t.Fatalf("readLine(%q) = %q, want one job of alice", member, line)
		}
		n := len(line[0].Queue)
		if again := fmt.Sprintf("%03d%s%s%s", n, line[0].Queue, member[3+n:19+n], line[0].ID); again != member {
			t.Fatalf("readLine(%q) = %q, which would be written as %q", member, line, again)
		}
	})
}

func TestReadLineIsInOrder(t *testing.T) {
	line, err := readLine("alice", []any{"001a0000000000000003x", "001a0000000000000010y", "002bb0000000000000002z"})
	want := []jobs.Job{{User: "alice", ID: "z", Queue: "bb"}, {User: "alice", ID: "x", Queue: "a"}, {User: "alice", ID: "y", Queue: "a"}}
	if diff := cmp.Diff(want, line); err != nil || diff != "" {
		t.Errorf("readLine: %v (-want +got):\n%s", err, diff)
	}
}

func TestWhatIsNoReplyIsRefused(t *testing.T) {
	for name, reply := range map[string][]any{
		"no line":              {[]any{}},
		"a line of numbers":    {[]any{}, []any{int64(1)}},
		"no lists":             {"a", "b"},
		"half a slot":          {[]any{"h", int64(1), "q"}, []any{}},
		"a state of no text":   {[]any{int64(1), int64(1), "q", "h", "j", int64(1)}, []any{}},
		"a lease of no number": {[]any{"h", int64(1), "q", "h", "j", "1"}, []any{}},
		"a short spot":         {[]any{}, []any{"001q000000000000001"}},
	} {
		if u, err := readUser("alice", reply); err == nil {
			t.Errorf("%s: readUser(%v) = %+v, want an error", name, reply, u)
		}
	}
}
