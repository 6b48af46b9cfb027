// Package limitdiff says how what users may do differs between two limit files.
package limitdiff

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Write writes how what users may do after differs from what they may do before, as of now,
// and reports whether it does. It takes sets in which nothing has ended, as limitfile.Load
// makes them.
func Write(w io.Writer, before, after *limits.Set, now time.Time) (differ bool) {
	c := newComparison(w, before, after, now)
	c.compare()
	return c.found
}

// comparison writes how two limit files differ.
type comparison struct {
	w             io.Writer
	before, after *limits.Set // as they are now
	was, is       *terms.Ends
	now           time.Time
	endpoints     []string // of either file, sorted
	otherModes    bool     // because of the mode of the whole file, limits differ in theirs
	found         bool
}

func newComparison(w io.Writer, before, after *limits.Set, now time.Time) *comparison {
	c := &comparison{w: w, before: before.At(now), after: after.At(now), was: terms.NewEnds(before), is: terms.NewEnds(after), now: now}
	a, b := before.Mode(), after.Mode()
	c.otherModes = a != b && a != limits.Off && b != limits.Off
	for name := range unionOf(before.Endpoints(), after.Endpoints()) {
		c.endpoints = append(c.endpoints, name)
	}
	return c
}

func (c *comparison) compare() {
	c.everybody()
	followers := c.followers()
	for name := range unionOf(c.before.TierNames(), c.after.TierNames()) {
		a, was := c.before.TierLimits(name)
		b, is := c.after.TierLimits(name)
		switch {
		case !was:
			c.writeWhole("tier "+terminal.QuoteName(name)+": added", c.after, b, tierOf(name))
		case !is:
			c.writeWhole("tier "+terminal.QuoteName(name)+": removed", c.before, a, tierOf(name))
		default:
			who := ""
			if n := followers[name]; n > 0 {
				who = fmt.Sprintf(" (and %d named user(s))", n)
			}
			c.changes(fmt.Sprintf("tier %s%s:", terminal.QuoteName(name), who), tierOf(name))
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
	c.compareUsers()
}

// nameless is the key of requests without a user's name (see limits.Anonymous).
const nameless = "~"

// everybody compares what is said of all users.
func (c *comparison) everybody() {
	c.compareText("mode of the whole file", c.before.Mode().String(), c.after.Mode().String())
	if c.otherModes {
		c.writeLine("  what follows leaves out limits that differ in nothing else: sluice check NEW shows their modes")
	}
	c.compareText("default tier", terminal.QuoteName(c.before.DefaultTier()), terminal.QuoteName(c.after.DefaultTier()))
	none := func(tier string) string {
		if tier == "" {
			return "none"
		}
		return terminal.QuoteName(tier)
	}
	c.compareText("anonymous tier", none(c.before.AnonymousTier()), none(c.after.AnonymousTier()))
	c.compareText("unreadable tier", none(c.before.UnreadableTier()), none(c.after.UnreadableTier()))
	c.compareNames("endpoint", c.before.Endpoints(), c.after.Endpoints())
	foundBefore := c.found
	c.found = false
	c.classes()
	a, b := c.before.Exempt(), c.after.Exempt()
	c.compareNames("exempt address", a.Addresses, b.Addresses)
	c.compareNames("exempt path", a.Paths, b.Paths)
	of := terms.OfAddresses(c.after.AddressLimits())
	for i, t := range terms.OfAddresses(c.before.AddressLimits()) {
		c.compareText(t.Name, t.Value, of[i].Value)
	}
	if c.found {
		c.writeLine("  HAProxy must learn this: write its configuration with sluice haproxy, and reload it")
	}
	c.found = c.found || foundBefore
	c.compareNames("exempt user", a.Users, b.Users)
	c.queues()
}

func (c *comparison) compareText(what, a, b string) {
	if a != b {
		c.writeLine("%s: %s → %s", what, a, b)
	}
}

// compareNames compares lists in which the order means nothing.
func (c *comparison) compareNames(what string, a, b []string) {
	for name, in := range unionOf(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))) {
		switch {
		case !in.left:
			c.writeLine("%s %s: added", what, terminal.QuoteName(name))
		case !in.right:
			c.writeLine("%s %s: removed", what, terminal.QuoteName(name))
		}
	}
}

// classes compares which requests are of which class. The order counts: the first
// class that a request matches is its own.
func (c *comparison) classes() {
	a, b := c.before.Classes(), c.after.Classes()
	namesA, namesB := terms.ClassNames(a), terms.ClassNames(b)
	c.compareNames("class", namesA, namesB)
	var bothA, bothB []string
	for _, class := range a {
		i := slices.Index(namesB, class.Name)
		if i < 0 {
			continue
		}
		bothA = append(bothA, class.Name)
		if !reflect.DeepEqual(class, b[i]) {
			c.writeLine("class %s: matches other requests", class.Name)
		}
	}
	for _, name := range namesB {
		if slices.Contains(namesA, name) {
			bothB = append(bothB, name)
		}
	}
	if !slices.Equal(bothA, bothB) {
		c.writeLine("classes: matched in another order: %s", terminal.QuoteNames(namesB))
	}
}

// followers counts, by tier, the users who are in that tier before and after and
// have no limits of their own.
func (c *comparison) followers() map[string]int {
	n := map[string]int{}
	for name, in := range unionOf(slices.Collect(c.before.UserNames()), slices.Collect(c.after.UserNames())) {
		if key := limits.Key(name); in.onBoth() && c.follows(key) {
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

func (c *comparison) compareUsers() {
	for name, in := range unionOf(slices.Collect(c.before.UserNames()), slices.Collect(c.after.UserNames())) {
		key := limits.Key(name)
		a, b := c.before.User(key).Tier, c.after.User(key).Tier
		title := "user " + terminal.QuoteName(name)
		until, differ := c.compareEnds(key)
		both := c.before.NamesUser(key) && c.after.NamesUser(key) // by a pattern, too
		var lines []string
		if !both || a != b || !c.follows(key) {
			lines = c.differences(userOf(key))
		}
		switch {
		case both && a != b:
			title += fmt.Sprintf(": tier %s → %s", terminal.QuoteName(a), terminal.QuoteName(b))
		case both && len(lines) == 0 && !differ:
			continue
		case both:
			title += ":"
		case in.right:
			title += fmt.Sprintf(": added, tier %s (not named before, tier %s)", terminal.QuoteName(b), terminal.QuoteName(a))
		default:
			title += fmt.Sprintf(": removed, tier %s (not named now, tier %s)", terminal.QuoteName(a), terminal.QuoteName(b))
		}
		c.changed(title, append(lines, until...))
	}
}

// compareEnds says when a user's entry ends, if it does, and whether that differs. What
// has ended is no end any more.
func (c *comparison) compareEnds(key string) (lines []string, differ bool) {
	a, b := c.was.EndOf(key), c.is.EndOf(key)
	if !a.At.After(c.now) {
		a = terms.End{}
	}
	if !b.At.After(c.now) {
		b = terms.End{}
	}
	switch {
	case a != b:
		return []string{fmt.Sprintf("until: %s → %s", a, b)}, true
	case !b.At.IsZero():
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

// writeWhole writes all limits of one side.
func (c *comparison) writeWhole(title string, set *limits.Set, l *limits.Limits, of subject) {
	c.writeLine("%s: %s", title, terms.Describe(l))
	for _, endpoint := range set.Endpoints() {
		if at := of(set, endpoint); at != l {
			c.writeLine("  at %s: %s", endpoint, terms.Describe(at))
		}
	}
	if together := of(set, limits.All); len(terms.TermsOf(together)) > 0 {
		c.writeLine("  at %s: %s", terms.Endpoint(limits.All), terms.Describe(together))
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
	c.writeLine("%s", title)
	for _, l := range lines {
		c.writeLine("  %s", l)
	}
}

func (c *comparison) writeLine(format string, args ...any) {
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
		lines = append(lines, "at "+terms.Endpoint(limits.All)+":")
		for _, d := range together {
			lines = append(lines, "  "+d.String())
		}
	}
	return lines
}
