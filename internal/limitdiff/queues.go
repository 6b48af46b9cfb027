package limitdiff

import (
	"maps"
	"slices"

	"github.com/sluice-qos/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// queues compares the workers of queues.
func (c *comparison) queues() {
	before, servicesBefore := byService(c.before.Queues())
	after, servicesAfter := byService(c.after.Queues())
	for service, in := range unionOf(servicesBefore, servicesAfter) {
		// Zero for a service that is not there; which of them is, unionOf knows.
		was, is := before[service], after[service]
		switch {
		case !in.left:
			c.writeLine("queues of %s: added: %s", service, terms.Workers(is))
		case !in.right:
			c.writeLine("queues of %s: removed", service)
		case was != is:
			c.writeLine("queues of %s: %s → %s", service, terms.Workers(was), terms.Workers(is))
		}
	}
}

// byService returns queues by their service, and the services, sorted.
func byService(all []limits.Queue) (queues map[string]limits.Queue, services []string) {
	queues = map[string]limits.Queue{}
	for _, q := range all {
		queues[q.Service] = q
	}
	return queues, slices.Sorted(maps.Keys(queues))
}
