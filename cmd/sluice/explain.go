package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/apiclient"
	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

type explain struct {
	User     string `arg:"" optional:"" help:"The user, named as in the limit file; ~unreadable: all requests whose credentials cannot be read."`
	Class    string `help:"Tell which limits a request of this class counts against: GET, PUT, …, OTHER, or a class of the file." placeholder:"CLASS" complete:"class"`
	Endpoint string `help:"Tell of this endpoint, where the user is counted apart." placeholder:"NAME"`
	Limits   string `help:"The limit file." default:"config/limits.yaml" placeholder:"FILE" complete:"file"`
	Admin    string `help:"Ask the polygen (or sluice up) with this admin address, host:port or https://host:port, too: the user's use, shares, state and last refusals." placeholder:"HOST:PORT"`

	Job    int64  `help:"Tell instead why the background job with this id of River's waits." placeholder:"ID"`
	Worker string `help:"The worker to ask about --job, any one of them: where it serves riverqos' handler, host:port or https://host:port." placeholder:"HOST:PORT"`

	Access `embed:""`
}

// Help tells what the command prints.
func (*explain) Help() string {
	return `Prints the user's tier and each limit, with the line that sets it: the user's own override, the tier, or the default tier because the file does not name the user. A limit that the file lifts (unlimited) is listed as not limited; what is not listed is not limited either. Limits over all endpoints together follow. Background jobs are always listed: where the file says nothing of them, with the limits that workers use then.

With --class, prints the limits that one request of that class counts against instead: those of its class, of its verb and of all classes ("*"), and those of all requests.

Limits are those of now. An entry that ends (until) says so, and what follows; when it has ended, the limits are those that followed.

With --admin, asks a running polygen and prints after the limits whether the user is refused now and why, how much of each limit is used, how many requests of each class start, limited or not, what each instance runs and may run of the user, and the last decisions to refuse requests.

With --job and --worker, asks a worker of background jobs and prints what the job is waiting for: its user's slots and which jobs have them, its place in the user's line, and how many jobs go before it.`
}

// Validate is called by kong.
func (e *explain) Validate() error {
	switch {
	case e.Job == 0 && e.User == "":
		return errors.New("name a user, or a background job with --job and --worker")
	case e.Job == 0:
		return nil
	case e.User != "" || e.Class != "" || e.Endpoint != "" || e.Admin != "":
		return errors.New("--job goes with --worker alone: a job's user is its own")
	case e.Worker == "":
		return errors.New("--job: " + apiclient.WorkerHint)
	case e.Job < 0:
		return fmt.Errorf("--job %d: want River's id of the job, a positive number", e.Job)
	}
	return nil
}

func (e *explain) run(stdout, stderr io.Writer) int {
	if e.Job != 0 {
		return cli.Exit(stderr, "sluice explain", e.explainJob(stdout))
	}
	set, err := limitfile.Load(e.Limits)
	if err != nil {
		fmt.Fprintln(stderr, nameLimits(err, e.Limits))
		return 1
	}
	if valid := classesOf(set); e.Class != "" && !slices.Contains(valid, e.Class) {
		return cli.Exit(stderr, "sluice explain", e.unknownClass(valid))
	}
	if valid := set.Endpoints(); e.Endpoint != "" && !slices.Contains(valid, e.Endpoint) {
		return cli.Exit(stderr, "sluice explain", unknownEndpoint(e.Endpoint, valid))
	}
	var live *api.User
	if e.Admin != "" {
		u, err := e.ask()
		if err != nil {
			return cli.Exit(stderr, "sluice explain", err)
		}
		live = &u
	}
	set = set.At(time.Now())
	a := newAccount(e.Limits, set, e.User, e.Endpoint)
	fmt.Fprintln(stdout, a.who)
	for _, note := range a.notes {
		fmt.Fprintln(stdout, "  "+note)
	}
	together := &account{} // over all endpoints, which a file without endpoints cannot limit
	if len(set.Endpoints()) > 0 {
		together = newAccount(e.Limits, set, e.User, limits.All)
	}
	found, foundTogether := a.facts, together.facts
	if e.Class != "" {
		verb, of := verbOf(set, e.Class)
		found, foundTogether = a.against(e.Class, verb), together.against(e.Class, verb)
		fmt.Fprintf(stdout, "a %s request%s counts against:\n", e.Class, of)
	}
	if !slices.ContainsFunc(slices.Concat(found, foundTogether), func(f fact) bool { return !terms.IsOfJobs(f.name) }) {
		fmt.Fprintln(stdout, "  no limit of requests")
	}
	err = writeFacts(stdout, found)
	if err == nil && len(foundTogether) > 0 {
		fmt.Fprintln(stdout, "and, with the requests at all endpoints and away from them taken together:")
		err = writeFacts(stdout, foundTogether)
	}
	if err == nil && live != nil {
		err = e.live(stdout, *live, set.Version())
	}
	return cli.Exit(stderr, "sluice explain", err)
}

func writeFacts(to io.Writer, facts []fact) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, f := range facts {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.name, f.value, f.source)
	}
	return w.Flush()
}

// classesOf are the classes that a request may be of.
func classesOf(set *limits.Set) []string {
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

func unknownEndpoint(name string, valid []string) error {
	if len(valid) == 0 {
		return fmt.Errorf("unknown endpoint %q: the limit file has none", name)
	}
	return fmt.Errorf("unknown endpoint %q (valid: %s)", name, strings.Join(valid, ", "))
}

func (e *explain) unknownClass(valid []string) error {
	hint := ""
	if upper := strings.ToUpper(e.Class); slices.Contains(valid, upper) {
		hint = "; did you mean " + upper + "?"
	}
	return fmt.Errorf("unknown class %q%s (valid: %s, where OTHER is every other method)", e.Class, hint, strings.Join(valid, ", "))
}

// account is what a limit file says of one user.
type account struct {
	who    string   // the user, the tier, and the line that says so
	notes  []string // what else the file says of the user
	limits *limits.Limits
	facts  []fact // what is limited, or was lifted
}

// fact is a term and where it comes from.
type fact struct {
	name, value string // of a term
	source      string
}

func newAccount(file string, set *limits.Set, user, endpoint string) *account {
	l, o := set.User(limits.EndpointKey(endpoint, limits.KeyOf(user))), limitfile.OriginAt(set, endpoint, user)
	a := &account{limits: l, who: who(file, user, l, o)}
	if endpoint != "" {
		a.notes = append(a.notes, "at endpoint "+endpoint)
	}
	if o.Comment != "" {
		a.notes = append(a.notes, "comment: "+terminal.Name(o.Comment))
	}
	if !o.Until.IsZero() {
		a.notes = append(a.notes, until(o))
	}
	if mode := set.Mode(); mode != limits.Enforce {
		a.notes = append(a.notes, fmt.Sprintf("mode of the whole file: %s (%s:%d)", mode, file, o.FileMode))
	}
	if line := terms.DescribeAddresses(set.AddressLimits()); line != "" {
		a.notes = append(a.notes, "beside these limits, each address at each HAProxy: "+line)
	}
	// Workers of jobs keep to their limits, be they stated or not. Jobs have none over all
	// endpoints together.
	all := terms.With(l, l.Tier != limits.ExemptTier && endpoint != limits.All)
	var names []string
	for _, t := range all {
		names = append(names, t.Name)
	}
	for _, f := range o.Fields { // so that what was lifted is there, too
		if !ofLimit(f.Name) {
			names = append(names, f.Name)
		}
	}
	for _, name := range terms.Sort(names) {
		origin, ok := o.Field(name)
		if a.meaningless(name, all) {
			continue
		}
		if !ok {
			if source, ok := terms.Builtin(name, l.Tier, set.DefaultTier()); ok {
				a.facts = append(a.facts, fact{name, terms.Value(all, name), source})
			}
			continue
		}
		source := "tier " + terminal.Name(l.Tier)
		switch {
		case origin.Override:
			source = "override"
		case o.Anonymous:
			source = "anonymous " + source
		case o.Unreadable:
			source = "unreadable " + source
		case o.User == 0:
			source = "default " + source
		}
		if origin.Endpoint {
			source += " for " + terms.Endpoint(endpoint)
		}
		a.facts = append(a.facts, fact{name, terms.Value(all, name), fmt.Sprintf("%s, %s:%d", source, origin.File, origin.Line)})
	}
	return a
}

// who says who the user is to the limit file.
func who(file, user string, l *limits.Limits, o limitfile.Origin) string {
	named := fmt.Sprintf("user %s: %s:%d", terminal.Name(user), o.File, o.User)
	if o.Pattern != "" {
		named = fmt.Sprintf("user %s: %s at %s:%d", terminal.Name(user), terminal.Name(o.Pattern), o.File, o.User)
	}
	tier := fmt.Sprintf("tier %s (%s:%d)", terminal.Name(l.Tier), file, o.Tier)
	switch {
	case o.Exempt:
		return named + ", exempt"
	case o.Anonymous:
		return fmt.Sprintf("user %s: not named in %s, so of the anonymous %s", terminal.Name(user), file, tier)
	case o.Unreadable:
		return fmt.Sprintf("%s, all requests whose credentials cannot be read: of the unreadable %s", user, tier)
	case user == limits.UnreadableKey:
		return fmt.Sprintf("%s, all requests whose credentials cannot be read: %s has no unreadable tier, so of the default %s", user, file, tier)
	case o.User == 0:
		return fmt.Sprintf("user %s: not named in %s, so of the default %s", terminal.Name(user), file, tier)
	case o.Named || o.Expired && o.Then != "":
		return named + ", of " + tier
	default:
		return named + ", which names no tier, so of the default " + tier
	}
}

// until says when what the file says of a user ends, and what follows.
func until(o limitfile.Origin) string {
	next := "the limits of their tier"
	if o.Then != "" {
		next = "the limits of tier " + terminal.Name(o.Then)
	}
	if o.Expired {
		return fmt.Sprintf("their overrides ended at %s: they have %s", o.Until.Format(time.RFC3339), next)
	}
	return fmt.Sprintf("until %s, then they have %s", o.Until.Format(time.RFC3339), next)
}

// ofLimit is whether a field says something about a limit and is none.
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
		limit := f.value != terms.NotLimited && f.value != limits.Off.String() && f.name != "priority" && f.name != "bandwidth.default_share" && !terms.IsOfJobs(f.name)
		if !limit || isRate && own != class && own != verb && own != limits.All {
			continue
		}
		found = append(found, f)
	}
	return found
}
