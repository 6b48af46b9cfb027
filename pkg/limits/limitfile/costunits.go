package limitfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	maxUnit      = 24  // bytes of a unit's name, which has the form of a service's
	maxJSONPath  = 128 // bytes
	maxJSONNames = 8

	// The patterns mean the same in Go and in ECMAScript, which JSON Schema uses.
	jsonPathPattern = `^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,7}$`
	dayStartPattern = `^([01][0-9]|2[0-3]):[0-5][0-9]$`

	jsonPathForms   = "the names that lead to a number, with dots between them, such as usage.total_tokens: each of A-Z, a-z, 0-9, _ and -, at most 8 names and 128 bytes"
	headerNameForms = "the name of a header, such as X-Cost"
	dayStartForms   = `a time of day in UTC from "00:00" to "23:59"`
)

var (
	jsonPathForm = regexp.MustCompile(jsonPathPattern)
	dayStartForm = regexp.MustCompile(dayStartPattern)
)

// hopByHop are the headers that are about one connection: HAProxy neither gets the origin's from it
// nor sends the client's to it (RFC 9110, 7.6.1).
var hopByHop = []string{"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

// costUnit is a unit while a file is read.
type costUnit struct {
	limits.CostUnit
	dayStart time.Duration // of limits for each day
}

var failedNames = []string{"free", "estimate"}

var costUnitFields = fields[costUnit]{
	{"actual", func(f *file, u *costUnit, at place, n *yaml.Node) {
		readFields(f, &u.Actual, at, n, "{json: usage.total_tokens}, or {header: X-Cost}", sourceFields)
		f.checkSource(u.Actual, at, n)
	}},
	{"estimate", (*file).readEstimate},
	list("classes", "[CHAT, POST]", maxClasses+len(limits.BuiltinClasses()), func(u *costUnit) *[]string { return &u.Classes }, (*file).isChargedClass),
	scalar("failed", failures, func(u *costUnit) *bool { return &u.FailedCostsEstimate }),
	scalar("day_starts", dayStarts, func(u *costUnit) *time.Duration { return &u.dayStart }),
}

var sourceFields = fields[limits.CostSource]{
	scalar("json", jsonPaths, func(s *limits.CostSource) *[]string { return &s.JSON }),
	scalar("header", headerNames, func(s *limits.CostSource) *string { return &s.Header }),
}

var estimateFields = slices.Concat(fields[costUnit]{
	scalar("json", jsonPaths, func(u *costUnit) *[]string { return &u.Estimate.JSON }),
	scalar("header", headerNames, func(u *costUnit) *string { return &u.Estimate.Header }),
	scalar("default", estimates, func(u *costUnit) *int64 { return &u.Default }),
	{"classes", (*file).readEstimateOfClasses},
})

var (
	jsonPaths   = kind[[]string]{forms: jsonPathForms, text: true, silent: true, parse: parseJSONPath}
	headerNames = kind[string]{forms: headerNameForms, text: true, silent: true, parse: parseHeaderName}
	dayStarts   = kind[time.Duration]{forms: dayStartForms, text: true, silent: true, parse: parseDayStart}
	failures    = kind[bool]{forms: "free or estimate", silent: true, parse: func(s string) (bool, error) {
		i := slices.Index(failedNames, s)
		if i < 0 {
			return false, fmt.Errorf("must be one of these: %s", choices(s, failedNames))
		}
		return i == 1, nil
	}}
)

// readCostUnits reads the units that requests cost.
func (f *file) readCostUnits(where place, n *yaml.Node) {
	// From here on tiers that name a unit are judged by what is declared, even if that is nothing.
	f.units = map[string]costUnit{}
	if n.Kind == yaml.MappingNode && (len(n.Content) == 0 || len(n.Content)/2 > limits.MaxCostUnits) {
		f.errorf(n, "%s must have 1 to %d units, got %d", where, limits.MaxCostUnits, len(n.Content)/2)
		return
	}
	for key, value := range f.eachEntry(n, where, "{tokens: {estimate: {default: 1000}, actual: {header: X-Cost}}}") {
		if !serviceForm.MatchString(key.Value) || len(key.Value) > maxUnit {
			f.errorf(key, "%s: the name %s is not usable; write 1 to %d of a-z and 0-9, with single _ or - between them", where, quote(key.Value), maxUnit)
			continue
		}
		// Also one with errors is known, so that tiers that limit it are not errors as well.
		unit := f.readCostUnit(key.Value, where.below(key.Value), value)
		f.units[key.Value] = unit
		f.content.CostUnits = append(f.content.CostUnits, unit.CostUnit)
	}
	slices.SortFunc(f.content.CostUnits, func(a, b limits.CostUnit) int { return strings.Compare(a.Name, b.Name) })
}

func (f *file) readCostUnit(name string, at place, n *yaml.Node) costUnit {
	u := costUnit{CostUnit: limits.CostUnit{Name: name}}
	found := f.count()
	readFields(f, &u, at, n, "{estimate: {default: 1000}, actual: {header: X-Cost}}", costUnitFields)
	slices.Sort(u.Classes)
	if f.count() == found && lookup(n, "actual") == nil && lookup(n, "estimate") == nil {
		f.errorf(n, "%s has neither estimate nor actual, so that no request would cost anything; write one of them, such as estimate: {default: 1}", at)
	}
	return u
}

// checkSource checks that a cost is read in one place: in two it could be two numbers.
func (f *file) checkSource(s limits.CostSource, at place, n *yaml.Node) {
	switch header, json := lookup(n, "header"), lookup(n, "json"); {
	case header != nil && json != nil:
		f.errorf(n, "%s has json and header; leave one of them out", at)
	case n.Kind == yaml.MappingNode && header == nil && json == nil && s.IsZero():
		f.errorf(n, "%s says nothing; write json: and the path to a number, or header: and its name", at)
	}
}

// readEstimate reads where a request says its cost, and what counts if it does not.
func (f *file) readEstimate(u *costUnit, at place, n *yaml.Node) {
	readFields(f, u, at, n, "{json: max_tokens, default: 1000}", estimateFields)
	switch {
	case n.Kind != yaml.MappingNode:
	case lookup(n, "json") != nil && lookup(n, "header") != nil:
		f.errorf(n, "%s has json and header; leave one of them out", at)
	// Else a client that leaves its estimate out would pass every limit, again and again at once.
	case lookup(n, "default") == nil && lookup(n, "classes") == nil:
		f.errorf(n, "%s has no default; write default: and what a request costs that does not say so, 0 for nothing", at)
	}
}

// readEstimateOfClasses reads estimates by class.
func (f *file) readEstimateOfClasses(u *costUnit, at place, n *yaml.Node) {
	for key, value := range f.eachEntry(n, at, "{CHAT: 4000, GET: 0}") {
		if !f.isChargedClass(key, at) {
			continue
		}
		var estimate int64
		estimates.read(f, &estimate, at.below(key.Value), value)
		if u.ByClass == nil {
			u.ByClass = map[string]int64{}
		}
		u.ByClass[key.Value] = estimate
	}
}

// isChargedClass reports whether a class is one that a request can be of.
func (f *file) isChargedClass(n *yaml.Node, at place) bool {
	if n.Value == limits.All {
		f.errorf(n, `%s: "*" is no class of its own; without classes every request counts, and default is the estimate of those that are not named`, at)
		return false
	}
	if slices.Contains(f.classNames, n.Value) {
		return true
	}
	f.refuseUnknown(n, at, "class", slices.DeleteFunc(slices.Clone(f.classNames), func(name string) bool { return name == limits.All }))
	return false
}

// largestEstimate is the largest of those that are made for requests that do not say what they cost,
// and its field.
func (u costUnit) largestEstimate() (field string, most int64) {
	// The default counts only where no class has its own number.
	if u.Classes == nil || slices.ContainsFunc(u.Classes, func(class string) bool { _, own := u.ByClass[class]; return !own }) {
		field, most = "default", u.Default
	}
	for _, class := range u.chargedClasses() {
		if n := u.ByClass[class]; n > most {
			field, most = "classes."+class, n
		}
	}
	return field, most
}

// chargedClasses are the classes with estimates of their own whose requests cost the unit, sorted.
func (u costUnit) chargedClasses() (all []string) {
	for class := range u.ByClass {
		if u.Classes == nil || slices.Contains(u.Classes, class) {
			all = append(all, class)
		}
	}
	// Of two that are the same the error names the first.
	slices.Sort(all)
	return all
}

// parseJSONPath reads names with dots between them.
func parseJSONPath(s string) ([]string, error) {
	if len(s) > maxJSONPath || !jsonPathForm.MatchString(s) {
		return nil, fmt.Errorf("must be %s, got %s", jsonPathForms, quote(s))
	}
	return strings.Split(s, "."), nil
}

// parseHeaderName reads the name of a header in small letters, as HTTP/2 sends it.
func parseHeaderName(s string) (string, error) {
	lower := strings.ToLower(s)
	switch {
	case !headerForm.MatchString(s):
		return "", fmt.Errorf("must be %s, got %s", headerNameForms, quote(s))
	case slices.Contains(hopByHop, lower):
		return "", fmt.Errorf("must not be %s, which is about one connection and does not reach the other side", s)
	}
	return lower, nil
}

// parseDayStart reads a time of day.
func parseDayStart(s string) (time.Duration, error) {
	if !dayStartForm.MatchString(s) {
		return 0, fmt.Errorf("must be %s, got %s", dayStartForms, quote(s))
	}
	t, err := time.Parse("15:04", s)
	if err != nil {
		return 0, errors.New("must be " + dayStartForms) // cannot be: the form has no other times
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}
