package haproxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// kinds is how many requests of a user HAProxy says that it admitted by credit, or refused, by their kind: as the agent reads it.
func (r *rig) kinds(t testing.TB, user string, refused bool) map[string]int {
	t.Helper()
	_, text, _ := strings.Cut(r.cli(t, "get var proc.sluice_classes"), "value=<")
	text, _, whole := strings.Cut(text, ">")
	before, behind, bar := strings.Cut(text, "|")
	classes, others := strings.Fields(before), strings.Fields(behind)
	if !whole || !bar {
		t.Fatalf("proc.sluice_classes is %q, want words and a bar", text)
	}
	kinds, next, ofAll := map[string]int{}, 2*len(classes)+len(others), 0
	add := func(kind string, admitted int) {
		n := admitted
		if refused {
			n = r.sum(t, user, next)
		}
		next++
		if n > 0 {
			kinds[kind] += n
		}
		ofAll -= admitted
	}
	for i, class := range classes {
		used := r.sum(t, user, i) - r.sum(t, user, len(classes)+i)
		switch {
		case class == "*" && !slices.Contains(slices.Concat(classes, others), "GET"):
			ofAll += used
			add("GET", 0)
		case class != "*" && !slices.Contains(others, class):
			add(class, used)
		}
	}
	for i, kind := range others {
		add(kind, r.sum(t, user, 2*len(classes)+i))
	}
	if ofAll > 0 && !refused {
		kinds["GET"] += ofAll
	}
	return kinds
}

// Each request that credit admits is counted once, by its operation class or its verb, and
// none that the agent is asked about, be it admitted or refused.
func TestAdmittedByCreditIsCounted(t *testing.T) {
	verbs := map[string]string{"GET /": "GET", "HEAD /": "HEAD", "PUT /": "PUT", "POST /": "POST", "DELETE /": "DELETE", "PATCH /": "PATCH",
		"OPTIONS /": "OPTIONS", "MKCOL /": "OTHER", "GET /?list": "GET", "PUT /?bulk": "PUT"}
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
		{"all requests", fitted, verbs, -1},
		{"places alone", setup{Config: Config{Identify: "header:X-User", Fitted: true, CreditClasses: []string{}}}, verbs, -1},
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

// There is room for 40 operation classes, of which one has tickets.
func TestCountsOfOperations(t *testing.T) {
	var many []limits.Class
	for i := range 105 {
		many = append(many, limits.Class{Name: fmt.Sprint("C", i), Any: []limits.Match{{Methods: []string{"PUT"}}}})
	}
	r, err := newCreditRules([]string{"*", "C0"}, many, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kinds) != 48 || r.Counters != 100 {
		t.Errorf("%d kinds and %d counters, want 48 and 100", len(r.Kinds), r.Counters)
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

// A request that has waited is refused in a later second than it came in, and counted there: the agent has read the other one.
func TestRefusedAfterAWaitIsCounted(t *testing.T) {
	r := shared(t, single)
	r.teachRow(t, generation, 0, 0)
	r.answerWith(tell(func() vars {
		time.Sleep(1100 * time.Millisecond)
		return vars{"reason": "concurrent-requests", "limit": uint32(10)}
	}))
	came := time.Now().Unix()
	if got := r.get(t, "X-User: carol"); got.Status != 429 {
		t.Fatalf("status %d, want 429", got.Status)
	}
	if diff := cmp.Diff(map[string]int{"GET": 1}, r.kinds(t, "carol", true)); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	for second, e := range r.seconds(t, "carol") {
		if int64(second) <= came || e["gpt0"] != second {
			t.Errorf("counted in second %d, %v, want a later one than %d", second, e, came)
		}
	}
}
