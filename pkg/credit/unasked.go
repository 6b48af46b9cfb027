package credit

import "github.com/sluice-qos/sluice/pkg/limits"

// Unasked is what one of the instances may admit of a user about whom nobody could be
// asked, because its agent is down or late: requests in a second, all classes together,
// and requests in progress. It is the instance's even part of the lowest limits, and 0
// where there is none. It is for a short time, so that longer windows are left out, and a
// burst may be used. Limits of 0 are left out, because they are about one class.
func Unasked(of *limits.Limits, instances int) (requests, places int) {
	for r := range of.Rates() {
		if r.Window != limits.Second || r.Max == 0 || r.Mode != limits.Enforce {
			continue
		}
		// At least 1: for a moment a user with a limit of 1 may have one request on each instance.
		if part := max(1, (r.Max+r.Burst)/max(1, instances)); requests == 0 || part < requests {
			requests = part
		}
	}
	if of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce {
		places = max(1, of.Concurrent/max(1, instances))
	}
	return requests, places
}
