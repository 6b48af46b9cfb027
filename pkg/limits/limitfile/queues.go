package limitfile

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const workersForms = "{priority: 3, default: 2, scheduled: 1}, or [3, 2, 1] in this order"

// The classes of a service's queues.
var workersFields = fields[limits.Queue]{
	scalar("priority", workers, func(q *limits.Queue) *int { return &q.Priority }),
	scalar("default", workers, func(q *limits.Queue) *int { return &q.Default }),
	scalar("scheduled", workers, func(q *limits.Queue) *int { return &q.Scheduled }),
}

// readQueues reads the numbers of workers.
func (f *file) readQueues(where place, n *yaml.Node) {
	if n.Kind == yaml.MappingNode && (len(n.Content) == 0 || len(n.Content)/2 > maxServices) {
		f.errorf(n, "%s must have 1 to %d services, got %d", where, maxServices, len(n.Content)/2)
		return
	}
	for key, value := range f.eachEntry(n, where, "{analysis: {priority: 3, default: 2, scheduled: 1}}") {
		if f.isServiceName(key, where) {
			q := limits.Queue{Service: key.Value}
			// Also one with errors is known, so that tiers that limit its jobs are not errors as well.
			f.readWorkers(&q, where.below(key.Value), value)
			f.content.Queues = append(f.content.Queues, q)
		}
	}
	// The file's order means nothing, and sluice diff compares sorted lists.
	slices.SortFunc(f.content.Queues, func(a, b limits.Queue) int { return strings.Compare(a.Service, b.Service) })
}

func (f *file) isServiceName(n *yaml.Node, where place) bool {
	if ValidService(n.Value) {
		return true
	}
	f.errorf(n, "%s: the name %s is not usable; write 1 to %d of a-z and 0-9, with single _ or - between them", where, quote(n.Value), maxService)
	return false
}

// readWorkers reads the numbers of a service's three queues, all of which must be there:
// jobs would wait for ever in one that was forgotten.
func (f *file) readWorkers(q *limits.Queue, where place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	bare := bareNumbers(n)
	var written []string
	for _, number := range bare {
		written = append(written, number.Value)
	}
	different := slices.Compact(slices.Sorted(slices.Values(written)))
	switch {
	case n.Kind == yaml.SequenceNode && len(n.Content) != len(workersFields):
		f.errorf(n, "%s must be %s, got a list of %d", where, workersForms, len(n.Content))
	case n.Kind == yaml.SequenceNode:
		f.readInOrder(q, where, n.Content)
	case n.Kind != yaml.MappingNode:
		f.errorf(n, "%s must be %s, got %s", where, workersForms, describe(n))
	// A mapping has no name twice: two equal numbers cannot be written so.
	case bare != nil && (len(bare) != len(workersFields) || len(different) < len(bare)):
		f.errorf(n, "%s must be %s, got %s, which YAML reads as names without values", where, workersForms, shorten("{"+strings.Join(written, ", ")+"}"))
	// What looks like a list to people is one here: nothing else can be meant.
	case bare != nil:
		f.readInOrder(q, where, bare)
	default:
		for key, value := range f.eachEntry(n, where, workersForms) {
			if i := workersFields.indexOf(key.Value); i >= 0 {
				workersFields[i].read(f, q, where.below(key.Value), value)
			} else {
				f.refuseUnknown(key, where, "class", workersFields.names())
			}
		}
		for _, class := range workersFields.names() {
			// Zero must be written: jobs in a queue that was forgotten would wait for ever.
			if lookup(n, class) == nil {
				f.errorf(n, "%s has no %s; write %[2]s: 0 if nobody works that queue here", where, class)
			}
		}
	}
}

func (f *file) readInOrder(q *limits.Queue, where place, numbers []*yaml.Node) {
	for i, class := range workersFields {
		// With the class in the error, which the list does not show.
		class.read(f, q, where.below(class.name), numbers[i])
	}
}

// bareNumbers are the names in a mapping that has nothing but numbers for names: {3, 2, 1},
// which is YAML for {3: null, 2: null, 1: null}. They are nil for any other.
func bareNumbers(n *yaml.Node) (bare []*yaml.Node) {
	for key, value := range children(n) {
		// One entry that is a field makes all of it a mapping, in which the numbers are the mistake.
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!int" || !isNull(value) || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 {
			return nil
		}
		bare = append(bare, key)
	}
	return bare
}
