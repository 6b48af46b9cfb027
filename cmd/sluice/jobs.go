package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// jobTerms are the terms of background jobs, with the number of all first.
func jobTerms(j limits.Jobs) []term {
	if j.Mode == limits.Off && j.Source != limits.Builtin {
		return nil // Limits.Off has them
	}
	total := term{name: "jobs.total", amount: notLimited}
	if j.Total > 0 {
		total = term{name: total.name, amount: strconv.Itoa(j.Total)}.in(j.Mode)
	}
	all := []term{total}
	for service, n := range j.Queues {
		all = append(all, term{name: "jobs.queues." + service, amount: strconv.Itoa(n)}.in(j.Mode))
	}
	if j.Class == limits.PriorityQueues {
		all = append(all, term{name: "jobs.class", amount: j.Class})
	}
	return all
}

// jobSentence tells of all terms of jobs in one part of a sentence.
func jobSentence(all []term) string {
	var amount string
	var notes []string
	for _, t := range all {
		service, inQueue := strings.CutPrefix(t.name, "jobs.queues.")
		switch {
		case t.name == "jobs.total":
			amount, notes = t.amount, append(notes, t.notes...)
		case inQueue:
			notes = append(notes, t.amount+" in "+service)
		case t.name == "jobs.class":
			notes = append(notes, t.amount)
		}
	}
	return noted("jobs "+amount, notes)
}

// ofJobs is whether a field is about background jobs, which no request counts against.
func ofJobs(name string) bool { return name == "jobs" || strings.HasPrefix(name, "jobs.") }

// builtin says where what no file states about jobs comes from, and whether it is that.
func builtin(name, tier, defaultTier string) (source string, ok bool) {
	if !ofJobs(name) {
		return "", false
	}
	switch {
	case limits.KnowsJobs(tier):
		return "not stated: what tiers named " + tier + " have", true
	case tier != defaultTier:
		return "not stated: as in the default tier " + shown(defaultTier), true
	}
	return "not stated", true
}

// workers says how many a service's queues have.
func workers(q limits.Queue) string {
	return fmt.Sprintf("%d priority, %d default, %d scheduled", q.Priority, q.Default, q.Scheduled)
}

// queues compares the workers of queues.
func (c *comparison) queues() {
	a, b := c.before.Queues(), c.after.Queues()
	of := func(all []limits.Queue, service string) (limits.Queue, bool) {
		i := slices.IndexFunc(all, func(q limits.Queue) bool { return q.Service == service })
		if i < 0 {
			return limits.Queue{}, false
		}
		return all[i], true
	}
	services := func(all []limits.Queue) func(yield func(string) bool) {
		return func(yield func(string) bool) {
			for _, q := range all {
				if !yield(q.Service) {
					return
				}
			}
		}
	}
	for service := range union(services(a), services(b)) {
		before, was := of(a, service)
		after, is := of(b, service)
		switch {
		case !was:
			c.line("queues of %s: added: %s", service, workers(after))
		case !is:
			c.line("queues of %s: removed", service)
		case before != after:
			c.line("queues of %s: %s → %s", service, workers(before), workers(after))
		}
	}
}
