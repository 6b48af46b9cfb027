package limitfile

import (
	"maps"
	"regexp"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxServices bounds the services of queues, and those that limits of jobs name.
const maxServices = 256

// servicePattern is what River takes as the name of a queue (validateQueueName in its
// client.go: at most 64 bytes), with the longest class, _scheduled, behind it.
const (
	servicePattern = `^[a-z0-9]+([_-][a-z0-9]+)*$`
	maxService     = maxQueue - len("_scheduled")
)

var serviceForm = regexp.MustCompile(servicePattern)

// ValidService reports whether a service may have queues of this name.
func ValidService(name string) bool { return len(name) <= maxService && serviceForm.MatchString(name) }

const jobsForms = "a whole number, a mapping such as {total: 3, queues: {analysis: 1}}, or unlimited"

var jobsClasses = []string{limits.PriorityQueues, limits.DefaultQueues}

var jobsFields = fields[limits.Jobs]{
	{"total", (*file).readJobsTotal},
	{"queues", (*file).readJobsQueues},
	{"class", (*file).readJobsClass},
}

// readJobs reads the limits of a tier's or a user's background jobs: what it names
// replaces what was there.
func (f *file) readJobs(d *draft, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	j := limits.Jobs{}
	if d.jobs != nil {
		j = *d.jobs
		// Drafts with equal jobs share them, the map included.
		j.Queues = maps.Clone(j.Queues)
	}
	j.Stated = true
	switch {
	case n.Kind == yaml.MappingNode:
		readFields(f, &j, at, n, "{total: 3, queues: {analysis: 1}}", jobsFields)
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s must be %s, got %s", at, jobsForms, describe(n))
	default:
		f.readJobsTotal(&j, at, n)
		// Unlimited is all of it, while a number leaves the tier's limits of queues.
		if isUnlimited(n) {
			f.readJobsQueues(&j, at.below("queues"), n)
		}
	}
	d.jobs = f.sharedJobs(j)
}

func (f *file) readJobsTotal(j *limits.Jobs, at place, n *yaml.Node) {
	jobCounts.read(f, &j.Total, at, n)
	// Also for unlimited: that nobody limits the total is said by somebody, too.
	j.Source = limits.OfUser
	if at.kind == "tier" {
		j.Source = limits.OfTier
	}
}

// readJobsQueues reads limits by service. If the file has queues, they must be there.
func (f *file) readJobsQueues(j *limits.Jobs, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		// Not nil, which says nothing: the default tier's queues would count (see jobsOver).
		j.Queues = map[string]int{}
		f.replace(at, n)
		return
	}
	// Those of the tier stay unless they are named: a user who needs more of one service needs no list of all.
	if j.Queues == nil {
		j.Queues = map[string]int{}
	}
	var services []string
	for _, q := range f.content.Queues {
		services = append(services, q.Service)
	}
	for key, value := range f.eachEntry(n, at, "{analysis: 1}") {
		every := key.Value == limits.All
		if !every && !f.isServiceName(key, at) {
			continue
		}
		// A file without queues may limit services that workers get from their environment.
		if !every && services != nil && !slices.Contains(services, key.Value) {
			f.refuseUnknown(key, at, "service", services)
			continue
		}
		most := 0
		jobCounts.read(f, &most, at.below(key.Value), value)
		j.LimitQueue(key.Value, most)
	}
	// Of those of the tier as well, which is why the mapping alone cannot tell.
	if len(j.Queues) > maxServices {
		f.errorf(n, "%s has %d services; at most %d are possible", at, len(j.Queues), maxServices)
	}
}

func (f *file) readJobsClass(j *limits.Jobs, at place, n *yaml.Node) {
	switch {
	case !f.isScalar(n, at, "priority or default"):
	case n.Value == "scheduled":
		f.errorf(n, "%s must be priority or default: the scheduled queues are for jobs that a scheduler starts, of any user", at)
	case !slices.Contains(jobsClasses, n.Value):
		f.refuseUnknown(n, at, "class", jobsClasses)
	default:
		j.Class = n.Value
		f.mark(at, n)
	}
}

// builtinJobs are what tiers of these names have if they do not say.
var builtinJobs = map[string]limits.Jobs{
	"free":       {Total: 1, Class: limits.DefaultQueues},
	"pro":        {Total: 3, Class: limits.PriorityQueues},
	"pro_plus":   {Total: 3, Class: limits.PriorityQueues},
	"enterprise": {Total: 5, Class: limits.PriorityQueues},
}

// KnowsJobs reports whether tiers of this name have a number of jobs of their own if the
// file does not say.
func KnowsJobs(tier string) bool { _, ok := builtinJobs[tier]; return ok }

// otherJobs are those of a default tier of another name.
var otherJobs = limits.Jobs{Total: 1, Class: limits.DefaultQueues}

// completeTiersJobs gives every tier the jobs that it does not state itself.
func (f *file) completeTiersJobs(defaultTier string) {
	// Once a file speaks of jobs, people want to see those of all tiers.
	stated := len(f.content.Queues) > 0
	for _, tier := range f.tiers {
		stated = stated || tier.jobs != nil
	}
	// The default tier first: others take its numbers.
	defaults := jobsOver(f.tiers[defaultTier].jobs, defaultTier, otherJobs)
	for name, tier := range f.tiers {
		j := jobsOver(tier.jobs, name, defaults)
		j.Stated = stated
		tier.jobs = f.sharedJobs(j)
		f.tiers[name] = tier
	}
}

// jobsOver completes what a tier says of jobs, nil if nothing, from those of the default
// tier. Queues that are nil say nothing.
func jobsOver(j *limits.Jobs, name string, defaults limits.Jobs) limits.Jobs {
	known, ok := builtinJobs[name]
	if !ok {
		known = limits.Jobs{Total: defaults.Total, Queues: defaults.Queues, Class: limits.DefaultQueues}
	}
	// A tier that says nothing has what its name gives it, which is documented for each.
	if j == nil {
		return known
	}
	out := *j
	each, hasEach := out.Queues[limits.All]
	switch {
	// A tier that says the class or some queues alone says nothing of the total.
	case out.Source != limits.Builtin:
	case out.Queues == nil:
		out.Total, out.Queues = known.Total, known.Queues
	// It stands in the place of the total: see LimitQueue.
	case each == 0:
		out.Total = known.Total
		// Nor does it say that there is none: what limits all queues of the default tier, be it
		// the total or this, limits its own.
		if inherited := known.Queues[limits.All]; inherited > 0 && !hasEach && len(out.Queues) > 0 {
			out.Queues = maps.Clone(out.Queues)
			out.Queues[limits.All] = inherited
		}
	}
	if out.Class == "" {
		out.Class = known.Class
	}
	return out
}

// jobsIn is what is left of limits of jobs in a mode, and the fields that are off.
func jobsIn(j limits.Jobs, m limits.Mode) (out limits.Jobs, off []string) {
	out = j
	out.Mode = m
	// Who is lifted out of a limit for each queue has to be named. Without one, to be lifted is
	// not to be named, and limits that are equal are to be shared.
	out.Queues = maps.Clone(j.Queues)
	maps.DeleteFunc(out.Queues, func(service string, n int) bool {
		return n == 0 && (service == limits.All || j.Queues[limits.All] == 0)
	})
	if len(out.Queues) == 0 {
		out.Queues = nil
	}
	// The numbers stay in any mode: people see those of a dry run, and an override may enforce them.
	if m != limits.Off {
		return out, nil
	}
	// What the file does not state cannot be off.
	if j.Source != limits.Builtin && j.Total > 0 {
		off = append(off, "jobs.total")
	}
	// Beside a limit for each service nobody has to state the total.
	if j.Source != limits.Builtin || out.Queues[limits.All] > 0 {
		for service, n := range out.Queues {
			if n > 0 {
				off = append(off, "jobs.queues."+service)
			}
		}
	}
	return out, off
}
