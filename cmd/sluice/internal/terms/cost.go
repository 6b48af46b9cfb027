package terms

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const costs = "costs."

func ofCosts(l *limits.Limits) (all []Term) {
	for c := range l.Costs() {
		t := Term{Name: costs + c.Name(), Amount: FormatCount(c.Max) + " " + article(c.Window) + " " + c.Window.String(), Notes: begins(c.Window, c.Calendar)}
		all = append(all, t.withMode(c.Mode))
	}
	return all
}

// begins says when days or months begin, unless it is with those of UTC.
func begins(w limits.Window, by *limits.Calendar) []string {
	if w < limits.Day || by == nil {
		return nil
	}
	day := ""
	if w == limits.Month {
		day = fmt.Sprintf("day %d ", by.MonthStarts())
	}
	return []string{"from " + day + time.Time{}.Add(by.DayStarts()).Format("15:04") + " " + by.Zone().String()}
}

func article(w limits.Window) string {
	if w == limits.Hour {
		return "an"
	}
	return "a"
}

// costPhrase is a term of costs in a sentence, such as "20 000 tokens a minute".
func costPhrase(t Term) string {
	name := strings.TrimPrefix(t.Name, costs)
	amount, window, ok := strings.Cut(t.Amount, " a")
	if !ok {
		return name + " " + t.Value()
	}
	unit, _, _ := strings.Cut(name, "/")
	t.Amount = amount + " " + unit + " a" + window
	return t.Value()
}

func cutCost(name string) (unit string, w limits.Window) {
	unit, window, _ := strings.Cut(name, "/")
	for _, w := range limits.Windows {
		if window == w.String() {
			return unit, w
		}
	}
	return name, 0
}

// CostUnitOf is the unit of a term of costs.
func CostUnitOf(name string) (unit string, ok bool) {
	name, ok = strings.CutPrefix(name, costs)
	unit, _ = cutCost(name)
	return unit, ok
}

// FormatCount writes a number with a blank between thousands.
func FormatCount(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// DescribeCostUnit says what a unit costs whom, in one line.
func DescribeCostUnit(u limits.CostUnit) string {
	charged := "all requests"
	if u.Classes != nil {
		charged = strings.Join(u.Classes, ", ")
	}
	actual := "as estimated"
	if !u.Actual.IsZero() {
		actual = describeSource(u.Actual, "answer")
	}
	failed := map[bool]string{false: "nothing", true: "their estimate"}
	ends := failed[u.Failed4xx]
	if u.Failed4xx != u.Failed5xx {
		ends = "with 4xx " + ends + ", with 5xx " + failed[u.Failed5xx]
	}
	return fmt.Sprintf("of %s; estimate: %s; actual: %s; failed requests cost %s", charged, describeEstimate(u), actual, ends)
}

func describeEstimate(u limits.CostUnit) string {
	otherwise := FormatCount(u.Default)
	if len(u.ByClass) > 0 {
		var classes []string
		for class, n := range u.ByClass {
			classes = append(classes, class+" "+FormatCount(n))
		}
		slices.Sort(classes)
		otherwise += " (" + strings.Join(classes, ", ") + ")"
	}
	if u.Estimate.IsZero() {
		return otherwise
	}
	text := describeSource(u.Estimate, "request")
	if u.Unreadable >= 0 && len(u.Estimate.JSON) > 0 {
		text += ", " + FormatCount(u.Unreadable) + " if it cannot be read"
	}
	return text + ", else " + otherwise
}

func describeSource(s limits.CostSource, of string) string {
	if s.Header != "" {
		return "the " + of + "'s " + s.Header
	}
	which := ""
	if s.Sum {
		which = "the sum of "
	} else if len(s.JSON) > 1 {
		which = map[string]string{"request": "the largest of ", "answer": "the first of "}[of]
	}
	return which + s.JSON.String() + " in the " + of + "'s body"
}
