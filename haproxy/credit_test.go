package haproxy

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
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

// Headers of answers, by which tests know the second, the ticket, the last ticket of that second and the generation
// by which HAProxy admitted a request. Who was not let through by a ticket has none.
func telling(cfg string) string {
	// The short way keeps less than that in variables.
	for short, kept := range map[string]string{
		"sc_inc_gpc(1,0),sub(":                                 "sc_inc_gpc(1,0),set-var(txn.test_ticket),sub(",
		"sc_get_gpt(7,0),set-var(":                             "sc_get_gpt(7,0),set-var(txn.test_last),set-var(",
		"date(3),sub(":                                         "date(),set-var(txn.sluice_now),add(3),sub(",
		"sc_get_gpt(1,0),set-var(txn.sluice_read)":             "sc_get_gpt(1,0),set-var(txn.sluice_end),set-var(txn.sluice_read)",
		"date(1) if sluice_renews":                             "date(1),set-var(txn.sluice_end) if sluice_renews",
		"{ var(txn.sluice_user),table_gpt(0,sluice_credit) -m": "{ var(txn.sluice_user),table_gpt(0,sluice_credit),set-var(txn.sluice_credit) -m",
	} {
		cfg = strings.ReplaceAll(cfg, short, kept)
	}
	return strings.Replace(cfg, "    # Sluice-* headers are for answers.", `    http-response set-header X-End %[var(txn.sluice_end)]
    http-response set-header X-Now %[var(txn.sluice_now)]
    http-response set-header X-Ticket %[var(txn.test_ticket)] if !{ var(txn.sluice_asked) -m found }
    http-response set-header X-Last %[var(txn.test_last)]
    http-response set-header X-Generation %[var(txn.sluice_credit)]
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

// admissions counts requests that were let through by tickets. Two maps by the last ticket of a second: how many requests, and
// the end of that second. A thread may read an end just before the tickets are renewed, and draw one of the new ones: the last
// ticket tells which second it is of, and whoever read the end later tells when that is.
type admissions struct{ requests, ends map[int]int }

func newAdmissions() admissions { return admissions{map[int]int{}, map[int]int{}} }

func (a admissions) add(t testing.TB, got answer) {
	t.Helper()
	last := number(t, got, "X-Last")
	a.requests[last]++
	a.ends[last] = max(a.ends[last], number(t, got, "X-End"))
}

// bySecond is how many requests the tickets of each second let through.
func (a admissions) bySecond() map[int]int {
	admitted := map[int]int{}
	for last, n := range a.requests {
		admitted[a.ends[last]-1] += n
	}
	return admitted
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
var lending = setup{Config: Config{Identify: "header:X-User", Threads: 4}, edit: telling}

// renewing is lending with few classes that have tickets, whose tickets the short way renews.
var renewing = setup{Config: Config{Identify: "header:X-User", Threads: 4, CreditClasses: []string{"*", "GET", "PUT"}}, edit: func(cfg string) string { return telling(withPauses(cfg)) }}

// logging is lending with an access log, and so without the short way.
var logging = setup{Config: Config{Identify: "header:X-User", Threads: 4, Env: []string{accessLog, "SLUICE_RATELIMIT=all"}}, edit: telling}

// operating has tickets of an operation class, and so no short way.
var operating = setup{Config: Config{
	Identify: "header:X-User", Threads: 4, CreditClasses: []string{"*", "PUT", "LIST"}, Classes: []limits.Class{
		{Name: "LIST", Any: []limits.Match{{Methods: []string{"GET"}, Query: []string{"list"}}}},
		{Name: "BULK", Any: []limits.Match{{Query: []string{"bulk"}}}},
		{Name: "MAKE", Any: []limits.Match{{Methods: []string{"MKCOL"}}}},
	},
}, edit: telling}

// single has one thread: HAProxy's clock is the same for all requests. Requests can pause in it.
var single = setup{Config: Config{Identify: "header:X-User"}, edit: withPauses}

// singleLogging is single without the short way.
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
		{"short way", lending, "/", strings.Join(creditClasses(), " ")},
		{"short way that renews", renewing, "/", "* GET PUT"},
		{"fitted, all requests", fitted, "/", "*"},
		{"long way", logging, "/", strings.Join(creditClasses(), " ")},
		{"operation", operating, "/?list", "* PUT LIST"},
		{"addresses", manyOfAnAddress, "/", strings.Join(creditClasses(), " ")},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := joined(t, row.setup)
			r.teachRow(t, generation, 0, 0)
			alice := r.someone(nil)
			r.lend(t, alice.name, credit(unlimited, nil).with("each_0", uint32(each)))
			r.answerFor(alice.name, spentOrLate)
			tickets := map[int]bool{}
			var from, to int64
			var admitted map[int]int // by the second
			calm := someSeconds(t, func(begun, end time.Time) {
				tally := newAdmissions()
				from, to = begun.Unix(), end.Unix()
				r.load(t, 16, end, nil, func(int) string { return httpGET(row.target, alice.header()) }, func(_ int, _ time.Time, a answer) {
					if a.Status != 200 {
						return
					}
					second, ticket := number(t, a, "X-End")-1, number(t, a, "X-Ticket")
					if behind := second - number(t, a, "X-Now"); behind < 0 || behind > 1 {
						t.Errorf("admitted in second %d by a ticket of %d", second-behind, second)
					}
					if tickets[ticket] {
						t.Errorf("ticket %d was drawn twice", ticket)
					}
					tickets[ticket] = true
					tally.add(t, a)
				})
				admitted = tally.bySecond()
				for second, n := range admitted {
					if n > each {
						t.Errorf("%d admitted in second %d, want %d at most", n, second, each)
					}
				}
			})
			for second := from + 1; calm && second < to; second++ {
				// A ticket that was drawn as its second ended belongs to no second.
				if n := admitted[int(second)]; n < each*9/10 {
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
	for name, s := range map[string]setup{"short way": single, "long way": singleLogging} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := joined(t, s)
			r.teachRow(t, generation, 0, 0)
			alice := r.someone(nil)
			r.lend(t, alice.name, credit(unlimited, map[string]uint32{"GET": 2}))
			r.native(t, httpRequest("PUT", "/", alice.header(), "Content-Length: 0"))
			before := r.entry(t, alice.name)
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
			after := r.entry(t, alice.name)
			if got := after["gpc1"] - before["gpc1"]; got != admitted || admitted == 0 {
				t.Errorf("%d tickets of * drawn by %d requests, want as many", got, admitted)
			}
			if spent == 0 || admitted+spent > 50 {
				t.Errorf("%d of 50 requests admitted, %d asked about as beyond their credit", admitted, spent)
			}
		})
	}
}

// A lower-case method is of the same class, and an unknown one of OTHER.
func TestCreditOfMethods(t *testing.T) {
	t.Parallel()
	r := joined(t, single)
	r.teachRow(t, generation, 0, 0)
	alice := r.someone(nil)
	r.lend(t, alice.name, credit(unlimited, nil))
	before := r.entry(t, alice.name)
	number := map[string]int{}
	for i, class := range creditClasses() {
		number[class] = i
	}
	drawn := map[string]int{}
	for method, class := range map[string]string{
		"GET": "GET", "get": "GET", "HEAD": "HEAD", "PUT": "PUT", "pUt": "PUT", "POST": "POST", "DELETE": "DELETE",
		"PATCH": "PATCH", "OPTIONS": "OPTIONS", "PURGE": "OTHER", "Options": "OPTIONS", "TRACE": "OTHER",
	} {
		r.native(t, httpRequest(method, "/", alice.header(), "Content-Length: 0"))
		drawn[class]++
	}
	after := r.entry(t, alice.name)
	for class, want := range drawn {
		field := fmt.Sprint("gpc", 1+number[class])
		if got := after[field] - before[field]; got != want {
			t.Errorf("%d tickets of %s drawn, want %d", got, class, want)
		}
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
	want := []told{{heard{"alice", "GET", "start-message", 1, 0, "", false}, strings.Join(creditClasses(), " "), 0, 1, -1, 3, 2, true, "", [2]string{}, -1}}
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

// When the agent has withdrawn credit and read the count of tickets, no request is
// admitted by one that is not in the count.
func TestCreditWithdrawn(t *testing.T) {
	t.Parallel()
	const users, rounds = 6, 3
	r := shared(t, lending)
	g := generation
	r.answerTold(func(told) vars { return credit(unlimited, nil).with("credit", uint32(g)) })
	r.teachRow(t, g, 0, 0)
	type lease struct {
		user       string
		generation int
	}
	highest := map[lease]int{}
	counts := map[lease]int{}
	until := time.Now().Add((rounds*2 + 1) * time.Second)
	var load sync.WaitGroup
	var mu sync.Mutex
	for u := range users {
		user := fmt.Sprint("user-", u)
		load.Go(func() {
			r.load(t, 4, until, nil, func(int) string { return httpGET("/", "X-User: "+user) }, func(_ int, _ time.Time, a answer) {
				mu.Lock()
				defer mu.Unlock()
				if a.Status == 200 && a.Header.Get("X-Ticket") != "" {
					of := lease{user, number(t, a, "X-Generation")}
					highest[of] = max(highest[of], number(t, a, "X-Ticket"))
				}
			})
		})
	}
	for range rounds {
		// Every user has tickets of this generation.
		testkit.Eventually(t, "tickets", func() error {
			for u := range users {
				if e := r.entry(t, fmt.Sprint("user-", u)); e["gpt0"] != g || e["gpt5"] != 1 {
					return fmt.Errorf("user-%d: %v", u, e)
				}
			}
			return nil
		})
		// The agent takes them back and gives none for the moment.
		r.answerTold(nil)
		for u := range users {
			user := fmt.Sprint("user-", u)
			r.set(t, "sluice_credit", user, "data.gpt 0")
			counts[lease{user, g}] = r.entry(t, user)["gpc1"]
		}
		g++
		next := uint32(g)
		r.teachRow(t, g, 0, 0)
		r.answerTold(func(told) vars { return credit(unlimited, nil).with("credit", next) })
	}
	load.Wait()
	if len(counts) != users*rounds {
		t.Fatalf("%d leases withdrawn, want %d", len(counts), users*rounds)
	}
	for of, count := range counts {
		if highest[of] > count || highest[of] == 0 {
			t.Errorf("%+v: ticket %d admitted a request, and the count that was read is %d", of, highest[of], count)
		}
	}
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
