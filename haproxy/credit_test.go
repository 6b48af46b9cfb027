package haproxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// generation is that of all credit in tests, unless they say otherwise.
const generation = 7

// unlimited is so many tickets, or places, that nobody needs more.
const unlimited = 1 << 28

// credit is what an answer brings: tickets by class, unlimited for those that are not
// there.
func credit(places uint32, each map[string]uint32) vars {
	v := vars{"credit": uint32(generation), "places": places, "factor": uint32(1)}
	for i, class := range creditClasses() {
		n, limited := each[class]
		if !limited {
			n = unlimited
		}
		v[fmt.Sprint("each_", i)] = n
	}
	return v
}

// teachRow sets the row of table credit.
func (r *rig) teachRow(t testing.TB, generation, requests, places int) {
	t.Helper()
	command := fmt.Sprintf("set table sluice/credit key ~ data.gpt0 %d data.gpc0 %d data.gpc1 %d", generation, requests, places)
	if out := r.cli(t, command); out != "" {
		t.Fatalf("%s: %s", command, out)
	}
}

// entry is a user's entry in a table: fields of "show table" by name.
func (r *rig) entry(t testing.TB, table, key string) map[string]int {
	t.Helper()
	e := map[string]int{}
	for _, f := range strings.Fields(r.cli(t, "show table "+table+" key "+key)) {
		name, value, found := strings.Cut(f, "=")
		var n int
		if _, err := fmt.Sscan(value, &n); found && err == nil {
			e[name] = n
		}
	}
	return e
}

// lend has the agent answer with this credit, from now on without more words, and waits
// until HAProxy has it.
func (r *rig) lend(t testing.TB, user string, v vars) {
	t.Helper()
	r.answerTold(func(told) vars { return v })
	if got := r.get(t, "X-User: "+user); got.Status != 200 {
		t.Fatalf("status = %d, want 200", got.Status)
	}
	if got := r.entry(t, "sluice_credit", user)["gpt0"]; got != generation {
		t.Fatalf("generation of %s = %d, want %d", user, got, generation)
	}
	r.answerTold(nil)
	r.takeTold(t)
}

func TestCreditAdmits(t *testing.T) {
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	proctest.Eventually(t, "a request that is not asked about", func() error {
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			return fmt.Errorf("status = %d, want 200", got.Status)
		}
		if asked := r.takeTold(t); len(asked) != 0 {
			return fmt.Errorf("asked %+v", asked)
		}
		return nil
	})
	t.Log(r.entry(t, "sluice_credit", "alice"))
}
