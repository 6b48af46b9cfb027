package limitfile

import (
	"fmt"
	"maps"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// setting is one field that a tier, a user's entry or an override sets.
type setting struct {
	name  string // as FieldOrigin has it, such as requests.GET/minute
	value int64  // 0: unlimited, the first mode, or the first class of queues
	line  int32  // from the line of the entry's name
	sets  bool   // it has a value
	drops bool   // it takes the place of all that was set of the field, and of the fields below it
	layer Layer
}

// spec is what the mapping of a tier, of a user, or of an override says.
type spec struct {
	settings []setting
	tier     string // that it names, or ""
	until    int64  // Unix time in ns; 0 for no end
	then     string // the tier that it names to follow, or ""
	comment  string
}

var (
	limitFields    = []string{"requests", "costs", "concurrent", "bandwidth", "over_limit", "priority", "mode", "jobs"}
	tierFields     = slices.Concat(limitFields, []string{"comment"})
	userFields     = slices.Concat([]string{"tier"}, tierFields, notInOverride[1:])
	overrideFields = slices.Concat([]string{"tier"}, limitFields)
	notInOverride  = []string{"comment", "until", "then"}

	rateFields       = []string{"second", "burst", "minute", "hour", "mode"}
	costFields       = []string{"second", "minute", "hour", "day", "mode"}
	concurrentFields = []string{"limit", "mode"}
	bandwidthFields  = []string{"down", "up", "default_share"}
	overLimitFields  = []string{"concurrent"}
	jobsFields       = []string{"total", "queues", "class"}

	// modeNames and jobsClasses: each at its own number.
	modeNames   = []string{limits.Enforce.String(), limits.DryRun.String(), limits.Off.String()}
	jobsClasses = []string{limits.PriorityQueues, limits.DefaultQueues}
)

const (
	maxComment   = 1000 // bytes
	jobsForms    = "a whole number, a mapping such as {total: 3, queues: {analysis: 1}}, or unlimited"
	costsExample = "{tokens: {minute: 20k, day: 500k}}"
)

var comments = kind[string]{forms: "text", parse: func(s string) (string, error) {
	if len(s) > maxComment {
		return "", fmt.Errorf("is longer than %d bytes", maxComment)
	}
	return s, nil
}}

type entryReader struct {
	*file
	spec
	first int   // the line of the entry's name
	under layer // what the entry lies on: its tier, and below an override the user's own entry
}

func (e *entryReader) add(name string, n *yaml.Node, value int64) {
	e.settings = append(e.settings, setting{name: name, value: value, line: int32(n.Line - e.first), sets: true})
}

func (e *entryReader) replace(name string, n *yaml.Node, value int64) {
	e.add(name, n, value)
	e.settings[len(e.settings)-1].drops = true
}

func (e *entryReader) drop(name string) {
	e.settings = append(e.settings, setting{name: name, drops: true})
}

func (e *entryReader) readNumber(k kind[int64], at place, n *yaml.Node, name string) (v int64, ok bool) {
	if v, ok = read(e.file, k, at, n); ok {
		e.add(name, n, v)
	}
	return v, ok
}

func (e *entryReader) readWhole(k kind[int64], at place, n *yaml.Node, name string) {
	if v, ok := read(e.file, k, at, n); ok {
		e.replace(name, n, v)
	}
}

func (e *entryReader) readMode(at place, n *yaml.Node, name string) {
	if i := e.file.readMode(at, n); i >= 0 {
		e.add(name, n, int64(i))
	}
}

// readMode reads enforce, dry-run or off. It returns -1 after an error.
func (f *file) readMode(at place, n *yaml.Node) int {
	return f.readChoice(n, at, "enforce, dry-run or off", "mode", modeNames)
}

// readEntry reads all fields but tier, until and then.
func (e *entryReader) readEntry(where place, n *yaml.Node, example string, valid []string) {
	for name, value := range e.eachField(n, where, example, valid) {
		at := where.below(name)
		switch name {
		case "requests":
			e.readRequests(at, value)
		case "costs":
			e.readCosts(at, value)
		case "concurrent":
			e.readConcurrent(at, value)
		case "bandwidth":
			e.readBandwidth(at, value)
		case "over_limit":
			for name, value := range e.eachField(value, at, "{concurrent: wait 2s}", overLimitFields) {
				e.readNumber(waits, at.below(name), value, "over_limit.concurrent")
			}
		case "priority":
			e.readNumber(priorities, at, value, name)
		case "mode":
			e.readMode(at, value, name)
		case "jobs":
			e.readJobs(at, value)
		case "comment":
			e.comment, _ = read(e.file, comments, at, value)
		}
	}
}

// lifts reports whether a field is unlimited as a whole, and notes it.
func (e *entryReader) lifts(name string, n *yaml.Node) bool {
	if !isUnlimited(n) {
		return false
	}
	e.replace(name, n, 0)
	return true
}

// readRequests reads limits by class. A class that is not named keeps the tier's limits.
func (e *entryReader) readRequests(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("requests", n) {
		return
	}
	for key, value := range e.eachEntry(n, at, `{GET: 100, "*": 200}`) {
		if !slices.Contains(e.classes, key.Value) {
			e.refuseUnknown(key, at, "class", e.classes)
		} else if e.isPlain(value) {
			e.readRate(key.Value, at.below(key.Value), value)
		}
	}
}

// readRate reads the limits of one class: a number for each second, or a mapping with a
// number for each window.
func (e *entryReader) readRate(class string, at place, n *yaml.Node) {
	field := "requests." + class
	switch {
	case n.Kind == yaml.MappingNode:
		e.drop(field)
		e.readWindows(at, n, rateFields, "{second: 10, minute: 100}", "second, minute and hour, such as {second: 10}", func(name string, at place, n *yaml.Node) {
			switch name {
			case "burst":
				e.readNumber(bursts, at, n, field+".burst")
			default:
				e.readNumber(perSecond, at, n, "requests."+limits.RateName(class, windowOf(name)))
			}
		})
		second, burst := lookup(n, "second"), lookup(n, "burst")
		if burst != nil && (second == nil || isUnlimited(second)) {
			e.errorf(burst, "%s.burst needs a limit for each second; write second: beside it", at)
		}
	case n.Kind != yaml.ScalarNode || isNull(n):
		e.errorf(n, "%s must be a whole number, a mapping such as {second: 10, minute: 100}, or unlimited, got %s", at, describe(n))
	default:
		e.readWhole(perSecond, at, n, field)
	}
}

// readWindows reads a mapping of windows and a mode. It must have one window at least.
func (e *entryReader) readWindows(at place, n *yaml.Node, valid []string, example, windows string, readOne func(name string, at place, n *yaml.Node)) {
	for name, value := range e.eachField(n, at, example, valid) {
		if name == "mode" {
			e.readMode(at.below(name), value, at.field+".mode")
		} else {
			readOne(name, at.below(name), value)
		}
	}
	if !slices.ContainsFunc(limits.CostWindows[:], func(w limits.Window) bool {
		return slices.Contains(valid, w.String()) && lookup(n, w.String()) != nil
	}) {
		e.errorf(n, "%s has no limit; write one of %s", at, windows)
	}
}

func windowOf(name string) limits.Window {
	i := slices.IndexFunc(limits.CostWindows[:], func(w limits.Window) bool { return w.String() == name })
	return limits.CostWindows[i]
}

// readCosts reads limits by unit. A unit that is not named keeps the tier's limits.
func (e *entryReader) readCosts(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("costs", n) {
		return
	}
	for key, value := range e.eachEntry(n, at, costsExample) {
		switch unit, ok := e.units[key.Value]; {
		case ok:
			e.readCost(unit, at.below(key.Value), value)
		case e.units == nil:
			e.errorf(key, "%s: unknown unit %s; declare it at the top of the limit file, such as costs: {%s: {estimate: {default: 1}}}", at, quote(key.Value), shorten(key.Value))
		// Without units there is an error already.
		case len(e.units) > 0:
			e.refuseUnknown(key, at, "unit", slices.Sorted(maps.Keys(e.units)))
		}
	}
}

func (e *entryReader) readCost(unit costUnit, at place, n *yaml.Node) {
	field := "costs." + unit.Name
	switch {
	case !e.isPlain(n) || e.lifts(field, n):
		return
	case n.Kind != yaml.MappingNode:
		e.errorf(n, "%s must be a mapping such as {minute: 20k, day: 500k}, or unlimited, got %s", at, describe(n))
		return
	}
	e.drop(field)
	e.readWindows(at, n, costFields, "{minute: 20k, day: 500k}", "second, minute, hour and day, such as {minute: 20k}", func(name string, at place, n *yaml.Node) {
		most, ok := e.readNumber(costLimits, at, n, field+"/"+name)
		// A request that is estimated at more than the limit could never be admitted.
		if from, estimate := unit.largestEstimate(); ok && most > 0 && estimate > most {
			e.errorf(n, "%s must be at least %d, got %s: a request is estimated at so much that does not say what it costs (costs.%s.estimate.%s), and could never be admitted",
				at, estimate, quoteUnlessPlain(n.Value), unit.Name, from)
		}
	})
}

// readConcurrent reads a number, or a mapping of a number and its mode.
func (e *entryReader) readConcurrent(at place, n *yaml.Node) {
	if !e.isPlain(n) {
		return
	}
	// A number alone replaces the tier's mode too: otherwise it could be a dry run by surprise.
	if n.Kind != yaml.MappingNode {
		e.readWhole(inProgress, at, n, "concurrent")
		return
	}
	e.drop("concurrent")
	for name, value := range e.eachField(n, at, "{limit: 10, mode: dry-run}", concurrentFields) {
		if name == "mode" {
			e.readMode(at.below(name), value, "concurrent.mode")
		} else {
			e.readNumber(inProgress, at.below(name), value, "concurrent")
		}
	}
	if lookup(n, "limit") == nil {
		e.errorf(n, "%s has no limit; write limit: and a number beside the mode", at)
	}
}

// readBandwidth reads the directions. One that is not named keeps the tier's limit.
func (e *entryReader) readBandwidth(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("bandwidth", n) {
		return
	}
	for name, value := range e.eachField(n, at, "{down: 10MiB, up: 5MiB}", bandwidthFields) {
		e.readNumber(sizes, at.below(name), value, "bandwidth."+name)
	}
	// The error is at the share, or at the limit that has become too small for the tier's share.
	share := lookup(n, "default_share")
	if share == nil {
		share = n
	}
	all := lay(e.under.settings, e.settings)
	most := valueOf(all, "bandwidth.default_share")
	for _, name := range bandwidthFields[:2] {
		if limit := valueOf(all, "bandwidth."+name); limit > 0 && most > limit {
			e.errorf(share, "%s must be at most bandwidth.%s, which is %d bytes, got %d", at.below("default_share"), name, limit, most)
		}
	}
}

func (e *entryReader) readJobs(at place, n *yaml.Node) {
	if !e.isPlain(n) {
		return
	}
	// Even an empty mapping states something of jobs.
	e.settings = append(e.settings, setting{name: "jobs"})
	switch {
	case n.Kind == yaml.MappingNode:
		for name, value := range e.eachField(n, at, "{total: 3, queues: {analysis: 1}}", jobsFields) {
			switch at := at.below(name); name {
			case "total":
				e.readNumber(jobCounts, at, value, "jobs.total")
			case "queues":
				e.readJobsQueues(at, value)
			case "class":
				e.readJobsClass(at, value)
			}
		}
	case n.Kind != yaml.ScalarNode || isNull(n):
		e.errorf(n, "%s must be %s, got %s", at, jobsForms, describe(n))
	default:
		// A number leaves the tier's limits of queues, and unlimited lifts them.
		e.readNumber(jobCounts, at, n, "jobs.total")
		e.lifts("jobs.queues", n)
	}
}

func (e *entryReader) readJobsQueues(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("jobs.queues", n) {
		return
	}
	e.settings = append(e.settings, setting{name: "jobs.queues"})
	for key, value := range e.eachEntry(n, at, "{analysis: 1}") {
		every := key.Value == limits.All
		switch {
		case !every && !e.isLowerName(key, at, maxService):
		// A file without queues may limit services that workers get from their environment.
		case !every && e.services != nil && !slices.Contains(e.services, key.Value):
			e.refuseUnknown(key, at, "service", e.services)
		default:
			e.readNumber(jobCounts, at.below(key.Value), value, "jobs.queues."+key.Value)
		}
	}
	// With the services of the tier.
	if all := layJobs(e.under.jobs, e.settings, limits.OfUser).Queues; len(all) > maxServices {
		e.errorf(n, "%s has %d services; at most %d are possible", at, len(all), maxServices)
	}
}

func (e *entryReader) readJobsClass(at place, n *yaml.Node) {
	if n.Value == limits.ScheduledQueues && e.isScalar(n, at, "priority or default") {
		e.errorf(n, "%s must be priority or default: the scheduled queues are for jobs that a scheduler starts, of any user", at)
		return
	}
	if i := e.readChoice(n, at, "priority or default", "class", jobsClasses); i >= 0 {
		e.add("jobs.class", n, int64(i))
	}
}
