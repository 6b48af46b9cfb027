package terms

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	ofService     = "jobs.queues."         // begins the names of terms of services
	ofEachService = ofService + limits.All // the term of each service that has none of its own
)

// OfJobs are the terms of background jobs, with the number of all first.
func OfJobs(j limits.Jobs) []Term {
	if j.Mode == limits.Off {
		if j.Source != limits.Builtin {
			return nil // Limits.OffFields has them
		}
		j.Total, j.Queues = 0, nil
	}
	total := Term{Name: "jobs.total", Amount: NotLimited}
	if j.Total > 0 {
		total = Term{Name: total.Name, Amount: strconv.Itoa(j.Total)}.withMode(j.Mode)
	}
	all := []Term{total}
	for _, service := range slices.Sorted(maps.Keys(j.Queues)) {
		n := j.Queues[service]
		t := Term{Name: ofService + service, Amount: NotLimited}
		if n > 0 {
			t = Term{Name: t.Name, Amount: strconv.Itoa(n)}.withMode(j.Mode)
		}
		all = append(all, t)
	}
	if j.Class == limits.PriorityQueues {
		all = append(all, Term{Name: "jobs.class", Amount: j.Class})
	}
	return all
}

// JobSentence tells of all terms of jobs in one part of a sentence.
func JobSentence(all []Term) string {
	var total, each, class Term
	var services []string
	for _, t := range all {
		service, inQueue := strings.CutPrefix(t.Name, ofService)
		switch {
		case t.Name == "jobs.total":
			total = t
		case t.Name == ofEachService:
			each = t
		case inQueue:
			services = append(services, t.Amount+" in "+service)
		case t.Name == "jobs.class":
			class = t
		}
	}
	amount := total.Amount
	notes := slices.Concat(total.Notes, services)
	switch {
	// In the place of a total: to begin with "not limited" would say that nothing is.
	case each.Name != "" && LimitsNothing(amount):
		amount, notes = each.Amount+" in each service", slices.Concat(each.Notes, services)
	case each.Name != "" && len(services) > 0:
		notes = append(notes, each.Amount+" in each other service")
	case each.Name != "":
		notes = append(notes, each.Amount+" in each service")
	}
	if class.Name != "" {
		notes = append(notes, class.Amount)
	}
	return withNotes("jobs "+amount, notes)
}

// IsOfJobs is whether a field is about background jobs, which no request counts against.
func IsOfJobs(name string) bool { return name == "jobs" || strings.HasPrefix(name, "jobs.") }

// Builtin says where what no file states about jobs comes from, and whether it is that. all
// are the terms that the name is one of.
func Builtin(name, tier, defaultTier string, all []Term) (source string, ok bool) {
	if !IsOfJobs(name) {
		return "", false
	}
	switch {
	case name == "jobs.total" && hasTerm(all, ofEachService):
		return "not stated: " + ofEachService + " is in its place", true
	case limitfile.KnowsJobs(tier):
		return "not stated: what tiers named " + tier + " have", true
	case tier != defaultTier:
		return "not stated: as in the default tier " + terminal.QuoteName(defaultTier), true
	}
	return "not stated", true
}

// Workers says of each service, and of each tier and user with workers of their own, what they
// are called in a sentence and how many there are, in the order of the set.
func Workers(set *limits.Set) iter.Seq2[string, string] {
	return func(yield func(of, number string) bool) {
		for _, q := range set.Queues() {
			if !yield("queues of "+q.Service, fmt.Sprintf("%d priority, %d default, %d scheduled", q.Priority, q.Default, q.Scheduled)) {
				return
			}
		}
		for _, d := range set.Dedicated() {
			if !yield("workers for "+whom(d)+" alone", dedicated(d)+" in the queues of each service") {
				return
			}
		}
	}
}

// DedicatedTo says which workers take the jobs of a user with a key and no others, with the
// line of a file that says so, once for each class of queues.
func DedicatedTo(set *limits.Set, tier, key, file string) (all []string) {
	for _, class := range []string{limits.PriorityQueues, limits.DefaultQueues, limits.ScheduledQueues} {
		for _, d := range set.Dedicated() {
			if _, ok := d.Workers()[set.QueueClass(class, tier, key)]; ok {
				all = append(all, fmt.Sprintf("%s jobs have workers of their own, in the queues SERVICE_%s, for %s (%s:%d)", class, set.QueueClass(class, tier, key), whom(d), file, d.Line))
			}
		}
	}
	return all
}

func whom(d limits.Dedicated) string {
	if d.User != "" {
		return "user " + d.User
	}
	return "tier " + d.Tier
}

func dedicated(d limits.Dedicated) string {
	var parts []string
	for _, class := range []string{limits.PriorityQueues, limits.DefaultQueues, limits.ScheduledQueues} {
		if n := d.Of(class); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, class))
		}
	}
	return strings.Join(parts, ", ")
}
