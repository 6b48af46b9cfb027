package haproxy

import (
	"fmt"
	"slices"

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
	classes := slices.DeleteFunc(creditClasses(), func(class string) bool { return !slices.Contains(limited, class) })
	operations := slices.DeleteFunc(limited, func(class string) bool { return slices.Contains(creditClasses(), class) })
	classes = append(classes, operations...) // never nil
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

// How far a request came that HAProxy did not admit by credit, as txn.sluice_over has it; 5: the generation is another one by now.
const (
	overOperation = iota + 1
	overVerb
	overAll
	overPlaces
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
	Name, Condition string
	Refused         int // counter
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
	if !slices.ContainsFunc(r.Tickets, func(c ticketClass) bool { return c.Over == overOperation }) {
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
		return r.Tickets[max(i, 0) : i+1]
	}
	n, all, verbs := len(r.Tickets), of(limits.All), creditClasses()[1:]
	byTicket, byCounter := make([]requestKind, n), []requestKind(nil)
	// count is the counter of a kind, -1 if it is counted by tickets.
	count := func(kind requestKind, tickets []ticketClass) int {
		if len(tickets) > 0 {
			byTicket[tickets[0].Drawn] = kind
			return -1
		}
		byCounter = append(byCounter, kind)
		return 2*n + len(byCounter) - 1
	}
	admit := func(condition string, count int, tickets ...[]ticketClass) {
		r.Rules = append(r.Rules, creditRule{condition, slices.Concat(slices.Concat(tickets...), all), count})
	}
	room := maxCounters - 1 - 2*n - 2*len(verbs)
	for _, o := range operations {
		room -= len(of(o.Name))
	}
	other := ""
	for _, o := range operations {
		own, verb, condition := of(o.Name), verbOf(o), ofOperation(o.Name)
		if len(own) == 0 {
			if room < 2 {
				continue
			}
			room -= 2
		}
		counter := count(requestKind{Name: verb + "/" + o.Name, Condition: condition}, own)
		for _, v := range verbs {
			if verb == v || verb == "" && len(of(v)) > 0 {
				admit(condition+" "+ofVerb(v), counter, own, of(v))
			}
		}
		if verb == "" {
			admit(condition, counter, own)
		}
		r.Counted = append(r.Counted, o.Name)
		other = " !sluice_counted"
	}
	for _, verb := range verbs {
		own := of(verb)
		counts := own
		switch {
		case len(operations) > 0:
			counts = nil // the tickets are those of operations as well
		case verb == "GET" && len(own) == 0:
			counts = all
		}
		counter := count(requestKind{Name: verb, Condition: ofVerb(verb) + other}, counts)
		if len(operations) == 0 && slices.Contains(shortMethods, verb) {
			admit("{ method "+verb+" }", counter, own)
			r.Fast = r.Rules
		} else {
			admit(ofVerb(verb), counter, own)
		}
	}
	for i, c := range r.Tickets {
		if c.Over == overOperation && byTicket[i].Name != "" {
			c.Name = byTicket[i].Name
		}
		r.Classes += c.Name + " "
	}
	r.Classes += "|"
	for _, k := range byCounter {
		r.Classes += " " + k.Name
	}
	r.Unheard = 2*n + len(byCounter)
	for _, k := range slices.Concat(byTicket, byCounter) {
		if k.Name != "" {
			k.Refused = r.Unheard
			r.Kinds = append(r.Kinds, k)
			r.Unheard++
		}
	}
	r.Counters = r.Unheard + 1
}

// verbOf is the verb of all requests of an operation class, "" if there are several: without the verb the agent could not add
// such a request to those of its verb.
func verbOf(o limits.Class) string {
	verb := ""
	for _, m := range o.Any {
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
