package haproxy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Credit of another generation opens no second, and an answer replaces it. Until a table of
// the agent's says so, a new one is not either.
func TestCreditOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	r := shared(t, single)
	alice := httpGET("/", "X-User: alice")
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, alice)
	r.teachRow(t, generation+1, 0, 0)
	testkit.Eventually(t, "the agent is told that it is over", func() error {
		if lapsed, asked := r.lapsed(t, alice); !asked || lapsed != generation+1 {
			return fmt.Errorf("asked: %v, lapsed = %d, want %d", asked, lapsed, generation+1)
		}
		return nil
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	if lapsed, asked := r.lapsed(t, alice); !asked || lapsed != generation+1 {
		t.Errorf("with another generation in force, asked: %v, lapsed = %d, want %d", asked, lapsed, generation+1)
	}
	r.lend(t, "alice", credit(unlimited, nil).with("credit", uint32(generation+1)))
	r.native(t, alice)
	r.lend(t, "bob", credit(unlimited, nil))
	if r.admitted(t, httpGET("/", "X-User: bob")) {
		t.Error("admitted before that generation is in force")
	}
}

// lapsed sends a request, and returns whether the agent is asked about it, and what it is told
// of credit that is over.
func (r *rig) lapsed(t *testing.T, request string) (lapsed int64, asked bool) {
	t.Helper()
	r.send(t, request)
	switch told := r.takeTold(t); len(told) {
	case 0:
		return 0, false
	case 1:
		return told[0].Lapsed, true
	default:
		t.Fatalf("asked %d times about a request: %+v", len(told), told)
		return 0, false
	}
}

// The agent is not told that credit is over while it may be in force, or come into force.
func TestCreditIsNotOverYet(t *testing.T) {
	t.Parallel()
	r := shared(t, single)
	alice, bob := httpGET("/", "X-User: alice"), httpGET("/", "X-User: bob")
	wantNone := func(what, request string) {
		t.Helper()
		if lapsed, asked := r.lapsed(t, request); !asked || lapsed != -1 {
			t.Errorf("%s, asked: %v, lapsed = %d, want a question without it", what, asked, lapsed)
		}
	}
	wantNone("without credit", alice)
	r.lend(t, "alice", credit(unlimited, nil))
	wantNone("while HAProxy was told of no generation", alice)
	r.teachRow(t, generation, 0, 0)
	r.native(t, alice)
	r.lend(t, "bob", credit(unlimited, map[string]uint32{"GET": 1}))
	// The second one has no ticket, unless another second has begun.
	withoutTicket := func() (lapsed int64, asked bool) {
		for range 10 {
			if lapsed, asked = r.lapsed(t, bob); asked {
				break
			}
		}
		return lapsed, asked
	}
	if lapsed, asked := withoutTicket(); !asked || lapsed != -1 {
		t.Errorf("with credit in force, asked: %v, lapsed = %d, want a question without it", asked, lapsed)
	}
	r.teachRow(t, generation+1, 0, 0)
	lapsed, asked := withoutTicket()
	if e := r.seconds(t, "bob")[int(time.Now().Unix())]; !asked || lapsed != -1 && e["gpt1"] != 0 {
		t.Errorf("in a second that was opened under another generation, asked: %v, lapsed = %d, want none", asked, lapsed)
	}
}

// An answer that brings the credit which is in force already changes nothing: else the
// tickets that are left of this second would be lost.
func TestCreditIsGivenOnce(t *testing.T) {
	t.Parallel()
	r := shared(t, single)
	r.teachRow(t, generation, 0, 0)
	given := credit(unlimited, map[string]uint32{"GET": 1})
	r.lend(t, "alice", given)
	put := httpRequest("PUT", "/", "X-User: alice", "Content-Length: 0")
	r.native(t, put)
	before := r.entry(t, "alice")
	r.answerTold(func(told) vars { return given })
	for range 3 { // the first may have the ticket of a second, and of the next one
		r.get(t, "X-User: alice")
	}
	if asked := r.takeTold(t); len(asked) == 0 {
		t.Fatal("nobody was asked about requests beyond the credit")
	}
	after := r.entry(t, "alice")
	if after["gpt0"] != generation || after["gpt2"] != before["gpt2"] {
		t.Errorf("entry %v, want the credit of before, %v", after, before)
	}
	if !r.admitted(t, put) {
		t.Error("no request is admitted by the credit that was in force already")
	}
}

// A process that is to end asks: its successor has credit of its own by now.
func TestCreditOfAStoppingProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	// A connection with half a request stays.
	request := httpGET("/", "X-User: alice")
	e := r.begin(t, request[:10])
	testkit.Eventually(t, "the connection is HAProxy's", func() error {
		if out := r.cli(t, "show info"); !strings.Contains(out, "\nCurrConns: 1\n") && !strings.Contains(out, "\nCurrConns: 2\n") {
			return fmt.Errorf("show info: %s", out)
		}
		return nil
	})
	if err := r.proc.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the process stops", func() error {
		if !strings.Contains(r.proc.Output(), "Proxy http stopped") {
			return fmt.Errorf("it said %q", r.proc.Output())
		}
		return nil
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
	r.takeTold(t)
	e.write(request[10:])
	got := e.answer()
	if asked := r.takeTold(t); got.Status != 200 || len(asked) != 1 || asked[0].Spent != 0 {
		t.Errorf("status = %d, asked %+v; want 200 and one question", got.Status, asked)
	}
}

// wantPerSecond sends requests of users for some seconds, and fails the test unless so many of each are admitted in each whole second by HAProxy's
// clock, and the rest refused because of their rate.
func (r *rig) wantPerSecond(t *testing.T, want map[string]int) {
	t.Helper()
	users := slices.Sorted(maps.Keys(want))
	var from, to int64
	var admitted map[string]map[int]int
	var reasons map[string]map[string]int
	calm := someSeconds(t, func(begun, end time.Time) {
		admitted, reasons = map[string]map[int]int{}, map[string]map[string]int{}
		for _, user := range users {
			admitted[user], reasons[user] = map[int]int{}, map[string]int{}
		}
		from, to = begun.Unix(), end.Unix()
		r.load(t, 6*len(users), end, nil, func(i int) string { return httpGET("/", "X-User: "+users[i%len(users)]) }, func(i int, _ time.Time, a answer) {
			if user := users[i%len(users)]; a.Status != 200 {
				reasons[user][a.Header.Get("Sluice-Reason")]++
			} else {
				admitted[user][number(t, a, "X-Now")]++
			}
		})
	})
	for user, want := range want {
		for second := int(from + 1); second < int(to); second++ {
			if n := admitted[user][second]; n < want-2 && calm || n > want {
				t.Errorf("%.20s: %d admitted in second %d, want %d", user, n, second, want)
			}
		}
		if reasons[user]["request-rate"] == 0 || len(reasons[user]) != 1 {
			t.Errorf("%.20s: refused for %v, want request-rate only", user, reasons[user])
		}
	}
}

// While the agent is down, HAProxy admits of users with credit what they have of it, times
// the factor, and of others what the agent has taught for all of them.
func TestCreditWithoutAgent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		setup      setup
		generation int // that the row says: nobody can tell HAProxy of another one's credit
	}{
		{"of another generation", lending, generation + 1},
		{"few classes", fewClasses, generation},
		{"by class", logging, generation},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shared(t, tt.setup)
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, map[string]uint32{"GET": 5}).with("factor", uint32(4)))
			r.down(t)
			unlimitedRow := r.starts("stranger", 20)
			if got := statuses(unlimitedRow, 20); got[200] != 20 {
				t.Errorf("without a row: answers = %v, want 200 only", got)
			}
			r.teachRow(t, tt.generation, 7, 0)
			r.wantPerSecond(t, map[string]int{"alice": 20, "stranger": 7, strings.Repeat("long", 50): 7})
		})
	}
}

// So are places.
func TestPlacesWithoutAgent(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := shared(t, single.with(g.ServeHTTP))
	r.teachRow(t, generation, 1000, 2)
	g.let(1)
	r.lend(t, "alice", credit(1, nil).with("factor", uint32(3)))
	r.down(t)
	arrived := 1
	for _, row := range []struct {
		user string
		want int
	}{{"alice", 3}, {"stranger", 2}} {
		running := r.starts(row.user, row.want)
		arrived += row.want
		g.await(t, arrived)
		if got := r.get(t, "X-User: "+row.user); got.Status != 429 || got.Header.Get("Sluice-Reason") != "concurrent-requests" {
			t.Errorf("%s: one more than %d: %d %s, want 429 concurrent-requests", row.user, row.want, got.Status, got.Header.Get("Sluice-Reason"))
		}
		g.let(row.want)
		if got := statuses(running, row.want); got[200] != row.want {
			t.Errorf("%s: answers = %v, want 200 only", row.user, got)
		}
	}
}

// When the agent lives but does not answer in time, HAProxy refuses what is beyond a
// user's credit, and admits of others a tenth.
func TestCreditWhenTheAgentIsLate(t *testing.T) {
	t.Parallel()
	r := shared(t, lending)
	r.teachRow(t, generation, 25, 0)
	r.lend(t, "alice", credit(unlimited, map[string]uint32{"GET": 5}))
	// Of several instances' credit, which is a small part of the limit, a late answer lets some more pass.
	r.lend(t, "bob", credit(unlimited, map[string]uint32{"GET": 5}).with("factor", uint32(4)))
	// HAProxy sets this variable when its patience ends. Here the agent does, so that no
	// answer is late by chance.
	r.answerTold(func(told) vars { return vars{"err": uint32(1)} })
	r.wantPerSecond(t, map[string]int{"alice": 5, "bob": 8, "stranger": 3})
}

// A request that nobody answered about counts in the second in which it is admitted, not in that in which it came: else those of two
// seconds would be admitted in one, when HAProxy finds that the agent hangs.
func TestUnheardCountsInItsSecond(t *testing.T) {
	t.Parallel()
	late := lending
	late.Env = append(slices.Clone(lending.Env), "SLUICE_VERDICT_TIMEOUT=1200ms")
	r := newRig(t, late)
	r.teachRow(t, generation, 25, 0)
	answers := make(chan struct{})
	t.Cleanup(func() { close(answers) })
	r.answerTold(func(told) vars { <-answers; return nil })
	began := time.Now()
	a := r.get(t, "X-User: stranger")
	if now, least := number(t, a, "X-Now"), int(began.Add(1100*time.Millisecond).Unix()); a.Status != 200 || now < least {
		t.Errorf("%d, counted in second %d, want 200 and %d or later", a.Status, now, least)
	}
}

// Nobody but a user spends their credit.
func TestCreditIsOnlySpentByItsUser(t *testing.T) {
	t.Parallel()
	basic := func(name string) string { return basic(name + ":secret") }
	byBasic := setup{Config: Config{Identify: "basic", Exempt: limits.Exempt{Paths: []string{"/exempt", "/below/*"}}}}
	type row struct {
		name, request string
		natives       int // that HAProxy admits of them, which spend credit
	}
	for _, group := range []struct {
		name  string
		setup setup
		alice string
		rows  []row
	}{
		{"basic", byBasic, basic("alice"), []row{
			{"as it is", httpGET("/", basic("alice")), 1},
			{"a blank behind it", httpGET("/", basic("alice ")), 0},
			{"a NUL", httpGET("/", basic("alice\x00")), 0},
			{"a NUL and more", httpGET("/", basic("alice\x00bob")), 0},
			{"a newline", httpGET("/", basic("alice\n")), 0},
			{"@ before it", httpGET("/", basic("@alice")), 0},
			{"exempt path", httpGET("/exempt", basic("alice")), 0},
			{"exempt prefix", httpGET("/below/a", basic("alice")), 0},
			{"not an exempt path", httpGET("/exempted", basic("alice")), 1},
			{"a prefix that an origin may see otherwise", httpGET("/below/../a", basic("alice")), 1},
			{"two credentials", httpGET("/", basic("alice"), basic("alice")), 0},
		}},
		{"unreadable credentials denied", setup{Config: Config{Env: []string{"SLUICE_UNREADABLE=deny"}, Identify: "basic", Fitted: true}}, basic("alice"), []row{
			{"two credentials", httpGET("/", basic("alice"), basic("alice")), 0},
		}},
		{"header in small letters", setup{Config: Config{Identify: "header:X-User:lower", Fitted: true}}, "X-User: alice", []row{
			{"other letters", httpGET("/", "X-User: Alice"), 1},
			{"another name behind it", httpGET("/", "X-User: alice", "X-User: bob"), 0},
			{"another name before it", httpGET("/", "X-User: bob", "X-User: alice"), 1},
		}},
		{"header, with operations", fittedOperations, "X-User: alice", []row{
			{"as it is", httpGET("/", "X-User: alice"), 1},
			{"exempt prefix", httpGET("/below/a", "X-User: alice"), 0},
			{"another name behind it", httpGET("/", "X-User: alice", "X-User: bob"), 0},
		}},
		{"header", single, "X-User: alice", []row{
			{"as it is", httpGET("/", "X-User: alice"), 1},
			{"other letters", httpGET("/", "X-User: Alice"), 0},
			{"a name besides", httpGET("/", "X-User: alice", "X-User: bob"), 0},
		}},
	} {
		t.Run(group.name, func(t *testing.T) {
			r := shared(t, group.setup)
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil), group.alice)
			for _, row := range group.rows {
				r.native(t, httpGET("/", group.alice))
				before := r.sum(t, "alice", 0)
				r.send(t, row.request)
				if got := r.sum(t, "alice", 0) - before; got != row.natives {
					t.Errorf("%s: %d tickets of alice drawn, want %d", row.name, got, row.natives)
				}
			}
		})
	}
	// No name has credit that becomes another key, whatever the agent answers.
	r := shared(t, byBasic)
	r.teachRow(t, generation, 0, 0)
	r.answerTold(func(told) vars { return credit(unlimited, nil) })
	for _, name := range []string{"~alice", "~", "alice\x00", "\x00", "alice\n", "a\x7fb", strings.Repeat("a", 101)} {
		r.get(t, basic(name))
	}
	r.get(t) // no name
	r.get(t, basic("two"), basic("two"))
	if asked := r.takeTold(t); len(asked) != 9 {
		t.Errorf("%d questions, want 9", len(asked))
	}
	if out := r.cli(t, "show table sluice_credit"); strings.Contains(out, "key=") {
		t.Errorf("credit of names that are no keys: %s", out)
	}
	r.get(t, basic(strings.Repeat("a", 100)))
	if out := r.cli(t, "show table sluice_credit"); strings.Count(out, "key=") != 1 {
		t.Errorf("no credit of a name of 100 bytes: %s", out)
	}
}

// Where operations have tickets, names become keys before anything looks at them.
func TestNamesWithOperations(t *testing.T) {
	r := shared(t, fittedOperations)
	for _, name := range []string{limits.ExemptKey, strings.Repeat("a", 101)} {
		r.get(t, "X-User: "+name)
		if asked := r.takeTold(t); len(asked) != 1 || asked[0].User != limits.Key(name) {
			t.Errorf("%s: %+v, want one question about %s", name, asked, limits.Key(name))
		}
	}
}

// A request that counts for another key brings no credit: that key's requests are not only here.
func TestCreditOfAnotherKey(t *testing.T) {
	r := shared(t, single)
	r.teachRow(t, generation, 0, 0)
	r.answerTold(func(told) vars { return credit(unlimited, nil).with("others", "bob") })
	if got := r.get(t, "X-User: alice"); got.Status != 200 {
		t.Errorf("status = %d, want 200", got.Status)
	}
	if out := r.cli(t, "show table sluice_credit"); strings.Contains(out, "key=") {
		t.Errorf("credit with sluice.others: %s", out)
	}
}

func TestCreditInAccessLog(t *testing.T) {
	t.Parallel()
	r := shared(t, singleLogging)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	r.awaitLine(t, "GET / 200 credit - alice GET null null null")
}

// Requests that an address may not have draw no ticket of their users.
func TestCreditBehindLimitsOfAddresses(t *testing.T) {
	t.Parallel()
	r := shared(t, fewOfAnAddress)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	before := r.sum(t, "alice", 0)
	admitted, refused := 0, 0
	for range 30 {
		switch got := r.get(t, "X-User: alice"); {
		case got.Status == 200:
			admitted++
		case strings.HasPrefix(got.Header.Get("Sluice-Reason"), "address-"):
			refused++
		}
	}
	drawn := r.sum(t, "alice", 0) - before
	if drawn > admitted || drawn < admitted-1 || refused == 0 || admitted+refused != 30 {
		t.Errorf("%d admitted, %d refused by their address, %d tickets drawn; want one for each admitted", admitted, refused, drawn)
	}
}

// A request that was let through goes to the origin at once, and does not pay for the backend "asked". Where
// the origin's requests are bounded, one queue is for all, and that backend's rules pass them by.
func TestWhoIsLetThroughIsNotAsked(t *testing.T) {
	t.Parallel()
	boundedLogging := bounded
	boundedLogging.Env = append(slices.Clone(bounded.Env), accessLog)
	for _, row := range []struct {
		name    string
		setup   setup
		backend string // that serves who is let through
	}{
		{"by method", single, "origin"},
		{"by class", singleLogging, "origin"},
		{"by method, to a bounded origin", bounded, "asked"},
		{"by class, to a bounded origin", boundedLogging, "asked"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := shared(t, row.setup)
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil))
			r.native(t, httpGET("/", "X-User: alice"))
			// Were a request on the way of those who are asked about, the tables would refuse it.
			r.teach(t, "throttle", "*|alice", time.Now().Add(time.Hour), 1)
			r.teach(t, "block", "alice", time.Now().Add(time.Hour), 1)
			requests := func() int {
				n, err := strconv.Atoi(r.stat(t, row.backend, "BACKEND", "req_tot"))
				if err != nil {
					t.Error(err)
				}
				return n
			}
			before, active := requests(), r.active(t)
			r.takeHeard(t)
			for range 3 {
				r.native(t, httpGET("/", "X-User: alice"))
			}
			if got := requests() - before; got < 3 {
				t.Errorf("backend %s had %d requests, want 3", row.backend, got)
			}
			if diff := cmp.Diff(active, r.active(t)); diff != "" {
				t.Errorf("tracked as asked about (-want +got):\n%s", diff)
			}
			if got := r.takeHeard(t); len(got) != 0 {
				t.Errorf("the agent heard %v, want nothing", got)
			}
		})
	}
}

// With SLUICE_CREDIT=off an answer brings none, no question says anything of it, and
// there is no runtime socket.
func TestNoCredit(t *testing.T) {
	t.Parallel()
	r := shared(t, creditOff)
	r.teachRow(t, generation, 1, 1)
	r.answerTold(func(told) vars { return credit(unlimited, nil) })
	for range 3 {
		r.get(t, "X-User: alice")
		awaitSecond()
	}
	asked := r.takeTold(t)
	if len(asked) != 3 {
		t.Fatalf("%d questions about 3 requests, want 3", len(asked))
	}
	if q := asked[0]; q.Classes != "" || q.Spent != -1 || q.Drawn != -1 || q.Here != -1 || q.Places != -1 {
		t.Errorf("asked %+v, want nothing of credit", q)
	}
	r.down(t)
	for range 3 {
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			t.Errorf("without the agent: status = %d, want 200", got.Status)
		}
	}
}
