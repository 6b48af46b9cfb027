package diff

import (
	"fmt"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A subject is a user or tier whose limits are compared: it returns those under a file.
type subject func(set *limits.Set) *limits.Limits

func tierOf(name string) subject {
	return func(set *limits.Set) *limits.Limits {
		l, _ := set.TierLimits(name)
		return l
	}
}

func userOf(key string) subject {
	return func(set *limits.Set) *limits.Limits { return set.User(key) }
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

func (c *comparison) differences(of subject) []string {
	var lines []string
	for _, d := range differences(of(c.before), of(c.after), c.otherModes) {
		lines = append(lines, d.String())
	}
	return lines
}
