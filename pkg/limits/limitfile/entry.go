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
	name   string // as FieldOrigin has it, such as requests.GET/minute
	value  int64  // 0: unlimited, the first mode, or the first class of queues
	line   int32  // from the line of the entry's name
	effect effect
	layer  Layer
}

// effect is the effect of a setting: 0 only states that the field is there.
type effect uint8

const (
	sets  effect = 1 << iota // it has a value
	drops                    // it replaces the field of the layer below, and the fields below that
)

// spec is the content of the mapping of a tier, of a user, or of an override.
type spec struct {
	settings []setting
	tier     string // that it names, or ""
	until    int64  // Unix time in ns; 0 for no end
	then     string // the tier that it names to follow, or ""
	comment  string
}

var (
	limitFields   = []string{"requests", "costs", "concurrent", "bandwidth", "over_limit", "priority", "mode", "jobs"}
	notInOverride = []string{"comment", "until", "then"}

	// modeNames and jobsClasses: each at its own number.
	modeNames   = []string{limits.Enforce.String(), limits.DryRun.String(), limits.Off.String()}
	jobsClasses = []string{limits.PriorityQueues, limits.DefaultQueues}
)

const maxComment = 1000 // bytes

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
	under layer // the layer below the entry: its tier, and below an override the user's own entry
}

func (e *entryReader) set(name string, n *yaml.Node, value int64, effect effect) {
	e.settings = append(e.settings, setting{name: name, value: value, line: int32(n.Line - e.first), effect: effect})
}

// lifts reports whether a field is unlimited as a whole, and sets it.
func (e *entryReader) lifts(name string, n *yaml.Node) bool {
	if isUnlimited(n) {
		e.set(name, n, 0, sets|drops)
		return true
	}
	return false
}

// open begins a mapping that replaces a field of the layer below as a whole.
func (e *entryReader) open(name string) {
	e.settings = append(e.settings, setting{name: name, effect: drops})
}

// number reads a number, and whole reads one that replaces the fields below its own too.
func (e *entryReader) number(k kind[int64], name string) func(place, *yaml.Node) {
	return func(at place, n *yaml.Node) {
		if v, ok := read(e.file, k, at, n); ok {
			e.set(name, n, v, sets)
		}
	}
}

func (e *entryReader) whole(k kind[int64], name string, at place, n *yaml.Node) {
	if v, ok := read(e.file, k, at, n); ok {
		e.set(name, n, v, sets|drops)
	}
}

func (e *entryReader) modeOf(name string) func(place, *yaml.Node) {
	return func(at place, n *yaml.Node) {
		if i := e.readMode(at, n); i >= 0 {
			e.set(name, n, int64(i), sets)
		}
	}
}

// readMode reads enforce, dry-run or off. It returns -1 after an error.
func (f *file) readMode(at place, n *yaml.Node) int {
	return f.readChoice(n, at, "enforce, dry-run or off", "mode", modeNames)
}

// limitsOfEntry are the fields that every entry may have.
func (e *entryReader) limitsOfEntry() []field {
	return []field{
		{"requests", e.readRequests},
		{"costs", e.readCosts},
		{"concurrent", e.readConcurrent},
		{"bandwidth", e.readBandwidth},
		{"over_limit", func(at place, n *yaml.Node) {
			e.readFields(n, at, "{concurrent: wait 2s}", field{"concurrent", e.number(waits, "over_limit.concurrent")})
		}},
		{"priority", e.number(priorities, "priority")},
		{"mode", e.modeOf("mode")},
		{"jobs", e.readJobs},
	}
}

// readRequests reads limits by class. A class that is not named keeps the tier's limits.
func (e *entryReader) readRequests(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("requests", n) {
		return
	}
	if _, err := rateLimits.parse(n.Value); n.Kind == yaml.ScalarNode && err == nil {
		e.readRate("requests."+limits.All, at, n)
		return
	}
	for key, value := range e.eachEntry(n, at, `{GET: 100, "*": 200}`) {
		if slices.Contains(e.classes, key.Value) {
			e.readRate("requests."+key.Value, at.below(key.Value), value)
		} else {
			e.refuseUnknown(key, at, "class", e.classes)
		}
	}
}

// readRate reads the limits of one class: a number for each second, or a mapping with a
// number for each window.
func (e *entryReader) readRate(name string, at place, n *yaml.Node) {
	if !e.is(n, at, yaml.ScalarNode|yaml.MappingNode, "a whole number, a mapping such as {second: 10, minute: 100}, or unlimited") {
		return
	}
	if n.Kind == yaml.ScalarNode {
		e.whole(rateLimits, name, at, n)
		return
	}
	e.open(name)
	var fields []field
	for _, w := range limits.Windows {
		fields = append(fields, field{w.String(), e.number(rateLimits, limits.RateName(name, w))})
	}
	fields = append(fields, field{"burst", e.number(bursts, name+".burst")}, field{"mode", e.modeOf(name + ".mode")})
	e.readFields(n, at, "{second: 10, minute: 100}", fields...)
	e.needsWindow(n, at, "second", "10")
	second, burst := lookup(n, "second"), lookup(n, "burst")
	if burst != nil && (second == nil || isUnlimited(second) || second.Value == "0") {
		e.errorf(burst, "%s.burst needs a limit above 0 for each second; write second: beside it", at)
	}
}

func (f *file) needsWindow(n *yaml.Node, at place, window, limit string) {
	if !slices.ContainsFunc(limits.Windows[:], func(w limits.Window) bool { return lookup(n, w.String()) != nil }) {
		f.errorf(n, "%s has no limit; write one of second, minute, hour, day and month, such as {%s: %s}", at, window, limit)
	}
}

// readCosts reads limits by unit. A unit that is not named keeps the tier's limits.
func (e *entryReader) readCosts(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("costs", n) {
		return
	}
	for key, value := range e.eachEntry(n, at, "{tokens: {minute: 20k, day: 500k}}") {
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
	name := "costs." + unit.Name
	if !e.isPlain(n) || e.lifts(name, n) || !e.is(n, at, yaml.MappingNode, "a mapping such as {minute: 20k, day: 500k}, or unlimited") {
		return
	}
	e.open(name)
	var fields []field
	for _, w := range limits.Windows {
		fields = append(fields, field{w.String(), func(at place, n *yaml.Node) {
			most, ok := read(e.file, costLimits, at, n)
			if !ok {
				return
			}
			e.set(name+"/"+w.String(), n, most, sets)
			// A request that is estimated at more than the limit could never be admitted.
			if from, estimate := unit.largestEstimate(); most > 0 && estimate > most {
				e.errorf(n, "%s must be at least %d, got %s: a request is estimated at so much that does not say what it costs (costs.%s.estimate.%s), and could never be admitted",
					at, estimate, quoteUnlessPlain(n.Value), unit.Name, from)
			}
		}})
	}
	e.readFields(n, at, "{minute: 20k, day: 500k}", append(fields, field{"mode", e.modeOf(name + ".mode")})...)
	e.needsWindow(n, at, "minute", "20k")
}

// readConcurrent reads a number, or a mapping of a number, the classes that do not count, and its mode.
func (e *entryReader) readConcurrent(at place, n *yaml.Node) {
	switch {
	case !e.isPlain(n):
	// A number alone replaces the tier's mode too: otherwise it could be a dry run by surprise.
	case n.Kind != yaml.MappingNode:
		e.whole(inProgress, "concurrent", at, n)
	default:
		e.open("concurrent")
		e.readFields(n, at, "{limit: 10, except: [STREAM]}",
			field{"limit", e.number(inProgress, "concurrent")}, field{"except", e.readExcept}, field{"mode", e.modeOf("concurrent.mode")})
		if lookup(n, "limit") == nil {
			e.errorf(n, "%s has no limit; write limit: and a number", at)
		}
	}
}

// inExcept begins the names of settings, one for each class that does not count as in progress.
const inExcept = "concurrent.except."

func (e *entryReader) readExcept(at place, n *yaml.Node) {
	own := slices.DeleteFunc(slices.Clone(e.classes), func(class string) bool { return class == limits.All })
	var except []string
	e.texts(&except, "[STREAM]", len(own), func(item *yaml.Node, at place) bool {
		known := slices.Contains(own, item.Value)
		if !known {
			e.refuseUnknown(item, at, "class", own)
		}
		return known
	})(at, n)
	for _, class := range except {
		e.set(inExcept+class, n, 1, sets)
	}
}

// readBandwidth reads the directions. One that is not named keeps the tier's limit.
func (e *entryReader) readBandwidth(at place, n *yaml.Node) {
	if !e.isPlain(n) || e.lifts("bandwidth", n) {
		return
	}
	e.readFields(n, at, "{down: 10MiB, up: 5MiB}",
		field{"down", e.number(sizes, "bandwidth.down")},
		field{"up", e.number(sizes, "bandwidth.up")},
		field{"default_share", e.number(sizes, "bandwidth.default_share")})
	// The error is at the share, or at the limit that has become too small for the tier's share.
	share := lookup(n, "default_share")
	if share == nil {
		share = n
	}
	all := lay(e.under.settings, e.settings)
	most := valueOf(all, "bandwidth.default_share")
	for _, name := range []string{"down", "up"} {
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
		e.readFields(n, at, "{total: 3, queues: {analysis: 1}}",
			field{"total", e.number(jobCounts, "jobs.total")}, field{"queues", e.readJobsQueues}, field{"class", e.readJobsClass})
	case e.is(n, at, yaml.ScalarNode, "a whole number, a mapping such as {total: 3, queues: {analysis: 1}}, or unlimited"):
		// A number leaves the tier's limits of queues, and unlimited lifts them.
		e.number(jobCounts, "jobs.total")(at, n)
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
			e.number(jobCounts, "jobs.queues."+key.Value)(at.below(key.Value), value)
		}
	}
	// With the services of the tier.
	if all := layJobs(e.under.jobs, e.settings, limits.OfUser).Queues; len(all) > maxServices {
		e.errorf(n, "%s has %d services; at most %d are possible", at, len(all), maxServices)
	}
}

func (e *entryReader) readJobsClass(at place, n *yaml.Node) {
	const forms = "priority or default"
	if n.Value == limits.ScheduledQueues && e.is(n, at, yaml.ScalarNode, forms) {
		e.errorf(n, "%s must be priority or default: the scheduled queues are for jobs that a scheduler starts, of any user", at)
	} else if i := e.readChoice(n, at, forms, "class", jobsClasses); i >= 0 {
		e.set("jobs.class", n, int64(i), sets)
	}
}
