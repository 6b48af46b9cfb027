package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxCreditClasses bounds the classes that have tickets: an entry of HAProxy's has at most 100 counters, one for each
// class with tickets and two for each kind of request.
const maxCreditClasses = 40

// creditClasses are the classes that have tickets as shipped: all requests together, and
// every verb.
func creditClasses() []string { return slices.Concat([]string{limits.All}, verbs, []string{"OTHER"}) }

// CreditClasses are the classes that need tickets for a limit file: "*", and those that it
// limits by the second, verbs before operation classes. Users who are limited by another
// class, because the file has changed since or has more than can be kept, have no credit:
// the agent is asked about each of their requests.
func CreditClasses(set *limits.Set) []string {
	// Longer windows have no tickets: what is left of a minute no table of HAProxy's can tell, so users with
	// such limits are asked about.
	limited := set.SecondClasses()
	classes := []string{limits.All}
	for _, verb := range creditClasses()[1:] {
		if slices.Contains(limited, verb) {
			classes = append(classes, verb)
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

// maxCounters is how many counters (gpc) an entry of a table can have.
const maxCounters = 100

// unlimitedTickets is how many tickets a second the agent gives of a class that is not limited.
const unlimitedTickets = 1 << 28

// Elements (gpt) of an entry of sluice_credit.
const (
	clockElement  = 4 // where the clock of bandwidth down began; the one up is behind it
	ticketElement = 6 // tickets a second of the first class; the other classes and the shares of bandwidth are behind it
)

// creditRules are the classes, kinds and numbers of the rules about credit in haproxy.cfg.tmpl.
type creditRules struct {
	All        ticketClass
	Verbs      []ticketClass // with tickets of their own
	Operations []ticketClass // with tickets of their own
	Fast       []fastRule    // rules that admit most requests before their class is known; none if operations have tickets
	Plain      []string      // verbs without tickets of their own
	Kinds      []requestKind
	Counted    []string // names of the operations among the kinds

	Classes, KindNames string // for the agent
	FirstKind, Unheard int    // counters
	Elements, Counters int    // of an entry of sluice_credit; of an entry of sluice_seconds
	ShareDown, ShareUp int    // elements of the shares
	ClockDown, ClockUp int    // elements of the clocks
	Unlimited          int    // tickets of a class that is not limited, less one
}

// A ticketClass is a class that has tickets.
type ticketClass struct {
	Name      string
	Each      int    // element: tickets a second
	Drawn     int    // counter: tickets drawn in a second
	Condition string // of requests of the class, for RateLimit
}

// A fastRule admits the requests of one method.
type fastRule struct {
	Method   string
	Ticket   *ticketClass // nil: the method has no tickets of its own
	Admitted int          // counter
}

// A requestKind is what requests are counted by: their operation if that has counters, else their verb.
type requestKind struct {
	Name, Condition   string
	Admitted, Refused int // counters
}

func newCreditRules(classes []string, operations []limits.Class, shares bool) (creditRules, error) {
	// The rules of haproxy.cfg itself draw the ticket of "*" as that of class 0.
	if len(classes) == 0 || len(classes) > maxCreditClasses || classes[0] != limits.All {
		return creditRules{}, fmt.Errorf("classes that have tickets %q: want 1 to %d, the first %q", classes, maxCreditClasses, limits.All)
	}
	n := len(classes)
	r := creditRules{
		Classes: strings.Join(classes, " "), FirstKind: n, Elements: ticketElement + n, ShareDown: ticketElement + n, ShareUp: ticketElement + n + 1,
		ClockDown: clockElement, ClockUp: clockElement + 1, Unlimited: unlimitedTickets - 1,
	}
	if shares {
		r.Elements += 2
	}
	for i, class := range classes {
		c := ticketClass{Name: class, Each: ticketElement + i, Drawn: i}
		switch {
		case class == limits.All:
			r.All = c
		case slices.Contains(creditClasses(), class):
			c.Condition = fmt.Sprintf(" { var(txn.sluice_class) -m str %s }", class)
			// The fast rules know no class.
			if slices.Contains(shortMethods, class) {
				c.Condition = fmt.Sprintf(" { method %s }", class)
			}
			r.Verbs = append(r.Verbs, c)
		case className.MatchString(class):
			c.Condition = fmt.Sprintf(" { var(txn.sluice_op) -m str %s }", class)
			r.Operations = append(r.Operations, c)
		default:
			return r, fmt.Errorf("class that has tickets %q: want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter", class)
		}
	}
	for _, verb := range creditClasses()[1:] {
		if !slices.Contains(classes, verb) {
			r.Plain = append(r.Plain, verb)
		}
	}
	if len(r.Operations) == 0 {
		operations = nil // the fast rules admit requests before they are classified
	}
	r.addKinds(operations)
	if len(r.Operations) == 0 {
		for _, method := range shortMethods {
			rule := fastRule{Method: method, Admitted: r.FirstKind + slices.IndexFunc(r.Kinds, func(k requestKind) bool { return k.Name == method })}
			if i := slices.IndexFunc(r.Verbs, func(c ticketClass) bool { return c.Name == method }); i >= 0 {
				rule.Ticket = &r.Verbs[i]
			}
			r.Fast = append(r.Fast, rule)
		}
	}
	return r, nil
}

// addKinds adds a kind for each verb, limited or not, and for as many operations as there are counters for.
// Requests of all other operations count by their verb.
func (r *creditRules) addKinds(operations []limits.Class) {
	kinds := creditClasses()[1:]
	operations = operations[:min(len(operations), (maxCounters-1-r.FirstKind)/2-len(kinds))]
	for _, o := range operations {
		r.Counted = append(r.Counted, o.Name)
	}
	add := func(name, condition string) {
		r.Kinds = append(r.Kinds, requestKind{Name: name, Condition: condition})
	}
	// A request counts once: by its operation if it has one, else by its verb.
	other := ""
	if len(operations) > 0 {
		other = " !sluice_counted"
	}
	for _, verb := range kinds {
		add(verb, fmt.Sprintf("{ var(txn.sluice_class) -m str %s }%s", verb, other))
	}
	for _, o := range operations {
		add(verbOf(o)+"/"+o.Name, fmt.Sprintf("{ var(txn.sluice_op) -m str %s }", o.Name))
	}
	names := make([]string, len(r.Kinds))
	for i := range r.Kinds {
		k := &r.Kinds[i]
		k.Admitted, k.Refused = r.FirstKind+i, r.FirstKind+len(r.Kinds)+i
		names[i] = k.Name
	}
	r.Unheard = r.FirstKind + 2*len(r.Kinds)
	r.Counters = r.Unheard + 1
	r.KindNames = fmt.Sprintf("%d %s", r.FirstKind, strings.Join(names, " "))
}

// Tickets are all classes that have tickets.
func (r creditRules) Tickets() []ticketClass {
	return slices.Concat([]ticketClass{r.All}, r.Verbs, r.Operations)
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
