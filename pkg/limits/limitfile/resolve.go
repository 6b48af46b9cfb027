package limitfile

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// layer is what the layers up to one set together: a tier, a user's entry, an override.
type layer struct {
	tier     string
	settings []setting    // one of a name
	jobs     *limits.Jobs // nil: nothing is said of them
}

func (l layer) with(s spec, source limits.JobsSource) layer {
	return layer{l.tier, lay(l.settings, s.settings), layJobs(l.jobs, s.settings, source)}
}

func lay(under, over []setting) []setting {
	all := slices.Clone(under)
	for _, s := range over {
		if s.effect&drops != 0 {
			all = slices.DeleteFunc(all, func(old setting) bool { return isWithin(old.name, s.name) })
		}
		if s.effect&sets == 0 {
			continue
		}
		if i := slices.IndexFunc(all, func(old setting) bool { return old.name == s.name }); i >= 0 {
			all[i] = s
		} else {
			all = append(all, s)
		}
	}
	return all
}

// isWithin reports whether a field is another one or below it. requests.GET/minute and
// requests.GET.burst are below requests.GET.
func isWithin(name, field string) bool {
	rest, ok := strings.CutPrefix(name, field)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '/')
}

// valueOf is the value of a setting, 0 if there is none.
func valueOf(all []setting, name string) int64 {
	for _, s := range all {
		if s.name == name {
			return s.value
		}
	}
	return 0
}

func layJobs(under *limits.Jobs, over []setting, source limits.JobsSource) *limits.Jobs {
	if !slices.ContainsFunc(over, func(s setting) bool { return isWithin(s.name, "jobs") }) {
		return under
	}
	j := limits.Jobs{}
	if under != nil {
		j = *under
		j.Queues = maps.Clone(j.Queues)
	}
	j.Stated = true
	for _, s := range over {
		service, isQueue := strings.CutPrefix(s.name, "jobs.queues.")
		switch {
		// Not nil: nil says nothing, and the default tier's queues would count.
		case s.name == "jobs.queues" && (s.effect&drops != 0 || j.Queues == nil):
			j.Queues = map[string]int{}
		case isQueue:
			j.Queues[service] = int(s.value)
			// A limit for each service takes the place of the number that a tier has by its name: next to
			// it that number would refuse a user with a job of one service the jobs of all others.
			if service == limits.All && s.value > 0 && j.Source == limits.Builtin {
				j.Total = 0
			}
		case s.name == "jobs.total":
			j.Total, j.Source = int(s.value), source
		case s.name == "jobs.class":
			j.Class = jobsClasses[s.value]
		}
	}
	return &j
}

// resolver makes Limits and entries of layers. Equal ones are shared, so that memory grows
// with what differs.
type resolver struct {
	*model
	lists   map[string]*limits.Lists
	jobs    map[string]*limits.Jobs
	limits  map[limits.Limits]*limits.Limits
	entries map[limits.Entry]*limits.Entry
}

func newResolver(m *model) resolver {
	return resolver{m, map[string]*limits.Lists{}, map[string]*limits.Jobs{}, map[limits.Limits]*limits.Limits{}, map[limits.Entry]*limits.Entry{}}
}

// share returns the value that is known by a key, or makes v that.
func share[K comparable, V any](known map[K]*V, key K, v V) *V {
	if old, ok := known[key]; ok {
		return old
	}
	shared := v // v itself then needs no memory if it is known
	known[key] = &shared
	return &shared
}

// limitsOf returns the Limits of a layer. Each limit's mode is the weakest of its own, that of
// the layer and that of the file, and a limit whose mode is off is left out.
func (r *resolver) limitsOf(from layer) *limits.Limits {
	l := limits.Limits{Tier: from.tier}
	var lists limits.Lists
	scope := max(r.mode, limits.Mode(valueOf(from.settings, "mode")))
	l.BackgroundJobs, lists.Off = r.jobsIn(from.jobs, scope)
	for _, s := range from.settings {
		if class, ok := strings.CutPrefix(s.name, inExcept); ok {
			lists.Except = append(lists.Except, class)
		}
		kind, name, _ := strings.Cut(s.name, ".")
		if s.value == 0 || strings.Contains(name, ".") {
			continue
		}
		field, _, _ := strings.Cut(s.name, "/")
		mode := max(scope, limits.Mode(valueOf(from.settings, field+".mode")))
		isLimit := kind == "requests" || kind == "costs" || s.name == "concurrent" || s.name == "bandwidth.down" || s.name == "bandwidth.up"
		// Bandwidth has no dry run.
		isOff := mode == limits.Off || mode == limits.DryRun && kind == "bandwidth"
		switch {
		case isOff && isLimit:
			lists.Off = append(lists.Off, s.name)
		case kind == "requests":
			class, w := limits.ParseRateName(name)
			rate := limits.Rate{Class: class, Window: w, Max: int(max(0, s.value)), Mode: mode, Calendar: r.calendarOf(w)}
			if w == limits.Second {
				rate.Burst = int(valueOf(from.settings, s.name+".burst"))
			}
			lists.Rates = append(lists.Rates, rate)
		case kind == "costs":
			unit, w := limits.ParseCostName(name)
			lists.Costs = append(lists.Costs, limits.Cost{Unit: unit, Window: w, Max: max(0, s.value), Mode: mode, Calendar: r.calendarOf(w)})
		case s.name == "concurrent":
			l.Concurrent, l.ConcurrentMode = int(s.value), mode
		case s.name == "bandwidth.down":
			l.Bandwidth.Down = s.value
		case s.name == "bandwidth.up":
			l.Bandwidth.Up = s.value
		case s.name == "bandwidth.default_share" && !isOff:
			l.Bandwidth.DefaultShare = s.value
		case s.name == "over_limit.concurrent":
			l.Wait = time.Duration(s.value)
		case s.name == "priority":
			l.Priority = int(s.value)
		}
	}
	if l.Concurrent == 0 {
		lists.Except = nil
	}
	slices.Sort(lists.Off)
	slices.Sort(lists.Except)
	slices.SortFunc(lists.Rates, func(a, b limits.Rate) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Window, b.Window))
	})
	slices.SortFunc(lists.Costs, func(a, b limits.Cost) int {
		return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Window, b.Window))
	})
	key := appendKey(nil, "", int64(len(lists.Rates)), int64(len(lists.Costs)), int64(len(lists.Except)))
	for _, rate := range lists.Rates {
		key = appendKey(key, rate.Class, int64(rate.Window), int64(rate.Mode), int64(rate.Max), int64(rate.Burst))
	}
	for _, c := range lists.Costs {
		key = appendKey(key, c.Unit, int64(c.Window), int64(c.Mode), c.Max)
	}
	for _, name := range slices.Concat(lists.Except, lists.Off) {
		key = appendKey(key, name)
	}
	l.Lists = share(r.lists, string(key), limits.Lists{Rates: slices.Clip(lists.Rates), Costs: slices.Clip(lists.Costs), Off: lists.Off, Except: lists.Except})
	return share(r.limits, l, l)
}

// calendarOf is the calendar of limits with a window, nil where calendars make no difference.
func (m *model) calendarOf(w limits.Window) *limits.Calendar {
	if w < limits.Day {
		return nil
	}
	return m.calendar
}

// appendKey appends a text and numbers. It is not fmt, because each of a million users may have
// limits of their own.
func appendKey(key []byte, text string, numbers ...int64) []byte {
	key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	for _, n := range numbers {
		key = binary.AppendVarint(key, n)
	}
	return key
}

// jobsIn is what limits of jobs come to in a mode, and the fields that are off.
func (r *resolver) jobsIn(j *limits.Jobs, m limits.Mode) (out *limits.Jobs, off []string) {
	if j == nil {
		return nil, nil
	}
	is := *j
	is.Mode = m
	// With a limit for each service, 0 exempts a service from it. Without one, it says nothing.
	is.Queues = maps.Clone(j.Queues)
	maps.DeleteFunc(is.Queues, func(service string, n int) bool {
		return n == 0 && (service == limits.All || j.Queues[limits.All] == 0)
	})
	if len(is.Queues) == 0 {
		is.Queues = nil
	}
	// Stated differs between entries of equal numbers.
	key := strconv.AppendBool(appendKey(nil, is.Class, int64(is.Total), int64(m), int64(is.Source)), is.Stated)
	for _, service := range slices.Sorted(maps.Keys(is.Queues)) {
		key = appendKey(key, service, int64(is.Queues[service]))
	}
	out = share(r.jobs, string(key), is)
	if m != limits.Off {
		return out, nil
	}
	// Only what the file states can be off.
	stated := j.Source != limits.Builtin
	if stated && j.Total > 0 {
		off = append(off, "jobs.total")
	}
	if stated || is.Queues[limits.All] > 0 {
		for service, n := range is.Queues {
			if n > 0 {
				off = append(off, "jobs.queues."+service)
			}
		}
	}
	return out, off
}

// entryOf returns the entry with limits, and those that follow at until, Unix time in ns.
func (r *resolver) entryOf(l *limits.Limits, until int64, then *limits.Entry) *limits.Entry {
	e := limits.Entry{Limits: l, Until: until, Then: then}
	return share(r.entries, e, e)
}

// builtinJobs are those of tiers of these names if the file does not say.
var builtinJobs = map[string]limits.Jobs{
	"free":       {Total: 1, Class: limits.DefaultQueues},
	"pro":        {Total: 3, Class: limits.PriorityQueues},
	"pro_plus":   {Total: 3, Class: limits.PriorityQueues},
	"enterprise": {Total: 5, Class: limits.PriorityQueues},
}

// KnowsJobs reports whether tiers of this name have a number of jobs of their own if the
// file does not say.
func KnowsJobs(tier string) bool { _, ok := builtinJobs[tier]; return ok }

// completeJobs gives every tier the jobs that it does not state itself.
func (m *model) completeJobs(defaultTier string) {
	// A file that says something of jobs says it of all tiers.
	stated := len(m.services) > 0
	for _, t := range m.tiers {
		stated = stated || t.jobs != nil
	}
	// Other tiers take the default tier's numbers. It may be missing, which is an error.
	byDefault := limits.Jobs{Total: 1, Class: limits.DefaultQueues}
	if t := m.tiers[defaultTier]; t != nil {
		byDefault = jobsOver(t.jobs, defaultTier, byDefault)
	}
	for name, t := range m.tiers {
		j := jobsOver(t.jobs, name, byDefault)
		j.Stated = stated
		t.jobs = &j
	}
}

// jobsOver completes what a tier says of jobs, nil if nothing, from those of the default
// tier. Queues that are nil say nothing.
func jobsOver(j *limits.Jobs, name string, byDefault limits.Jobs) limits.Jobs {
	known, ok := builtinJobs[name]
	if !ok {
		known = limits.Jobs{Total: byDefault.Total, Queues: byDefault.Queues, Class: limits.DefaultQueues}
	}
	if j == nil {
		return known
	}
	out := *j
	each, hasEach := out.Queues[limits.All]
	switch {
	case out.Source != limits.Builtin:
	case out.Queues == nil:
		out.Total, out.Queues = known.Total, known.Queues
	// A limit for each service stands in the place of the total: see layJobs.
	case each == 0:
		out.Total = known.Total
		if inherited := known.Queues[limits.All]; inherited > 0 && !hasEach && len(out.Queues) > 0 {
			out.Queues = maps.Clone(out.Queues)
			out.Queues[limits.All] = inherited
		}
	}
	out.Class = cmp.Or(out.Class, known.Class)
	return out
}
