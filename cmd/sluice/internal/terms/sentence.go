package terms

import (
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Describe names the limits in one line, and what departs from the defaults: how
// long a request over the limit of requests in progress waits, and the priority.
func Describe(l *limits.Limits) string {
	all := TermsOf(l)
	if len(all) > 0 && (all[0].Name == "priority" || all[0].Name == "group") {
		return NotLimited + ", " + sentence(all)
	}
	if len(all) == 0 {
		return NotLimited
	}
	return sentence(all)
}

func sentence(all []Term) string {
	var parts []string
	waits := slices.IndexFunc(all, func(t Term) bool { return t.Name == "over_limit.concurrent" })
	told := false // with the requests in progress
	for _, t := range all {
		class, isRate := strings.CutPrefix(t.Name, "requests.")
		switch {
		case isRate:
			parts = append(parts, rateName(class, t)+" "+t.Value())
		case strings.HasPrefix(t.Name, costs):
			parts = append(parts, costPhrase(t))
		case t.Name == "concurrent" && !LimitsNothing(t.Amount):
			t.Amount += " in progress"
			if told = waits >= 0; told {
				t.Notes = append(slices.Clip(t.Notes), "more "+all[waits].Value())
			}
			parts = append(parts, t.Value())
		case t.Name == "over_limit.concurrent" && told:
		case t.Name == "jobs.total":
			parts = append(parts, JobSentence(all))
		case strings.HasPrefix(t.Name, "jobs."):
		case t.Name == "bandwidth.default_share":
			parts = append(parts, "default share "+t.Value())
		default:
			parts = append(parts, strings.TrimPrefix(t.Name, "bandwidth.")+" "+t.Value())
		}
	}
	return strings.Join(parts, ", ")
}

// rateName is a rate's name for a sentence: "all" is everything together, and
// there is no window if the amount tells it.
func rateName(name string, t Term) string {
	class, w := limits.ParseRateName(name)
	if class == limits.All {
		class = "all"
	}
	if LimitsNothing(t.Amount) {
		return limits.RateName(class, w)
	}
	return class
}
