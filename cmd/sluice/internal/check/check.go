// Package check writes what a limit file says: its summary, its tiers, and its users.
package check

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Report writes what a limit file says. It is not safe for concurrent use.
type Report struct {
	w     io.Writer
	set   *limits.Set // as it is now
	now   time.Time
	ends  *terms.Ends
	lines map[*limits.Limits]string // of the last ones
}

// New reads a limit file. An error says where it is wrong.
func New(w io.Writer, path string, now time.Time) (*Report, error) {
	set, err := limitfile.Load(path)
	if err != nil {
		return nil, err
	}
	return &Report{
		// The ends are of the set of all times, in which nothing has ended: what is over is listed as well.
		w: w, set: set.At(now), now: now,
		ends: terms.NewEnds(set), lines: map[*limits.Limits]string{},
	}, nil
}

// WriteSummary writes what the file says of everybody, and of each tier.
func (r *Report) WriteSummary() {
	set := r.set
	r.writeLine("%s: ok, version %s, %d tier(s), %d user(s) named", set.Name(), set.Version(), len(set.TierNames()), set.UserCount())
	switch set.Mode() {
	// In capitals, because it is the one line that tells that nothing below it has an effect.
	case limits.DryRun:
		r.writeLine("  DRY RUN: mode is dry-run for the whole file, so that nobody is refused")
	case limits.Off:
		r.writeLine("  OFF: mode is off for the whole file, so that nobody is limited")
	}
	// A pattern is one of the users named, and may stand for thousands.
	if n := len(set.Patterns()); n > 0 {
		r.writeLine("  patterns: %d of the users named", n)
	}
	if all := set.Classes(); len(all) > 0 {
		r.writeLine("  classes: %d: %s", len(all), terminal.QuoteNames(terms.ClassNames(all)))
	}
	if reflect.DeepEqual(set.Classes(), limits.S3Classes(nil)) {
		r.writeLine("  warning: the classes of s3 are for paths that begin with the bucket: a request for bucket.s3.example.com/key has the class of another operation; name the hosts, such as classes: {s3: {hosts: [s3.example.com]}}")
	}
	for _, u := range set.CostUnits() {
		r.writeLine("  cost in %s: %s", u.Name, terms.DescribeCostUnit(u))
		r.warnOfCost(u)
	}
	for of, number := range terms.Workers(set) {
		r.writeLine("  %s: %s", of, number)
	}
	// How many, and some of them: who is never limited is what people look over first.
	for _, of := range exemptions {
		if names := of.names(set.Exempt()); len(names) > 0 {
			r.writeLine("  exempt %s: %d: %s", of.what, len(names), terminal.SomeNames(names))
		}
	}
	if line := terms.DescribeAddresses(set.AddressLimits()); line != "" {
		r.writeLine("  each address, at each HAProxy: %s", line)
	}
	for _, name := range set.TierNames() {
		r.writeTier(name)
	}
	for _, name := range set.GroupNames() {
		l, _ := set.GroupLimits(name)
		r.writeLine("  group %s, its members together: %s", terminal.QuoteName(name), r.describe(l))
	}
	if len(set.GroupNames()) > 0 {
		r.writeLine("  warning: the limits of groups are read, and not enforced yet")
	}
	r.silentJobs()
	r.ending()
}

// exemptions are the lists of who is exempt.
var exemptions = []struct {
	what  string
	names func(limits.Exempt) []string
}{
	{"users", func(e limits.Exempt) []string { return e.Users }},
	{"addresses", func(e limits.Exempt) []string { return e.Addresses }},
	{"paths", func(e limits.Exempt) []string { return e.Paths }},
}

func (r *Report) writeTier(name string) {
	l, _ := r.set.TierLimits(name)
	mark := ""
	// A tier may be all of these at once.
	if name == r.set.DefaultTier() {
		mark += " (default)"
	}
	if name == r.set.AnonymousTier() {
		mark += " (anonymous)"
	}
	if name == r.set.UnreadableTier() {
		mark += " (unreadable)"
	}
	r.writeLine("  %s%s: %s", terminal.QuoteName(name), mark, r.describe(l))
}

// silentJobs says what workers of background jobs keep to where the file says nothing
// of jobs: that is not nothing.
func (r *Report) silentJobs() {
	const most = 5
	var tiers []string
	names := r.set.TierNames()
	for _, name := range names[:min(len(names), most)] {
		l, _ := r.set.TierLimits(name)
		// Then the tiers' own lines have them.
		if l.Jobs().Stated {
			return
		}
		tiers = append(tiers, terminal.QuoteName(name)+" "+strings.TrimPrefix(terms.JobSentence(terms.OfJobs(l.Jobs())), "jobs "))
	}
	if len(names) > most {
		tiers = append(tiers, fmt.Sprintf("and so on for %d more", len(names)-most))
	}
	r.writeLine("  background jobs, of which the file says nothing, at a time: %s", strings.Join(tiers, ", "))
}

// ending lists the users whose entries end, those that end first, and counts those
// that have ended.
func (r *Report) ending() {
	const most = 10
	// So that a million users are not looked through for nothing.
	if !r.ends.AnyEnds() {
		return
	}
	var next, over []ending // sorted by time, the first only
	more, ended := 0, 0
	for user := range r.set.UserNames() {
		// One after the other, without a list of all: only the first few are shown.
		e := ending{user, r.ends.EndOf(limits.Key(user))}
		switch {
		case e.At.IsZero():
		case e.At.After(r.now):
			next, more = keepSoonest(next, e, most), more+1
		default:
			// The first one shows for how long the file has not been tidied up.
			over, ended = keepSoonest(over, e, 1), ended+1
		}
	}
	for _, e := range next {
		r.writeLine("  user %s ends %s", terminal.QuoteName(e.user), e.End)
	}
	if more > len(next) {
		r.writeLine("  and %d more user(s) end later: see --users", more-len(next))
	}
	if ended > 0 {
		r.writeLine("  %d user(s) ended, the first %s at %s: --users lists them; take them out, or give them another end",
			ended, terminal.QuoteName(over[0].user), over[0].At.Format(time.RFC3339Nano))
	}
}

// WriteUsers writes one line a user.
func (r *Report) WriteUsers() {
	for user := range r.set.UserNames() {
		key := limits.Key(user)
		l := r.set.User(key)
		until := ""
		switch e := r.ends.EndOf(key); {
		case e.At.IsZero():
		case e.At.After(r.now):
			until = " until " + e.String()
		default:
			until = " since " + e.At.Format(time.RFC3339Nano) + ", when their own ended"
		}
		// Nothing else of what the file says of them counts.
		if l.Tier == limits.ExemptTier {
			r.writeLine("  user %s, exempt", terminal.QuoteName(user))
			continue
		}
		r.writeLine("  user %s, tier %s%s: %s", terminal.QuoteName(user), terminal.QuoteName(l.Tier), until, r.describe(l))
	}
}

// describe names limits in one line, unless it was made lately: most users of a large file share their limits
// with their tier or with many others.
func (r *Report) describe(l *limits.Limits) string {
	const most = 10_000
	line, ok := r.lines[l]
	if !ok {
		// All at once: which of them comes again is not known, and to make them anew costs little.
		if len(r.lines) == most {
			clear(r.lines)
		}
		line = terms.Describe(l)
		r.lines[l] = line
	}
	return line
}

func (r *Report) writeLine(format string, args ...any) { fmt.Fprintf(r.w, format+"\n", args...) }
