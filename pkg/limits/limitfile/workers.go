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
	// maxDedicated bounds the tiers and users with workers of their own: each is one more queue of
	// each service, which River asks the database for.
	maxDedicated = 64
	// maxQueue is the longest name of a queue that River takes.
	maxQueue = 64
	// workersForUsers is the name under which the users are, among the names of tiers.
	workersForUsers = "users"

	dedicatedExample = "{priority: 10}"
	// dedicatedPattern is of names of tiers and users that can be a part of a queue's name.
	dedicatedPattern = `^[a-z0-9]+([_-][a-z0-9]+)*$`
)

var dedicatedForm = regexp.MustCompile(dedicatedPattern)

var dedicatedWorkers = kind[int]{forms: dedicatedForms, number: true, silent: true, parse: func(s string) (int, error) {
	return parseWhole(s, limits.MaxWorkers, dedicatedForms, "leave the class out for none")
}}

const dedicatedForms = "a whole number from 1 to 10000"

var dedicatedFields = fields[limits.Dedicated]{
	scalar("priority", dedicatedWorkers, func(d *limits.Dedicated) *int { return &d.Priority }),
	scalar("default", dedicatedWorkers, func(d *limits.Dedicated) *int { return &d.Default }),
	scalar("scheduled", dedicatedWorkers, func(d *limits.Dedicated) *int { return &d.Scheduled }),
}

// readDedicated reads the workers that tiers and users have for themselves.
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
		d, read := f.readDedicatedTo(limits.Dedicated{Tier: key.Value, Name: dedicatedName(key.Value)}, key, where, value)
		// Workers for whom no job comes are a mistake that nothing else would show.
		for class, number := range map[string]int{limits.PriorityQueues: d.Priority, limits.DefaultQueues: d.Default} {
			if own := cmp.Or(tier.jobs.Class, limits.DefaultQueues); read && number > 0 && class != own {
				f.errorf(lookup(value, class), "%s.%s: the jobs of tier %s go to %s queues; write %[4]s: %[5]d, or jobs: {class: %[2]s} at the tier", at, class, quote(key.Value), own, number)
			}
		}
	}
	// The file's order means nothing, and sluice diff compares sorted lists.
	slices.SortFunc(f.content.Dedicated, func(a, b limits.Dedicated) int {
		return cmp.Or(strings.Compare(a.Tier, b.Tier), strings.Compare(a.User, b.User))
	})
	if len(f.content.Dedicated) > maxDedicated {
		f.errorf(n, "%s has %d tiers and users; at most %d are possible", where, len(f.content.Dedicated), maxDedicated)
	}
}

// dedicatedName is a tier or a user in the names of queues. It has no _, so that what is behind
// the last _ of a queue's name is the class, and whom the queue is for.
func dedicatedName(name string) string { return strings.ReplaceAll(name, "_", "-") }

// readDedicatedTo reads the workers of one tier or user, and reports whether they are usable.
func (f *file) readDedicatedTo(d limits.Dedicated, key *yaml.Node, where place, n *yaml.Node) (limits.Dedicated, bool) {
	at := where.below(key.Value)
	if !dedicatedForm.MatchString(key.Value) {
		f.errorf(key, "%s: the name %s cannot be in the name of a queue; such names are of a-z and 0-9, with single _ or - between them", where, quote(key.Value))
		return d, false
	}
	d.Line = key.Line
	readFields(f, &d, at, n, dedicatedExample, dedicatedFields)
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "%s is empty; write one of %s, such as %s", at, joinChoices(dedicatedFields.names()), dedicatedExample)
	}
	for _, other := range f.content.Dedicated {
		// One queue for both would be for neither alone.
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
