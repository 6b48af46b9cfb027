package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxCreditClasses bounds the classes that have tickets: an array of HAProxy's has 100
// elements, eight of which are not a class's, and two for each class.
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

// shortAll draws a ticket of "*", and so on to the end of a rule of the short way, which
// counts the request that it lets through.
const shortAll = " sluice_last_now sluice_ticket_now sluice_here_now sluice_place_now sluice_there_now { sc_inc_gpc(%d,0) -m found }\n"

// creditRules are the lines of haproxy.cfg that are written for each class that has
// tickets. The class's number is its place in the list.
type creditRules struct {
	Declared   string // the list, for the agent
	Table      string
	Renewed    string // where a second begins
	Operations string // a ticket is drawn of the request's operation class,
	Drawn      string // and of its verb. That of "*" is haproxy.cfg's own
	Given      string // where an answer has brought credit
	Counted    string // where a request is admitted that did not pass by
	Short      string // the short way, of verbs; none if operation classes have tickets
	Left       string // what is left of a second, for the answer
	Beginning  string // where a second begins on the short way; none if many classes have tickets
}

func newCreditRules(classes []string, operations []limits.Class, shares bool) (creditRules, error) {
	var r creditRules
	// The rules of haproxy.cfg itself draw the ticket of "*" as that of class 0.
	if len(classes) == 0 || len(classes) > maxCreditClasses || classes[0] != limits.All {
		return r, fmt.Errorf("classes that have tickets %q: want 1 to %d, the first %q", classes, maxCreditClasses, limits.All)
	}
	admitted := 1 + len(classes) // the first counter of what was admitted
	for i, class := range classes {
		// Elements of gpt: how many tickets a second has, and the last one of the present second. Counter of
		// gpc: the last one that was drawn, which only grows.
		each, last, drawn := 6+2*i, 7+2*i, 1+i
		r.Renewed += fmt.Sprintf("    http-request sc-set-gpt(%[2]d,0) sc_get_gpc(%[3]d,0),add(txn.sluice_tickets) if sluice_renewing !sluice_lasting { sc_get_gpt(%[1]d,0),mul(txn.sluice_factor),set-var(txn.sluice_tickets) -m found }\n", each, last, drawn)
		r.Given += fmt.Sprintf("    http-request sc-set-gpt(%d,0) var(txn.sluice.each_%d) if sluice_writing\n", each, i)
		draw := fmt.Sprintf("    http-request set-var(txn.sluice_over) sc_inc_gpc(%[2]d,0),sub(txn.sluice_last),and(4294967295) if %%s { sc_get_gpt(%[1]d,0),set-var(txn.sluice_last) -m found }\n", last, drawn)
		r.Left += ticketsLeft(class, each, last, drawn)
		switch {
		case class == limits.All:
		// The verb is a variable already. An operation needs the rules of the classes to have run, and the
		// short way is before them.
		case slices.Contains(creditClasses(), class):
			r.Drawn += fmt.Sprintf(draw, fmt.Sprintf("{ var(txn.sluice_draws) -m str %s }", class))
			if slices.Contains(shortMethods, class) {
				r.Short += fmt.Sprintf("    acl sluice_ticket_%[1]s sc_inc_gpc(%[3]d,0),sub(txn.sluice_read),and(4294967295) 2147483648:4294967295 0\n"+
					"    acl sluice_ticket_%[1]s int(1),set-var(txn.sluice_over) -m int 0\n"+
					"    http-request allow if { method %[1]s } sluice_end_now sluice_lasting_now { sc_get_gpt(%[2]d,0),set-var(txn.sluice_read) -m found } sluice_ticket_%[1]s"+fmt.Sprintf(shortAll, admitted+slices.Index(countedVerbs(), class)),
					class, last, drawn)
			}
		case className.MatchString(class):
			r.Operations += fmt.Sprintf(draw, fmt.Sprintf("sluice_lasting { var(txn.sluice_op) -m str %s }", class))
		default:
			return r, fmt.Errorf("class that has tickets %q: want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter", class)
		}
	}
	r.Left = "    .if streq(\"${SLUICE_RATELIMIT-refused}\",all) && !streq(\"${SLUICE_CREDIT-on}\",off)\n" +
		"    acl sluice_left_here sc_get_gpt(0,0) -m found\n    acl sluice_not_through var(txn.sluice.reason) -m found\n    acl sluice_not_through var(txn.sluice_spent) -m found\n" +
		"    http-after-response del-header RateLimit if sluice_left_here !sluice_not_through\n" + r.Left + "    .endif\n"
	// Users may be limited by no verb at all. Their requests pass the short way with the ticket of all.
	for _, method := range shortMethods {
		if !slices.Contains(classes, method) { // a ticket of "*" alone
			r.Short += fmt.Sprintf("    http-request allow if { method %s } sluice_end_now sluice_lasting_now"+shortAll, method, admitted+slices.Index(countedVerbs(), method))
		}
	}
	if r.Operations == "" {
		operations = nil // the short way lets requests through before they are classified
	} else {
		r.Short = ""
	}
	// HAProxy refuses a table with more counters. Beyond them requests count by their verb alone, for people
	// only.
	operations = operations[:min(len(operations), maxCounters-admitted-len(countedVerbs()))]
	kinds := r.countAdmitted(admitted, operations)
	r.Declared = fmt.Sprintf("    set-var proc.sluice_classes str(\"%s\")\n    set-var proc.sluice_tallies str(\"%d %s\")\n",
		strings.Join(classes, " "), admitted, strings.Join(kinds, " "))
	elements, bytes := 6+2*len(classes), ""
	if shares {
		elements, bytes = elements+2, ",bytes_in_cnt,bytes_in_rate(1s),bytes_out_cnt,bytes_out_rate(1s)"
	}
	r.Table = fmt.Sprintf("    stick-table type string len 128 size 200k expire 10m store gpt(%d),gpc(%d),conn_cur,server_id%s\n", elements, admitted+len(kinds), bytes)
	if r.Short != "" && len(classes) <= maxShortRenewal {
		r.Beginning = shortRenewal(len(classes), r.Short)
	}
	return r, nil
}

// unlimitedTickets is how many tickets a second the agent gives of a class that is not limited.
const unlimitedTickets = 1 << 28

// ticketsLeft are the rules that tell a client how many tickets of a class are left of this second. They are fewer than what the
// user has: those of other instances, and those of a second that nobody has begun yet, are not among them.
func ticketsLeft(class string, each, last, drawn int) string {
	of := fmt.Sprintf(" { var(txn.sluice_class) -m str %s }", class)
	switch {
	case class == limits.All:
		of = ""
	// The short way has no variable for it.
	case slices.Contains(shortMethods, class):
		of = fmt.Sprintf(" { method %s }", class)
	case !slices.Contains(creditClasses(), class):
		of = fmt.Sprintf(" { var(txn.sluice_op) -m str %s }", class)
	}
	return fmt.Sprintf("    acl sluice_left_%[1]d sc_get_gpt(%[1]d,0) 1:%[2]d\n"+
		"    http-after-response set-var(txn.sluice_left) sc_get_gpt(%[3]d,0),sub(txn.sluice_read),and(4294967295) if sluice_left_here !sluice_not_through%[5]s sluice_left_%[1]d { sc_get_gpc(%[4]d,0),set-var(txn.sluice_read) -m found }\n"+
		"    http-after-response set-var(txn.sluice_left) int(0) if sluice_left_here !sluice_not_through%[5]s sluice_left_%[1]d { var(txn.sluice_left) -m int gt %[6]d }\n"+
		"    http-after-response add-header RateLimit '\"%[7]s\";r=%%[var(txn.sluice_left)]' if sluice_left_here !sluice_not_through%[5]s sluice_left_%[1]d\n",
		each, unlimitedTickets-1, last, drawn, of, 1<<31-1, class)
}

// countedVerbs are the verbs of which requests without operation class are counted that
// credit admits.
func countedVerbs() []string { return creditClasses()[1:] }

// countAdmitted writes the rules that count a request that is admitted, in the counters from the
// first one on: each by its operation class, or by its verb. It returns what they count,
// as the agent reads it.
func (r *creditRules) countAdmitted(first int, operations []limits.Class) (kinds []string) {
	counter := first
	rule := func(kind, condition string) {
		r.Counted += fmt.Sprintf("    http-request sc-inc-gpc(%d,0) if sluice_draws %s !sluice_no_place\n", counter, condition)
		kinds = append(kinds, kind)
		counter++
	}
	// A request counts once: by its operation if it has one, else by its verb.
	other := ""
	if len(operations) > 0 {
		other = " !sluice_counted"
	}
	// All of them, limited or not: people want to see what users do.
	for _, verb := range countedVerbs() {
		rule(verb, fmt.Sprintf("{ var(txn.sluice_class) -m str %s }%s", verb, other))
	}
	names := ""
	for _, o := range operations {
		rule(verbOf(o)+"/"+o.Name, fmt.Sprintf("{ var(txn.sluice_op) -m str %s }", o.Name))
		names += " " + o.Name
	}
	if names != "" {
		r.Counted = "    acl sluice_counted var(txn.sluice_op) -m str" + names + "\n" + r.Counted
	}
	return kinds
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
