package limitdiff

import (
	"fmt"
	"slices"

	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

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
		// By address, because what is the same is shared.
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
		// What changed in the same way there would only be said again.
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
			// Without this line it would seem to have changed there, too.
			if !slices.ContainsFunc(here, func(h difference) bool { return h.name == d.name }) {
				lines = append(lines, "  "+d.name+": as before")
			}
		}
	}
	// They count beside the others, so that none of them stands for another.
	if together := differences(of(c.before, limits.All), of(c.after, limits.All), c.otherModes); len(together) > 0 {
		lines = append(lines, "at "+terms.Endpoint(limits.All)+":")
		for _, d := range together {
			lines = append(lines, "  "+d.String())
		}
	}
	return lines
}
