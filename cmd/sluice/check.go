package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

type check struct {
	Files []string `arg:"" name:"file" help:"Limit files to check." complete:"file"`
	Users bool     `help:"Print the limits of each user whom a file names, too, sorted by name."`
	Quiet bool     `short:"q" help:"Print errors only."`

	KeySecretFile string `help:"See, too, whether users' names can be hidden with the secrets of this file, as polygen's flag of that name does." placeholder:"FILE" complete:"file"`
}

// Help tells what the command prints and when it fails.
func (*check) Help() string {
	return `For each file that is valid, prints one line with its version (the hash that the instances show), its numbers of tiers and of users, then what it says of everybody (a dry run, files of users, endpoints, classes, workers of queues, who is exempt, what each address of clients may do), then one line a tier with its limits: requests by class and window ("all" is all classes together), requests in progress, bytes per second, and background jobs, which have a line for all tiers if the file says nothing of them: workers that read it then go by the names of tiers. What else is not listed is not limited. Endpoints where a tier has other limits follow it, then its limits over all endpoints together. The last lines are users whose entries end (until). With --users, one line a user or pattern follows, with their tier and their limits after their overrides, as they are now.

Files of users_from are checked with the file that names them: give only that one.

With --key-secret-file, patterns of users are errors, because keys that hide names match none, and the version is that of the limits which polygen publishes then.

For each error, prints file:line:column, what is wrong and what would be valid, to standard error. The exit code is 1 if any file has an error, else 0.`
}

func (c *check) run(stdout, stderr io.Writer) int {
	code := 0
	w := bufio.NewWriter(stdout)
	for _, path := range c.Files {
		r, err := newReport(w, path, time.Now())
		if err == nil && c.KeySecretFile != "" {
			err = r.hide(c.KeySecretFile)
		}
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
			continue
		}
		if c.Quiet {
			continue
		}
		r.summary()
		if c.Users {
			r.users()
		}
	}
	if err := w.Flush(); err != nil {
		return cli.Exit(stderr, "sluice check", err)
	}
	return code
}

// report writes what a limit file says.
type report struct {
	w     io.Writer
	files limits.Files
	set   *limits.Set // as it is now
	now   time.Time
	ends  *ends
	lines map[described]string // of the last ones

	version string // of what is published
}

func newReport(w io.Writer, path string, now time.Time) (*report, error) {
	files, err := limits.ReadFiles(path)
	if err != nil {
		return nil, err
	}
	set, err := limits.Parse(path, files.Data)
	if err != nil {
		return nil, err
	}
	return &report{
		w: w, files: files, set: set.At(now), now: now,
		ends: newEnds(set), lines: map[described]string{}, version: set.Version(),
	}, nil
}

// hide sees whether users' names can be hidden.
func (r *report) hide(path string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("key secret file: %w", err)
	}
	secrets, err := limits.ParseSecrets(file)
	if err != nil {
		return fmt.Errorf("key secret file %s: %w", path, err)
	}
	hidden, err := r.set.Hide(secrets)
	if err != nil {
		return err
	}
	r.version = hidden.Version()
	return nil
}

func (r *report) summary() {
	set := r.set
	r.line("%s: ok, version %s, %d tier(s), %d user(s) named", r.files.Paths[0], r.version, len(set.Tiers()), set.Len())
	switch set.Mode() {
	case limits.DryRun:
		r.line("  DRY RUN: mode is dry-run for the whole file, so that nobody is refused")
	case limits.Off:
		r.line("  OFF: mode is off for the whole file, so that nobody is limited")
	}
	switch from := r.files.Paths[1:]; {
	case len(from) > 0:
		r.line("  users_from: %d file(s): %s", len(from), some(from))
	case len(r.files.Folders) > 0:
		r.line("  users_from: no file matches")
	}
	if n := len(set.Patterns()); n > 0 {
		r.line("  patterns: %d of the users named", n)
	}
	if names := set.Endpoints(); len(names) > 0 {
		r.line("  endpoints: %s", listed(names))
	}
	if all := set.Classes(); len(all) > 0 {
		r.line("  classes: %d: %s", len(all), listed(namesOf(all)))
	}
	for _, q := range set.Queues() {
		r.line("  queues of %s: %s", q.Service, workers(q))
	}
	for _, of := range exemptions {
		if names := of.names(set.Exempt()); len(names) > 0 {
			r.line("  exempt %s: %d: %s", of.what, len(names), some(names))
		}
	}
	if line := describeAddresses(set.AddressLimits()); line != "" {
		r.line("  each address, at each HAProxy: %s", line)
	}
	for _, name := range set.Tiers() {
		r.tier(name)
	}
	r.silentJobs()
	r.ending()
}

// namesOf are the names of classes.
func namesOf(classes []limits.Class) []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.Name)
	}
	return names
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

func (r *report) tier(name string) {
	l, _ := r.set.Tier(name)
	mark := ""
	if name == r.set.DefaultTier() {
		mark += " (default)"
	}
	if name == r.set.AnonymousTier() {
		mark += " (anonymous)"
	}
	if name == r.set.UnreadableTier() {
		mark += " (unreadable)"
	}
	r.line("  %s%s: %s", shown(name), mark, r.describe(l))
	for _, endpoint := range r.set.Endpoints() {
		if at, _ := r.set.TierAt(endpoint, name); at != l {
			r.line("    at %s: %s", endpoint, r.describeBeside(l, at))
		}
	}
	together, _ := r.set.TierAt(limits.All, name)
	r.together(together)
}

// together writes the limits over all endpoints together, if there are any.
func (r *report) together(l *limits.Limits) {
	if len(terms(l)) > 0 {
		r.line("    at %s: %s", shownEndpoint(limits.All), r.describe(l))
	}
}

// silentJobs says what workers of background jobs keep to where the file says nothing
// of jobs: that is not nothing.
func (r *report) silentJobs() {
	const most = 5
	var tiers []string
	names := r.set.Tiers()
	for _, name := range names[:min(len(names), most)] {
		l, _ := r.set.Tier(name)
		if l.Jobs().Stated {
			return
		}
		tiers = append(tiers, shown(name)+" "+strings.TrimPrefix(jobSentence(jobTerms(l.Jobs())), "jobs "))
	}
	if len(names) > most {
		tiers = append(tiers, fmt.Sprintf("and so on for %d more", len(names)-most))
	}
	r.line("  background jobs, of which the file says nothing, at a time: %s", strings.Join(tiers, ", "))
}

// ending lists the users whose entries end, those that end first, and counts those
// that have ended.
func (r *report) ending() {
	const most = 10
	if len(r.ends.times) == 0 {
		return
	}
	var next, over []ending // sorted by time, the first only
	more, ended := 0, 0
	for user := range r.set.Users() {
		e := ending{user, r.ends.of(limits.Key(user))}
		switch {
		case e.at.IsZero():
		case e.at.After(r.now):
			next, more = keep(next, e, most), more+1
		default:
			over, ended = keep(over, e, 1), ended+1
		}
	}
	for _, e := range next {
		r.line("  user %s ends %s", shown(e.user), e.end)
	}
	if more > len(next) {
		r.line("  and %d more user(s) end later: see --users", more-len(next))
	}
	if ended > 0 {
		r.line("  %d user(s) ended, the first %s at %s: --users lists them; take them out, or give them another end",
			ended, shown(over[0].user), over[0].at.Format(time.RFC3339Nano))
	}
}

// users writes one line a user, and one for each endpoint where a user has other limits.
func (r *report) users() {
	for user := range r.set.Users() {
		key := limits.Key(user)
		l := r.set.User(key)
		until := ""
		switch e := r.ends.of(key); {
		case e.at.IsZero():
		case e.at.After(r.now):
			until = " until " + e.String()
		default:
			until = " since " + e.at.Format(time.RFC3339Nano) + ", when their own ended"
		}
		if l.Tier == limits.ExemptTier {
			r.line("  user %s, exempt", shown(user))
			continue
		}
		r.line("  user %s, tier %s%s: %s", shown(user), shown(l.Tier), until, r.describe(l))
		for _, endpoint := range r.set.Endpoints() {
			if at := r.set.User(limits.EndpointKey(endpoint, key)); at != l {
				r.line("    at %s: %s", endpoint, r.describeBeside(l, at))
			}
		}
		r.together(r.set.User(limits.EndpointKey(limits.All, key)))
	}
}

// described are limits, and those at an endpoint if the line is of what is other there.
type described struct{ everywhere, here *limits.Limits }

func (r *report) describe(l *limits.Limits) string {
	return r.once(described{everywhere: l}, func() string { return describe(l) })
}

func (r *report) describeBeside(everywhere, here *limits.Limits) string {
	return r.once(described{everywhere, here}, func() string { return describeBeside(everywhere, here) })
}

// once makes a line unless it was made lately: most users of a large file share their
// limits with their tier or with many others.
func (r *report) once(of described, describe func() string) string {
	const most = 10_000
	line, ok := r.lines[of]
	if !ok {
		if len(r.lines) == most {
			clear(r.lines)
		}
		line = describe()
		r.lines[of] = line
	}
	return line
}

func (r *report) line(format string, args ...any) { fmt.Fprintf(r.w, format+"\n", args...) }
