package haproxy

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// tallies is how many requests of a user HAProxy says that it admitted by credit, by what
// they were: as the agent reads it.
func (r *rig) tallies(t testing.TB, user string) map[string]int {
	t.Helper()
	_, text, _ := strings.Cut(r.cli(t, "get var proc.sluice_tallies"), "value=<")
	text, _, whole := strings.Cut(text, ">")
	words := strings.Fields(text)
	var first int
	if n, err := fmt.Sscan(text, &first); n != 1 || err != nil || !whole || len(words) < 2 {
		t.Fatalf("proc.sluice_tallies is %q, want a number and words", text)
	}
	entry := r.entry(t, user)
	if more, ok := entry[fmt.Sprint("gpc", first+len(words)-1)]; ok {
		t.Errorf("counter %d, %d, is of nothing", first+len(words)-1, more)
	}
	tallies := map[string]int{}
	for i, kind := range words[1:] {
		n, ok := entry[fmt.Sprint("gpc", first+i)]
		if !ok {
			t.Fatalf("no counter %d for %s", first+i, kind)
		}
		if n > 0 {
			tallies[kind] = n
		}
	}
	return tallies
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
		{"short way", single, verbs, 3},
		{"short way of some verbs", renewing, verbs, 2},
		{"long way", singleLogging, verbs, 3},
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
				if diff := cmp.Diff(want, r.tallies(t, alice.name)); diff != "" {
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

// There is room for 97 operation classes.
func TestTalliesOfOperations(t *testing.T) {
	var many []limits.Class
	for i := range 105 {
		many = append(many, limits.Class{Name: fmt.Sprint("C", i), Any: []limits.Match{{Methods: []string{"PUT"}}}})
	}
	r, err := newCreditRules([]string{"*", "C0"}, many, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(r.Counted, "sc-inc-gpc("); got != 97 || !strings.Contains(r.Table, "gpc(100),") {
		t.Errorf("%d rules count in the table %s, want one for each of 97 counters", got, r.Table)
	}
}
