package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// costRules are the parts of haproxy.cfg and spoe.cfg for what requests cost. The zero costRules is for files in
// which nothing does.
type costRules struct {
	Units     string // of the process: which units there are, and the script that settles what was charged
	Estimates string // before the question: what bodies of requests say that they will cost
	Late      string // after the question: what has got no answer in time is asked once more
	Unheard   string // then: nobody has heard what it was charged, so it is charged nothing yet
	Reader    string // the filter that reads bodies of answers
	Settling  string // for the answer: what they did cost
	Question  string // its arguments
	Again     string // those of the second one about a request
}

var (
	unitName  = regexp.MustCompile(`^[a-z0-9]+(?:[_-][a-z0-9]+)*$`)
	costField = regexp.MustCompile(`^[a-z0-9_-]{1,100}$`)
	// Keys that neither a JSON path of HAProxy nor one of lua/costs.lua takes for something else.
	costKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
)

// bodyPatience is how long a request's body may take that says what it will cost, or the part of it that fills a
// buffer. HAProxy answers one that takes longer with 408.
const bodyPatience = "30s"

// wholeCost is what counts as a cost: a whole number up to limits.MaxCost.
const wholeCost = `^(?:[0-9]{1,12}|10{12})\z`

// The types of bodies in which a cost is looked for. Those of answers are lines of JSON and events as well.
const (
	// One document, so no lines of them.
	jsonDocument = `^application/(?:[a-z0-9.-]+\+)?json[ \t]*(?:;|\z)`
	jsonAnswer   = `^(?:application/(?:[a-z0-9.-]+[+-])?(?:json|ndjson|jsonl)|text/event-stream)[ \t]*(?:;|\z)`
)

// newCostRules are the rules for these units, sorted by name.
func newCostRules(units []limits.CostUnit) (costRules, error) {
	var r costRules
	if len(units) > limits.MaxCostUnits {
		return r, fmt.Errorf("%d units of costs: want %d at most", len(units), limits.MaxCostUnits)
	}
	if len(units) == 0 {
		return r, nil
	}
	var names []string
	for _, u := range units {
		if !unitName.MatchString(u.Name) {
			return r, fmt.Errorf("unit of costs %q: want a-z, 0-9, and single _ and - between them", u.Name)
		}
		for _, source := range []limits.CostSource{u.Estimate, u.Actual} {
			if err := checkCostSource(source); err != nil {
				return r, fmt.Errorf("unit of costs %q: %w", u.Name, err)
			}
		}
		for _, class := range u.Classes {
			if !className.MatchString(class) {
				return r, fmt.Errorf("unit of costs %q: class %q: want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter", u.Name, class)
			}
		}
		names = append(names, u.Name)
	}
	// The agent hears the numbers of variables, and goes by the list of names.
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) < len(names) {
		return r, fmt.Errorf("units of costs %q: want each once, sorted", names)
	}
	r.Units = fmt.Sprintf("    set-var proc.sluice_units str(\"%s\")\n    lua-load-per-thread \"${SLUICE_CFG_DIR-.}/lua/costs.lua\"\n", strings.Join(names, " "))
	r.Question = "    args units=var(proc.sluice_units) id=rand(),set-var(txn.sluice_question)\n"
	r.Again = "    args units=var(proc.sluice_units) id=var(txn.sluice_question)\n"
	// Nobody knows which class the origin finds in such a path: else a client could choose one that costs nothing.
	if slices.ContainsFunc(units, func(u limits.CostUnit) bool { return u.ByOperation() }) {
		r.Estimates = unclearPath + "    http-request set-var(txn.sluice_unclear) bool(true) if path_unclear\n"
		r.Question += "    args unclear=var(txn.sluice_unclear)\n"
		r.Again += "    args unclear=var(txn.sluice_unclear)\n"
	}
	headers, bodies, told := "", "", ""
	for i, u := range units {
		r.class(i, u)
		r.estimate(i, u)
		headers += headerRule(i, u) + failedRule(i, u)
		bodies += bodyRules(i, u)
		told += settlingRules(i, u)
	}
	r.silence(units)
	// A filter costs every request that is asked about, charged or not: three Lua coroutines. Streams are read here: without
	// the option the kernel keeps the first events of one for up to 200 ms, as it does behind a HAProxy without Sluice.
	if bodies != "" {
		r.Reader = "    filter lua.sluice_costs\n    option http-no-delay\n"
	}
	r.Settling = answerLists(units) + headers + bodies + told
	return r, nil
}

func checkCostSource(s limits.CostSource) error {
	if s.Header != "" && !costField.MatchString(s.Header) {
		return fmt.Errorf("header %q: want 1 to 100 of a-z, 0-9, _ and -", s.Header)
	}
	for _, key := range s.JSON {
		if !costKey.MatchString(key) {
			return fmt.Errorf("key %q: want 1 to 100 letters, digits, _ and -", key)
		}
	}
	return nil
}

// class adds the list of conditions that hold for a request which costs something of a unit, if not all do.
func (r *costRules) class(number int, u limits.CostUnit) {
	if u.Classes != nil {
		r.Estimates += classList(fmt.Sprintf("costs_%d", number), u)
	}
}

// classList is a list of conditions that hold for a request of a unit's classes: verbs or operation classes, for no
// name is both.
func classList(name string, u limits.CostUnit) string {
	list := strings.Join(u.Classes, " ")
	rules := fmt.Sprintf("    acl %[1]s var(txn.sluice_class) -m str %[2]s\n    acl %[1]s var(txn.sluice_op) -m str %[2]s\n", name, list)
	if u.ByOperation() {
		rules += fmt.Sprintf("    acl %s var(txn.sluice_unclear) -m found\n", name)
	}
	return rules
}

// ofClass is the condition that a request costs something of a unit.
func ofClass(number int, u limits.CostUnit) string {
	if u.Classes == nil {
		return ""
	}
	return fmt.Sprintf(" costs_%d", number)
}

// silence adds the rules for a request that may cost something and that HAProxy heard no verdict about in time. If it passed at
// once, as others do, a user whose requests come all together would be far above their limit whenever the agent is short of time.
// So it is asked once more, and an agent that lives answers. Then it passes, and what its answer says is charged as if nothing
// had been. All others pay for one condition of each rule.
func (r *costRules) silence(units []limits.CostUnit) {
	may := "!exempt"
	if !slices.ContainsFunc(units, func(u limits.CostUnit) bool { return u.Classes == nil }) {
		may = "!exempt costly"
		for _, u := range units {
			r.Estimates += classList("costly", u)
		}
	}
	// Interrupted (4 since 3.1, 5 before): the client aborted while it was asked.
	r.Late = "    filter spoe engine sluice-late config \"${SLUICE_CFG_DIR-.}/spoe.cfg\"\n" +
		"    http-request lua.sluice_ask_again if { var(txn.sluice.err) -m found } { var(txn.sluice_question) -m found } !{ var(txn.sluice.err) -m int 4 5 } !agent_down " + may + "\n" +
		"    http-request send-spoe-group sluice-late start if { var(txn.sluice_late) -m found }\n"
	// In one rule what all requests cost: each costs every request a condition.
	var all []string
	for i, u := range units {
		if u.Classes == nil {
			all = append(all, strconv.Itoa(i))
		} else {
			r.Unheard += fmt.Sprintf("    http-request lua.sluice_unheard %d if unheard !exempt%s\n", i, ofClass(i, u))
		}
	}
	if len(all) > 0 {
		r.Unheard += fmt.Sprintf("    http-request lua.sluice_unheard %s if unheard !exempt\n", strings.Join(all, ","))
	}
}

// estimate adds what reads how much a request says that it will cost of a unit.
func (r *costRules) estimate(number int, u limits.CostUnit) {
	if u.Estimate.IsZero() {
		return // the agent knows it by the class
	}
	argument := fmt.Sprintf("    args cost_%[1]d=var(txn.sluice_cost_%[1]d)\n", number)
	if u.Estimate.Header != "" {
		// The agent looks whether it is a cost, and so short it does no harm if it is not: a question must fit into a buffer.
		argument = fmt.Sprintf("    args cost_%d=req.fhdr(%s),bytes(0,14)\n", number, u.Estimate.Header)
	}
	r.Question += argument
	r.Again += argument
	if u.Estimate.Header != "" {
		return
	}
	// HAProxy takes the beginning of a body for JSON, too. So all of it has to be there. A text that it finds it leaves a text.
	r.Estimates += fmt.Sprintf("    acl tells_%[1]d req.fhdr(content-type) -m reg -i '%[2]s'\n"+
		"    http-request wait-for-body time "+bodyPatience+" if !refused !exempt !agent_down%[3]s tells_%[1]d\n"+
		"    http-request set-var(txn.sluice_cost_%[1]d) 'req.body,json_query(\"$.%[4]s\",int),concat()' if !refused !exempt !agent_down%[3]s tells_%[1]d { internal.htx.has_eom }\n"+
		"    http-request unset-var(txn.sluice_cost_%[1]d) if { var(txn.sluice_cost_%[1]d) -m found } !{ var(txn.sluice_cost_%[1]d) -m reg '%[5]s' }\n",
		number, jsonDocument, ofClass(number, u), strings.Join(u.Estimate.JSON, "."), wholeCost)
}

// answerLists are the lists of conditions that the rules for answers share.
func answerLists(units []limits.CostUnit) string {
	lists := ""
	for i := range units {
		lists += fmt.Sprintf("    acl charged_%[1]d var(txn.sluice.charged_%[1]d) -m found\n    acl told_%[1]d var(txn.sluice_told_%[1]d) -m reg '%[2]s'\n", i, wholeCost)
	}
	if slices.ContainsFunc(units, func(u limits.CostUnit) bool { return len(u.Actual.JSON) > 0 }) {
		lists += "    acl cost_body res.fhdr(content-type) -m reg -i '" + jsonAnswer + "'\n" +
			"    acl cost_document res.fhdr(content-type) -m reg -i '" + jsonDocument + "'\n" +
			"    acl cost_encoded res.fhdr(content-encoding) -m reg -i '^(?!identity[ \\t]*\\z).'\n"
	}
	return lists
}

// The rules that follow all begin with the condition that ends most of them: that the request was charged, or that it failed. What
// they find out is the cost, as text, in txn.sluice_told_0 and so on. What is there may be no cost, if a header has something else.

// headerRule reads what an answer of the origin says in a header.
func headerRule(number int, u limits.CostUnit) string {
	if u.Actual.Header == "" {
		return ""
	}
	return fmt.Sprintf("    http-response set-var(txn.sluice_told_%[1]d) res.fhdr(%[2]s) if charged_%[1]d\n", number, u.Actual.Header)
}

// documentCost is a regular expression for the end of a JSON document, from the path's first key on, that has the cost in
// its group. All that is open there has to end behind it, so the keys are where the path says. It does not match
// where a later number could be at the path, which would count instead: where one of its keys comes once more, or one beside them is
// written with escapes; nor a cost of 13 digits. Nothing in it gives back what it has matched, and an attempt ends at the next first key at the latest: so
// it looks at each byte a few times at most, whatever the document is.
func documentCost(path []string) string {
	const space = `\s*+`
	key := func(name string) string { return `"` + name + `"` + space + `:` + space }
	first := `"` + path[0] + `"`
	text := `(?!` + first + `)"[^"\\]*+(?:\\.[^"\\]*+)*+"`
	// Whatever is in brackets, balanced, and a member of an object whose key is not the next one of the path.
	nested := `(?<nested>[{\[](?:[^"{}\[\]]++|` + text + `|(?&nested))*+[}\]])`
	value := `(?:[^"{}\[\],\s]++|` + text + `|(?&nested))`
	member := func(not string) string {
		return `(?!` + first + `|"` + not + `")"[^"\\]*+"` + space + `:` + space + value + space
	}
	before, behind := "", ""
	for i, name := range path {
		if i > 0 {
			before += `\{` + space + `(?:` + member(name) + `,` + space + `)*+`
		}
		before += key(name)
		behind = space + `(?:,` + space + member(name) + `)*+\}` + behind
	}
	return `(?(DEFINE)` + nested + `)(?<=[{,\s])` + before + `(0|[1-9][0-9]{0,11})` + behind + space + `\z`
}

// bodyRules have the body of an answer read: by HAProxy, if it is a document all of which is there with the headers,
// and else by Lua as it goes by, which costs many times as much.
func bodyRules(number int, u limits.CostUnit) string {
	path := u.Actual.JSON
	if len(path) == 0 {
		return ""
	}
	// A document that matches leaves "cost~" behind its last "|", and no other ends so.
	const found = "|\\2~"
	argument := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	return fmt.Sprintf("    http-response set-var(txn.sluice_document_%[1]d) 'res.body,regsub(\"%[3]s\",\"%[4]s\"),word(-1,|)' if charged_%[1]d { internal.htx.has_eom } cost_document !cost_encoded\n"+
		"    acl document_%[1]d var(txn.sluice_document_%[1]d) -m end ~\n"+
		"    http-response set-var(txn.sluice_told_%[1]d) var(txn.sluice_document_%[1]d),word(1,~) if document_%[1]d\n"+
		"    http-response lua.sluice_read_body %[5]s %[1]d %[2]s if charged_%[1]d !document_%[1]d cost_body !cost_encoded\n"+
		"    http-response set-var(txn.sluice_unreadable_cost) int(1),lua.sluice_unreadable if charged_%[1]d cost_encoded cost_body\n",
		number, strings.Join(path, "."), argument.Replace(documentCost(path)), argument.Replace(found), u.Name)
}

// settlingRules are the rules that tell the agent of what is known with an answer's headers, whoever
// made it: an origin that cannot be reached is HAProxy's to report.
func settlingRules(number int, u limits.CostUnit) string {
	if u.Actual.Header == "" && len(u.Actual.JSON) == 0 && u.FailedCostsEstimate {
		return "" // nothing is ever known then
	}
	return unservedRule(number, u) +
		fmt.Sprintf(`    http-after-response set-var(txn.sluice_settled) var(txn.sluice_told_%[1]d),concat(" ",txn.sluice.charged_%[1]d," %[2]s "),concat(,txn.sluice_user),lua.sluice_settle if told_%[1]d !{ var(txn.sluice.charged_%[1]d),word(1,@),strcmp(txn.sluice_told_%[1]d) -m int 0 }`+"\n", number, u.Name)
}

// failedRule is that a request costs nothing which the origin could not serve and whose answer does not say what it cost.
func failedRule(number int, u limits.CostUnit) string {
	if u.FailedCostsEstimate {
		return ""
	}
	return fmt.Sprintf("    http-response set-var(txn.sluice_told_%[1]d) str(0) if { status ge 400 } charged_%[1]d !told_%[1]d\n", number)
}

// unservedRule is that a request costs nothing which no origin has got: HAProxy refuses it by a rule, or could not connect. Who
// leaves after the origin got the request pays the estimate, and so does one that the origin did not answer in time: else
// a client had the origin work for nothing. (From 3.0 on HAProxy makes an answer for a client that has left.)
func unservedRule(number int, u limits.CostUnit) string {
	if u.FailedCostsEstimate {
		return ""
	}
	return fmt.Sprintf("    http-after-response set-var(txn.sluice_told_%[1]d) str(0) if { status 503 } charged_%[1]d !told_%[1]d || { status ge 400 } charged_%[1]d !told_%[1]d !{ srv_id -m found }\n", number)
}

// lateEngine asks the same as the first time. Its time is longer than HAProxy needs to find that an agent hangs, and bounded,
// because not all questions that wait end then (seen on 2.6).
const lateEngine = `
# The second question about a request that may cost something, if the first one got no answer in time. No answer means: allowed.
[sluice-late]
spoe-agent sluice-late
    groups start
    use-backend sluice_wait
    option var-prefix sluice
    option continue-on-error
    option set-on-error err
    option dontlog-normal
    timeout processing "${SLUICE_LATE_TIMEOUT-2s}"
    no option async
    timeout hello 500ms
    timeout idle 2m
    maxconnrate 500

spoe-message start-message
`

// putSPOE puts the arguments of the questions in place.
func putSPOE(spoe *edition, r costRules) {
	spoe.put("costs of a request", r.Question)
	spoe.put("costs of a request that waits", r.Again)
	if r.Late != "" {
		_, message, _ := strings.Cut(spoe.text, "spoe-message start-message\n")
		message, _, _ = strings.Cut(message, "\n# The second question")
		spoe.put("late questions", lateEngine+strings.Replace(message, r.Question, r.Again, 1))
	}
}
