package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// costView is what requests cost. The zero costView is for files in which nothing does.
type costView struct {
	Units  []costUnit
	All    string // the numbers of the units that all requests cost, separated by commas
	Bodies bool   // some cost is in bodies of answers

	Estimated   bool // some estimate is in bodies of requests
	ByOperation bool // some unit is charged by the request's operation class
}

// costUnit is a unit; its number is its place in the list.
type costUnit struct {
	Number                       int
	Name                         string
	Classes                      string // whose requests cost something: verbs or operation classes, for no name is both; empty: all
	If                           string // the condition that a request costs something, behind a blank
	EstimateHeader, EstimateJSON string // what a request says that it will cost
	Header, JSON                 string // what an answer says that it did cost
	Document                     string // the regular expression of JSON, quoted
	FailedFree                   bool   // a request that was not served costs nothing
	ByOperation                  bool   // Classes has an operation class
}

var (
	unitName  = regexp.MustCompile(`^[a-z0-9]+(?:[_-][a-z0-9]+)*$`)
	costField = regexp.MustCompile(`^[a-z0-9_-]{1,100}$`)
	// Keys that neither a JSON path of HAProxy nor one of lua/costs.lua takes for something else.
	costKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
)

// newCostView is for these units, sorted by name.
func newCostView(units []limits.CostUnit) (costView, error) {
	var v costView
	if len(units) > limits.MaxCostUnits {
		return v, fmt.Errorf("%d units of costs: want %d at most", len(units), limits.MaxCostUnits)
	}
	var names, all []string
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	for i, u := range units {
		if err := checkCostUnit(u); err != nil {
			return v, fmt.Errorf("unit of costs %q: %w", u.Name, err)
		}
		names = append(names, u.Name)
		unit := costUnit{
			Number: i, Name: u.Name, EstimateHeader: u.Estimate.Header, EstimateJSON: u.Estimate.JSON.String(),
			Header: u.Actual.Header, JSON: u.Actual.JSON.String(), FailedFree: !u.Failed4xx, ByOperation: u.ByOperation(),
		}
		v.ByOperation = v.ByOperation || unit.ByOperation
		if u.Classes == nil {
			all = append(all, strconv.Itoa(i))
		} else {
			unit.Classes, unit.If = strings.Join(u.Classes, " "), fmt.Sprintf(" sluice_costs_%d", i)
		}
		if unit.EstimateHeader != "" {
			unit.EstimateJSON = ""
		}
		v.Estimated = v.Estimated || unit.EstimateJSON != ""
		if unit.JSON != "" {
			unit.Document, v.Bodies = quoted.Replace(documentCost(u.Actual.JSON[0].Names)), true
		}
		v.Units = append(v.Units, unit)
	}
	// The agent hears the numbers of variables, and goes by the list of names.
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) < len(names) {
		return v, fmt.Errorf("units of costs %q: want each once, sorted", names)
	}
	v.All = strings.Join(all, ",")
	return v, nil
}

func checkCostUnit(u limits.CostUnit) error {
	if !unitName.MatchString(u.Name) {
		return errors.New("want a-z, 0-9, and single _ and - between them")
	}
	for _, source := range []limits.CostSource{u.Estimate, u.Actual} {
		if source.Header != "" && !costField.MatchString(source.Header) {
			return fmt.Errorf("header %q: want 1 to 100 of a-z, 0-9, _ and -", source.Header)
		}
		if len(source.JSON) > 1 || source.Sum {
			return fmt.Errorf("%s: HAProxy reads one path; lists and sums are not read yet", source.JSON)
		}
		for _, path := range source.JSON {
			for _, key := range path.Names {
				if !costKey.MatchString(key) {
					return fmt.Errorf("key %q: want 1 to 100 letters, digits, _ and -", key)
				}
			}
		}
	}
	if u.Failed4xx != u.Failed5xx {
		return errors.New("failed: HAProxy charges 4xx and 5xx alike; different costs are not charged yet")
	}
	for _, class := range u.Classes {
		if !className.MatchString(class) {
			return fmt.Errorf("class %q: want a verb, or 1 to 32 of A-Z, 0-9 and _, the first a letter", class)
		}
	}
	return nil
}

// documentCost is a regular expression for the end of a JSON document, from the path's first key on, that has the cost in
// its group. All that is open there has to end behind it, so the keys are where the path says. It does not match
// where a later number could be at the path, which would count instead: where one of its keys comes once more, or one beside them is
// written with escapes; nor a cost of 13 digits. Nothing in it gives back what it has matched, and an attempt ends at the next first key at the latest: so
// it looks at each byte a few times at most, whatever the document is.
func documentCost(path []string) string {
	const space = `\s*+`
	key := func(name string) string { return `"` + name + `"` + space + `:` + space }
	first := `"` + path[0] + `"`
	text := `(?!` + first + `)"[^"\\]*+(?:\\.[^"\\]*+)*+"`
	// Whatever is in brackets, balanced, and a member of an object whose key is not the next one of the path.
	nested := `(?<nested>[{\[](?:[^"{}\[\]]++|` + text + `|(?&nested))*+[}\]])`
	value := `(?:[^"{}\[\],\s]++|` + text + `|(?&nested))`
	member := func(not string) string {
		return `(?!` + first + `|"` + not + `")"[^"\\]*+"` + space + `:` + space + value + space
	}
	before, behind := "", ""
	for i, name := range path {
		if i > 0 {
			before += `\{` + space + `(?:` + member(name) + `,` + space + `)*+`
		}
		before += key(name)
		behind = space + `(?:,` + space + member(name) + `)*+\}` + behind
	}
	return `(?(DEFINE)` + nested + `)(?<=[{,\s])` + before + `(0|[1-9][0-9]{0,11})` + behind + space + `\z`
}
