package limits

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

const (
	// MaxCost is the largest limit, and the largest cost of one request. A thousand times as
	// much is below 2^53, up to which Redis' scripts and HAProxy count exactly.
	MaxCost = 1_000_000_000_000
	// MaxCostTimes is the largest number by which a part of a cost is multiplied.
	MaxCostTimes = 1_000_000
	// MaxCostUnits bounds the units of a file: HAProxy has variables for no more.
	MaxCostUnits = 4
)

// CostUnit is something that requests cost, such as tokens of a language model, and where it
// is read how much of it one costs. A request reserves its estimate when it starts; the
// answer may say what it really cost.
type CostUnit struct {
	Name    string   // 1 to 24 of a-z, 0-9, and single _ and - between them
	Classes []string // whose requests cost it, verbs and operation classes, sorted; nil: all requests

	// Estimate is where a request says what it will cost at most, the largest that is found; the zero
	// CostSource: nowhere.
	Estimate CostSource

	Unreadable int64            // the estimate of a request whose body cannot be read; -1 if the file does not say
	Default    int64            // the estimate of a request that does not say; 0: it costs nothing until the answer says so
	ByClass    map[string]int64 // takes the place of Default for a verb or an operation class, which comes first

	// Actual is where an answer says what the request cost, the first that is found or their sum; the
	// zero CostSource: nowhere, so that estimates stand.
	Actual CostSource

	// Failed4xx and Failed5xx charge requests that the origin answers with such a status, without
	// saying what they cost, their estimate. Otherwise they cost nothing.
	Failed4xx, Failed5xx bool
}

// CostSource is where in a request or an answer a cost is: in a header, or in a body of
// JSON. The zero CostSource is nowhere.
type CostSource struct {
	Header string    // its name, in small letters
	JSON   CostPaths // of the body
	Sum    bool      // the numbers of all paths count together
}

// CostPaths are the places in a body where a cost may be.
type CostPaths []CostPath

// String is the paths as in the limit file, with commas between them.
func (p CostPaths) String() string {
	var all []string
	for _, path := range p {
		text := strings.Join(path.Names, ".")
		if path.Times > 1 {
			text += " × " + strconv.FormatInt(path.Times, 10)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// CostPath is the path to a number in a body: usage.total_tokens is {"usage", "total_tokens"}.
type CostPath struct {
	Names []string
	Times int64 // by what the number is multiplied in a sum: 1 to MaxCostTimes
}

// IsZero reports whether nothing is read.
func (s CostSource) IsZero() bool { return s.Header == "" && len(s.JSON) == 0 }

// EstimateOf is what a request costs by its classes alone.
func (u *CostUnit) EstimateOf(verb, op string) int64 {
	for _, class := range [...]string{op, verb} {
		if n, ok := u.ByClass[class]; ok && class != "" {
			return n
		}
	}
	return u.Default
}

// MostEstimate is what a request costs that may be of any class.
func (u *CostUnit) MostEstimate() int64 {
	most := u.Default
	for _, n := range u.ByClass {
		most = max(most, n)
	}
	return most
}

// ByOperation reports whether requests of an operation class cost this unit, and not all do.
func (u *CostUnit) ByOperation() bool {
	return slices.ContainsFunc(u.Classes, func(class string) bool { return !slices.Contains(classes[:], class) })
}

// Charges reports whether requests of a verb and an operation class, "" if there is none,
// cost this unit.
func (u *CostUnit) Charges(verb, op string) bool {
	return u.Classes == nil || slices.Contains(u.Classes, verb) || op != "" && slices.Contains(u.Classes, op)
}

// Cost is a limit of what requests cost: at most Max of a unit in each Window, summed over
// the cluster.
type Cost struct {
	Unit   string // the name of a CostUnit of the Set
	Window Window
	Max    int64 // up to MaxCost; 0 refuses every request that costs the unit

	Mode Mode // Enforce or DryRun

	Calendar *Calendar // when days and months begin; nil for UTC
}

// Bounds is when the window begins and ends that a second is in, all in seconds since the epoch.
func (c Cost) Bounds(second int64) (begin, end int64) { return c.Calendar.Bounds(c.Window, second) }

// MaxCosts is the largest number of limits that one request counts against.
const MaxCosts = MaxCostUnits * len(Windows)

// Name is the limit's name for people and in the RateLimit fields, such as "tokens/day".
// Unlike that of a Rate it always has the window: a unit's name could be a class.
func (c Cost) Name() string { return c.Unit + "/" + c.Window.String() }

// ParseCostName takes a limit's name apart again. Without a window's name behind a slash, all
// of it is the unit and the window is a Second.
func ParseCostName(name string) (unit string, w Window) { return parseName(name, Windows[:]) }

// WindowStart is when the window begins that a second, since the epoch, is in.
func (c Cost) WindowStart(second int64) int64 { begin, _ := c.Bounds(second); return begin }

// Previous is when the window before that one begins.
func (c Cost) Previous(second int64) int64 { return c.Calendar.Previous(c.Window, second) }

// Costs is every limit of what requests cost, sorted by unit and window.
func (l *Limits) Costs() iter.Seq[Cost] { return slices.Values(l.lists().Costs) }

// LimitsCosts reports whether there is any.
func (l *Limits) LimitsCosts() bool { return len(l.lists().Costs) > 0 }

// CostUnit returns a unit of the file, or nil. Callers must not modify it.
func (s *Set) CostUnit(name string) *CostUnit {
	for i := range s.content.CostUnits {
		if u := &s.content.CostUnits[i]; u.Name == name {
			return u
		}
	}
	return nil
}

// CostUnits returns the units that the file declares, sorted by name. Callers must not
// modify what they hold.
func (s *Set) CostUnits() []CostUnit { return slices.Clone(s.content.CostUnits) }
