package limitfile

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// layer is what the layers up to one set together: a tier, a user's entry, an override.
type layer struct {
	entry
	tier string
	jobs *limits.Jobs // nil: nothing is said of them
}

func (l layer) with(e *entry, source limits.JobsSource) layer {
	return layer{e.over(l.entry), l.tier, e.Jobs.over(l.jobs, source)}
}

// over is an entry with what it says in the place of what the one below it says. A class, a unit,
// and concurrent count as a whole; each direction of bandwidth counts by itself.
func (e *entry) over(under entry) entry {
	out := under
	out.Requests = requests{e.Requests.over(under.Requests.table)}
	out.Costs = e.Costs.over(under.Costs)
	out.Bandwidth = e.Bandwidth.over(under.Bandwidth)
	out.Jobs.Queues = e.Jobs.Queues.over(under.Jobs.Queues)
	if e.Concurrent.said() {
		out.Concurrent = e.Concurrent
	}
	for _, field := range [...]struct{ to, from *scalar }{
		{&out.OverLimit.Concurrent, &e.OverLimit.Concurrent},
		{&out.Priority, &e.Priority},
		{&out.Mode, &e.Mode},
		{&out.Group, &e.Group},
		{&out.Jobs.Total, &e.Jobs.Total},
		{&out.Jobs.Class, &e.Jobs.Class},
	} {
		if field.from.said() {
			*field.to = *field.from
		}
	}
	if e.Jobs.Total.lifts && e.Jobs.at == e.Jobs.Total.at { // jobs: unlimited
		out.Jobs.Queues = table[scalar]{at: e.Jobs.at, unlimited: e.Jobs.Total}
	}
	return out
}

func (b bandwidth) over(under bandwidth) bandwidth {
	if b.Unlimited.said() {
		return b
	}
	for _, field := range [...]struct{ to, from *scalar }{{&under.Down, &b.Down}, {&under.Up, &b.Up}, {&under.DefaultShare, &b.DefaultShare}} {
		if field.from.said() {
			*field.to = *field.from
		}
	}
	return under
}

// over lays jobs over those of the layer below, in numbers: what a tier has by its name depends on
// what the file says of others.
func (j *jobs) over(under *limits.Jobs, source limits.JobsSource) *limits.Jobs {
	if !j.said() {
		return under
	}
	out := limits.Jobs{}
	if under != nil {
		out = *under
		out.Queues = maps.Clone(out.Queues)
	}
	out.Stated = true
	if lifted := j.Total.lifts && j.at == j.Total.at; lifted || j.Queues.unlimited.said() || j.Queues.said() && out.Queues == nil {
		out.Queues = map[string]int{} // not nil: nil says nothing, and the default tier's queues would count
	}
	if j.Total.said() {
		out.Total, out.Source = int(j.Total.n), source
	}
	for _, q := range j.Queues.entries {
		out.Queues[q.name] = int(q.value.n)
		// A limit for each service takes the place of the number that a tier has by its name: next to
		// it that number would refuse a user with a job of one service the jobs of all others.
		if q.name == all && q.value.n > 0 && out.Source == limits.Builtin {
			out.Total = 0
		}
	}
	if j.Class.said() {
		out.Class = jobsClasses[j.Class.n]
	}
	return &out
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
	l := limits.Limits{Tier: from.tier, Group: from.Group.text, Wait: time.Duration(from.OverLimit.Concurrent.n), Priority: int(from.Priority.n)}
	var lists limits.Lists
	scope := max(r.mode.n, from.Mode.n)
	// has reports whether there is a limit, in which mode, and notes it if its mode is off.
	has := func(s scalar, name string, own scalar) (limits.Mode, bool) {
		m := limits.Mode(max(scope, own.n))
		if !s.said() || s.lifts {
			return m, false
		}
		if m == limits.Off {
			lists.Off = append(lists.Off, name)
		}
		return m, m != limits.Off
	}
	l.BackgroundJobs, lists.Off = r.jobsIn(from.jobs, limits.Mode(scope))
	for _, class := range from.Requests.entries {
		for i, limit := range class.value.limits() {
			w := limits.Windows[i]
			if m, ok := has(limit, "requests."+limits.RateName(class.name, w), class.value.Mode); ok {
				rate := limits.Rate{Class: class.name, Window: w, Max: int(limit.n), Mode: m, Calendar: r.calendarOf(w)}
				if w == limits.Second {
					rate.Burst = int(class.value.Burst.n)
				}
				lists.Rates = append(lists.Rates, rate)
			}
		}
	}
	for _, unit := range from.Costs.entries {
		for i, limit := range unit.value.limits() {
			w := limits.Windows[i]
			if m, ok := has(limit, "costs."+unit.name+"/"+w.String(), unit.value.Mode); ok {
				lists.Costs = append(lists.Costs, limits.Cost{Unit: unit.name, Window: w, Max: limit.n, Mode: m, Calendar: r.calendarOf(w)})
			}
		}
	}
	if m, ok := has(from.Concurrent.Limit, "concurrent", from.Concurrent.Mode); ok {
		l.Concurrent, l.ConcurrentMode = int(from.Concurrent.Limit.n), m
		lists.Except = slices.Sorted(slices.Values(from.Concurrent.Except.values()))
	}
	// Bandwidth has no dry run.
	inForce := scalar{}
	if limits.Mode(scope) == limits.DryRun {
		inForce.n = int64(limits.Off)
	}
	if _, ok := has(from.Bandwidth.Down, "bandwidth.down", inForce); ok {
		l.Bandwidth.Down = from.Bandwidth.Down.n
	}
	if _, ok := has(from.Bandwidth.Up, "bandwidth.up", inForce); ok {
		l.Bandwidth.Up = from.Bandwidth.Up.n
	}
	if limits.Mode(scope) == limits.Enforce {
		l.Bandwidth.DefaultShare = from.Bandwidth.DefaultShare.n
	}
	slices.Sort(lists.Off)
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
