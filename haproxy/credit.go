package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxCounters is how many counters (gpc) an entry of a table can have.
const maxCounters = 100

// maxCreditClasses bounds the classes that have tickets: each may take three counters, the eight verbs take two, and the
// requests that no agent answered about one.
const maxCreditClasses = (maxCounters - 17) / 3

// creditClasses are the classes that have tickets as shipped: all requests together, and
// every verb.
func creditClasses() []string { return slices.Concat([]string{limits.All}, verbs, []string{"OTHER"}) }

// CreditClasses are the classes that need tickets for a limit file: those that it
// limits by the second, verbs before operation classes. Users who are limited by another
// class, because the file has changed since or has more than can be kept, have no credit:
// the agent is asked about each of their requests.
func CreditClasses(set *limits.Set) []string {
	// Longer windows have no tickets: what is left of a minute no table of HAProxy's can tell, so users with
	// such limits are asked about.
	limited := set.SecondClasses()
	classes := []string{}
	for _, class := range creditClasses() {
		if slices.Contains(limited, class) {
			classes = append(classes, class)
		}
	}
	for _, class := range limited {
		if !slices.Contains(creditClasses(), class) {
			classes = append(classes, class)
		}
	}
	// The last ones go, which are operations: their users are asked about with each request, and no limit is
	// lost.
	return classes[:min(len(classes), maxCreditClasses)]
}

// shortMethods are those of which HAProxy itself knows that they are in capitals. Before 3.2
// it takes unknown ones for OPTIONS.
var shortMethods = []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"}

// unlimitedTickets is how many tickets a second the agent gives of a class that is not limited.
const unlimitedTickets = 1 << 28

// Elements (gpt) of an entry of sluice_credit.
const (
	clockElement  = 4 // where the clock of bandwidth down began; the one up is behind it
	placeElement  = 1
	ticketElement = 6 // tickets a second of the first class; the other classes and the shares of bandwidth are behind it
)

// How far a request came that HAProxy did not admit by credit, as txn.sluice_over has it: these were drawn, and the last one did not
// suffice.
const (
	overOperation = iota + 1
	overVerb
	overAll
	overPlaces
	overGeneration // another one by now
)

// creditRules are the classes, kinds and numbers of the rules about credit in haproxy.cfg.tmpl.
type creditRules struct {
	Tickets []ticketClass
	Place   ticketClass  // as if places were tickets
	Fast    []creditRule // admit most requests before their class is known; none if operations have tickets
	Rules   []creditRule // admit all kinds
	Kinds   []requestKind
	Counted []string // names of the operations among the kinds

	Classes            string // for the agent: see haproxy.cfg
	Unheard            int    // counter
	Elements, Counters int    // of an entry of sluice_credit; of an entry of sluice_seconds
	ShareDown, ShareUp int    // elements of the shares
	ClockDown, ClockUp int    // elements of the clocks
	Unlimited          int    // tickets of a class that is not limited, less one
}

// A ticketClass is a class that has tickets.
type ticketClass struct {
	Name      string
	ACL       string // draws a ticket that suffices, or notes Over
	Over      int
	Each      int    // element: tickets a second
	Drawn     int    // counter: tickets drawn in a second
	Returned  int    // counter: and not used
	Condition string // of requests of the class
}

// A creditRule admits requests by credit.
type creditRule struct {
	Condition string
	Tickets   []ticketClass // that are drawn, in this order
	Count     int           // counter of requests that no ticket counts; -1: none
}

// A requestKind is what requests are counted by: their operation if that has counters, else their verb.
type requestKind struct {
	Condition string
	Refused   int // counter
}

func newCreditRules(classes []string, operations []limits.Class, shares bool) (creditRules, error) {
	n := len(classes)
	if n > maxCreditClasses {
		return creditRules{}, fmt.Errorf("%d classes that have tickets: want %d at most", n, maxCreditClasses)
	}
	r := creditRules{
		Place:    ticketClass{ACL: "sluice_place", Over: overPlaces, Each: placeElement},
		Elements: ticketElement + n, ShareDown: ticketElement + n, ShareUp: ticketElement + n + 1,
		ClockDown: clockElement, ClockUp: clockElement + 1, Unlimited: unlimitedTickets - 1,
	}
	if shares {
		r.Elements += 2
	}
	for i, class := range classes {
		c := ticketClass{Name: class, ACL: "sluice_ticket_" + class, Over: overVerb, Each: ticketElement + i, Drawn: i, Returned: n + i}
		switch {
		case class == limits.All:
			c.ACL, c.Over = "sluice_ticket", overAll
		case slices.Contains(creditClasses(), class):
			c.Condition = " " + ofVerb(class)
		case className.MatchString(class):
			c.Over, c.Condition = overOperation, " "+ofOperation(class)
		default:
			return r, fmt.Errorf("class that has tickets %q: want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter", class)
		}
		r.Tickets = append(r.Tickets, c)
	}
	if len(r.operationTickets()) == 0 {
		operations = nil // requests are admitted before they are classified
	}
	r.addRules(operations)
	return r, nil
}

func ofVerb(verb string) string { return "{ var(txn.sluice_class) -m str " + verb + " }" }

func ofOperation(name string) string { return "{ var(txn.sluice_op) -m str " + name + " }" }

// addRules adds the rules that admit requests by credit, and the kinds that requests count by: each verb, limited or not, each operation
// that has tickets, and as many others as there are counters for. Requests of all other operations count by their verb. The tickets of a
// kind count it; one without has a counter, but if all requests have tickets, what is left of these is GETs.
func (r *creditRules) addRules(operations []limits.Class) {
	of := func(class string) []ticketClass { // one or none
		i := slices.IndexFunc(r.Tickets, func(c ticketClass) bool { return c.Name == class })
		if i < 0 {
			return nil
		}
		return r.Tickets[i : i+1]
	}
	n, all, verbs := len(r.Tickets), of(limits.All), creditClasses()[1:]
	words, plain := make([]string, n), []string(nil)
	for i, c := range r.Tickets {
		words[i] = c.Name
	}
	counter := func(word string) int {
		plain = append(plain, word)
		return 2*n + len(plain) - 1
	}
	other := ""
	room := maxCounters - 1 - 2*n - 2*len(verbs) - len(r.operationTickets())
	for _, o := range operations {
		own, verb, count := of(o.Name), verbOf(o), -1
		switch {
		case len(own) > 0:
			words[own[0].Drawn] = verb + "/" + o.Name
		case room < 2:
			continue
		default:
			room -= 2
			count = counter(verb + "/" + o.Name)
		}
		for _, v := range verbs {
			if t := of(v); len(t) > 0 && (verb == v || verb == "") {
				r.Rules = append(r.Rules, creditRule{ofOperation(o.Name) + " " + ofVerb(v), slices.Concat(own, t, all), count})
			}
		}
		if verb == "" || len(of(verb)) == 0 {
			r.Rules = append(r.Rules, creditRule{ofOperation(o.Name), slices.Concat(own, all), count})
		}
		r.Counted = append(r.Counted, o.Name)
		other = " !sluice_counted"
	}
	for _, verb := range verbs {
		own, count := of(verb), -1
		// Where operations count, a verb's tickets are theirs as well.
		if len(operations) > 0 || len(own) == 0 && (verb != "GET" || len(all) == 0) {
			count = counter(verb)
		}
		tickets := slices.Concat(own, all)
		condition := ofVerb(verb)
		// Before a request is classified: a rule that is tried has drawn, so the last one is for all others.
		if len(r.operationTickets()) == 0 {
			condition = fmt.Sprintf("{ method,upper -m str %s }", verb)
			if verb == "OTHER" {
				condition = ""
			}
			if slices.Contains(shortMethods, verb) {
				r.Fast = append(r.Fast, creditRule{fmt.Sprintf("{ method %s }", verb), tickets, count})
			}
		}
		r.Rules = append(r.Rules, creditRule{condition, tickets, count})
	}
	r.Classes = strings.Join(slices.Concat(words, []string{"|"}, plain), " ")
	for i, word := range slices.Concat(words, plain) {
		verb, operation, _ := strings.Cut(word, "/")
		condition := ofOperation(operation)
		if operation == "" {
			condition = ofVerb(strings.Replace(verb, limits.All, "GET", 1)) + other
		}
		if i >= n || word != limits.All && !slices.Contains(plain, word) || word == limits.All && !slices.Contains(slices.Concat(words, plain), "GET") {
			r.Kinds = append(r.Kinds, requestKind{condition, 2*n + len(plain) + len(r.Kinds)})
		}
	}
	r.Unheard = 2*n + len(plain) + len(r.Kinds)
	r.Counters = r.Unheard + 1
}

func (r *creditRules) operationTickets() []ticketClass {
	return slices.DeleteFunc(slices.Clone(r.Tickets), func(c ticketClass) bool { return c.Over != overOperation })
}

// verbOf is the verb of all requests of an operation class, "" if there are several.
func verbOf(o limits.Class) string {
	verb := ""
	for _, m := range o.Any {
		// Without the verb the agent could not add such a request to those of its verb.
		if len(m.Methods) != 1 {
			return ""
		}
		of := m.Methods[0]
		if !slices.Contains(verbs, of) {
			of = "OTHER"
		}
		if verb != "" && verb != of {
			return ""
		}
		verb = of
	}
	return verb
}

// creditClasses are the classes that have tickets.
func (c Config) creditClasses() []string {
	if c.CreditClasses == nil {
		return creditClasses()
	}
	return c.CreditClasses
}
