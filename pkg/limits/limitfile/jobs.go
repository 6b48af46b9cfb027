package limitfile

import "github.com/sluice-qos/sluice/pkg/limits"

// builtinJobs are what tiers of these names have if they do not say.
var builtinJobs = map[string]limits.Jobs{
	"free":       {Total: 1, Class: limits.DefaultQueues},
	"pro":        {Total: 3, Class: limits.PriorityQueues},
	"pro_plus":   {Total: 3, Class: limits.PriorityQueues},
	"enterprise": {Total: 5, Class: limits.PriorityQueues},
}

// KnowsJobs reports whether tiers of this name have a number of jobs of their own if the
// file does not say.
func KnowsJobs(tier string) bool { _, ok := builtinJobs[tier]; return ok }

// otherJobs are those of a default tier of another name.
var otherJobs = limits.Jobs{Total: 1, Class: limits.DefaultQueues}

// jobsOver completes what a tier says of jobs, nil if nothing, from those of the default
// tier. Queues that are nil say nothing.
func jobsOver(j *limits.Jobs, name string, defaults limits.Jobs) limits.Jobs {
	known, ok := builtinJobs[name]
	if !ok {
		known = limits.Jobs{Total: defaults.Total, Queues: defaults.Queues, Class: limits.DefaultQueues}
	}
	if j == nil {
		return known
	}
	out := *j
	if out.Source == limits.Builtin {
		out.Total = known.Total
		if out.Queues == nil {
			out.Queues = known.Queues
		}
	}
	if len(out.Queues) == 0 {
		out.Queues = nil
	}
	if out.Class == "" {
		out.Class = known.Class
	}
	return out
}

// jobsIn is what is left of limits of jobs in a mode, and the fields that are off.
func jobsIn(j limits.Jobs, m limits.Mode) (out limits.Jobs, off []string) {
	out = j
	out.Mode = m
	if len(j.Queues) == 0 {
		out.Queues = nil
	}
	if m != limits.Off {
		return out, nil
	}
	if j.Source != limits.Builtin && j.Total > 0 {
		off = append(off, "jobs.total")
		for service := range j.Queues {
			off = append(off, "jobs.queues."+service)
		}
	}
	out.Total, out.Queues = 0, nil
	return out, off
}
