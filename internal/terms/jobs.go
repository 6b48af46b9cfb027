package terms

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// OfJobs are the terms of background jobs, with the number of all first.
func OfJobs(j limits.Jobs) []Term {
	if j.Mode == limits.Off && j.Source != limits.Builtin {
		return nil // Limits.OffFields has them
	}
	total := Term{Name: "jobs.total", Amount: NotLimited}
	if j.Total > 0 {
		total = Term{Name: total.Name, Amount: strconv.Itoa(j.Total)}.withMode(j.Mode)
	}
	all := []Term{total}
	for service, n := range j.Queues {
		all = append(all, Term{Name: "jobs.queues." + service, Amount: strconv.Itoa(n)}.withMode(j.Mode))
	}
	if j.Class == limits.PriorityQueues {
		all = append(all, Term{Name: "jobs.class", Amount: j.Class})
	}
	return all
}

// JobSentence tells of all terms of jobs in one part of a sentence.
func JobSentence(all []Term) string {
	var amount string
	var notes []string
	for _, t := range all {
		service, inQueue := strings.CutPrefix(t.Name, "jobs.queues.")
		switch {
		case t.Name == "jobs.total":
			amount, notes = t.Amount, append(notes, t.Notes...)
		case inQueue:
			notes = append(notes, t.Amount+" in "+service)
		case t.Name == "jobs.class":
			notes = append(notes, t.Amount)
		}
	}
	return withNotes("jobs "+amount, notes)
}

// IsOfJobs is whether a field is about background jobs, which no request counts against.
func IsOfJobs(name string) bool { return name == "jobs" || strings.HasPrefix(name, "jobs.") }

// Builtin says where what no file states about jobs comes from, and whether it is that.
func Builtin(name, tier, defaultTier string) (source string, ok bool) {
	if !IsOfJobs(name) {
		return "", false
	}
	switch {
	case limitfile.KnowsJobs(tier):
		return "not stated: what tiers named " + tier + " have", true
	case tier != defaultTier:
		return "not stated: as in the default tier " + terminal.QuoteName(defaultTier), true
	}
	return "not stated", true
}

// Workers says how many a service's queues have.
func Workers(q limits.Queue) string {
	return fmt.Sprintf("%d priority, %d default, %d scheduled", q.Priority, q.Default, q.Scheduled)
}
