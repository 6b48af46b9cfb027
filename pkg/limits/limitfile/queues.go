package limitfile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxServices bounds the services of queues, and those that limits of jobs name.
const maxServices = 256

// servicePattern is what River takes as the name of a queue (validateQueueName in its
// client.go: at most 64 bytes), with the longest class, _scheduled, behind it.
const (
	servicePattern = `^[a-z0-9]+([_-][a-z0-9]+)*$`
	maxService     = 64 - len("_scheduled")
)

var serviceForm = regexp.MustCompile(servicePattern)

// ValidService reports whether a service may have queues of this name.
func ValidService(name string) bool { return len(name) <= maxService && serviceForm.MatchString(name) }

const (
	jobsForms    = "a whole number, a mapping such as {total: 3, queues: {analysis: 1}}, or unlimited"
	workersForms = "{priority: 3, default: 2, scheduled: 1}, or [3, 2, 1] in this order"
	workerForms  = "a whole number from 0 (none here) to 10000"
)

// readQueues reads the numbers of workers.
func (f *file) readQueues(n *yaml.Node) {
	where := place{field: "queues"}
	if n.Kind == yaml.MappingNode && (len(n.Content) == 0 || len(n.Content)/2 > maxServices) {
		f.errorf(n, "%s must have 1 to %d services, got %d", where, maxServices, len(n.Content)/2)
		return
	}
	for key, value := range f.eachEntry(n, where, "{analysis: {priority: 3, default: 2, scheduled: 1}}") {
		if !f.isServiceName(key, where) {
			continue
		}
		q := limits.Queue{Service: key.Value}
		f.readWorkers(&q, where.atField("queues."+key.Value), value)
		f.content.Queues = append(f.content.Queues, q)
	}
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
	all := [...]*int{&q.Priority, &q.Default, &q.Scheduled}
	switch {
	case n.Kind == yaml.SequenceNode:
		if len(n.Content) != len(all) {
			f.errorf(n, "%s must be %s, got a list of %d", where, workersForms, len(n.Content))
			return
		}
		for i, item := range n.Content {
			f.readWorkerCount(all[i], where.atField(where.field+"."+workersFields[i]), item)
		}
	case n.Kind != yaml.MappingNode:
		f.errorf(n, "%s must be %s, got %s", where, workersForms, describe(n))
	case hasBareNumbers(n):
		f.readBareWorkers(all, where, n)
	default:
		for key, value := range f.eachEntry(n, where, workersForms) {
			if i := slices.Index(workersFields, key.Value); i >= 0 {
				f.readWorkerCount(all[i], where.atField(where.field+"."+key.Value), value)
			} else {
				f.refuseUnknown(key, where, "class", workersFields)
			}
		}
		for _, class := range workersFields {
			if lookup(n, class) == nil {
				f.errorf(n, "%s has no %s; write %[2]s: 0 if nobody works that queue here", where, class)
			}
		}
	}
}

// hasBareNumbers reports whether all that a mapping has is names that are numbers: {3, 2, 1},
// which is YAML for {3: null, 2: null, 1: null}.
func hasBareNumbers(n *yaml.Node) bool {
	for key, value := range children(n) {
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!int" || !isNull(value) {
			return false
		}
	}
	return len(n.Content) > 0
}

// readBareWorkers reads {3, 2, 1} in its order. A mapping has no name twice, so that two
// equal numbers cannot be written so.
func (f *file) readBareWorkers(to [3]*int, where place, n *yaml.Node) {
	var numbers []string
	for key := range children(n) {
		numbers = append(numbers, key.Value)
	}
	twice := len(slices.Compact(slices.Sorted(slices.Values(numbers)))) < len(numbers)
	switch {
	case twice || len(numbers) != len(to):
		f.errorf(n, "%s must be %s, got %s, which YAML reads as names without values",
			where, workersForms, shorten("{"+strings.Join(numbers, ", ")+"}"))
	default:
		for i := range to {
			if value := n.Content[2*i+1]; f.isPlain(n.Content[2*i]) && f.isPlain(value) {
				f.readWorkerCount(to[i], where.atField(where.field+"."+workersFields[i]), n.Content[2*i])
			}
		}
	}
}

// readWorkerCount reads a whole number from 0 to MaxWorkers.
func (f *file) readWorkerCount(to *int, where place, n *yaml.Node) {
	f.readNumber(to, where, n, workerForms, ParseWorkers)
}

// ParseWorkers reads a number of workers: from 0 to MaxWorkers, in plain digits. The
// error goes on where the name of the number leaves off.
func ParseWorkers(s string) (int, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" || len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("must be %s, got %s", workerForms, quote(s))
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > limits.MaxWorkers {
		return 0, fmt.Errorf("must be at most %d, got %s", limits.MaxWorkers, shorten(s))
	}
	return n, nil
}

// ParseJobs reads a number of jobs: from 1 to MaxJobs, in plain digits. The error goes
// on where the name of the number leaves off.
func ParseJobs(s string) (int, error) {
	return parseWhole(s, limits.MaxJobs, "a whole number from 1 to 100000", "a job that may never run waits for ever")
}

// readJobs reads the limits of a tier's or a user's background jobs: what it names
// replaces what was there.
func (f *file) readJobs(d *draft, where place, n *yaml.Node) {
	at := where.atField("jobs")
	if !f.isPlain(n) {
		return
	}
	if where.endpoint != "" {
		f.errorf(n, "%s are counted everywhere, not at endpoints; write jobs beside endpoints", at)
		return
	}
	j := limits.Jobs{}
	if d.jobs != nil {
		j = *d.jobs
		j.Queues = maps.Clone(j.Queues)
	}
	j.Stated = true
	switch {
	case isUnlimited(n):
		j.Total, j.Queues, j.Source = 0, map[string]int{}, sourceOf(where)
	case n.Kind == yaml.MappingNode:
		for key, value := range f.eachEntry(n, at, "{total: 3, queues: {analysis: 1}}") {
			switch key.Value {
			case "total":
				f.readCount(&j.Total, where.atField("jobs.total"), value, limits.MaxJobs)
				j.Source = sourceOf(where)
			case "queues":
				f.readJobsQueues(&j, where.atField("jobs.queues"), value)
			case "class":
				f.readJobsClass(&j.Class, where.atField("jobs.class"), value)
			default:
				f.refuseUnknown(key, at, "field", jobsFields)
			}
		}
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s must be %s, got %s", at, jobsForms, describe(n))
	default:
		f.readCount(&j.Total, at, n, limits.MaxJobs)
		j.Source = sourceOf(where)
	}
	d.jobs = f.sharedJobs(j)
}

// sourceOf is who says what is at a place.
func sourceOf(where place) limits.JobsSource {
	if where.kind == "tier" {
		return limits.OfTier
	}
	return limits.OfUser
}

// readJobsQueues reads limits by service. If the file has queues, they must be there.
func (f *file) readJobsQueues(j *limits.Jobs, where place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		j.Queues = map[string]int{}
		return
	}
	if j.Queues == nil {
		j.Queues = map[string]int{}
	}
	var services []string
	for _, q := range f.content.Queues {
		services = append(services, q.Service)
	}
	for key, value := range f.eachEntry(n, where, "{analysis: 1}") {
		if !f.isServiceName(key, where) {
			continue
		}
		// A file without queues may limit services that workers get from their environment.
		if services != nil && !slices.Contains(services, key.Value) {
			f.refuseUnknown(key, where, "service", services)
			continue
		}
		most := 0
		if f.readCount(&most, where.atField(where.field+"."+key.Value), value, limits.MaxJobs); most > 0 {
			j.Queues[key.Value] = most
		} else {
			delete(j.Queues, key.Value)
		}
	}
	if len(j.Queues) > maxServices {
		f.errorf(n, "%s has %d services; at most %d are possible", where, len(j.Queues), maxServices)
	}
}

func (f *file) readJobsClass(to *string, where place, n *yaml.Node) {
	switch {
	case !f.isScalar(n, where, "priority or default"):
	case n.Value == "scheduled":
		f.errorf(n, "%s must be priority or default: the scheduled queues are for jobs that a scheduler starts, of any user", where)
	case !slices.Contains(jobsClasses, n.Value):
		f.refuseUnknown(n, where, "class", jobsClasses)
	default:
		*to = n.Value
	}
}

// completeTiersJobs gives every tier the jobs that it does not state itself.
func (f *file) completeTiersJobs(defaultTier string) {
	stated := len(f.content.Queues) > 0
	for _, d := range f.tierDrafts {
		stated = stated || d.jobs != nil
	}
	defaults := jobsOver(f.tierDrafts[defaultTier].jobs, defaultTier, otherJobs)
	for name, d := range f.tierDrafts {
		j := jobsOver(d.jobs, name, defaults)
		j.Stated = stated
		d.jobs = f.sharedJobs(j)
		for endpoint, at := range d.at {
			if endpoint == limits.All {
				continue // limits over all endpoints together are of requests alone
			}
			at.jobs = d.jobs
			d.at[endpoint] = at
		}
		f.tierDrafts[name] = d
	}
}
