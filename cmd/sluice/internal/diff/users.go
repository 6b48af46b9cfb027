package diff

import (
	"fmt"
	"slices"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// followers counts, by tier, the users who are in that tier before and after and
// have no limits of their own.
func (c *comparison) followers() map[string]int {
	n := map[string]int{}
	for name, in := range unionOf(slices.Collect(c.before.UserNames()), slices.Collect(c.after.UserNames())) {
		// Who is in one file only has a line of their own.
		if key := limits.Key(name); in.onBoth() && c.follows(key) {
			n[c.before.User(key).Tier]++
		}
	}
	return n
}

// follows is whether a user has the limits of the same tier in both files. Who
// has them has the same ones, by their address.
func (c *comparison) follows(key string) bool {
	name := c.before.User(key).Tier
	tierBefore, _ := c.before.TierLimits(name)
	tierAfter, _ := c.after.TierLimits(name)
	return c.before.User(key) == tierBefore && c.after.User(key) == tierAfter
}

func (c *comparison) compareUsers() {
	for name, in := range unionOf(slices.Collect(c.before.UserNames()), slices.Collect(c.after.UserNames())) {
		key := limits.Key(name)
		a, b := c.before.User(key).Tier, c.after.User(key).Tier
		title := "user " + terminal.QuoteName(name)
		// Also of those whose limits are the same now: one of the two may end tomorrow.
		until, differ := c.compareEnds(key)
		both := c.before.NamesUser(key) && c.after.NamesUser(key) // by a pattern, too
		var lines []string
		// For followers the line of their tier has said it, and a file may have a million of them.
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
		// By name in one file and by nothing in the other: what they had before is the default.
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
	// What has ended counts in what they may do now, and is no end any more.
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
