package haproxy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Credit of another generation is not renewed, and an answer replaces it. Until a table of
// the agent's says so, a new one is not either.
func TestCreditOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
	alice := httpGET("/", "X-User: alice")
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, alice)
	r.teachRow(t, generation+1, 0, 0)
	proctest.Eventually(t, "the agent is told that it is over", func() error {
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
		t.Error("renewed before that generation is in force")
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
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
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
	r.lend(t, "bob", credit(unlimited, map[string]uint32{"GET": 0}))
	r.native(t, httpRequest("PUT", "/", "X-User: bob", "Content-Length: 0"))
	wantNone("with credit in force", bob)
	r.teachRow(t, generation+1, 0, 0)
	lapsed, asked := r.lapsed(t, bob)
	if end := r.entry(t, "bob")["gpt1"]; !asked || lapsed != -1 && int64(end) > time.Now().Unix() {
		t.Errorf("with credit of another generation in force, asked: %v, lapsed = %d, want none", asked, lapsed)
	}
}

// An answer that brings the credit which is in force already changes nothing: else the
// tickets that are left of this second would be lost.
func TestCreditIsGivenOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
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
	if after["gpt2"] != before["gpt2"] || after["gpt1"] < before["gpt1"] || after["gpt5"] != 1 {
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
	conn := dial(t, "tcp", r.addr)
	defer conn.Close()
	request := httpGET("/", "X-User: alice")
	if _, err := io.WriteString(conn, request[:10]); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the connection is HAProxy's", func() error {
		if out := r.cli(t, "show info"); !strings.Contains(out, "\nCurrConns: 1\n") && !strings.Contains(out, "\nCurrConns: 2\n") {
			return fmt.Errorf("show info: %s", out)
		}
		return nil
	})
	if err := r.proc.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the process stops", func() error {
		if !strings.Contains(r.proc.Output(), "Proxy http stopped") {
			return fmt.Errorf("it said %q", r.proc.Output())
		}
		return nil
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
	r.takeTold(t)
	if _, err := io.WriteString(conn, request[10:]); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if asked := r.takeTold(t); resp.StatusCode != 200 || len(asked) != 1 || asked[0].Spent != 0 {
		t.Errorf("status = %d, asked %+v; want 200 and one question", resp.StatusCode, asked)
	}
}

// perSecond sends requests for some seconds, and returns how many were admitted in each
// whole second by HAProxy's clock, why the others were refused, and whether the machine did
// not stand still. A ticket counts in the second that it is of: a thread whose clock is
// behind may draw one of the next.
func (r *rig) perSecond(t testing.TB, request string) (admitted map[int]int, reasons map[string]int, calm bool) {
	t.Helper()
	var from, to int64
	calm = someSeconds(t, func(begun, end time.Time) {
		tickets, unheard := newAdmissions(), map[int]int{}
		from, to, reasons = begun.Unix(), end.Unix(), map[string]int{}
		r.load(t, 8, end, func(int) string { return request }, func(a answer) {
			switch {
			case a.Status != 200:
				reasons[a.Header.Get("Sluice-Reason")]++
			case a.Header.Get("X-Ticket") != "":
				tickets.add(t, a)
			default:
				unheard[number(t, a, "X-Now")]++
			}
		})
		admitted = tickets.bySecond()
		for second, n := range unheard {
			admitted[second] += n
		}
	})
	for second := from + 1; second < to; second++ {
		admitted[int(second)] += 0 // also one in which nothing was
	}
	for second := range admitted {
		if int64(second) <= from || int64(second) >= to {
			delete(admitted, second)
		}
	}
	return admitted, reasons, calm
}

// wantPerSecond fails the test unless so many requests of a user are admitted in each second,
// and the rest refused because of their rate. A ticket that was drawn as its second ended
// belongs to no second.
func (r *rig) wantPerSecond(t *testing.T, user string, want int) {
	t.Helper()
	admitted, reasons, calm := r.perSecond(t, httpGET("/", "X-User: "+user))
	unheard := r.cli(t, "show table sluice_unheard")
	for second, n := range admitted {
		if n < want-2 && calm || n > want*entriesOf(t, unheard, second) {
			t.Errorf("%.20s: %d admitted in second %d, want %d; table sluice_unheard:\n%s", user, n, second, want, unheard)
		}
	}
	if reasons["request-rate"] == 0 || len(reasons) != 1 {
		t.Errorf("%.20s: refused for %v, want request-rate only", user, reasons)
	}
}

// entriesOf is how many entries of a second any user has in table sluice_unheard. From 3.0 on that may be two: two threads that make
// one at the same instant. Each counts for itself until the first one is found no more.
func entriesOf(t *testing.T, table string, second int) int {
	t.Helper()
	if proctest.HAProxyVersion(t) < "3.0" {
		return 1
	}
	most, entries := 1, map[string]int{}
	for _, key := range regexp.MustCompile(fmt.Sprintf(`key=\S+\|%d `, second)).FindAllString(table, -1) {
		entries[key]++
		most = max(most, entries[key])
	}
	return most
}

// While the agent is down, HAProxy admits of users with credit what they have of it, times
// the factor, and of others what the agent has taught for all of them.
func TestCreditWithoutAgent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		classes    []string
		generation int // that the row says: nobody can tell HAProxy of another one's credit
	}{
		{"of another generation", nil, generation + 1},
		{"renewed by the short way", []string{"*", "GET"}, generation},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{Config: Config{Identify: "header:X-User", Threads: 2, CreditClasses: tt.classes}, edit: telling})
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, map[string]uint32{"GET": 5}).with("factor", uint32(4)))
			r.down(t)
			unlimitedRow := r.starts("stranger", 20)
			if got := statuses(unlimitedRow, 20); got[200] != 20 {
				t.Errorf("without a row: answers = %v, want 200 only", got)
			}
			r.teachRow(t, tt.generation, 7, 0)
			r.wantPerSecond(t, "alice", 20)
			r.wantPerSecond(t, "stranger", 7)
			r.wantPerSecond(t, strings.Repeat("long", 50), 7)
		})
	}
}

// So are places.
func TestPlacesWithoutAgent(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := newRig(t, setup{serve: g.ServeHTTP, Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_RETRY_JITTER=1"}}})
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
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Threads: 2}, edit: telling})
	r.teachRow(t, generation, 25, 0)
	r.lend(t, "alice", credit(unlimited, map[string]uint32{"GET": 5}))
	// Of several instances' credit, which is a small part of the limit, a late answer lets some more pass.
	r.lend(t, "bob", credit(unlimited, map[string]uint32{"GET": 5}).with("factor", uint32(4)))
	// HAProxy sets this variable when its patience ends. Here the agent does, so that no
	// answer is late by chance.
	r.answerTold(func(told) vars { return vars{"err": uint32(1)} })
	for _, row := range []struct {
		user string
		want int
	}{{"alice", 5}, {"bob", 8}, {"stranger", 3}} {
		r.wantPerSecond(t, row.user, row.want)
	}
}

// Nobody but a user spends their credit.
func TestCreditIsOnlySpentByItsUser(t *testing.T) {
	t.Parallel()
	basic := func(name string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":secret"))
	}
	exempt := limits.Exempt{Paths: []string{"/exempt", "/below/*"}}
	for _, row := range []struct {
		name    string
		config  Config
		request string
		natives int // that HAProxy admits of them, which spend credit
	}{
		{"as it is", Config{Identify: "basic"}, httpGET("/", basic("alice")), 1},
		{"a blank behind it", Config{Identify: "basic"}, httpGET("/", basic("alice ")), 0},
		{"a NUL", Config{Identify: "basic"}, httpGET("/", basic("alice\x00")), 0},
		{"a NUL and more", Config{Identify: "basic"}, httpGET("/", basic("alice\x00bob")), 0},
		{"a newline", Config{Identify: "basic"}, httpGET("/", basic("alice\n")), 0},
		{"@ before it", Config{Identify: "basic"}, httpGET("/", basic("@alice")), 0},
		{"exempt path", Config{Identify: "basic", Exempt: exempt}, httpGET("/exempt", basic("alice")), 0},
		{"exempt prefix", Config{Identify: "basic", Exempt: exempt}, httpGET("/below/a", basic("alice")), 0},
		{"not an exempt path", Config{Identify: "basic", Exempt: exempt}, httpGET("/exempted", basic("alice")), 1},
		{"a prefix that an origin may see otherwise", Config{Identify: "basic", Exempt: exempt}, httpGET("/below/../a", basic("alice")), 1},
		{"health check", Config{Identify: "basic"}, httpGET("/healthz", basic("alice")), 0},
		{"two credentials", Config{Identify: "basic"}, httpGET("/", basic("alice"), basic("alice")), 0},
		{"header: as it is", Config{Identify: "header:X-User"}, httpGET("/", "X-User: alice"), 1},
		{"header: small letters", Config{Identify: "header:X-User:lower"}, httpGET("/", "X-User: Alice"), 1},
		{"header: other letters", Config{Identify: "header:X-User"}, httpGET("/", "X-User: Alice"), 0},
		{"header: health check", Config{Identify: "header:X-User"}, httpGET("/healthz", "X-User: alice"), 0},
		{"header: no health check", Config{Identify: "header:X-User"}, httpGET("/healthz?a", "X-User: alice"), 1},
		{"header: a name beside it", Config{Identify: "header:X-User"}, httpGET("/", "X-User: alice", "X-User: bob"), 0},
		{"unreadable credentials denied", Config{Identify: "basic", Unreadable: "deny"}, httpGET("/", basic("alice"), basic("alice")), 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.config.Fitted = row.config.Exempt.Paths == nil // leaves most lists out
			r := newRig(t, setup{Config: row.config})
			r.teachRow(t, generation, 0, 0)
			alice := []string{basic("alice"), "X-User: alice"} // a chain reads one of them
			r.lend(t, "alice", credit(unlimited, nil), alice...)
			r.native(t, httpGET("/", alice...))
			before := r.entry(t, "alice")["gpc1"]
			r.send(t, row.request)
			if got := r.entry(t, "alice")["gpc1"] - before; got != row.natives {
				t.Errorf("%d tickets of alice drawn, want %d", got, row.natives)
			}
		})
	}
}

// No name has credit that becomes another key, whatever the agent answers.
func TestCreditOnlyOfNamesThatAreKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "basic"}})
	r.teachRow(t, generation, 0, 0)
	r.answerTold(func(told) vars { return credit(unlimited, nil) })
	basic := func(name string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":secret"))
	}
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

// What counts for another key brings no credit: that key's requests are not only here.
func TestCreditOfAnotherKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User"}})
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
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ACCESS_LOG=json"}}})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil), "X-User: alice")
	r.takeLines(t, 0, 1)
	lines := 1
	proctest.Eventually(t, "verdict credit", func() error {
		r.get(t, "X-User: alice")
		lines++
		got := r.takeLines(t, lines-1, lines)[0].told()
		if want := "GET / 200 credit - alice GET null null null"; got != want {
			return fmt.Errorf("line %q, want %q", got, want)
		}
		return nil
	})
}

// Requests that an address may not have draw no ticket of their users.
func TestCreditBehindLimitsOfAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Addresses: limits.AddressLimits{Requests: 3, FailedAuth: 1000, FailedAuthWindow: limits.Minute}}})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.native(t, httpGET("/", "X-User: alice"))
	before := r.entry(t, "alice")["gpc1"]
	admitted, refused := 0, 0
	for range 30 {
		switch got := r.get(t, "X-User: alice"); {
		case got.Status == 200:
			admitted++
		case got.Header.Get("Sluice-Reason") == "address-request-rate":
			refused++
		}
	}
	drawn := r.entry(t, "alice")["gpc1"] - before
	if drawn > admitted || drawn < admitted-1 || refused == 0 || admitted+refused != 30 {
		t.Errorf("%d admitted, %d refused by their address, %d tickets drawn; want one for each admitted", admitted, refused, drawn)
	}
}

// Where addresses have limits, a user whose bandwidth is limited from now on loses the credit
// that they had, for the counter of their clock must be free.
func TestCreditEndsWithALimitOfBandwidth(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Addresses: limits.AddressLimits{Requests: limits.MaxPerSecond}}})
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.teachRow(t, generation+1, 0, 0)
	r.answerTold(func(told) vars { return vars{"down": uint32(1 << 20)} })
	proctest.Eventually(t, "the credit ends", func() error {
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			return fmt.Errorf("status = %d, want 200", got.Status)
		}
		if e := r.entry(t, "alice"); e["gpt0"] != 0 {
			return fmt.Errorf("entry %v", e)
		}
		return nil
	})
	r.get(t, "X-User: alice")
	if out := r.cli(t, "show table sluice_clock"); !strings.Contains(out, "key=alice") {
		t.Errorf("no clock of a user whose bandwidth is limited: %s", out)
	}
	r.becomes(t, map[string]count{"alice": {0, r.active(t)["alice"].Reqs}})
}

// Who is let through goes to the origin at once, and what the backend "asked" costs is not theirs. Where
// the origin's requests are bounded, one queue is for all, and that backend's rules pass them by.
func TestWhoIsLetThroughIsNotAsked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		config  Config
		backend string // that serves who is let through
	}{
		{"on the short way", Config{}, "origin"},
		{"on the long way", Config{Env: []string{"SLUICE_ACCESS_LOG=json"}}, "origin"},
		{"on the short way to a bounded origin", Config{Env: []string{"SLUICE_ORIGIN_MAXCONN=2"}}, "asked"},
		{"on the long way to a bounded origin", Config{Env: []string{"SLUICE_ORIGIN_MAXCONN=2", "SLUICE_ACCESS_LOG=json"}}, "asked"},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.config.Identify = "header:X-User"
			r := newRig(t, setup{Config: row.config})
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", credit(unlimited, nil))
			r.native(t, httpGET("/", "X-User: alice"))
			// Were a request on the way of those who are asked about, the tables would refuse it.
			r.teach(t, "throttle", "*|alice", time.Now().Add(time.Hour), 1)
			r.teach(t, "block", "alice", time.Now().Add(time.Hour), 1)
			before, active := r.requests(t, row.backend), r.active(t)
			r.takeHeard(t)
			for range 3 {
				r.native(t, httpGET("/", "X-User: alice"))
				if got := r.send(t, httpGET("/healthz", "X-User: alice"))[0]; got.Status != 200 {
					t.Errorf("a health check: status = %d, want 200", got.Status)
				}
			}
			if got := r.requests(t, row.backend) - before; got < 6 {
				t.Errorf("backend %s had %d requests, want 6", row.backend, got)
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

// requests is how many requests a backend has had.
func (r *rig) requests(t testing.TB, backend string) int {
	t.Helper()
	n, err := strconv.Atoi(r.stat(t, backend, "BACKEND", "req_tot"))
	if err != nil {
		t.Error(err)
	}
	return n
}

// With SLUICE_CREDIT=off an answer brings none, no question says anything of it, and
// there is no runtime socket.
func TestNoCredit(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_CREDIT=off"}}})
	r.teachRow(t, generation, 1, 1)
	r.answerTold(func(told) vars { return credit(unlimited, nil) })
	for range 3 {
		r.get(t, "X-User: alice")
	}
	asked := r.takeTold(t)
	if len(asked) != 3 {
		t.Fatalf("%d questions about 3 requests, want 3", len(asked))
	}
	if q := asked[0]; q.Classes != "" || q.Spent != -1 || q.Drawn != -1 || q.Here != -1 || q.Places != -1 {
		t.Errorf("asked %+v, want nothing of credit", q)
	}
	if out := r.cli(t, "show table"); strings.Contains(out, "sluice_credit") {
		t.Errorf("tables %s, want none of credit", out)
	}
	r.down(t)
	for range 3 {
		if got := r.get(t, "X-User: alice"); got.Status != 200 {
			t.Errorf("without the agent: status = %d, want 200", got.Status)
		}
	}
}
