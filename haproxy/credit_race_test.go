package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Where requests with a field X-Pause wait for their body, so that a test can act between two rules: above these lines of haproxy.cfg.
var pauses = map[string]string{
	"before-the-key": "    # One user, one key, whatever the bytes",
	"with-a-ticket":  "    # Is it still the same credit?",
	"renewed":        "    # renewed tickets: end\n",
	"before-writing": "    # new tickets: begin\n",
	"written":        "    # new tickets: end\n",
}

// takesTheLock are the rules in which a request that renews takes the lock, on the short way ("begins") and on the long one ("lock"). There a thread stands
// still between what the rule asks and what it does. The answer says in X-Asked if it went on, and standsStill when it has asked.
var takesTheLock = regexp.MustCompile(`(?m)^    http-request set-var\(txn\.sluice_(begins|lock)\) sc_inc_gpc\(0,0\) if (.*)$`)

func withPauses(cfg string) string {
	for place, line := range pauses {
		cfg = strings.Replace(cfg, line, "    http-request wait-for-body time 20s if { req.hdr(x-pause) "+place+" }\n"+line, 1)
	}
	cfg = strings.Replace(cfg, "\nglobal\n", "\nglobal\n    set-var proc.test_asked bool(false)\n", 1)
	cfg = takesTheLock.ReplaceAllString(cfg, "    http-request set-var(txn.test_$1) bool(true) if $2\n"+
		"    http-request set-var(proc.test_asked) bool(true) if { req.hdr(x-pause) $1 }\n"+
		"    http-request wait-for-body time 20s if { req.hdr(x-pause) $1 }\n"+
		"    http-request set-var(txn.sluice_$1) sc_inc_gpc(0,0) if { var(txn.test_$1) -m found }")
	return strings.Replace(cfg, "    # Sluice-* headers are for answers.", "    http-request set-var(proc.test_asked) bool(false) if { req.hdr(x-pause) -m found }\n"+
		"    http-response set-header X-Asked %[var(txn.test_begins)]%[var(txn.test_lock)]\n    # Sluice-* headers are for answers.", 1)
}

// paused begins a request of alice that waits at a place, and returns what lets it go on.
func (r *rig) paused(t *testing.T, place string) (goOn func() answer) {
	t.Helper()
	e := r.begin(t, httpRequest("PUT", "/", "X-User: alice", "X-Pause: "+place, "Content-Length: 1"))
	return func() answer {
		t.Helper()
		e.write("x")
		return e.answer()
	}
}

// awaitEntry waits until alice's entry is as wanted.
func (r *rig) awaitEntry(t *testing.T, what string, wanted func(e map[string]int) bool) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		if e := r.entry(t, "alice"); !wanted(e) {
			return fmt.Errorf("entry %v", e)
		}
		return nil
	})
}

// A request that has a ticket when its credit is withdrawn is not admitted, for the agent
// may have read the count before; not even if there is credit again by then.
func TestCreditWithdrawnBehindATicket(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("given again %t", again), func(t *testing.T) {
			r := shared(t, singleLogging) // the rules of the short way cannot be paused
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil))
			r.native(t, httpGET("/", "X-User: alice"))
			drawn := r.entry(t, "alice")["gpc1"]
			goOn := r.paused(t, "with-a-ticket")
			r.awaitEntry(t, "a ticket is drawn", func(e map[string]int) bool { return e["gpc1"] == drawn+1 })
			r.set(t, "sluice_credit", "alice", "data.gpt 0")
			if again {
				r.lend(t, "alice", credit(unlimited, nil))
			}
			if got := goOn(); got.Status != 200 {
				t.Errorf("status = %d, want 200", got.Status)
			}
			asked := r.takeTold(t)
			if len(asked) != 1 || asked[0].Spent != 0 || asked[0].Drawn != -1 {
				t.Errorf("asked %+v, want one question that says nothing of a ticket", asked)
			}
		})
	}
}

// A request whose tickets are renewed by another one before it is through has used up its user's credit, as far as anybody
// can tell while the agent is down. What the row grants to users without credit is not for it.
func TestCreditWithoutAgentBehindATicket(t *testing.T) {
	t.Parallel()
	r := shared(t, singleLogging)
	r.teachRow(t, generation, 1000, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	r.down(t)
	drawn := r.entry(t, "alice")["gpc4"]
	goOn := r.paused(t, "with-a-ticket")
	r.awaitEntry(t, "a ticket for PUT is drawn", func(e map[string]int) bool { return e["gpc4"] == drawn+1 })
	end := r.entry(t, "alice")["gpt1"]
	r.awaitEntry(t, "others renew", func(e map[string]int) bool { r.get(t, "X-User: alice"); return e["gpt1"] != end })
	if got := goOn(); got.Status != 429 || got.Header.Get("Sluice-Reason") != "request-rate" {
		t.Errorf("%d %s, want 429 request-rate", got.Status, got.Header.Get("Sluice-Reason"))
	}
}

// One request at a time renews tickets. Others of that moment find no end yet and ask, and
// are in nobody's way later.
func TestCreditIsRenewedOnce(t *testing.T) {
	t.Parallel()
	const each = 3
	r := shared(t, singleLogging)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil).with("each_0", uint32(each)))
	goOn := r.paused(t, "renewed")
	r.awaitEntry(t, "it renews", func(e map[string]int) bool { return e["gpc0"] != 0 && e["gpt7"] == each })
	for range 5 {
		if r.admitted(t, httpGET("/", "X-User: alice")) {
			t.Error("admitted while nobody had renewed")
		}
	}
	if e := r.entry(t, "alice"); e["gpt7"] != each || e["gpc1"] != 0 || e["gpt1"] != 0 {
		t.Errorf("entry %v, want that the others wrote nothing", e)
	}
	goOn()
	r.native(t, httpGET("/", "X-User: alice"))
	if e := r.entry(t, "alice"); e["gpc0"] != 0 {
		t.Errorf("entry %v, want that nobody writes it any more", e)
	}
}

// A request that found no place on the short way, and whose credit is withdrawn before it looks
// once more, is not admitted, for its ticket may have been drawn after the agent read the count.
func TestCreditWithdrawnBehindTheShortWay(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := shared(t, single.with(g.ServeHTTP))
	r.teachRow(t, generation, 0, 0)
	g.let(1)
	r.lend(t, "alice", credit(1, nil))
	running := r.starts("alice", 1)
	g.await(t, 2)
	drawn := r.entry(t, "alice")["gpc1"]
	goOn := r.paused(t, "before-the-key")
	r.awaitEntry(t, "a ticket is drawn", func(e map[string]int) bool { return e["gpc1"] != drawn })
	r.set(t, "sluice_credit", "alice", "data.gpt 0")
	g.let(100)
	if got := statuses(running, 1); got[200] != 1 {
		t.Errorf("answers = %v, want 200", got)
	}
	r.awaitEntry(t, "the place becomes free", func(e map[string]int) bool { return e["conn_cur"] == 1 })
	r.takeTold(t)
	if got := goOn(); got.Status != 200 {
		t.Errorf("status = %d, want 200", got.Status)
	}
	if asked := r.takeTold(t); len(asked) != 1 || asked[0].Drawn != -1 {
		t.Errorf("asked %+v, want one question that says nothing of a ticket", asked)
	}
}

// standsStill waits until a request stands still behind what a rule asks: that it has an entry is sooner.
func (r *rig) standsStill(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "it stands still", func() error {
		if asked := r.cli(t, "get var proc.test_asked"); !strings.Contains(asked, "value=<1>") {
			return errors.New(asked)
		}
		return nil
	})
}

// A thread that has seen its generation in force may stand still before it renews. When another one tells the
// agent meanwhile that nobody renews, the agent has the whole limit of this second: the thread must not have it too.
// Nor may it renew what was given meanwhile, for that begins with the next second.
func TestCreditIsNotRenewedBehindAnotherGeneration(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name  string
		setup setup
		rule  string
	}{{"on the short way", renewing, "begins"}, {"on the long way", singleLogging, "lock"}} {
		for _, given := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, given again %t", way.name, given), func(t *testing.T) {
				r := shared(t, way.setup)
				r.teachRow(t, generation, 0, 0)
				r.lend(t, "alice", credit(unlimited, nil))
				time.Sleep(100 * time.Millisecond) // no thread's clock is behind any more
				goOn := r.paused(t, way.rule)
				r.standsStill(t)
				r.teachRow(t, generation+1, 0, 0)
				if given {
					r.answerTold(func(told) vars { return credit(unlimited, nil).with("credit", uint32(generation+1)) })
				}
				if lapsed, asked := r.lapsed(t, httpGET("/", "X-User: alice")); !asked || lapsed != generation+1 {
					t.Errorf("asked: %v, lapsed = %d, want %d", asked, lapsed, generation+1)
				}
				r.answerTold(nil)
				got := goOn()
				if got.Status != 200 || got.Header.Get("X-Asked") == "" {
					t.Fatalf("status = %d, header %v, want one that stood still", got.Status, got.Header)
				}
				asked, e := r.takeTold(t), r.entry(t, "alice")
				if e["gpc0"] != 0 || e["gpt5"] == 1 && e["gpt1"] == e["gpt2"]+1 {
					t.Errorf("entry %v, want that nobody holds it, and that nobody renews in the second in which credit was given", e)
				}
				if !given && (len(asked) != 1 || asked[0].Lapsed != generation+1 || e["gpt5"] != 0) {
					t.Errorf("asked %+v, entry %v; want one question of credit that is over", asked, e)
				}
				r.lend(t, "bob", credit(unlimited, nil).with("credit", uint32(generation+1)))
				r.native(t, httpRequest("PUT", "/", "X-User: bob", "Content-Length: 0"))
			})
		}
	}
}

// A thread that stood still for seconds takes an end that others have written meanwhile for none that lasts: its own
// clock is behind. It must not renew what they have renewed, nor set the end back, behind which it would be renewed again.
func TestCreditIsNotRenewedByAClockOfSecondsBefore(t *testing.T) {
	t.Parallel()
	r := shared(t, singleLogging)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	time.Sleep(100 * time.Millisecond) // no thread's clock is behind any more
	stood := int(time.Now().Unix())
	goOn := r.paused(t, "lock")
	r.standsStill(t)
	r.awaitEntry(t, "others renew four seconds later", func(e map[string]int) bool {
		r.lapsed(t, httpRequest("PUT", "/", "X-User: alice", "Content-Length: 0"))
		return e["gpt1"] >= stood+4
	})
	before := r.entry(t, "alice")["gpt1"]
	if got := goOn(); got.Status != 200 || got.Header.Get("X-Asked") == "" {
		t.Fatalf("status = %d, header %v, want one that stood still", got.Status, got.Header)
	}
	if e := r.entry(t, "alice"); e["gpt1"] < before || e["gpc0"] != 0 {
		t.Errorf("entry %v, want an end of %d or later, and that nobody holds it", e, before)
	}
}

// An answer that brings credit comes too late if the agent has withdrawn it since, in the same second
// or a later one, also if that is just when HAProxy writes it. The next second's may bring some.
func TestCreditThatWasWithdrawnMeanwhile(t *testing.T) {
	second := uint32(time.Now().Unix())
	of := func(granted uint32) vars { return credit(unlimited, nil).with("granted", granted) }
	r := shared(t, single)
	r.teachRow(t, generation, 0, 0)
	withdraw := func(user string) {
		r.set(t, "sluice_credit", user, fmt.Sprint("data.gpt 0 data.server_id ", second))
	}
	answered := func(user string, v vars) map[string]int {
		t.Helper()
		r.answerTold(func(told) vars { return v })
		if got := r.get(t, "X-User: "+user); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		return r.entry(t, user)
	}
	for _, place := range []string{"before-writing", "written"} {
		r.cli(t, "clear table sluice_credit")
		r.answerTold(func(told) vars { return of(second) })
		goOn := r.paused(t, place)
		r.awaitEntry(t, "it waits", func(e map[string]int) bool { return e["gpc0"] == 1 })
		withdraw("alice")
		if got := goOn(); got.Status != 200 {
			t.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != 0 || e["gpc0"] != 0 {
			t.Errorf("%s: entry %v, want none with credit, that nobody holds", place, e)
		}
	}
	for i, tt := range []struct {
		withdrawn bool
		granted   uint32
		want      int
	}{{true, second - 1, 0}, {true, second, 0}, {true, second + 1, generation}, {false, second, generation}} {
		user := fmt.Sprint("user-", i)
		if tt.withdrawn {
			withdraw(user)
		}
		if e := answered(user, of(tt.granted)); e["gpt0"] != tt.want || e["gpc0"] != 0 {
			t.Errorf("withdrawn %t, given in %d: entry %v, want generation %d", tt.withdrawn, tt.granted, e, tt.want)
		}
	}
	// Nor does a late one change credit that was given since.
	withdraw("alice")
	for _, v := range []vars{of(second+1).with("credit", uint32(generation+1)), of(second)} {
		if e := answered("alice", v); e["gpt0"] != generation+1 {
			t.Errorf("entry %v, want generation %d", e, generation+1)
		}
	}
}
