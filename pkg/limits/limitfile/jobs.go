package limitfile

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// maxServices bounds the services of queues, and those that limits of jobs name.
	maxServices = 256
	// maxDedicated bounds the tiers and users with workers of their own: each is one more queue of
	// each service, which River asks the database for.
	maxDedicated = 64
	// maxQueue is the longest name of a queue that River takes (validateQueueName in its client.go),
	// and maxService leaves room for the longest class behind it.
	maxQueue   = 64
	maxService = maxQueue - len("_scheduled")

	workersForms = "{priority: 3, default: 2, scheduled: 1}, or [3, 2, 1] in this order"
	// workersForUsers is the name under which the users are, among the names of tiers.
	workersForUsers  = "users"
	dedicatedExample = "{priority: 10}"
)

var (
	// serviceForm is of names that can be a part of a queue's name.
	serviceForm   = regexp.MustCompile(`^[a-z0-9]+([_-][a-z0-9]+)*$`)
	workersFields = []string{limits.PriorityQueues, limits.DefaultQueues, limits.ScheduledQueues}
)

// ValidService reports whether a service may have queues of this name.
func ValidService(name string) bool { return len(name) <= maxService && serviceForm.MatchString(name) }

// isLowerName checks the name of a service or of a unit of cost.
func (f *file) isLowerName(n *yaml.Node, where place, most int) bool {
	if len(n.Value) <= most && serviceForm.MatchString(n.Value) {
		return true
	}
	f.errorf(n, "%s: the name %s is not usable; write 1 to %d of a-z and 0-9, with single _ or - between them", where, quote(n.Value), most)
	return false
}

func (f *file) readQueues(where place, n *yaml.Node) {
	if !f.isSized(n, where, maxServices, "services") {
		return
	}
	for key, value := range f.eachEntry(n, where, "{analysis: {priority: 3, default: 2, scheduled: 1}}") {
		if f.isLowerName(key, where, maxService) {
			number := f.readWorkers(where.below(key.Value), value)
			f.content.Queues = append(f.content.Queues, limits.Queue{Service: key.Value, Priority: int(number[0]), Default: int(number[1]), Scheduled: int(number[2])})
		}
	}
	slices.SortFunc(f.content.Queues, func(a, b limits.Queue) int { return strings.Compare(a.Service, b.Service) })
	for _, q := range f.content.Queues {
		f.services = append(f.services, q.Service)
	}
}

// readWorkers reads the numbers of a service's three queues, in the order of workersFields. All
// must be there, because jobs would wait for ever in a queue that was forgotten.
func (f *file) readWorkers(where place, n *yaml.Node) (number [3]int64) {
	if !f.is(n, where, yaml.MappingNode|yaml.SequenceNode, workersForms) {
		return number
	}
	list := bareNumbers(n)
	if n.Kind == yaml.SequenceNode {
		if list = n.Content; len(list) != len(number) {
			f.errorf(n, "%s must be %s, got a list of %d", where, workersForms, len(list))
			return number
		}
	} else if list != nil {
		var written []string
		for _, item := range list {
			written = append(written, item.Value)
		}
		// A mapping has no name twice, so that {3, 3, 1} cannot be meant as a list.
		if different := slices.Compact(slices.Sorted(slices.Values(written))); len(list) != len(number) || len(different) < len(list) {
			f.errorf(n, "%s must be %s, got %s, which YAML reads as names without values", where, workersForms, shorten("{"+strings.Join(written, ", ")+"}"))
			return number
		}
	}
	fields := f.classFields(&number, workers)
	if list != nil {
		for i, item := range list {
			fields[i].read(where.below(fields[i].name), item)
		}
		return number
	}
	f.readKnown(n, where, workersForms, "class", fields)
	for _, class := range workersFields {
		if lookup(n, class) == nil {
			f.errorf(n, "%s has no %s; write %[2]s: 0 if nobody works that queue here", where, class)
		}
	}
	return number
}

// classFields are the fields of a mapping with a number for each class of queues.
func (f *file) classFields(number *[3]int64, k kind[int64]) (fields []field) {
	for i, class := range workersFields {
		fields = append(fields, field{class, into(f, &number[i], k)})
	}
	return fields
}

// bareNumbers are the names in a mapping that has nothing but numbers for names: {3, 2, 1},
// which is YAML for {3: null, 2: null, 1: null}. They are nil for any other.
func bareNumbers(n *yaml.Node) (bare []*yaml.Node) {
	for key, value := range children(n) {
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!int" || !isNull(value) || value.Anchor != "" || value.Style&yaml.TaggedStyle != 0 {
			return nil
		}
		bare = append(bare, key)
	}
	return bare
}

func (f *file) readDedicated(where place, n *yaml.Node) {
	for key, value := range f.eachEntry(n, where, "{enterprise: {priority: 10}}") {
		at := where.below(key.Value)
		if key.Value == workersForUsers {
			for user, value := range f.eachEntry(value, at, "{alice: {default: 2}}") {
				f.readDedicatedTo(limits.Dedicated{User: user.Value, Name: "user-" + dedicatedName(user.Value)}, user, at, value)
			}
			continue
		}
		tier, ok := f.tiers[key.Value]
		if !ok {
			f.refuseUnknown(key, where, "tier", slices.Concat(f.tierNames, []string{workersForUsers}))
			continue
		}
		d, ok := f.readDedicatedTo(limits.Dedicated{Tier: key.Value, Name: dedicatedName(key.Value)}, key, where, value)
		// Workers of a class without jobs are a mistake that nothing else would show.
		for class, number := range map[string]int{limits.PriorityQueues: d.Priority, limits.DefaultQueues: d.Default} {
			if own := cmp.Or(tier.jobs.Class, limits.DefaultQueues); ok && number > 0 && class != own {
				f.errorf(lookup(value, class), "%s.%s: the jobs of tier %s go to %s queues; write %[4]s: %[5]d, or jobs: {class: %[2]s} at the tier", at, class, quote(key.Value), own, number)
			}
		}
	}
	slices.SortFunc(f.content.Dedicated, func(a, b limits.Dedicated) int {
		return cmp.Or(strings.Compare(a.Tier, b.Tier), strings.Compare(a.User, b.User))
	})
	if len(f.content.Dedicated) > maxDedicated {
		f.errorf(n, "%s has %d tiers and users; at most %d are possible", where, len(f.content.Dedicated), maxDedicated)
	}
}

// dedicatedName is a tier or a user in the names of queues. It has no _, so that the text behind
// the last _ of a queue's name is the class, and the tier or user.
func dedicatedName(name string) string { return strings.ReplaceAll(name, "_", "-") }

// readDedicatedTo reads the workers of one tier or user, and reports whether they are usable.
func (f *file) readDedicatedTo(d limits.Dedicated, key *yaml.Node, where place, n *yaml.Node) (limits.Dedicated, bool) {
	at := where.below(key.Value)
	if !serviceForm.MatchString(key.Value) {
		f.errorf(key, "%s: the name %s cannot be in the name of a queue; such names are of a-z and 0-9, with single _ or - between them", where, quote(key.Value))
		return d, false
	}
	var number [3]int64
	f.readFields(n, at, dedicatedExample, f.classFields(&number, dedicatedWorkers)...)
	d.Line, d.Priority, d.Default, d.Scheduled = key.Line, int(number[0]), int(number[1]), int(number[2])
	if isEmpty(n) {
		f.errorf(n, "%s is empty; write one of %s, such as %s", at, joinChoices(workersFields), dedicatedExample)
	}
	// One queue for two users would be dedicated to neither.
	for _, other := range f.content.Dedicated {
		if other.Name == d.Name {
			f.errorf(key, "%s: the queues would have the same names as those of %s, on line %d", at, quote(cmp.Or(other.Tier, other.User)), other.Line)
			return d, false
		}
	}
	for _, q := range f.content.Queues {
		for _, class := range slices.Sorted(maps.Keys(d.Workers())) {
			if queue := q.Service + "_" + class; len(queue) > maxQueue {
				f.errorf(key, "%s: a queue would be called %s, which is %d bytes; River takes %d", at, queue, len(queue), maxQueue)
				return d, false
			}
		}
	}
	f.content.Dedicated = append(f.content.Dedicated, d)
	return d, true
}
