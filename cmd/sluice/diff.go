package main

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The exit codes of diff are those of diff(1).
const (
	same    = 0
	differs = 1
	trouble = 2
)

type diff struct {
	Old   string `arg:"" help:"The limit file that counts now." complete:"file"`
	New   string `arg:"" help:"The limit file that would." complete:"file"`
	Quiet bool   `short:"q" help:"Print errors only; the exit code tells whether they differ."`
}

// Help tells what the command prints and what its exit code means.
func (*diff) Help() string {
	return `Prints what a user may do under NEW that differs from OLD, as of now: first what is said of everybody (the mode of the whole file, the default, the anonymous and the unreadable tier, endpoints, classes, who is exempt, what each address of clients may do, workers of queues), then each tier, then the users whom the files do not name, then each user or pattern that is named now or no longer, has another tier or another end (until), or whose own limits differ. Where an endpoint differs in another way, that follows, then what differs over all endpoints together. A user without own limits changes with the tier, and is counted there. Names are sorted. Text that means the same is no difference, however it is written; nor is a new limit whose mode is off.

The exit code is 0 if nothing differs, 1 if something does, and 2 if a file has an error.`
}

func (d *diff) run(stdout, stderr io.Writer) int {
	before, err := limits.Load(d.Old)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	after, newErr := limits.Load(d.New)
	if newErr != nil {
		fmt.Fprintln(stderr, newErr)
	}
	if err != nil || newErr != nil {
		return trouble
	}
	if d.Quiet {
		stdout = io.Discard
	}
	w := bufio.NewWriter(stdout)
	c := newComparison(w, before, after, time.Now())
	c.compare()
	if err := w.Flush(); err != nil {
		_ = cli.Exit(stderr, "sluice diff", err)
		return trouble
	}
	if c.found {
		return differs
	}
	return same
}

// comparison writes how two limit files differ.
type comparison struct {
	w             io.Writer
	before, after *limits.Set // as they are now
	was, is       *ends
	now           time.Time
	endpoints     []string // of either file, sorted
	otherModes    bool     // because of the mode of the whole file, limits differ in theirs
	found         bool
}

// newComparison takes sets in which nothing has ended, as limits.Load makes them.
func newComparison(w io.Writer, before, after *limits.Set, now time.Time) *comparison {
	c := &comparison{w: w, before: before.At(now), after: after.At(now), was: newEnds(before), is: newEnds(after), now: now}
	a, b := before.Mode(), after.Mode()
	c.otherModes = a != b && a != limits.Off && b != limits.Off
	for name := range union(slices.Values(before.Endpoints()), slices.Values(after.Endpoints())) {
		c.endpoints = append(c.endpoints, name)
	}
	return c
}

func (c *comparison) compare() {
	c.everybody()
	followers := c.followers()
	for name := range union(slices.Values(c.before.Tiers()), slices.Values(c.after.Tiers())) {
		a, was := c.before.Tier(name)
		b, is := c.after.Tier(name)
		switch {
		case !was:
			c.whole("tier "+shown(name)+": added", c.after, b, tierOf(name))
		case !is:
			c.whole("tier "+shown(name)+": removed", c.before, a, tierOf(name))
		default:
			who := ""
			if n := followers[name]; n > 0 {
				who = fmt.Sprintf(" (and %d named user(s))", n)
			}
			c.changes(fmt.Sprintf("tier %s%s:", shown(name), who), tierOf(name))
		}
	}
	if c.before.DefaultTier() != c.after.DefaultTier() {
		someone := limits.Key("") // which no file can name, and no pattern matches
		c.changes("users not named in the file:", userOf(someone))
	}
	if c.before.AnonymousTier() != c.after.AnonymousTier() {
		c.changes("anonymous users:", userOf(nameless))
	}
	if c.before.UnreadableTier() != c.after.UnreadableTier() {
		c.changes("requests whose credentials cannot be read:", userOf(limits.UnreadableKey))
	}
	c.users()
}

// nameless is the key of requests without a user's name (see limits.Anonymous).
const nameless = "~"

// everybody compares what is said of all users.
func (c *comparison) everybody() {
	c.said("mode of the whole file", c.before.Mode().String(), c.after.Mode().String())
	if c.otherModes {
		c.line("  what follows leaves out limits that differ in nothing else: sluice check NEW shows their modes")
	}
	c.said("default tier", shown(c.before.DefaultTier()), shown(c.after.DefaultTier()))
	none := func(tier string) string {
		if tier == "" {
			return "none"
		}
		return shown(tier)
	}
	c.said("anonymous tier", none(c.before.AnonymousTier()), none(c.after.AnonymousTier()))
	c.said("unreadable tier", none(c.before.UnreadableTier()), none(c.after.UnreadableTier()))
	c.names("endpoint", c.before.Endpoints(), c.after.Endpoints())
	foundBefore := c.found
	c.found = false
	c.classes()
	a, b := c.before.Exempt(), c.after.Exempt()
	c.names("exempt address", a.Addresses, b.Addresses)
	c.names("exempt path", a.Paths, b.Paths)
	of := addressTerms(c.after.AddressLimits())
	for i, t := range addressTerms(c.before.AddressLimits()) {
		c.said(t.name, t.value, of[i].value)
	}
	if c.found {
		c.line("  HAProxy must learn this: write its configuration with sluice haproxy, and reload it")
	}
	c.found = c.found || foundBefore
	c.names("exempt user", a.Users, b.Users)
	c.queues()
}

func (c *comparison) said(what, a, b string) {
	if a != b {
		c.line("%s: %s → %s", what, a, b)
	}
}

// names compares lists in which the order means nothing.
func (c *comparison) names(what string, a, b []string) {
	for name, in := range union(slices.Values(slices.Sorted(slices.Values(a))), slices.Values(slices.Sorted(slices.Values(b)))) {
		switch {
		case !in.left:
			c.line("%s %s: added", what, shown(name))
		case !in.right:
			c.line("%s %s: removed", what, shown(name))
		}
	}
}

// classes compares which requests are of which class. The order counts: the first
// class that a request matches is its own.
func (c *comparison) classes() {
	a, b := c.before.Classes(), c.after.Classes()
	namesA, namesB := namesOf(a), namesOf(b)
	c.names("class", namesA, namesB)
	var bothA, bothB []string
	for _, class := range a {
		i := slices.Index(namesB, class.Name)
		if i < 0 {
			continue
		}
		bothA = append(bothA, class.Name)
		if !reflect.DeepEqual(class, b[i]) {
			c.line("class %s: matches other requests", class.Name)
		}
	}
	for _, name := range namesB {
		if slices.Contains(namesA, name) {
			bothB = append(bothB, name)
		}
	}
	if !slices.Equal(bothA, bothB) {
		c.line("classes: matched in another order: %s", listed(namesB))
	}
}

// followers counts, by tier, the users who are in that tier before and after and
// have no limits of their own.
func (c *comparison) followers() map[string]int {
	n := map[string]int{}
	for name, in := range union(c.before.Users(), c.after.Users()) {
		if key := limits.Key(name); in.both() && c.follows(key) {
			n[c.before.User(key).Tier]++
		}
	}
	return n
}

// follows is whether a user has the limits of the same tier in both files, at every
// endpoint. Who has them has the same ones, by their address.
func (c *comparison) follows(key string) bool {
	name := c.before.User(key).Tier
	at := func(endpoint string) bool {
		tierBefore, _ := c.before.TierAt(endpoint, name)
		tierAfter, _ := c.after.TierAt(endpoint, name)
		here := limits.EndpointKey(endpoint, key)
		return c.before.User(here) == tierBefore && c.after.User(here) == tierAfter
	}
	return at("") && at(limits.All) && !slices.ContainsFunc(c.endpoints, func(endpoint string) bool { return !at(endpoint) })
}

func (c *comparison) users() {
	for name, in := range union(c.before.Users(), c.after.Users()) {
		key := limits.Key(name)
		a, b := c.before.User(key).Tier, c.after.User(key).Tier
		title := "user " + shown(name)
		until, differ := c.until(key)
		both := c.before.Known(key) && c.after.Known(key) // by a pattern, too
		var lines []string
		if !both || a != b || !c.follows(key) {
			lines = c.differences(userOf(key))
		}
		switch {
		case both && a != b:
			title += fmt.Sprintf(": tier %s → %s", shown(a), shown(b))
		case both && len(lines) == 0 && !differ:
			continue
		case both:
			title += ":"
		case in.right:
			title += fmt.Sprintf(": added, tier %s (not named before, tier %s)", shown(b), shown(a))
		default:
			title += fmt.Sprintf(": removed, tier %s (not named now, tier %s)", shown(a), shown(b))
		}
		c.changed(title, append(lines, until...))
	}
}

// until says when a user's entry ends, if it does, and whether that differs. What
// has ended is no end any more.
func (c *comparison) until(key string) (lines []string, differ bool) {
	a, b := c.was.of(key), c.is.of(key)
	if !a.at.After(c.now) {
		a = end{}
	}
	if !b.at.After(c.now) {
		b = end{}
	}
	switch {
	case a != b:
		return []string{fmt.Sprintf("until: %s → %s", a, b)}, true
	case !b.at.IsZero():
		return []string{fmt.Sprintf("until: %s", b)}, false
	}
	return nil, false
}

// A subject is a user or tier whose limits are compared: it returns those under a file,
// at an endpoint or elsewhere ("").
type subject func(set *limits.Set, endpoint string) *limits.Limits

func tierOf(name string) subject {
	return func(set *limits.Set, endpoint string) *limits.Limits {
		l, _ := set.TierAt(endpoint, name)
		return l
	}
}

func userOf(key string) subject {
	return func(set *limits.Set, endpoint string) *limits.Limits {
		return set.User(limits.EndpointKey(endpoint, key))
	}
}

// whole writes all limits of one side.
func (c *comparison) whole(title string, set *limits.Set, l *limits.Limits, of subject) {
	c.line("%s: %s", title, describe(l))
	for _, endpoint := range set.Endpoints() {
		if at := of(set, endpoint); at != l {
			c.line("  at %s: %s", endpoint, describe(at))
		}
	}
	if together := of(set, limits.All); len(terms(together)) > 0 {
		c.line("  at %s: %s", shownEndpoint(limits.All), describe(together))
	}
}

// changes writes a title and what differs, or nothing if nothing does.
func (c *comparison) changes(title string, of subject) {
	if lines := c.differences(of); len(lines) > 0 {
		c.changed(title, lines)
	}
}

// changed writes a title, and lines below it.
func (c *comparison) changed(title string, lines []string) {
	c.line("%s", title)
	for _, l := range lines {
		c.line("  %s", l)
	}
}

func (c *comparison) line(format string, args ...any) {
	c.found = true
	fmt.Fprintf(c.w, format+"\n", args...)
}

// differences are the lines that tell what differs, what differs in another way at an
// endpoint, and what differs over all endpoints together.
func (c *comparison) differences(of subject) []string {
	everywhere := differences(of(c.before, ""), of(c.after, ""), c.otherModes)
	var lines []string
	for _, d := range everywhere {
		lines = append(lines, d.String())
	}
	for _, endpoint := range c.endpoints {
		here := differences(of(c.before, endpoint), of(c.after, endpoint), c.otherModes)
		if slices.Equal(here, everywhere) {
			continue
		}
		lines = append(lines, "at "+endpoint+":")
		for _, d := range here {
			if !slices.Contains(everywhere, d) {
				lines = append(lines, "  "+d.String())
			}
		}
		for _, d := range everywhere {
			if !slices.ContainsFunc(here, func(h difference) bool { return h.name == d.name }) {
				lines = append(lines, "  "+d.name+": as before")
			}
		}
	}
	if together := differences(of(c.before, limits.All), of(c.after, limits.All), c.otherModes); len(together) > 0 {
		lines = append(lines, "at "+shownEndpoint(limits.All)+":")
		for _, d := range together {
			lines = append(lines, "  "+d.String())
		}
	}
	return lines
}

// difference is a term that differs.
type difference struct{ name, before, after string }

func (d difference) String() string { return d.name + ": " + d.before + " → " + d.after }

// differences are the terms that differ, in the order of sortTerms. What differs in
// nothing but the mode is none if modes are ignored.
func differences(a, b *limits.Limits, ignoreModes bool) []difference {
	if a == b {
		return nil
	}
	jobs := a.Jobs().Stated || b.Jobs().Stated
	before, after := termsWith(a, jobs), termsWith(b, jobs)
	var found []difference
	for _, name := range namesIn(before, after) {
		d := difference{name, value(before, name), value(after, name)}
		if d.before == d.after || nothing(d.before) && nothing(d.after) ||
			ignoreModes && value(anyMode(before), name) == value(anyMode(after), name) {
			continue
		}
		found = append(found, d)
	}
	return found
}

// anyMode are terms without what tells of a dry run.
func anyMode(all []term) []term {
	var other []term
	for _, t := range all {
		t.notes = slices.DeleteFunc(slices.Clone(t.notes), func(note string) bool { return note == limits.DryRun.String() })
		other = append(other, t)
	}
	return other
}

// sides tells which of two sequences has a name.
type sides struct{ left, right bool }

func (s sides) both() bool { return s.left && s.right }

// union yields the names of two sorted sequences, sorted, each once.
func union(left, right iter.Seq[string]) iter.Seq2[string, sides] {
	return func(yield func(string, sides) bool) {
		nextLeft, stopLeft := iter.Pull(left)
		defer stopLeft()
		nextRight, stopRight := iter.Pull(right)
		defer stopRight()
		l, okL := nextLeft()
		r, okR := nextRight()
		for okL || okR {
			in := sides{okL && (!okR || l <= r), okR && (!okL || r <= l)}
			name := l
			if !in.left {
				name = r
			}
			if !yield(name, in) {
				return
			}
			if in.left {
				l, okL = nextLeft()
			}
			if in.right {
				r, okR = nextRight()
			}
		}
	}
}
