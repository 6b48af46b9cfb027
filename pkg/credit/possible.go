package credit

import "github.com/sluice-qos/sluice/pkg/limits"

// Possible reports whether HAProxy can keep all of a user's limits by itself, each of so
// many instances its portion. It depends on the limit file and the number of instances
// alone, so that all agents reserve the same.
//
// HAProxy counts the requests of a second and those in progress, and holds bodies to a
// share of bandwidth that came with the credit. What needs more, only an agent can judge:
// longer windows, bursts, limits in a dry run, whose requests are counted and let
// through, requests that wait for a place, limits of costs, and priorities, which HAProxy learns with the
// agent's answer; and places that not all requests need, because HAProxy's own count has no exceptions. A user with any of these is asked about with every request.
func Possible(of *limits.Limits, instances int) bool {
	// Each limit alone may forbid it: HAProxy admits a request without asking about any of them.
	for r := range of.Rates() {
		if r.Window != limits.Second || r.Burst > 0 || r.Mode != limits.Enforce || Portion(r.Max, instances) == 0 {
			return false
		}
	}
	switch {
	case of.LimitsCosts():
		return false
	case of.Concurrent > 0 && (of.ConcurrentMode != limits.Enforce || of.Wait > 0 || len(of.Except()) > 0 || Portion(of.Concurrent, instances) == 0):
		return false
	}
	// HAProxy would queue the request without its priority.
	return of.Priority == 0
}

// PossibleKey reports whether the user of a wire key can have credit, as far as the key
// says. One that stands for many users cannot: HAProxy would have an entry for each of them.
func PossibleKey(key string) bool {
	return key != limits.UnreadableKey && !limits.IsOthers(key)
}
