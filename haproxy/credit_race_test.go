package haproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// pausing has requests with a field X-Pause wait for their body above a line of
// haproxy.cfg, so that a test can act between two rules.
func pausing(line string) func(cfg string) string {
	return func(cfg string) string {
		return strings.Replace(cfg, line, "    http-request wait-for-body time 20s if { req.hdr(x-pause) -m found }\n"+line, 1)
	}
}

// paused begins a request of alice that waits where its rig pauses, and returns what lets it go on.
func (r *rig) paused(t *testing.T) (goOn func() answer) {
	t.Helper()
	conn := dial(t, "tcp", r.addr)
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, httpRequest("PUT", "/", "X-User: alice", "X-Pause: 1", "Content-Length: 1")); err != nil {
		t.Fatal(err)
	}
	return func() answer {
		t.Helper()
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return read(t, resp)
	}
}

// A request that has a ticket when its credit is withdrawn is not admitted, for the agent
// may have read the count before; not even if there is credit again by then.
func TestCreditWithdrawnBehindATicket(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("given again %t", again), func(t *testing.T) {
			t.Parallel()
			// With an access log there is no short way, whose rules cannot be paused.
			r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}, edit: pausing("    # Is it still the same credit?")})
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil))
			r.native(t, httpGET("/", "X-User: alice"))
			drawn := r.entry(t, "alice")["gpc1"]
			goOn := r.paused(t)
			proctest.Eventually(t, "a ticket is drawn", func() error {
				if got := r.entry(t, "alice")["gpc1"]; got != drawn+1 {
					return fmt.Errorf("%d tickets, want %d", got, drawn+1)
				}
				return nil
			})
			if out := r.runtime(t, "set table sluice_credit key alice data.gpt 0"); out != "" {
				t.Fatal(out)
			}
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
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}, edit: pausing("    # Is it still the same credit?")})
	r.teachRow(t, generation, 1000, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	r.down(t)
	drawn := r.entry(t, "alice")["gpc4"]
	goOn := r.paused(t)
	proctest.Eventually(t, "a ticket is drawn", func() error {
		if got := r.entry(t, "alice")["gpc4"]; got != drawn+1 {
			return fmt.Errorf("%d tickets for PUT, want %d", got, drawn+1)
		}
		return nil
	})
	end := r.entry(t, "alice")["gpt1"]
	proctest.Eventually(t, "others renew", func() error {
		r.get(t, "X-User: alice")
		if e := r.entry(t, "alice"); e["gpt1"] == end {
			return fmt.Errorf("entry %v, want another end than %d", e, end)
		}
		return nil
	})
	if got := goOn(); got.Status != 429 || got.Header.Get("Sluice-Reason") != "request-rate" {
		t.Errorf("%d %s, want 429 request-rate", got.Status, got.Header.Get("Sluice-Reason"))
	}
}

// One request at a time renews tickets. Others of that moment find no end yet and ask, and
// are in nobody's way later.
func TestCreditIsRenewedOnce(t *testing.T) {
	t.Parallel()
	const each = 3
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}, edit: pausing("    # renewed tickets: end\n")})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil).with("each_0", uint32(each)))
	goOn := r.paused(t)
	proctest.Eventually(t, "it renews", func() error {
		if e := r.entry(t, "alice"); e["gpc0"] == 0 || e["gpt7"] != each {
			return fmt.Errorf("entry %v", e)
		}
		return nil
	})
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
	r := newRig(t, setup{serve: g.ServeHTTP, Config: Config{Identify: "header:X-User"}, edit: pausing("    # One user, one key, whatever the bytes")})
	r.teachRow(t, generation, 0, 0)
	g.let(1)
	r.lend(t, "alice", credit(1, nil))
	running := r.starts("alice", 1)
	g.await(t, 2)
	drawn := r.entry(t, "alice")["gpc1"]
	goOn := r.paused(t)
	proctest.Eventually(t, "a ticket is drawn", func() error {
		if got := r.entry(t, "alice")["gpc1"]; got == drawn {
			return fmt.Errorf("%d tickets, want more", got)
		}
		return nil
	})
	if out := r.runtime(t, "set table sluice_credit key alice data.gpt 0"); out != "" {
		t.Fatal(out)
	}
	g.let(100)
	if got := statuses(running, 1); got[200] != 1 {
		t.Errorf("answers = %v, want 200", got)
	}
	proctest.Eventually(t, "the place becomes free", func() error {
		if cur := r.entry(t, "alice")["conn_cur"]; cur != 1 {
			return fmt.Errorf("conn_cur = %d, want 1", cur)
		}
		return nil
	})
	r.takeTold(t)
	if got := goOn(); got.Status != 200 {
		t.Errorf("status = %d, want 200", got.Status)
	}
	if asked := r.takeTold(t); len(asked) != 1 || asked[0].Drawn != -1 {
		t.Errorf("asked %+v, want one question that says nothing of a ticket", asked)
	}
}

// stopped is a configuration whose threads may stand still, in requests with a field X-Pause, between what the
// rule that begins with these words asks and what it does. The answer says in X-Asked if it went on, and
// standsStill when it has asked.
func stopped(rule string) func(cfg string) string {
	return func(cfg string) string {
		cfg = strings.Replace(cfg, "\nglobal\n", "\nglobal\n    set-var proc.test_asked bool(false)\n", 1)
		pattern := regexp.MustCompile(`(?m)^    http-request ` + regexp.QuoteMeta(rule) + ` if (.*)$`)
		return strings.Replace(pattern.ReplaceAllString(cfg, "    http-request set-var(txn.test_asked) bool(true) if $1\n"+
			"    http-request set-var(proc.test_asked) bool(true) if { req.hdr(x-pause) -m found }\n"+
			"    http-request wait-for-body time 20s if { req.hdr(x-pause) -m found }\n"+
			"    http-request "+rule+" if { var(txn.test_asked) -m found }"),
			"    # Sluice-* headers are for answers.", "    http-response set-header X-Asked %[var(txn.test_asked)]\n    # Sluice-* headers are for answers.", 1)
	}
}

// standsStill waits until a request stands still where stopped says: that it has an entry is sooner.
func (r *rig) standsStill(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, "it stands still", func() error {
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
		name   string
		config Config
		rule   string
	}{
		{"on the short way", Config{Identify: "header:X-User", CreditClasses: []string{"*", "PUT"}}, "set-var(txn.sluice_begins) sc_inc_gpc(0,0)"},
		{"on the long way", Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}, "set-var(txn.sluice_lock) sc_inc_gpc(0,0)"},
	} {
		for _, given := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, given again %t", way.name, given), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, setup{Config: way.config, edit: stopped(way.rule)})
				r.teachRow(t, generation, 0, 0)
				r.lend(t, "alice", credit(unlimited, nil))
				time.Sleep(100 * time.Millisecond) // no thread's clock is behind any more
				goOn := r.paused(t)
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
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}, edit: stopped("set-var(txn.sluice_lock) sc_inc_gpc(0,0)")})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	time.Sleep(100 * time.Millisecond) // no thread's clock is behind any more
	stood := int(time.Now().Unix())
	goOn := r.paused(t)
	r.standsStill(t)
	proctest.Eventually(t, "others renew four seconds later", func() error {
		r.lapsed(t, httpRequest("PUT", "/", "X-User: alice", "Content-Length: 0"))
		if e := r.entry(t, "alice"); e["gpt1"] < stood+4 {
			return fmt.Errorf("entry %v", e)
		}
		return nil
	})
	before := r.entry(t, "alice")["gpt1"]
	if got := goOn(); got.Status != 200 || got.Header.Get("X-Asked") == "" {
		t.Fatalf("status = %d, header %v, want one that stood still", got.Status, got.Header)
	}
	if e := r.entry(t, "alice"); e["gpt1"] < before || e["gpc0"] != 0 {
		t.Errorf("entry %v, want an end of %d or later, and that nobody holds it", e, before)
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
