package haproxy

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// rss is HAProxy's resident memory, in KiB.
func (r *rig) rss(t testing.TB) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.proc.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") {
			_, _ = fmt.Sscanf(line, "VmRSS: %d", &kib)
		}
	}
	return kib
}

// Users who are gone cost nothing: many after one another need no more memory than
// the tables that hold them, and what Lua knows of the last few seconds'.
func TestManyUsers(t *testing.T) {
	t.Parallel()
	const users, most = 5_000, 40 << 10
	r, _ := newMover(t, setup{}, nil)
	r.answerWith(func(heard) vars { return share(mib, mib) })
	crowd := func(prefix string) {
		for i := 0; i < users; i += 100 {
			var raw []string
			for j := range 100 {
				raw = append(raw, httpGET("/1", fmt.Sprintf("X-User: %s-%d", prefix, i+j)))
			}
			r.send(t, raw...)
		}
		r.takeHeard(t)
	}
	crowd("first")
	before := r.rss(t)
	for _, prefix := range []string{"second", "third"} {
		crowd(prefix)
	}
	after := r.rss(t)
	t.Logf("%d users: %d KiB; %d users: %d KiB", users, before, 3*users, after)
	if after-before > most {
		t.Errorf("%d more users took %d KiB, want at most %d", 2*users, after-before, most)
	}
}
