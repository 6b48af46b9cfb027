package diff

import (
	"maps"
	"slices"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
)

func (c *comparison) queues() {
	before, after := maps.Collect(terms.Workers(c.before)), maps.Collect(terms.Workers(c.after))
	for of, in := range unionOf(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) {
		// Empty for what is not there; which of them is, unionOf knows.
		was, is := before[of], after[of]
		switch {
		case !in.left:
			c.writeLine("%s: added: %s", of, is)
		case !in.right:
			c.writeLine("%s: removed", of)
		case was != is:
			c.writeLine("%s: %s → %s", of, was, is)
		}
	}
}
