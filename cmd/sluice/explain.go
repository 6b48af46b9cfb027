package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type explain struct {
	User   string `arg:"" help:"The user, named as in the limit file."`
	Class  string `help:"Tell which limits a request of this class counts against: GET, PUT, …, or OTHER." placeholder:"CLASS" complete:"class"`
	Limits string `help:"The limit file." default:"config/limits.yaml" placeholder:"FILE" complete:"file"`
}

// Help tells what the command prints.
func (*explain) Help() string {
	return `Prints the user's tier and each of his limits, with the line that sets it: an override of his own, his tier, or the default tier because the file does not name him. A limit that the file lifts (unlimited) is listed as not limited; what is not listed nothing limits.

With --class, prints the limits that one request of that class counts against instead: those of its class and of all classes ("*"), and those of all requests.`
}

func (e *explain) run(stdout, stderr io.Writer) int {
	set, err := limits.Load(e.Limits)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: name the limit file with --limits", err)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if e.Class != "" && !slices.Contains(limits.BuiltinClasses(), e.Class) {
		return cli.Exit(stderr, "sluice explain", e.unknownClass())
	}
	a := newAccount(e.Limits, set, e.User)
	fmt.Fprintln(stdout, a.who)
	found := a.facts
	if e.Class != "" {
		found = a.against(e.Class)
		fmt.Fprintf(stdout, "a %s request counts against:\n", e.Class)
	}
	if len(found) == 0 {
		fmt.Fprintln(stdout, "  no limit")
		return 0
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, f := range found {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.name, f.value, f.source)
	}
	return cli.Exit(stderr, "sluice explain", w.Flush())
}

func (e *explain) unknownClass() error {
	hint := ""
	if upper := strings.ToUpper(e.Class); slices.Contains(limits.BuiltinClasses(), upper) {
		hint = "; did you mean " + upper + "?"
	}
	return fmt.Errorf("unknown class %q%s (valid: %s, where OTHER is every other method)", e.Class, hint, strings.Join(limits.BuiltinClasses(), ", "))
}

// account is what a limit file says of one user. What a running polygen knows of
// him can be added beside it.
type account struct {
	who    string // the user, his tier, and where that is said
	limits *limits.Limits
	facts  []fact // what is limited, or was lifted
}

// fact is a term and where it comes from.
type fact struct {
	term
	source string
}

func newAccount(file string, set *limits.Set, user string) *account {
	l, o := set.User(limits.Key(user)), set.Origin(user)
	a := &account{limits: l}
	tier := fmt.Sprintf("tier %s (%s:%d)", shown(l.Tier), file, o.Tier)
	switch {
	case o.User == 0:
		a.who = fmt.Sprintf("user %s: not named in %s, so of the default %s", shown(user), file, tier)
	case o.Named:
		a.who = fmt.Sprintf("user %s: %s:%d, of %s", shown(user), file, o.User, tier)
	default:
		a.who = fmt.Sprintf("user %s: %s:%d, which names no tier, so of the default %s", shown(user), file, o.User, tier)
	}
	all := terms(l)
	var names []string
	for _, t := range all {
		names = append(names, t.name)
	}
	for _, f := range o.Fields { // so that what was lifted is there, too
		names = append(names, f.Name)
	}
	for _, name := range sortTerms(names) {
		origin, ok := o.Field(name)
		if !ok || a.meaningless(name, all) {
			continue
		}
		source := "tier " + shown(l.Tier)
		switch {
		case origin.Override:
			source = "override"
		case o.User == 0:
			source = "default tier " + shown(l.Tier)
		}
		a.facts = append(a.facts, fact{term{name, value(all, name)}, fmt.Sprintf("%s, %s:%d", source, file, origin.Line)})
	}
	return a
}

// meaningless is whether a field says nothing of this user: it is about a limit
// that he does not have, or was lifted as a whole (requests: unlimited) and set
// again in part.
func (a *account) meaningless(name string, all []term) bool {
	switch name {
	case "over_limit.concurrent":
		return a.limits.Concurrent == 0
	case "bandwidth.default_share":
		return a.limits.Bandwidth.Down == 0 && a.limits.Bandwidth.Up == 0
	}
	return slices.ContainsFunc(all, func(t term) bool { return strings.HasPrefix(t.name, name+".") })
}

// against are the facts that a request of the class counts against, of which it is
// not lifted.
func (a *account) against(class string) []fact {
	var found []fact
	for _, f := range a.facts {
		own, isRate := strings.CutPrefix(f.name, "requests.")
		limit := f.value != notLimited && f.name != "priority" && f.name != "bandwidth.default_share"
		if !limit || isRate && own != class && own != limits.All {
			continue
		}
		found = append(found, f)
	}
	return found
}
