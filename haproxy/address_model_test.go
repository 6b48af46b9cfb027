package haproxy

import (
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Real threads rarely meet in the few microseconds in which the rules of per_address
// could go wrong. So these tests run the rules as they are written, line by line, in
// threads that take turns at random. A line touches the shared entry once at most,
// which HAProxy does under the entry's lock.

// rule is one line, an acl too.
type rule struct {
	set, acl   string // the variable, or the name
	gpt        int    // the element that sc-set-gpt writes, -1 for none
	track      bool
	expr       string
	conditions []string
}

var (
	ruleForm = regexp.MustCompile(`^http-request (?:set-var\(([a-z_.0-9]+)\) (\S+)|sc-set-gpt\((\d),2\) (\S+)|(track-sc2) var\(txn.sluice_address\) table sluice_address)(?: if (.*))?$`)
	aclForm  = regexp.MustCompile(`^acl (\S+) +(.*)$`)
	condForm = regexp.MustCompile(`\{ ([^}]*) \}|\S+`)
	callForm = regexp.MustCompile(`([a-z_0-9]+)\(([^()]*)\)`)
)

// parseRules reads the rules of the limits of an address.
func parseRules(t *testing.T, text string) (lines []rule) {
	t.Helper()
	for raw := range strings.Lines(text) {
		raw = strings.TrimSpace(raw)
		if raw == "" || raw[0] == '#' {
			continue
		}
		if m := aclForm.FindStringSubmatch(raw); m != nil {
			lines = append(lines, rule{acl: m[1], gpt: -1, conditions: []string{m[2]}})
			continue
		}
		m := ruleForm.FindStringSubmatch(raw)
		if m == nil {
			t.Fatalf("the model does not know the rule %q", raw)
		}
		l := rule{set: m[1], expr: m[2] + m[4], gpt: -1, track: m[5] != ""}
		if m[3] != "" {
			l.gpt, _ = strconv.Atoi(m[3])
		}
		for _, c := range condForm.FindAllStringSubmatch(m[6], -1) {
			l.conditions = append(l.conditions, c[0])
		}
		lines = append(lines, l)
	}
	return lines
}

// addressEntry is the entry of one address.
type addressEntry struct {
	gpt, gpc [6]int64
	connCur  int64
	there    bool
}

// thread is a request on its way through the rules.
type thread struct {
	t       *testing.T
	entry   *addressEntry
	acls    map[string]string
	vars    map[string]any
	next    int
	tracked bool
	second  int64 // by this thread's clock
	late    bool  // the clock has moved on since it began
}

// value evaluates a fetch and its converters; nil is not found.
func (q *thread) value(expr string) any {
	var v any
	for i, call := range callForm.FindAllStringSubmatch(expr, -1) {
		name, arg, _ := strings.Cut(call[1]+","+call[2], ",")
		first, _, _ := strings.Cut(arg, ",")
		n, err := strconv.ParseInt(first, 10, 64)
		if i == 0 {
			v = q.fetch(name, first, n)
			continue
		}
		if err != nil && name != "table_conn_cur" {
			n, _ = q.vars[first].(int64)
		}
		x, ok := v.(int64)
		switch {
		case name == "table_gpt":
			v = q.entry.gpt[n] // an entry that is not there has zeros
		case name == "table_conn_cur":
			v = q.entry.connCur
		case !ok:
			return nil
		case name == "mod":
			v = x % n
		case name == "add":
			v = x + n
		case name == "sub":
			v = x - n
		case name == "mul":
			v = x * n
		case name == "div":
			v = x / n
		case name == "and":
			v = x & n
		default:
			q.t.Fatalf("the model does not know the converter %s of %q", name, expr)
		}
	}
	return v
}

func (q *thread) fetch(name, text string, n int64) any {
	switch {
	case name == "date":
		return q.second
	case name == "int":
		return n
	case name == "str":
		return text
	case name == "var" && text == "txn.sluice_address":
		return "192.0.2.1"
	case name == "var":
		return q.vars[text]
	case !q.tracked:
		return nil
	case name == "sc_conn_cur":
		return q.entry.connCur
	case name == "sc_get_gpt":
		return q.entry.gpt[n]
	case name == "sc_get_gpc":
		return q.entry.gpc[n]
	case name == "sc_inc_gpc":
		q.entry.gpc[n] = (q.entry.gpc[n] + 1) & 0xffffffff
		return q.entry.gpc[n]
	}
	q.t.Fatalf("the model does not know the fetch %s", name)
	return nil
}

func (q *thread) holds(condition string) bool {
	if name, negated := strings.CutPrefix(condition, "!"); negated {
		return !q.holds(name)
	}
	condition = strings.Trim(condition, "{ }")
	if condition == "sluice_exempt" {
		return false
	}
	if body, ok := q.acls[condition]; ok {
		return q.holds(body)
	}
	expr, test, _ := strings.Cut(condition, " ")
	v := q.value(expr)
	if test == "-m found" {
		return v != nil
	}
	x, ok := v.(int64)
	words := strings.Fields(strings.TrimPrefix(test, "-m int "))
	n, err := strconv.ParseInt(words[len(words)-1], 10, 64)
	if err != nil {
		q.t.Fatalf("the model does not know the condition %q", condition)
	}
	switch {
	case !ok:
		return false
	case words[0] == "gt":
		return x > n
	case words[0] == "ge":
		return x >= n
	case words[0] == "lt":
		return x < n
	}
	return x == n
}

// step runs one line.
func (q *thread) step(l rule) {
	q.next++
	if l.acl != "" {
		return
	}
	for _, c := range l.conditions {
		if !q.holds(c) {
			return
		}
	}
	switch {
	case l.track:
		q.tracked, q.entry.there = true, true
		q.entry.connCur++
	case l.gpt >= 0:
		if v, ok := q.value(l.expr).(int64); ok {
			q.entry.gpt[l.gpt] = v
		}
	default:
		q.vars[l.set] = q.value(l.expr)
	}
}

// However threads take turns, an address gets no request more than its limits, in no
// second; and each second's requests are admitted to the last one before any is refused.
func TestRulesOfAnAddressInAnyOrder(t *testing.T) {
	t.Parallel()
	const requests, concurrent = 3, 2
	v, err := Config{Addresses: limits.AddressLimits{Requests: requests, Concurrent: concurrent}}.newView()
	if err != nil {
		t.Fatal(err)
	}
	text, err := render(haproxyTemplate, "limits of an address", v, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := parseRules(t, text)
	acls := map[string]string{}
	for _, l := range lines {
		if l.acl != "" {
			acls[l.acl] = l.conditions[0]
		}
	}
	reasons := map[any]int{}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 12))
		// Half of the histories have clocks that move on while a request is on its way.
		strict := seed%2 == 0
		entry := &addressEntry{}
		if random.IntN(4) == 0 {
			for i := 1; i < 5; i++ { // near the counters' end, as after years
				entry.gpc[i] = 0xffffffff - random.Int64N(3)
				entry.gpt[i] = entry.gpc[i]
			}
		}
		now := int64(1000)
		admitted, refused := map[int64]int{}, map[int64]bool{}
		var running []*thread // on their way
		var origin int        // in progress there
		var leaving int       // refused, and still tracked
		for range 200 {
			late := false
			for _, q := range running {
				late = late || q.late || strict
			}
			switch roll := random.IntN(100); {
			case roll < 6 && !late:
				// A request that takes longer than a second to get through a few rules is not
				// looked at: each sees the clock move once.
				now += 1 + random.Int64N(6)*random.Int64N(2)*int64(1-min(1, len(running)))
				for _, q := range running {
					q.late = true
				}
			case roll < 25 && len(running) < 4:
				running = append(running, &thread{t: t, entry: entry, acls: acls, vars: map[string]any{}, second: now})
			case roll < 40 && origin > 0:
				origin--
				entry.connCur--
			case roll < 55 && leaving > 0:
				leaving--
				entry.connCur--
			case len(running) > 0:
				i := random.IntN(len(running))
				q := running[i]
				// Some threads run far while others stand.
				for steps := 1 + random.IntN(40)*random.IntN(2); steps > 0 && q.next < len(lines); steps-- {
					q.step(lines[q.next])
				}
				if q.next < len(lines) {
					continue
				}
				running = append(running[:i], running[i+1:]...)
				reason := q.vars["txn.sluice.reason"]
				reasons[reason]++
				lease, _ := q.vars["txn.sluice_lease"].(int64)
				switch {
				case reason == nil:
					origin++
					admitted[lease/4]++
				case q.tracked:
					leaving++
				}
				if q.vars["txn.sluice_ticket"] != nil && reason != nil {
					refused[lease/4] = true
				}
			}
			if origin > concurrent {
				t.Fatalf("seed %d: %d requests in progress, want %d at most", seed, origin, concurrent)
			}
			if n := admitted[now]; n > requests {
				t.Fatalf("seed %d: %d requests admitted in second %d, want %d at most", seed, n, now, requests)
			}
		}
		for second, n := range admitted {
			if n > requests {
				t.Fatalf("seed %d: %d requests admitted in second %d, want %d at most", seed, n, second, requests)
			}
		}
		for second := range refused {
			for _, q := range running { // their tickets are drawn, they are not let in yet
				if lease, _ := q.vars["txn.sluice_lease"].(int64); lease/4 == second && q.vars["txn.sluice_ticket"] != nil {
					admitted[second]++
				}
			}
			if n := admitted[second]; strict && n < requests {
				t.Fatalf("seed %d: %d requests admitted in second %d, in which others were refused, want %d", seed, n, second, requests)
			}
		}
	}
	for _, reason := range []any{nil, "address-request-rate", "address-concurrent-requests"} {
		if reasons[reason] < 100 {
			t.Errorf("%d requests had the reason %v, want many", reasons[reason], reason)
		}
	}
}
