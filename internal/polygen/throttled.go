package polygen

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// throttled knows until when users are throttled, for a metric. Its zero value knows
// of none.
type throttled map[string]time.Time

// addThrottles takes throttles that were decided. Those of limits in a dry run do not count.
func (t *throttled) addThrottles(set *limits.Set, throttles []ratelimit.Throttle) {
	for _, d := range throttles {
		if rateMode(set, d.Key) != limits.Enforce {
			continue
		}
		if *t == nil {
			*t = make(throttled)
		}
		user := d.Key.User
		until, known := (*t)[user]
		if !known && len(*t) >= maxKnownUsers {
			continue // the metric is too low then
		}
		if end := time.Unix(d.WindowStart+d.Key.Window.Seconds(), 0); end.After(until) {
			(*t)[user] = end
		}
	}
}

// countWithin returns how many were throttled at some time of the span until now, and
// forgets the others.
func (t throttled) countWithin(now time.Time, span time.Duration) int {
	for user, until := range t {
		if now.Sub(until) >= span {
			delete(t, user)
		}
	}
	return len(t)
}
