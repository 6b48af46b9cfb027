// Package terms says in words what limits are: one term for each thing that a limit file sets,
// in the order of the file's documentation, and lines made of them.
package terms

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// A term is one thing that limits say, as check, diff and explain show it.
type Term struct {
	Name   string   // the field's path, as in limitfile.Origin: requests.GET/minute
	Amount string   // such as "10/minute"
	Notes  []string // such as "burst 5" and "dry-run"
}

const NotLimited = "not limited"

// Value is the amount with its notes.
func (t Term) Value() string { return withNotes(t.Amount, t.Notes) }

// TermsOf are what limits say beyond the defaults, and what they say that is off, in
// the order of SortNames.
func TermsOf(l *limits.Limits) []Term { return TermsWithJobs(l, l.Jobs().Stated) }

// TermsWithJobs are terms with those of background jobs, or without.
func TermsWithJobs(l *limits.Limits, jobs bool) []Term {
	var all []Term
	for r := range l.Rates() {
		t := Term{Name: "requests." + r.Name(), Amount: fmt.Sprintf("%d/%s", r.Max, perWindow(r.Window)), Notes: begins(r.Window, r.Calendar)}
		if r.Burst > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("burst %d", r.Burst))
		}
		all = append(all, t.withMode(r.Mode))
	}
	all = append(all, ofCosts(l)...)
	if l.Concurrent > 0 {
		t := Term{Name: "concurrent", Amount: strconv.Itoa(l.Concurrent)}
		if except := l.Except(); len(except) > 0 {
			t.Notes = append(t.Notes, "except "+strings.Join(except, ", "))
		}
		all = append(all, t.withMode(l.ConcurrentMode))
		if l.Wait > 0 {
			all = append(all, Term{Name: "over_limit.concurrent", Amount: fmt.Sprintf("wait %v", l.Wait)})
		}
	}
	b := l.Bandwidth
	if b.Down > 0 {
		all = append(all, Term{Name: "bandwidth.down", Amount: FormatBytes(b.Down) + "/s"})
	}
	if b.Up > 0 {
		all = append(all, Term{Name: "bandwidth.up", Amount: FormatBytes(b.Up) + "/s"})
	}
	if b.DefaultShare > 0 && b.Down+b.Up > 0 { // else it is a share of nothing
		all = append(all, Term{Name: "bandwidth.default_share", Amount: FormatBytes(b.DefaultShare) + "/s"})
	}
	if l.Priority != 0 {
		all = append(all, Term{Name: "priority", Amount: strconv.Itoa(l.Priority)})
	}
	if l.Group != "" {
		all = append(all, Term{Name: "group", Amount: terminal.QuoteName(l.Group), Notes: []string{"not enforced yet"}})
	}
	if jobs {
		all = append(all, OfJobs(l.Jobs())...)
	}
	for _, name := range l.OffFields() {
		all = append(all, Term{Name: name, Amount: limits.Off.String()})
	}
	slices.SortFunc(all, func(a, b Term) int { return compareTerms(a.Name, b.Name) })
	return all
}

// withMode adds the mode, unless it is the usual one.
func (t Term) withMode(m limits.Mode) Term {
	if m != limits.Enforce {
		t.Notes = append(t.Notes, m.String())
	}
	return t
}

// LimitsNothing is whether a value of a term limits nothing.
func LimitsNothing(value string) bool { return value == NotLimited || value == limits.Off.String() }

func perWindow(w limits.Window) string {
	if w == limits.Second {
		return "s"
	}
	return w.String()
}

func withNotes(s string, notes []string) string {
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
	case "group":
		return "none"
	case "jobs.class":
		return limits.DefaultQueues
	default:
		return NotLimited
	}
}

// ValueOf is the term's value, or what counts when nothing is said.
func ValueOf(all []Term, name string) string {
	for _, t := range all {
		if t.Name == name {
			return t.Value()
		}
	}
	// What is said of each service is said of those that are not named.
	if strings.HasPrefix(name, ofService) && name != ofEachService {
		return ValueOf(all, ofEachService)
	}
	return unsaid(name)
}

func hasTerm(all []Term, name string) bool {
	return slices.ContainsFunc(all, func(t Term) bool { return t.Name == name })
}

// SortNames brings names into the order of the limit file's documentation, with the
// requests by class and the shorter windows first, and each only once.
func SortNames(names []string) []string {
	slices.SortFunc(names, compareTerms)
	return slices.Compact(names)
}

func compareTerms(a, b string) int {
	parse := limits.ParseRateName
	if strings.HasPrefix(a, costs) && strings.HasPrefix(b, costs) {
		parse = cutCost
	}
	classA, windowA := parse(a)
	classB, windowB := parse(b)
	return cmp.Or(cmp.Compare(rankOf(a), rankOf(b)), cmp.Compare(classA, classB), cmp.Compare(windowA, windowB))
}

// ranks are the names but those of requests. What is new to this program comes last.
var ranks = []string{
	"requests", "costs", "concurrent", "bandwidth", "bandwidth.down", "bandwidth.up", "bandwidth.default_share",
	"over_limit", "over_limit.concurrent", "priority", "group", "jobs", "jobs.total", "jobs.queues", "jobs.class",
}

func rankOf(name string) int {
	if strings.HasPrefix(name, "requests") {
		return 0
	}
	switch {
	case strings.HasPrefix(name, costs):
		name = "costs"
	case strings.HasPrefix(name, ofService):
		name = "jobs.queues"
	}
	if i := slices.Index(ranks, name); i >= 0 {
		return i
	}
	return len(ranks)
}

// NamesIn are the names of terms of either, sorted.
func NamesIn(a, b []Term) []string {
	var names []string
	for _, t := range append(slices.Clip(a), b...) {
		names = append(names, t.Name)
	}
	return SortNames(names)
}

// FormatBytes writes bytes in the largest binary unit that divides them.
func FormatBytes(n int64) string {
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

// ClassNames are the names of classes.
func ClassNames(classes []limits.Class) []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.Name)
	}
	return names
}
