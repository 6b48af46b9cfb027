// Package diff says how what users may do differs between two limit files.
package diff

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/terminal"
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

type comparison struct {
	w             io.Writer
	before, after *limits.Set // as they are now
	was, is       *terms.Ends
	now           time.Time
	otherModes    bool // because of the mode of the whole file, limits differ in theirs
	found         bool
}

func newComparison(w io.Writer, before, after *limits.Set, now time.Time) *comparison {
	c := &comparison{w: w, before: before.At(now), after: after.At(now), was: terms.NewEnds(before), is: terms.NewEnds(after), now: now}
	a, b := before.Mode(), after.Mode()
	// With off there are no limits to compare, and every one of them differs in more than its mode.
	c.otherModes = a != b && a != limits.Off && b != limits.Off
	return c
}

func (c *comparison) compare() {
	c.everybody()
	// Before the tiers, whose titles tell how many users a change concerns.
	followers := c.followers()
	for name := range unionOf(c.before.TierNames(), c.after.TierNames()) {
		// In the order of names, so that the same files give the same text.
		a, was := c.before.TierLimits(name)
		b, is := c.after.TierLimits(name)
		switch {
		case !was:
			c.writeLine("tier %s: added: %s", terminal.QuoteName(name), terms.Describe(b))
		case !is:
			c.writeLine("tier %s: removed: %s", terminal.QuoteName(name), terms.Describe(a))
		default:
			who := ""
			// One line for all of them: their own lines would say the tier's change a thousand times.
			if n := followers[name]; n > 0 {
				who = fmt.Sprintf(" (and %d named user(s))", n)
			}
			c.changes(fmt.Sprintf("tier %s%s:", terminal.QuoteName(name), who), tierOf(name))
		}
	}
	if c.before.DefaultTier() != c.after.DefaultTier() {
		// Somebody must stand for all who are not named.
		someone := limits.Key("") // which no file can name, and no pattern matches
		c.changes("users not named in the file:", userOf(someone))
	}
	if c.before.AnonymousTier() != c.after.AnonymousTier() {
		// Also of who is anonymous one stands for all.
		c.changes("anonymous users:", userOf(nameless))
	}
	if c.before.UnreadableTier() != c.after.UnreadableTier() {
		c.changes("requests whose credentials cannot be read:", userOf(limits.UnreadableKey))
	}
	c.compareUsers()
}

// nameless is the key of requests without a user's name (see limits.Anonymous).
const nameless = "~"

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
	// What is HAProxy's to know is told apart: without a reload half of the change would be in force.
	foundBefore := c.found
	c.found = false
	c.classes()
	a, b := c.before.Exempt(), c.after.Exempt()
	c.compareNames("exempt address", a.Addresses, b.Addresses)
	c.compareNames("exempt path", a.Paths, b.Paths)
	c.costUnits(true)
	// Both lists have the same terms, limited or not.
	of := terms.OfAddresses(c.after.AddressLimits())
	for i, t := range terms.OfAddresses(c.before.AddressLimits()) {
		c.compareText(t.Name, t.Value, of[i].Value)
	}
	if c.found {
		c.writeLine("  HAProxy must learn this: write its configuration with sluice haproxy, and reload it")
	}
	c.found = c.found || foundBefore
	c.costUnits(false)
	c.compareNames("exempt user", a.Users, b.Users)
	for name, in := range unionOf(c.before.GroupNames(), c.after.GroupNames()) {
		of := func(set *limits.Set, there bool) string {
			if !there {
				return "none"
			}
			l, _ := set.GroupLimits(name)
			return terms.Describe(l)
		}
		c.compareText("group "+terminal.QuoteName(name), of(c.before, in.left), of(c.after, in.right))
	}
	c.queues()
}

func (c *comparison) compareText(what, a, b string) {
	if a != b {
		c.writeLine("%s: %s → %s", what, a, b)
	}
}

// compareNames compares lists in which the order means nothing.
func (c *comparison) compareNames(what string, a, b []string) {
	// Sorted, because a list that was only put in another order is the same to everybody.
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
	// First which there are, then what became of those that are in both.
	c.compareNames("class", namesA, namesB)
	var bothA, bothB []string
	for _, class := range a {
		i := slices.Index(namesB, class.Name)
		if i < 0 {
			continue
		}
		bothA = append(bothA, class.Name)
		// What the difference means for a request cannot be told in a line; that there is one can.
		if !reflect.DeepEqual(class, b[i]) {
			c.writeLine("class %s: matches other requests", class.Name)
		}
	}
	for _, name := range namesB {
		if slices.Contains(namesA, name) {
			bothB = append(bothB, name)
		}
	}
	// Only of those in both: a class that is added or removed is told already.
	if !slices.Equal(bothA, bothB) {
		c.writeLine("classes: matched in another order: %s", terminal.QuoteNames(namesB))
	}
}
