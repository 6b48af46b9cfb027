package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A term is one thing that limits say, as check, diff and explain show it.
type term struct {
	name   string   // the field's path, as in limits.Origin: requests.GET/minute
	amount string   // such as "10/minute"
	notes  []string // such as "burst 5" and "dry-run"
}

const notLimited = "not limited"

// value is the amount with its notes.
func (t term) value() string { return noted(t.amount, t.notes) }

// addressTerms are what the limits of each address say: by the field's path, and as a
// line has them. Those that there are not are "none" and "".
func addressTerms(a limits.AddressLimits) []addressTerm {
	number := func(n int) string {
		if n == 0 {
			return "none"
		}
		return strconv.Itoa(n)
	}
	all := []addressTerm{
		{"failed_auth.per_address", cmp.Or(a.FailedAuthString(), "none"), "failed authentication " + a.FailedAuthString()},
		{"per_address.requests", number(a.Requests), fmt.Sprintf("%d/s", a.Requests)},
		{"per_address.concurrent", number(a.Concurrent), fmt.Sprintf("%d in progress", a.Concurrent)},
	}
	for i, t := range all {
		if t.value == "none" {
			all[i].inLine = ""
		}
	}
	return all
}

// addressTerm is one limit of each address.
type addressTerm struct{ name, value, inLine string }

// describeAddresses is a line about the limits of each address, "" without any.
func describeAddresses(a limits.AddressLimits) string {
	var words []string
	for _, t := range addressTerms(a) {
		if t.inLine != "" {
			words = append(words, t.inLine)
		}
	}
	return strings.Join(words, ", ")
}

// terms are what limits say beyond the defaults, and what they say that is off, in
// the order of sortTerms.
func terms(l *limits.Limits) []term { return termsWith(l, l.Jobs().Stated) }

// termsWith are terms with those of background jobs, or without.
func termsWith(l *limits.Limits, jobs bool) []term {
	var all []term
	for _, r := range l.All() {
		t := term{name: "requests." + r.Name(), amount: fmt.Sprintf("%d/%s", r.Max, per(r.Window))}
		if r.Burst > 0 {
			t.notes = append(t.notes, fmt.Sprintf("burst %d", r.Burst))
		}
		all = append(all, t.in(r.Mode))
	}
	if l.Concurrent > 0 {
		all = append(all, term{name: "concurrent", amount: strconv.Itoa(l.Concurrent)}.in(l.ConcurrentMode))
		if l.Wait > 0 {
			all = append(all, term{name: "over_limit.concurrent", amount: fmt.Sprintf("wait %v", l.Wait)})
		}
	}
	b := l.Bandwidth
	if b.Down > 0 {
		all = append(all, term{name: "bandwidth.down", amount: size(b.Down) + "/s"}.in(b.Mode))
	}
	if b.Up > 0 {
		all = append(all, term{name: "bandwidth.up", amount: size(b.Up) + "/s"}.in(b.Mode))
	}
	if b.DefaultShare > 0 && b.Down+b.Up > 0 { // else it is a share of nothing
		all = append(all, term{name: "bandwidth.default_share", amount: size(b.DefaultShare) + "/s"})
	}
	if l.Priority != 0 {
		all = append(all, term{name: "priority", amount: strconv.Itoa(l.Priority)})
	}
	if jobs {
		all = append(all, jobTerms(l.Jobs())...)
	}
	for _, name := range l.Off() {
		all = append(all, term{name: name, amount: limits.Off.String()})
	}
	slices.SortFunc(all, func(a, b term) int { return compareTerms(a.name, b.name) })
	return all
}

// in adds the mode, unless it is the usual one.
func (t term) in(m limits.Mode) term {
	if m != limits.Enforce {
		t.notes = append(t.notes, m.String())
	}
	return t
}

// nothing is whether a value of a term limits nothing.
func nothing(value string) bool { return value == notLimited || value == limits.Off.String() }

// per is the window behind a number of requests.
func per(w limits.Window) string {
	if w == limits.Second {
		return "s"
	}
	return w.String()
}

func noted(s string, notes []string) string {
	if len(notes) == 0 {
		return s
	}
	return s + " (" + strings.Join(notes, ", ") + ")"
}

// unsaid is the value of a term that limits do not have.
func unsaid(name string) string {
	switch name {
	case "over_limit.concurrent":
		return "refuse"
	case "bandwidth.default_share":
		return "an even part"
	case "priority":
		return "0"
	case "jobs.class":
		return limits.DefaultQueues
	default:
		return notLimited
	}
}

// value is the term's value, or what counts when nothing is said.
func value(all []term, name string) string {
	for _, t := range all {
		if t.name == name {
			return t.value()
		}
	}
	return unsaid(name)
}

// sortTerms brings names into the order of the limit file's documentation, with the
// requests by class and the shorter windows first, and each only once.
func sortTerms(names []string) []string {
	slices.SortFunc(names, compareTerms)
	return slices.Compact(names)
}

func compareTerms(a, b string) int {
	classA, windowA := limits.ParseRateName(a)
	classB, windowB := limits.ParseRateName(b)
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(classA, classB), cmp.Compare(windowA, windowB))
}

// ranks are the names but those of requests. What is new to this program comes last.
var ranks = []string{
	"requests", "concurrent", "bandwidth", "bandwidth.down", "bandwidth.up", "bandwidth.default_share",
	"over_limit", "over_limit.concurrent", "priority", "jobs", "jobs.total", "jobs.queues", "jobs.class",
}

func rank(name string) int {
	if strings.HasPrefix(name, "requests") {
		return 0
	}
	if strings.HasPrefix(name, "jobs.queues.") {
		name = "jobs.queues"
	}
	if i := slices.Index(ranks, name); i >= 0 {
		return i
	}
	return len(ranks)
}

// describe names the limits in one line, and what departs from the defaults: how
// long a request over the limit of requests in progress waits, and the priority.
func describe(l *limits.Limits) string {
	all := terms(l)
	if len(all) > 0 && all[0].name == "priority" {
		return notLimited + ", " + sentence(all)
	}
	if len(all) == 0 {
		return notLimited
	}
	return sentence(all)
}

// describeBeside names what limits at an endpoint have other than those everywhere.
func describeBeside(everywhere, here *limits.Limits) string {
	a, b := terms(everywhere), terms(here)
	var other []term
	for _, name := range namesIn(a, b) {
		if value(a, name) == value(b, name) {
			continue
		}
		i := slices.IndexFunc(b, func(t term) bool { return t.name == name })
		if i < 0 {
			other = append(other, term{name: name, amount: unsaid(name)})
		} else {
			other = append(other, b[i])
		}
	}
	if len(other) == 0 {
		return "the same"
	}
	return sentence(other) + "; else the same"
}

// sentence puts terms one after the other.
func sentence(all []term) string {
	var parts []string
	waits := slices.IndexFunc(all, func(t term) bool { return t.name == "over_limit.concurrent" })
	told := false // with the requests in progress
	for _, t := range all {
		class, isRate := strings.CutPrefix(t.name, "requests.")
		switch {
		case isRate:
			parts = append(parts, rateName(class, t)+" "+t.value())
		case t.name == "concurrent" && !nothing(t.amount):
			t.amount += " in progress"
			if told = waits >= 0; told {
				t.notes = append(slices.Clip(t.notes), "more "+all[waits].value())
			}
			parts = append(parts, t.value())
		case t.name == "over_limit.concurrent" && told:
		case t.name == "jobs.total":
			parts = append(parts, jobSentence(all))
		case strings.HasPrefix(t.name, "jobs."):
		case t.name == "bandwidth.default_share":
			parts = append(parts, "default share "+t.value())
		default:
			parts = append(parts, strings.TrimPrefix(t.name, "bandwidth.")+" "+t.value())
		}
	}
	return strings.Join(parts, ", ")
}

// rateName is a rate's name for a sentence: "all" is everything together, and
// there is no window if the amount tells it.
func rateName(name string, t term) string {
	class, w := limits.ParseRateName(name)
	if class == limits.All {
		class = "all"
	}
	if nothing(t.amount) {
		return limits.RateName(class, w)
	}
	return class
}

// namesIn are the names of terms of either, sorted.
func namesIn(a, b []term) []string {
	var names []string
	for _, t := range append(slices.Clip(a), b...) {
		names = append(names, t.name)
	}
	return sortTerms(names)
}

// size writes bytes in the largest binary unit that divides them.
func size(n int64) string {
	for _, u := range []struct {
		name string
		in   int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.in == 0 {
			return strconv.FormatInt(n/u.in, 10) + " " + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}

// shown is a name from a file as a terminal may have it: in quotes when it is not
// plain, so that it cannot look like something else.
func shown(name string) string {
	plain := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == unicode.ReplacementChar
	})
	if plain {
		return name
	}
	return strconv.Quote(name)
}

// shownEndpoint is an endpoint as it follows "at" or "for".
func shownEndpoint(name string) string {
	if name == limits.All {
		return "all endpoints together"
	}
	return name
}

// listed are names from a file, with a comma between.
func listed(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = shown(name)
	}
	return strings.Join(quoted, ", ")
}
