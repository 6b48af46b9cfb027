package polygen

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// throttled knows until when users are throttled, for a metric. Its zero value knows
// of none.
type throttled map[string]time.Time

// addThrottles takes throttles that were decided.
func (t *throttled) addThrottles(set *limits.Set, throttles []ratelimit.Throttle) {
	for _, d := range throttles {
		// Nobody is refused for a dry run, and the metric is of users who are.
		if rateMode(set, d.Key) != limits.Enforce {
			continue
		}
		if *t == nil {
			*t = make(throttled)
		}
		user := d.Key.User
		until, known := (*t)[user]
		// The metric is too low then, as its help says.
		if !known && len(*t) >= maxKnownUsers {
			continue
		}
		// A user may be throttled by a second and by an hour, and is so until both have ended.
		if end := time.Unix(d.WindowStart+d.Key.Window.Seconds(), 0); end.After(until) {
			(*t)[user] = end
		}
	}
}

// countWithin returns how many were throttled at some time of the span until now, and
// forgets the others.
func (t throttled) countWithin(now time.Time, span time.Duration) int {
	// A throttle of a second ends with it, and most begin late in it: counted by the instant, once a second, nearly
	// all would be missed.
	for user, until := range t {
		if now.Sub(until) >= span {
			delete(t, user)
		}
	}
	return len(t)
}
