package haproxy

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
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

// with is v with one more variable.
func (v vars) with(name string, value any) vars {
	all := maps.Clone(v)
	all[name] = value
	return all
}

// spentOrLate refuses whom HAProxy's own credit did not suffice for, as an agent does
// whose HAProxy has the whole limit.
func spentOrLate(told) vars {
	return vars{"reason": "request-rate", "class": "*", "limit": uint32(1), "retry": uint32(1)}
}

// teachRow sets the row of table credit.
func (r *rig) teachRow(t testing.TB, generation, requests, places int) {
	t.Helper()
	command := fmt.Sprintf("set table sluice/credit key ~ data.gpt0 %d data.gpc0 %d data.gpc1 %d", generation, requests, places)
	if out := r.cli(t, command); out != "" {
		t.Fatalf("%s: %s", command, out)
	}
}

// entry is a user's entry of credit: fields of "show table" by name.
func (r *rig) entry(t testing.TB, key string) map[string]int {
	t.Helper()
	e := map[string]int{}
	for _, f := range strings.Fields(r.cli(t, "show table sluice_credit key "+key)) {
		name, value, found := strings.Cut(f, "=")
		if n, err := strconv.Atoi(value); found && err == nil {
			e[name] = n
		}
	}
	return e
}

// padding is what fills keys of sluice_seconds up in some of HAProxy's versions, as "show table" has it.
var padding = regexp.MustCompile(`(?:\\x7[Ff]|\x7f)+$`)

// seconds are a user's entries of sluice_seconds, by second: fields of "show table" by name.
func (r *rig) seconds(t testing.TB, user string) map[int]map[string]int {
	t.Helper()
	entries := map[int]map[string]int{}
	for line := range strings.Lines(r.cli(t, "show table sluice_seconds")) {
		e, second := map[string]int{}, 0
		for _, f := range strings.Fields(line) {
			name, value, _ := strings.Cut(f, "=")
			if name == "key" {
				if of, key, _ := strings.Cut(padding.ReplaceAllString(value, ""), "|"); key == user {
					second, _ = strconv.Atoi(of)
				}
			} else if n, err := strconv.Atoi(value); err == nil {
				e[name] = n
			}
		}
		if second > 0 {
			entries[second] = e
		}
	}
	return entries
}

// sum is the sum of a counter over all seconds of a user that HAProxy still knows.
func (r *rig) sum(t testing.TB, user string, counter int) int {
	t.Helper()
	n := 0
	for _, e := range r.seconds(t, user) {
		n += e[fmt.Sprint("gpc", counter)]
	}
	return n
}

// lend has the agent give credit to a user, and waits for the second in which it begins.
func (r *rig) lend(t testing.TB, user string, v vars, header ...string) {
	t.Helper()
	if len(header) == 0 {
		header = []string{"X-User: " + user}
	}
	r.answerFor(user, func(told) vars { return v })
	if got := r.get(t, header...); got.Status != 200 {
		t.Fatalf("status = %d, want 200", got.Status)
	}
	e := r.entry(t, user)
	want := int(v["credit"].(uint32))
	if e["gpt0"] != want {
		t.Fatalf("credit of %s: %v, want generation %d", user, e, want)
	}
	time.Sleep(time.Until(time.Unix(int64(e["gpt2"])+1, 0)))
	r.answerFor(user, nil)
	r.toldOf(t, user)
}

// admitted sends a request and reports whether HAProxy admitted it by itself.
func (r *rig) admitted(t testing.TB, raw string) bool {
	t.Helper()
	got, asked := r.send(t, raw)[0], []told(nil)
	if _, user, ok := strings.Cut(raw, "X-User: "); ok {
		user, _, _ = strings.Cut(user, "\r\n")
		asked = r.toldOf(t, user)
	} else {
		asked = r.takeTold(t)
	}
	return got.Status == 200 && len(asked) == 0
}

// native waits until HAProxy admits a request by itself. It does not while its clock, which
// each of its threads reads when it wakes up, is behind that of the test.
func (r *rig) native(t testing.TB, raw string) {
	t.Helper()
	testkit.Eventually(t, "a request that HAProxy admits by itself", func() error {
		if !r.admitted(t, raw) {
			return fmt.Errorf("the agent was asked, or it was refused")
		}
		return nil
	})
}

// Headers of answers, by which tests know the second, the ticket of "*" and the generation by which HAProxy admitted a request.
// Only requests admitted by credit have X-Credit.
func telling(cfg string) string {
	cfg = strings.ReplaceAll(cfg, "sc_inc_gpc(0,1),set-var(", "sc_inc_gpc(0,1),set-var(txn.test_ticket),set-var(")
	cfg = strings.ReplaceAll(cfg, "set-var(req.sluice_under)", "set-var(req.sluice_under),set-var(txn.test_under)")
	return strings.Replace(cfg, "    # Sluice-* headers are for answers.", `    http-request set-var(txn.test_now) date()
    http-response set-header X-Now %[var(txn.test_now)]
    http-response set-header X-Now %[var(txn.sluice_now)] if { var(txn.sluice_unheard) -m found }
    http-response set-header X-Credit yes if !{ var(txn.sluice_asked) -m found }
    http-response set-header X-Ticket %[var(txn.test_ticket)]
    http-response set-header X-Generation %[var(txn.test_under)]
    # Sluice-* headers are for answers.`, 1)
}

func number(t testing.TB, a answer, field string) int {
	t.Helper()
	n, err := strconv.Atoi(a.Header.Get(field))
	if err != nil {
		t.Errorf("%s: %v", field, err)
	}
	return n
}

// someSeconds runs a load for 2.2 s, which is one whole second at least, and again while the
// machine stands still for so long that nothing may come in a second. It reports whether it
// did not the last time.
func someSeconds(t testing.TB, load func(begun, end time.Time)) (calm bool) {
	t.Helper()
	for limit := time.Now().Add(testkit.Patience); ; {
		var stalls testkit.Stalls
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { stalls.Watch(ctx) })
		begun := time.Now()
		load(begun, begun.Add(2200*time.Millisecond))
		cancel()
		watch.Wait()
		if calm = stalls.Longest() < 300*time.Millisecond; calm || time.Now().After(limit) {
			return calm
		}
		t.Logf("the machine stood still for %v: once more", stalls.Longest())
	}
}

// lending has credit, and four threads. Answers say by which ticket a request was admitted.
var lending = setup{Config: Config{Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User"}, edit: telling}

// fewClasses is lending with few classes that have tickets.
var fewClasses = setup{Config: Config{Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User", CreditClasses: []string{"*", "GET", "PUT"}}, edit: func(cfg string) string { return telling(withPauses(cfg)) }}

// logging is lending with an access log, and so without the rules that admit requests by their method.
var logging = setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_THREADS=4", accessLog, "SLUICE_RATELIMIT=all"}}, edit: telling}

// operating has tickets of an operation class, and so no rules that admit requests by their method.
var operating = setup{Config: Config{
	Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User", CreditClasses: []string{"*", "PUT", "LIST"}, Classes: []limits.Class{
		{Name: "LIST", Any: []limits.Match{{Methods: []string{"GET"}, Query: []string{"list"}}}},
		{Name: "BULK", Any: []limits.Match{{Query: []string{"bulk"}}}},
		{Name: "MAKE", Any: []limits.Match{{Methods: []string{"MKCOL"}}}},
	},
}, edit: telling}

// fittedOperations is the same in files for a limit file, with names in a header.
var fittedOperations = setup{Config: Config{
	Identify: "header:X-User", Fitted: true, CreditClasses: []string{"*", "LIST"},
	Classes: []limits.Class{{Name: "LIST", Any: []limits.Match{{Methods: []string{"GET"}, Query: []string{"list"}}}}},
	Exempt:  limits.Exempt{Paths: []string{"/below/*"}},
}}

// single has one thread: HAProxy's clock is the same for all requests. Requests can pause in it.
var single = setup{Config: Config{Identify: "header:X-User"}, edit: withPauses}

// singleLogging is single without the rules that admit requests by their method.
var singleLogging = setup{Config: Config{Identify: "header:X-User", Env: []string{accessLog}}, edit: withPauses}

// HAProxy admits in each second what it has been given, neither more nor less, however
// many threads look at one entry.
func TestCreditIsExact(t *testing.T) {
	const each = 40
	for _, row := range []struct {
		name    string
		setup   setup
		target  string
		classes string
	}{
		{"by method", lending, "/", strings.Join(creditClasses(), " ") + " |"},
		{"few classes", fewClasses, "/", "* GET PUT | HEAD POST DELETE PATCH OPTIONS OTHER"},
		{"fitted, all requests", fitted, "/", "* | HEAD PUT POST DELETE PATCH OPTIONS OTHER"},
		{"by class", logging, "/", strings.Join(creditClasses(), " ") + " |"},
		{"operation", operating, "/?list", "* PUT GET/LIST | /BULK OTHER/MAKE GET HEAD PUT POST DELETE PATCH OPTIONS OTHER"},
		{"addresses", manyOfAnAddress, "/", strings.Join(creditClasses(), " ") + " |"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := joined(t, row.setup)
			r.teachRow(t, generation, 0, 0)
			alice := r.someone(nil)
			r.lend(t, alice.name, credit(unlimited, nil).with("each_0", uint32(each)))
			r.answerFor(alice.name, spentOrLate)
			var from, to int64
			var admitted map[int]int // by the second
			calm := someSeconds(t, func(begun, end time.Time) {
				admitted = map[int]int{}
				tickets := map[[2]int]bool{}
				from, to = begun.Unix(), end.Unix()
				r.load(t, 16, end, nil, func(int) string { return httpGET(row.target, alice.header()) }, func(_ int, _ time.Time, a answer) {
					if a.Status != 200 {
						return
					}
					ticket := [2]int{number(t, a, "X-Now"), number(t, a, "X-Ticket")}
					if tickets[ticket] {
						t.Errorf("ticket %d was drawn twice", ticket)
					}
					tickets[ticket] = true
					admitted[ticket[0]]++
				})
				for second, n := range admitted {
					if n > each {
						t.Errorf("%d admitted in second %d, want %d at most", n, second, each)
					}
				}
			})
			for second := from + 1; calm && second < to; second++ {
				if n := admitted[int(second)]; n < each {
					t.Errorf("%d admitted in second %d, want %d", n, second, each)
				}
			}
			for _, q := range r.toldOf(t, alice.name) {
				if q.Classes != row.classes || q.Drawn > 0 || q.Places != unlimited || q.Here < 1 {
					t.Fatalf("asked %+v, want the classes %s, places, and no ticket", q, row.classes)
				}
			}
		})
	}
}

// A request that its class has no ticket for uses none of "*".
func TestCreditOfClassBeforeAll(t *testing.T) {
	for name, s := range map[string]setup{"by method": single, "by class": singleLogging} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := joined(t, s)
			r.teachRow(t, generation, 0, 0)
			alice := r.someone(nil)
			r.lend(t, alice.name, credit(unlimited, map[string]uint32{"GET": 2}))
			r.native(t, httpRequest("PUT", "/", alice.header(), "Content-Length: 0"))
			before := r.sum(t, alice.name, 0)
			r.answerFor(alice.name, spentOrLate)
			admitted, spent := 0, 0
			for range 50 {
				if got := r.get(t, alice.header()); got.Status == 200 {
					admitted++
				}
				for _, q := range r.toldOf(t, alice.name) {
					spent += int(q.Spent)
				}
			}
			if got := r.sum(t, alice.name, 0) - before; got != admitted || admitted == 0 {
				t.Errorf("%d tickets of * drawn by %d requests, want as many", got, admitted)
			}
			if spent == 0 || admitted+spent > 50 {
				t.Errorf("%d of 50 requests admitted, %d asked about as beyond their credit", admitted, spent)
			}
		})
	}
}

// An unknown method is of the class OTHER. One in small letters is asked about.
func TestCreditOfMethods(t *testing.T) {
	t.Parallel()
	r := joined(t, single)
	r.teachRow(t, generation, 0, 0)
	alice := r.someone(nil)
	r.lend(t, alice.name, credit(unlimited, nil))
	number := map[string]int{}
	for i, class := range creditClasses() {
		number[class] = i
	}
	drawn := map[string]int{}
	for method, class := range map[string]string{
		"GET": "GET", "HEAD": "HEAD", "PUT": "PUT", "POST": "POST", "DELETE": "DELETE",
		"PATCH": "PATCH", "OPTIONS": "OPTIONS", "PURGE": "OTHER", "Options": "OPTIONS", "TRACE": "OTHER",
	} {
		r.native(t, httpRequest(method, "/", alice.header(), "Content-Length: 0"))
		drawn[class]++
	}
	for class, want := range drawn {
		if got := r.sum(t, alice.name, number[class]); got != want {
			t.Errorf("%d tickets of %s drawn, want %d", got, class, want)
		}
	}
	if r.admitted(t, httpRequest("get", "/", alice.header(), "Content-Length: 0")) {
		t.Error("get is admitted, want a question")
	}
}

// Without a place the agent is asked, and told that there was a ticket.
func TestCreditPlaces(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := shared(t, single.with(g.ServeHTTP))
	r.teachRow(t, generation, 0, 0)
	g.let(1)
	r.lend(t, "alice", credit(2, nil))
	running := r.starts("alice", 2)
	g.await(t, 3)
	if asked := r.takeTold(t); len(asked) != 0 {
		t.Errorf("asked %+v about requests that have a place, want nothing", asked)
	}
	r.answerTold(func(told) vars { return vars{"reason": "concurrent-requests", "limit": uint32(2)} })
	if got := r.get(t, "X-User: alice"); got.Status != 429 {
		t.Errorf("without a place: status = %d, want 429", got.Status)
	}
	want := []told{{heard{"alice", "GET", "start-message", 1, 0, "", false}, strings.Join(creditClasses(), " ") + " |", 0, 1, -1, 3, 2, true, "", [2]string{}, -1}}
	if got := r.takeTold(t); !slices.Equal(got, want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	g.let(2)
	if got := statuses(running, 2); got[200] != 2 {
		t.Errorf("answers = %v, want 200 twice", got)
	}
	testkit.Eventually(t, "places become free", func() error {
		if cur := r.entry(t, "alice")["conn_cur"]; cur != 0 {
			return fmt.Errorf("conn_cur = %d, want 0", cur)
		}
		return nil
	})
	g.let(1)
	r.native(t, httpGET("/", "X-User: alice"))
	g.let(100)
}

// When the agent has withdrawn credit and read the count of tickets, no request is admitted by a ticket that is not in the
// count. Many connections of one user spend their credit on four threads, and every few milliseconds it is withdrawn, and given
// under another generation.
func TestCreditWithdrawn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		setup   setup
		mistake bool
	}{
		{"by method", setup{Config: lending.Config, edit: reopening}, false},
		{"by class", setup{Config: logging.Config, edit: reopening}, false},
		// How often this variant leaks depends on the machine: TestCreditWithdrawnBehindATicket finds the mistake for certain.
		{"without the last condition", setup{Config: lending.Config, edit: func(cfg string) string {
			return strings.ReplaceAll(reopening(cfg), " sluice_place sluice_unchanged", " sluice_place")
		}}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			times, admitted, leaks := 0, 0, 0
			for times < 20 || admitted < times { // a slow machine needs more than one round
				n, by, leaked := withdrawals(t, row.setup)
				times, admitted, leaks = times+n, admitted+by, leaks+leaked
			}
			t.Logf("%d withdrawals, %d requests admitted, %d leaks", times, admitted, leaks)
			if leaks > 0 && !row.mistake {
				t.Errorf("%d withdrawals, %d requests admitted, %d leaks; want none", times, admitted, leaks)
			}
		})
	}
}

// reopening opens a second again under each generation of its user's credit, so that credit can be given more than once in it.
func reopening(cfg string) string {
	track := "    http-request track-sc1 date(),concat(|,txn.sluice_user,\"${sluice_pad-}\") table sluice_seconds if { sc_get_gpt(0,0) -m bool }\n"
	return strings.Replace(telling(cfg), track, track+"    http-request sc-set-gpt(1,1) sc_get_gpt(0,0) if { sc_get_gpt(0,0) -m bool }\n", 1)
}

func withdrawals(t *testing.T, s setup) (times, admitted, leaks int) {
	t.Helper()
	r := shared(t, s)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", credit(unlimited, nil))
	r.answerFor("alice", spentOrLate)
	type use struct{ generation, second, ticket int }
	var uses []use
	var load sync.WaitGroup
	until := time.Now().Add(4 * time.Second)
	load.Go(func() {
		r.load(t, 24, until, nil, func(int) string { return httpGET("/", "X-User: alice") }, func(_ int, _ time.Time, a answer) {
			if a.Header.Get("X-Credit") != "" && a.Status == 200 {
				uses = append(uses, use{number(t, a, "X-Generation"), number(t, a, "X-Now"), number(t, a, "X-Ticket")})
			}
		})
	})
	// What was drawn of each second when a generation was withdrawn.
	type withdrawal struct{ generation, second int }
	drawn := map[withdrawal]int{}
	g := generation
	for ; time.Now().Before(until); g++ {
		r.runtime(t, fmt.Sprintf("set table sluice/credit key ~ data.gpt0 %d; set table sluice_credit key alice data.gpt %d", g, g))
		time.Sleep(5 * time.Millisecond)
		now := int(time.Now().Unix())
		command := "set table sluice_credit key alice data.gpt 0"
		for second := now - 1; second <= now+1; second++ {
			key := fmt.Sprintf("%d|alice", second)
			command += fmt.Sprintf("; show table sluice_seconds key %s; show table sluice_seconds key %s", key, key+strings.Repeat("\x7f", 112-len(key)))
		}
		for _, line := range regexp.MustCompile(`key=(\d+)\|alice\S* .* gpc0=(\d+)`).FindAllStringSubmatch(r.runtime(t, command), -1) {
			second, _ := strconv.Atoi(line[1])
			drawn[withdrawal{g, second}], _ = strconv.Atoi(line[2])
		}
	}
	load.Wait()
	for _, u := range uses {
		if u.ticket > drawn[withdrawal{u.generation, u.second}] {
			leaks++
		}
	}
	return g - generation, len(uses), leaks
}

// set writes an entry of a table by the socket that the agent uses.
func (r *rig) set(t testing.TB, table, key, data string) {
	t.Helper()
	if out := r.runtime(t, fmt.Sprintf("set table %s key %s %s", table, key, data)); out != "" {
		t.Fatal(out)
	}
}

// runtime sends one command to the socket that the agent uses.
func (r *rig) runtime(t testing.TB, command string) string {
	t.Helper()
	return order(t, filepath.Join(r.dir, "runtime.sock"), command)
}
