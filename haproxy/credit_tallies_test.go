package haproxy

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// kinds is how many requests of a user HAProxy says that it admitted by credit, or refused, by their kind: as the agent reads it.
func (r *rig) kinds(t testing.TB, user string, refused bool) map[string]int {
	t.Helper()
	_, text, _ := strings.Cut(r.cli(t, "get var proc.sluice_kinds"), "value=<")
	text, _, whole := strings.Cut(text, ">")
	words := strings.Fields(text)
	var first int
	if n, err := fmt.Sscan(text, &first); n != 1 || err != nil || !whole || len(words) < 2 {
		t.Fatalf("proc.sluice_kinds is %q, want a number and words", text)
	}
	if refused {
		first += len(words) - 1
	}
	kinds := map[string]int{}
	for i, kind := range words[1:] {
		if n := r.sum(t, user, first+i); n > 0 {
			kinds[kind] = n
		}
	}
	return kinds
}

// Each request that credit admits is counted once, by its operation class or its verb, and
// none that the agent is asked about, be it admitted or refused.
func TestAdmittedByCreditIsCounted(t *testing.T) {
	verbs := map[string]string{"GET /": "GET", "HEAD /": "HEAD", "PUT /": "PUT", "POST /": "POST", "DELETE /": "DELETE", "PATCH /": "PATCH",
		"OPTIONS /": "OPTIONS", "MKCOL /": "OTHER", "GET /?list": "GET", "PUT /?bulk": "PUT", "get /": "GET"}
	classes := maps.Clone(verbs)
	classes["GET /?list"], classes["PUT /?bulk"], classes["MKCOL /"] = "GET/LIST", "/BULK", "OTHER/MAKE"
	for _, row := range []struct {
		name  string
		setup setup
		want  map[string]string // what a request counts as
		put   int               // number of the class PUT, which has few tickets
	}{
		{"by method", single, verbs, 3},
		{"some verbs", fewClasses, verbs, 2},
		{"by class", singleLogging, verbs, 3},
		{"operations that have no tickets", usual.with(moving.ServeHTTP), verbs, 3},
		{"operations", operating, classes, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := joined(t, row.setup)
			r.teachRow(t, generation, 0, 0)
			alice := r.someone(nil)
			r.lend(t, alice.name, credit(unlimited, nil).with(fmt.Sprint("each_", row.put), uint32(3)))
			want := map[string]int{}
			// The test's own count of what HAProxy admitted without a question.
			send := func(request string) {
				method, target, _ := strings.Cut(request, " ")
				if r.admitted(t, httpRequest(method, target, alice.header(), "Content-Length: 0")) {
					want[row.want[request]]++
				}
			}
			for round, refuse := range []bool{false, true} {
				r.answerFor(alice.name, nil) // admits
				if refuse {
					r.answerFor(alice.name, spentOrLate)
				}
				for range 5 {
					for request := range row.want {
						send(request)
					}
				}
				for range 10 {
					send("PUT /")
				}
				if diff := cmp.Diff(want, r.kinds(t, alice.name, false)); diff != "" {
					t.Errorf("round %d: counted (-want +got):\n%s", round, diff)
				}
			}
			for request, kind := range row.want {
				if want[kind] == 0 {
					t.Errorf("no %s was admitted by credit: nothing is shown about it", request)
				}
			}
			if want["PUT"] > 60 {
				t.Errorf("%d PUTs were admitted by credit, which has 3 in a second", want["PUT"])
			}
		})
	}
}

// There is room for 40 operation classes.
func TestTalliesOfOperations(t *testing.T) {
	var many []limits.Class
	for i := range 105 {
		many = append(many, limits.Class{Name: fmt.Sprint("C", i), Any: []limits.Match{{Methods: []string{"PUT"}}}})
	}
	r, err := newCreditRules([]string{"*", "C0"}, many, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kinds) != 48 || r.Counters != 99 {
		t.Errorf("%d kinds and %d counters, want 48 and 99 of 100", len(r.Kinds), r.Counters)
	}
}

// Each refused request counts once, in the second that it is of, by its operation class or its verb: whether the agent
// refused it or a table.
func TestRefusedIsCounted(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setup{"by method": single, "by class": singleLogging, "operations": operating} {
		t.Run(name, func(t *testing.T) {
			r := shared(t, s)
			r.teachRow(t, generation, 0, 0)
			r.answerFor("alice", spentOrLate)
			r.teach(t, "throttle", "*|bob", time.Now().Add(time.Hour), 1)
			for range 3 {
				r.get(t, "X-User: alice")
				r.get(t, "X-User: bob")
			}
			r.send(t, httpRequest("PUT", "/?bulk", "X-User: alice", "Content-Length: 0"))
			bulk := "PUT"
			if name == "operations" {
				bulk = "/BULK"
			}
			for user, want := range map[string]map[string]int{"alice": {"GET": 3, bulk: 1}, "bob": {"GET": 3}} {
				if diff := cmp.Diff(want, r.kinds(t, user, true)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", user, diff)
				}
				if got := r.kinds(t, user, false); len(got) > 0 {
					t.Errorf("%s: counted as admitted by credit: %v", user, got)
				}
				for second, e := range r.seconds(t, user) {
					if e["gpt0"] != second || e["gpt1"] != 0 {
						t.Errorf("%s: the entry of second %d is %v, want its second, and that it was not opened", user, second, e)
					}
				}
			}
		})
	}
}
