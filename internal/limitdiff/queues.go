package limitdiff

import (
	"slices"

	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// queues compares the workers of queues.
func (c *comparison) queues() {
	a, b := c.before.Queues(), c.after.Queues()
	of := func(all []limits.Queue, service string) (limits.Queue, bool) {
		i := slices.IndexFunc(all, func(q limits.Queue) bool { return q.Service == service })
		if i < 0 {
			return limits.Queue{}, false
		}
		return all[i], true
	}
	services := func(all []limits.Queue) func(yield func(string) bool) {
		return func(yield func(string) bool) {
			for _, q := range all {
				if !yield(q.Service) {
					return
				}
			}
		}
	}
	for service := range unionOf(services(a), services(b)) {
		before, was := of(a, service)
		after, is := of(b, service)
		switch {
		case !was:
			c.writeLine("queues of %s: added: %s", service, terms.Workers(after))
		case !is:
			c.writeLine("queues of %s: removed", service)
		case before != after:
			c.writeLine("queues of %s: %s → %s", service, terms.Workers(before), terms.Workers(after))
		}
	}
}
