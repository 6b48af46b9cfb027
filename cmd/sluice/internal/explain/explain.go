// Package explain says which limits a user has, where each comes from, and what a running
// polygen knows of the user; and why a background job waits.
package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Question is what is asked.
type Question struct {
	User  string
	Class string // of the request whose limits are wanted; "" for all limits
	File  string // the limit file's name
	Admin string // the address that was asked about the use
}

// Write writes the limits of a user under a file, as they are now, and, unless live is nil,
// what a polygen knows of the user.
func Write(w io.Writer, set *limits.Set, q Question, live *api.User) error {
	a := newAccount(q.File, set, q.User)
	fmt.Fprintln(w, a.who)
	for _, note := range a.notes {
		fmt.Fprintln(w, "  "+note)
	}
	found := a.facts
	if q.Class != "" {
		verb, of := verbOf(set, q.Class)
		found = a.against(q.Class, verb)
		fmt.Fprintf(w, "a %s request%s counts against:\n", q.Class, of)
	}
	if !slices.ContainsFunc(found, func(f fact) bool { return !terms.IsOfJobs(f.name) }) {
		fmt.Fprintln(w, "  no limit of requests")
	}
	err := writeFacts(w, found)
	if err == nil && live != nil {
		err = q.writeLive(w, *live, set.Version())
	}
	return err
}

func writeFacts(to io.Writer, facts []fact) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, f := range facts {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.name, f.value, f.source)
	}
	return w.Flush()
}

// Classes are the classes that a request may be of.
func Classes(set *limits.Set) []string {
	return append(limits.BuiltinClasses(), terms.ClassNames(set.Classes())...)
}

// verbOf is the verb of all requests of an operation class, and says so. It is ""
// if the class is a verb, or of several.
func verbOf(set *limits.Set, class string) (verb, said string) {
	classes := set.Classes()
	i := slices.Index(terms.ClassNames(classes), class)
	if i < 0 {
		return "", ""
	}
	var verbs []string
	for _, m := range classes[i].Any {
		for _, method := range m.Methods {
			if !slices.Contains(limits.BuiltinClasses(), method) {
				method = "OTHER"
			}
			verbs = append(verbs, method)
		}
		if len(m.Methods) == 0 {
			verbs = append(verbs, "")
		}
	}
	slices.Sort(verbs)
	if verbs = slices.Compact(verbs); len(verbs) == 1 && verbs[0] != "" {
		return verbs[0], ", whose verb is " + verbs[0] + ","
	}
	return "", ", beside the limits of its verb,"
}

type account struct {
	who    string   // the user, the tier, and the line that says so
	notes  []string // what else the file says of the user
	limits *limits.Limits
	units  []limits.CostUnit
	facts  []fact // what is limited, or was lifted
}

type fact struct {
	name, value string // of a term
	source      string
}

func newAccount(file string, set *limits.Set, user string) *account {
	l, o := set.User(limits.KeyOf(user)), limitfile.OriginOf(set, user)
	a := &account{limits: l, units: set.CostUnits(), who: describeUser(file, user, l, o)}
	if o.Comment != "" {
		a.notes = append(a.notes, "comment: "+terminal.QuoteName(o.Comment))
	}
	if !o.Until.IsZero() {
		a.notes = append(a.notes, describeEnd(o))
	}
	if mode := set.Mode(); mode != limits.Enforce {
		a.notes = append(a.notes, fmt.Sprintf("mode of the whole file: %s (%s:%d)", mode, file, o.FileMode))
	}
	if line := terms.DescribeAddresses(set.AddressLimits()); line != "" {
		a.notes = append(a.notes, "beside these limits, each address at each HAProxy: "+line)
	}
	a.notes = append(a.notes, terms.DedicatedTo(set, l.Tier, limits.KeyOf(user), file)...)
	// Workers of jobs keep to their limits, be they stated or not.
	all := terms.TermsWithJobs(l, l.Tier != limits.ExemptTier)
	var names []string
	for _, t := range all {
		names = append(names, t.Name)
	}
	for _, f := range o.Fields { // so that what was lifted is there, too
		if !ofLimit(f.Name) {
			names = append(names, f.Name)
		}
	}
	for _, name := range terms.SortNames(names) {
		origin, ok := o.FieldOrigin(name)
		if a.meaningless(name, all) {
			continue
		}
		if !ok {
			if source, ok := terms.Builtin(name, l.Tier, set.DefaultTier(), all); ok {
				a.facts = append(a.facts, fact{name, terms.ValueOf(all, name), source})
			}
			continue
		}
		source := "tier " + terminal.QuoteName(l.Tier)
		switch {
		case origin.Layer != limitfile.TierLayer:
			source = "override"
		case o.TierFrom == limitfile.FromAnonymous:
			source = "anonymous " + source
		case o.TierFrom == limitfile.FromUnreadable:
			source = "unreadable " + source
		case o.User == 0:
			source = "default " + source
		}
		a.facts = append(a.facts, fact{name, terms.ValueOf(all, name), fmt.Sprintf("%s, %s:%d", source, origin.File, origin.Line)})
	}
	return a
}

func describeUser(file, user string, l *limits.Limits, o limitfile.Origin) string {
	named := fmt.Sprintf("user %s: %s:%d", terminal.QuoteName(user), o.File, o.User)
	if o.Pattern != "" {
		named = fmt.Sprintf("user %s: %s at %s:%d", terminal.QuoteName(user), terminal.QuoteName(o.Pattern), o.File, o.User)
	}
	tier := fmt.Sprintf("tier %s (%s:%d)", terminal.QuoteName(l.Tier), file, o.Tier)
	switch {
	case o.TierFrom == limitfile.FromExempt:
		return named + ", exempt"
	case o.TierFrom == limitfile.FromAnonymous:
		return fmt.Sprintf("user %s: not named in %s, so of the anonymous %s", terminal.QuoteName(user), file, tier)
	case o.TierFrom == limitfile.FromUnreadable:
		return fmt.Sprintf("%s, all requests whose credentials cannot be read: of the unreadable %s", user, tier)
	case user == limits.UnreadableKey:
		return fmt.Sprintf("%s, all requests whose credentials cannot be read: %s has no unreadable tier, so of the default %s", user, file, tier)
	case o.User == 0:
		return fmt.Sprintf("user %s: not named in %s, so of the default %s", terminal.QuoteName(user), file, tier)
	case o.TierFrom == limitfile.FromEntry:
		return named + ", of " + tier
	default:
		return named + ", which names no tier, so of the default " + tier
	}
}

// describeEnd says when what the file says of a user ends, and what follows.
func describeEnd(o limitfile.Origin) string {
	next := "the limits of their tier"
	if o.Then != "" {
		next = "the limits of tier " + terminal.QuoteName(o.Then)
	}
	if o.Expired {
		return fmt.Sprintf("their overrides ended at %s: they have %s", o.Until.Format(time.RFC3339), next)
	}
	return fmt.Sprintf("until %s, then they have %s", o.Until.Format(time.RFC3339), next)
}

func ofLimit(name string) bool {
	return name == "mode" || strings.HasSuffix(name, ".mode") || strings.HasSuffix(name, ".burst")
}

// meaningless is whether a field says nothing of this user: it is about a limit that the
// user does not have, or was lifted as a whole (requests: unlimited) and set again in part.
func (a *account) meaningless(name string, all []terms.Term) bool {
	switch name {
	case "over_limit.concurrent":
		return a.limits.Concurrent == 0
	case "bandwidth.default_share":
		return a.limits.Bandwidth.Down == 0 && a.limits.Bandwidth.Up == 0
	}
	return slices.ContainsFunc(all, func(t terms.Term) bool { return strings.HasPrefix(t.Name, name+".") })
}

// against are the facts that a request of the class, and of a verb unless that is "",
// counts against, and that are not lifted.
func (a *account) against(class, verb string) []fact {
	var found []fact
	for _, f := range a.facts {
		rate, isRate := strings.CutPrefix(f.name, "requests.")
		own, _ := limits.ParseRateName(rate)
		limit := f.value != terms.NotLimited && f.value != limits.Off.String() && f.name != "priority" && f.name != "group" && f.name != "bandwidth.default_share" && !terms.IsOfJobs(f.name)
		if !limit || isRate && own != class && own != verb && own != limits.All || !a.charges(f.name, class, verb) {
			continue
		}
		found = append(found, f)
	}
	return found
}

// charges reports whether a request of the class, and of the verb unless that is "", costs what a
// term limits, if that is a term of costs.
func (a *account) charges(name, class, verb string) bool {
	unit, ok := terms.CostUnitOf(name)
	i := slices.IndexFunc(a.units, func(u limits.CostUnit) bool { return u.Name == unit })
	return !ok || i < 0 || a.units[i].Charges(verb, class)
}
