package limitfile

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How much classes and units may hold. HAProxy compares each request with all of them.
const (
	maxClasses     = 64
	maxMatches     = 16   // of a class
	maxPathBytes   = 1000 // of a path or a prefix of one
	maxValueBytes  = 200  // of a header's value
	maxUnit        = 24   // bytes of a unit's name, which has the form of a service's
	maxPathsOfCost = 8    // of a body, for one unit
)

// The forms of texts. They mean the same in Go and in ECMAScript, which JSON Schema uses.
var (
	classForm    = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)
	methodForm   = regexp.MustCompile(`^[A-Z][A-Z-]{0,31}$`)
	hostForm     = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	frontendForm = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,100}$`) // configuration.txt, section 4
	queryForm    = regexp.MustCompile(`^[A-Za-z0-9_.~:\[\]-]{1,100}$`)
	headerForm   = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
	valueForm    = regexp.MustCompile(`^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$`)
	prefixForm   = regexp.MustCompile(`^/[\x21\x22\x24-\x3e\x40-\x7e]*$`)              // neither ? nor #
	pathsForm    = regexp.MustCompile(`^/[\x21\x22\x24-\x29\x2b-\x3e\x40-\x7e]*[*]?$`) // nor *, but at the end
)

// s3Preset names the ready-made classes of an S3 service.
const s3Preset = "s3"

// checkClasses checks the operation classes, in the order of the file, because the first that
// matches is the request's.
func (f *file) checkClasses() {
	c, where := f.doc.Classes, place{field: "classes"}
	if c.preset {
		f.content.Classes = limits.S3Classes(nil)
	}
	if len(c.table.entries) > maxClasses {
		f.report(c.at, "%s has %d classes; at most %d are possible", where, len(c.table.entries), maxClasses)
	}
	for _, e := range c.table.entries {
		switch {
		case e.name == s3Preset:
			f.addS3(e)
		case limits.IsBuiltinClass(e.name):
			f.report(e.at, "%s: %s is the class of a method already; choose another name", where, e.name)
		case !classForm.MatchString(e.name):
			f.report(e.at, "%s: the name %s is not usable; write 1 to 32 capital letters, digits and _, of which the first is a letter", where, quote(e.name))
		default:
			f.addClass(e.at, limits.Class{Name: e.name, Any: f.matches(e)})
		}
	}
	f.classes = append([]string{all}, limits.BuiltinClasses()...)
	for _, c := range f.content.Classes {
		f.classes = append(f.classes, c.Name)
	}
}

func (f *file) addClass(at at, c limits.Class) {
	if slices.ContainsFunc(f.content.Classes, func(other limits.Class) bool { return other.Name == c.Name }) {
		f.report(at, "classes has the class %s twice: s3 has it", c.Name)
	}
	f.content.Classes = append(f.content.Classes, c)
}

// addS3 adds the ready-made classes of a service with some hosts.
func (f *file) addS3(e named[class]) {
	where, hosts := place{field: "classes.s3"}, []string(nil)
	for _, m := range e.value.any {
		hosts = append(hosts, m.Hosts.values()...)
		if m.said() && (!m.Hosts.said() || len(e.value.any) > 1 || m.limits().Conditions() > 1) {
			f.report(e.value.at, "%s must have hosts and nothing else; write the names of the service, such as {hosts: [s3.example.com]}", where)
		}
	}
	for _, c := range limits.S3Classes(hosts) {
		f.addClass(e.at, c)
	}
}

func (m match) limits() limits.Match {
	out := limits.Match{
		Methods: m.Methods.values(), Hosts: m.Hosts.values(), Frontends: m.Frontends.values(),
		PathPrefix: m.PathPrefix.text, PathRegex: m.PathRegex.text, Query: m.Query.values(), NoQuery: m.NoQuery.values(),
	}
	for _, h := range m.Headers.entries {
		out.Headers = append(out.Headers, limits.HeaderMatch{Name: h.name, Value: h.value.text})
	}
	return out
}

func (f *file) matches(c named[class]) (all []limits.Match) {
	where := place{of: "class " + quote(c.name)}
	for _, m := range c.value.any {
		out := m.limits()
		all = append(all, out)
		f.checkHeaders(m.Headers, where.below("headers"))
		if got := out.Conditions(); got > limits.MaxConditions {
			f.report(m.at, "%s: a match must have at most %d conditions, got %d: each key of query and each header is one, and each other field is one", where, limits.MaxConditions, got)
		}
		for name, list := range map[string]texts{"no_query": m.NoQuery, "hosts": m.Hosts, "frontends": m.Frontends} {
			if got := len(strings.Join(list.values(), " ")); got > limits.MaxMatchText {
				f.report(list.at, "%s must have at most %d bytes, got %d", where.below(name), limits.MaxMatchText, got)
			}
		}
		for _, key := range out.NoQuery {
			if slices.Contains(out.Query, key) {
				f.report(m.NoQuery.at, "%s has %s, which query has too: nothing would match", where.below("no_query"), quote(key))
			}
		}
	}
	return all
}

func (f *file) checkHeaders(headers table[scalar], where place) {
	for i, h := range headers.entries {
		if !headerForm.MatchString(h.name) {
			f.report(h.at, "%s: %s is not the name of a header", where, quote(h.name))
		}
		if slices.ContainsFunc(headers.entries[:i], func(other named[scalar]) bool { return strings.EqualFold(other.name, h.name) }) {
			f.report(h.at, "%s has %s twice, in other letters", where, quote(h.name))
		}
	}
}

// checkUnits checks what requests cost.
func (f *file) checkUnits() {
	units, where := f.doc.Costs, place{field: "costs"}
	f.units = map[string]limits.CostUnit{}
	for _, u := range units.entries {
		// A unit with errors is known too, so that limits of it are no errors.
		if f.isLowerName(u.at, u.name, where, maxUnit) {
			f.units[u.name] = f.checkUnit(u.name, &u.value, where.below(u.name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.units)) {
		f.content.CostUnits = append(f.content.CostUnits, f.units[name])
	}
}

func (f *file) checkUnit(name string, u *unit, where place) limits.CostUnit {
	if u.said() && !u.Actual.said() && !u.Estimate.said() {
		f.report(u.at, "%s has neither estimate nor actual, so that no request would cost anything; write one of them, such as estimate: {default: 1}", where)
	}
	a, e := u.Actual, u.Estimate
	for _, source := range []struct {
		at           at
		name         string
		json, header bool
	}{{a.at, "actual", a.JSON.said(), a.Header.said()}, {e.at, "estimate", e.JSON.said(), e.Header.said()}} {
		switch {
		case source.json && source.header:
			f.report(source.at, "%s has json and header; leave one of them out", where.below(source.name))
		case source.at == a.at && a.said() && !source.json && !source.header:
			f.report(a.at, "%s says nothing; write json: and the path to a number, or header: and its name", where.below("actual"))
		// Without a default, requests that leave their estimate out would pass every limit.
		case source.at == e.at && e.said() && !e.Default.said() && !e.Classes.said():
			f.report(e.at, "%s has no default; write default: and what a request costs that does not say so, 0 for nothing", where.below("estimate"))
		}
	}
	out := limits.CostUnit{
		Name: name, Default: e.Default.n, Unreadable: -1, Estimate: limits.CostSource{Header: strings.ToLower(e.Header.text), JSON: e.JSON.limits()},
		Actual:    limits.CostSource{Header: strings.ToLower(a.Header.text), JSON: a.JSON.limits()},
		Failed4xx: u.Failed.All.n+u.Failed.Of4xx.n > 0, Failed5xx: u.Failed.All.n+u.Failed.Of5xx.n > 0,
	}
	if a.JSON.Sum.said() {
		out.Actual.JSON, out.Actual.Sum = a.JSON.Sum.limits(), true
	}
	if e.Unreadable.said() {
		out.Unreadable = e.Unreadable.n
	}
	for _, path := range a.JSON.Sum.items {
		if path.said() && !path.Path.said() {
			f.report(path.at, "%s has no path; write path: and where the number is", where.below("actual.json.sum"))
		}
	}
	f.checkClassNames(u.Classes, where.below("classes"))
	out.Classes = slices.Sorted(slices.Values(u.Classes.values()))
	if e.Classes.said() {
		out.ByClass = map[string]int64{}
	}
	for _, c := range e.Classes.entries {
		if f.isClass(c.at, c.name, where.below("estimate").below("classes")) {
			out.ByClass[c.name] = c.value.n
		}
	}
	return out
}

func (p paths) limits() (all []limits.CostPath) {
	for _, item := range p.items {
		all = append(all, limits.CostPath{Names: strings.Split(item.Path.text, "."), Times: max(1, item.Times.n)})
	}
	return all
}

// checkClassNames checks a list of verbs and operation classes.
func (f *file) checkClassNames(list texts, where place) {
	for _, item := range list.items {
		f.isClass(item.at, item.text, where)
	}
}

func (f *file) isClass(at at, name string, where place) bool {
	switch {
	case name == all:
		f.report(at, `%s: "*" is no class of its own; name verbs and operation classes`, where)
	case !slices.Contains(f.classes, name):
		f.refuseUnknown(at, where, "class", name, f.classes[1:])
	default:
		return true
	}
	return false
}

// largestEstimate is the largest of those that are made for requests that do not say what they cost,
// and its field.
func largestEstimate(u limits.CostUnit) (field string, most int64) {
	// The default counts only where no class has its own number.
	if u.Classes == nil || slices.ContainsFunc(u.Classes, func(class string) bool { _, own := u.ByClass[class]; return !own }) {
		field, most = "default", u.Default
	}
	for _, class := range slices.Sorted(maps.Keys(u.ByClass)) {
		if n := u.ByClass[class]; n > most && (u.Classes == nil || slices.Contains(u.Classes, class)) {
			field, most = "classes."+class, n
		}
	}
	return field, most
}
