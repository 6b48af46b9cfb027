package limitfile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	maxUnit     = 24  // bytes of a unit's name, which has the form of a service's
	maxJSONPath = 128 // bytes

	jsonPathForms   = "the names that lead to a number, with dots between them, such as usage.total_tokens: each of A-Z, a-z, 0-9, _ and -, at most 8 names and 128 bytes"
	headerNameForms = "the name of a header, such as X-Cost"
)

var (
	jsonPathForm = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,7}$`)
	failedNames  = []string{"free", "estimate"}
)

// hopByHop are the headers that are about one connection: HAProxy neither gets the origin's from it
// nor sends the client's to it (RFC 9110, 7.6.1).
var hopByHop = []string{"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

var (
	jsonPaths   = kind[[]string]{forms: jsonPathForms, text: true, parse: parseJSONPath}
	headerNames = kind[string]{forms: headerNameForms, text: true, parse: parseHeaderName}
	failures    = kind[bool]{forms: "free or estimate", parse: func(s string) (bool, error) {
		if !slices.Contains(failedNames, s) {
			return false, fmt.Errorf("must be one of these: %s", choices{s, failedNames})
		}
		return s == "estimate", nil
	}}
)

type costUnit struct{ limits.CostUnit }

func (f *file) readCostUnits(where place, n *yaml.Node) {
	f.units = map[string]costUnit{}
	if !f.isSized(n, where, limits.MaxCostUnits, "units") {
		return
	}
	for key, value := range f.eachEntry(n, where, "{tokens: {estimate: {default: 1000}, actual: {header: X-Cost}}}") {
		// A unit with errors is known too, so that limits of it are no errors.
		if f.isLowerName(key, where, maxUnit) {
			f.units[key.Value] = f.readCostUnit(key.Value, where.below(key.Value), value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.units)) {
		f.content.CostUnits = append(f.content.CostUnits, f.units[name].CostUnit)
	}
}

func (f *file) readCostUnit(name string, where place, n *yaml.Node) costUnit {
	u := costUnit{CostUnit: limits.CostUnit{Name: name}}
	before := f.count()
	f.readFields(n, where, "{estimate: {default: 1000}, actual: {header: X-Cost}}",
		field{"actual", func(at place, n *yaml.Node) { f.readActual(&u.Actual, at, n) }},
		field{"estimate", func(at place, n *yaml.Node) { f.readEstimate(&u.CostUnit, at, n) }},
		field{"classes", f.texts(&u.Classes, "[CHAT, POST]", maxClasses+len(limits.BuiltinClasses()), f.isChargedClass)},
		field{"failed", into(f, &u.FailedCostsEstimate, failures)})
	slices.Sort(u.Classes)
	if f.count() == before && lookup(n, "actual") == nil && lookup(n, "estimate") == nil {
		f.errorf(n, "%s has neither estimate nor actual, so that no request would cost anything; write one of them, such as estimate: {default: 1}", where)
	}
	return u
}

// readActual reads where an answer has the cost: one place, because two could be two numbers.
func (f *file) readActual(s *limits.CostSource, where place, n *yaml.Node) {
	f.readFields(n, where, "{json: usage.total_tokens}, or {header: X-Cost}",
		field{"json", into(f, &s.JSON, jsonPaths)}, field{"header", into(f, &s.Header, headerNames)})
	if !f.hasTwoSources(where, n) && n.Kind == yaml.MappingNode && lookup(n, "header") == nil && lookup(n, "json") == nil {
		f.errorf(n, "%s says nothing; write json: and the path to a number, or header: and its name", where)
	}
}

func (f *file) hasTwoSources(where place, n *yaml.Node) bool {
	two := lookup(n, "json") != nil && lookup(n, "header") != nil
	if two {
		f.errorf(n, "%s has json and header; leave one of them out", where)
	}
	return two
}

// readEstimate reads where a request has its cost, and what counts otherwise.
func (f *file) readEstimate(u *limits.CostUnit, where place, n *yaml.Node) {
	byClass := func(at place, n *yaml.Node) {
		u.ByClass = map[string]int64{}
		for key, value := range f.eachEntry(n, at, "{CHAT: 4000, GET: 0}") {
			if f.isChargedClass(key, at) {
				u.ByClass[key.Value], _ = read(f, estimates, at.below(key.Value), value)
			}
		}
	}
	f.readFields(n, where, "{json: max_tokens, default: 1000}",
		field{"json", into(f, &u.Estimate.JSON, jsonPaths)}, field{"header", into(f, &u.Estimate.Header, headerNames)},
		field{"default", into(f, &u.Default, estimates)}, field{"classes", byClass})
	// Without a default, requests that leave their estimate out would pass every limit.
	if !f.hasTwoSources(where, n) && n.Kind == yaml.MappingNode && lookup(n, "default") == nil && lookup(n, "classes") == nil {
		f.errorf(n, "%s has no default; write default: and what a request costs that does not say so, 0 for nothing", where)
	}
}

func (f *file) isChargedClass(n *yaml.Node, at place) bool {
	switch {
	case n.Value == limits.All:
		f.errorf(n, `%s: "*" is no class of its own; without classes every request counts, and default is the estimate of those that are not named`, at)
	case !slices.Contains(f.classes, n.Value):
		f.refuseUnknown(n, at, "class", slices.DeleteFunc(slices.Clone(f.classes), func(name string) bool { return name == limits.All }))
	default:
		return true
	}
	return false
}

// largestEstimate is the largest of those that are made for requests that do not say what they cost,
// and its field.
func (u costUnit) largestEstimate() (field string, most int64) {
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

func parseJSONPath(s string) ([]string, error) {
	if len(s) > maxJSONPath || !jsonPathForm.MatchString(s) {
		return nil, mustBe(jsonPathForms, s)
	}
	return strings.Split(s, "."), nil
}

// parseHeaderName reads the name of a header in small letters, as HTTP/2 sends it.
func parseHeaderName(s string) (string, error) {
	lower := strings.ToLower(s)
	switch {
	case !headerForm.MatchString(s):
		return "", mustBe(headerNameForms, s)
	case slices.Contains(hopByHop, lower):
		return "", fmt.Errorf("must not be %s, which is about one connection and does not reach the other side", s)
	}
	return lower, nil
}
