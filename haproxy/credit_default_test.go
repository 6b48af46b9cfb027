package haproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// byDefault has HAProxy give credit to users without an entry, so many tickets of each class.
func (r *rig) byDefault(t testing.TB, each map[string]uint32) {
	t.Helper()
	r.teachRow(t, generation, 0, 0)
	rows := map[string]uint32{"~places": unlimited, "~factor": 1, "~most": 1000, "~from": uint32(time.Now().Unix()), "~": generation}
	for i, class := range creditClasses() {
		n, limited := each[class]
		if !limited {
			n = unlimited
		}
		rows[fmt.Sprint("~", i)] = n
	}
	r.setDefault(t, rows)
	r.answerTold(nil)
}

// setDefault writes rows as the agent does.
func (r *rig) setDefault(t testing.TB, rows map[string]uint32) {
	t.Helper()
	for key, value := range rows {
		if out := r.runtime(t, fmt.Sprintf("set table sluice_default key %s data.gpt %d", key, value)); out != "" {
			t.Fatal(out)
		}
	}
}

// withdraw takes back a user's credit as the agent does.
func (r *rig) withdraw(t testing.TB, user string) {
	t.Helper()
	r.withdrawIn(t, 1, user)
}

// withdrawIn is withdraw in a second of the agent's.
func (r *rig) withdrawIn(t testing.TB, second uint32, user string) {
	t.Helper()
	if out := r.runtime(t, fmt.Sprintf("set table sluice_credit key %s data.gpt 0 data.server_id %d", user, second)); out != "" {
		t.Fatal(out)
	}
}

// Users without an entry have credit at once, also if many of their requests come at the same
// time: so many tickets in a second as the agent has said, and no more.
func TestCreditByDefault(t *testing.T) {
	t.Parallel()
	const each = 3
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	r.byDefault(t, map[string]uint32{"GET": each})
	r.answerTold(spentOrLate)
	for i := range 20 {
		user := fmt.Sprint("user-", i)
		began := time.Now().Unix()
		got := statuses(r.starts(user, 12), 12)
		seconds := int(time.Now().Unix()-began) + 1
		if got[200] > each*seconds || got[200]+got[429] != 12 {
			t.Errorf("%s: answers %v in %d seconds, want at most %d allowed in each", user, got, seconds, each)
		}
	}
	r.takeTold(t)
	r.native(t, httpGET("/", "X-User: somebody else"))
	if e := r.entry(t, "user-0"); e["gpt0"] != generation || e["gpc0"] != 0 || e["gpt6"] != unlimited || e["gpt8"] != each || e["gpt3"] != unlimited || e["gpt4"] != 1 {
		t.Errorf("entry %v", e)
	}
}

// Users without an entry have so many places from their first request on. Who finds none is
// asked about, and the agent is told how many there are.
func TestPlacesByDefault(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := newRig(t, setup{serve: g.ServeHTTP, Config: Config{Identify: "header:X-User"}})
	r.byDefault(t, nil)
	r.setDefault(t, map[string]uint32{"~places": 2})
	running := r.starts("alice", 1)
	g.await(t, 1)
	more := r.starts("alice", 1) // not at the same time as the one that makes the entry
	g.await(t, 2)
	if asked := r.takeTold(t); len(asked) != 0 {
		t.Errorf("asked %+v about requests that have a place, want nothing", asked)
	}
	r.answerTold(func(told) vars { return vars{"reason": "concurrent-requests", "limit": uint32(4)} })
	if got := r.get(t, "X-User: alice"); got.Status != 429 {
		t.Errorf("without a place: status = %d, want 429", got.Status)
	}
	want := []told{{heard{"alice", "GET", "start-message", 0, 0, "", false}, strings.Join(creditClasses(), " "), 0, 1, -1, 3, 2, true, "", [2]string{}, -1}}
	if got := r.takeTold(t); !slices.Equal(got, want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	g.let(100)
	if got := statuses(running, 1); got[200] != 1 {
		t.Errorf("answers = %v, want 200", got)
	}
	if got := statuses(more, 1); got[200] != 1 {
		t.Errorf("answers = %v, want 200", got)
	}
}

// Whom the agent has named, from whom it has withdrawn credit, and everyone while something
// else is not as it has to be: the agent is asked about them.
func TestCreditByDefaultIsNotForAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	r.byDefault(t, nil)
	asks := func(user string) {
		t.Helper()
		for range 3 {
			if r.admitted(t, httpGET("/", "X-User: "+user)) {
				t.Errorf("%s: HAProxy admitted them by itself, want a question", user)
			}
		}
	}
	r.setDefault(t, map[string]uint32{"named": 1})
	asks("named")
	r.withdraw(t, "withdrawn")
	asks("withdrawn")
	asks("@somewhere/alice")
	asks("~alice")
	r.native(t, httpGET("/", "X-User: 10.1.2.3"))
	r.native(t, httpGET("/", "X-User: ::1"))
	r.setDefault(t, map[string]uint32{"~addresses": 1})
	asks("10.1.2.4")
	asks("2001:db8::1")
	r.native(t, httpGET("/", "X-User: x10.1.2.3"))
	for i, rows := range []map[string]uint32{
		{"~": generation + 1}, {"~": 0}, {"~from": uint32(time.Now().Unix()) + 3600}, {"~most": 1},
	} {
		r.setDefault(t, rows)
		asks(fmt.Sprint("cold-", i))
		r.byDefault(t, nil)
		r.native(t, httpGET("/", fmt.Sprint("X-User: warm-", i)))
	}
	r.teachRow(t, generation+1, 0, 0)
	asks("of another generation")
}

// A request that makes an entry while the agent withdraws the user's credit, of which it may have
// been told by others, leaves an entry without credit behind, and is asked about.
func TestCreditByDefaultIsWithdrawnMeanwhile(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"    http-request track-sc0 var(txn.sluice_user) table sluice_credit if begun\n", "    # default tickets: begin\n", "    # default tickets: end\n"} {
		r := newRig(t, setup{Config: Config{Identify: "header:X-User"}, edit: pausing(line)})
		r.byDefault(t, nil)
		goOn := r.paused(t)
		proctest.Eventually(t, "it waits", func() error {
			if e := r.entry(t, "alice"); len(e) == 0 && line[4] == '#' {
				return fmt.Errorf("entry %v", e)
			}
			return nil
		})
		time.Sleep(50 * time.Millisecond) // where there is no entry yet, nothing tells
		r.withdraw(t, "alice")
		if got := goOn(); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if asked := r.takeTold(t); len(asked) != 1 {
			t.Errorf("%sasked %+v, want one question", line, asked)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != 0 || e["gpc0"] != 0 {
			t.Errorf("%sentry %v, want none with credit", line, e)
		}
		if r.admitted(t, httpGET("/", "X-User: alice")) {
			t.Errorf("%sadmitted without credit", line)
		}
	}
}

// An answer that brings credit comes too late if the agent has withdrawn it since, in the same second
// or a later one, also if that is just when HAProxy writes it. The next second's may bring some.
func TestCreditThatWasWithdrawnMeanwhile(t *testing.T) {
	t.Parallel()
	second := uint32(time.Now().Unix())
	of := func(granted uint32) vars { return credit(unlimited, nil).with("granted", granted) }
	for _, line := range []string{"    # new tickets: begin\n", "    # new tickets: end\n"} {
		r := newRig(t, setup{Config: Config{Identify: "header:X-User"}, edit: pausing(line)})
		r.teachRow(t, generation, 0, 0)
		r.answerTold(func(told) vars { return of(second) })
		goOn := r.paused(t)
		proctest.Eventually(t, "it waits", func() error {
			if e := r.entry(t, "alice"); e["gpc0"] != 1 {
				return fmt.Errorf("entry %v", e)
			}
			return nil
		})
		r.withdrawIn(t, second, "alice")
		if got := goOn(); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != 0 || e["gpc0"] != 0 {
			t.Errorf("%sentry %v, want none with credit, that nobody holds", line, e)
		}
	}
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	r.teachRow(t, generation, 0, 0)
	for i, tt := range []struct {
		withdrawn, granted uint32
		want               int
	}{{second, second - 1, 0}, {second, second, 0}, {second, second + 1, generation}, {0, second, generation}} {
		user := fmt.Sprint("user-", i)
		if tt.withdrawn > 0 {
			r.withdrawIn(t, tt.withdrawn, user)
		}
		r.answerTold(func(told) vars { return of(tt.granted) })
		if got := r.get(t, "X-User: "+user); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, user); e["gpt0"] != tt.want || e["gpc0"] != 0 {
			t.Errorf("withdrawn in second %d, given in %d: entry %v, want generation %d", tt.withdrawn, tt.granted, e, tt.want)
		}
	}
	// Nor does a late one change credit that was given since.
	r.withdrawIn(t, second, "alice")
	for _, v := range []vars{of(second+1).with("credit", uint32(generation+1)), of(second)} {
		r.answerTold(func(told) vars { return v })
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != generation+1 {
			t.Errorf("entry %v, want generation %d", e, generation+1)
		}
	}
}
