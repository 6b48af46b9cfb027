package polygen

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// UserMetrics says which users have series of their own. The zero UserMetrics names no user, so that Prometheus stays small
// however many users there are.
type UserMetrics struct {
	Top   int      // how many of those with most requests per second; 0 to MaxUserMetrics
	Users []string // names of further users; at most MaxUserMetrics
}

const (
	// MaxUserMetrics bounds both ways to choose users.
	MaxUserMetrics = 100
	// topStay is how long a user who was among those with most keeps the series, so that graphs have no gaps. At most twice
	// as many as there are places do.
	topStay = 5 * time.Minute
)

func (m UserMetrics) validate() error {
	if m.Top < 0 || m.Top > MaxUserMetrics {
		return fmt.Errorf("metrics of the %d users with most: want 0 to %d", m.Top, MaxUserMetrics)
	}
	if len(m.Users) > MaxUserMetrics {
		return fmt.Errorf("metrics of %d users: want %d at most", len(m.Users), MaxUserMetrics)
	}
	if slices.Contains(m.Users, "") {
		return errors.New("metrics of a user without a name")
	}
	return nil
}

type userCollector struct {
	p     *Polygen
	named []string // wire keys
	top   int

	mu     sync.Mutex
	lately map[string]time.Time // users among those with most within topStay, and when they were last

	throttled, unknown, near                    *prometheus.Desc
	rate, progress, bytes, limit, used, limited *prometheus.Desc
}

func newUserCollector(p *Polygen, m UserMetrics) *userCollector {
	c := &userCollector{p: p, top: m.Top, lately: map[string]time.Time{}}
	for _, name := range m.Users {
		c.named = append(c.named, limits.KeyOf(name))
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	c.throttled = desc("sluice_throttled_users", "Users who were over a limit of their request rate in the last second, as polygen sees it.")
	c.unknown = desc("sluice_unknown_users", "Users whom the limit file does not name, seen in the last hour.")
	c.near = desc("sluice_users_near_budget", "Users who have used 80 % or more of what their requests may cost in a day or a month, by tier and unit, by the polygen that leads; limits in a dry run aside. Beyond 200 tiers the tier is other.", "tier", "unit")
	const whose = " of users with series of their own (--user-metrics), by the polygen that leads."
	c.rate = desc("sluice_user_requests_per_second", "Requests per second that were admitted, limited or not, or on average over the last minute or hour where that is more,"+whose, "user", "tier")
	c.progress = desc("sluice_user_requests_in_progress", "Requests in progress,"+whose, "user")
	c.bytes = desc("sluice_user_bytes_per_second", "Bytes per second moved under a bandwidth limit,"+whose, "user", "direction")
	c.limit = desc("sluice_user_limit", "The limits, in requests or units of cost per window, requests, or bytes per second,"+whose, "user", "limit")
	c.used = desc("sluice_user_used", "What is used of each limit, of seconds in the last full one, of longer windows in the present one,"+whose, "user", "limit")
	c.limited = desc("sluice_user_limited", "1 if requests were refused for this reason in the last second, as polygen sees it,"+whose, "user", "reason")
	return c
}

// MetricType is the type of all the metrics.
func (c *userCollector) MetricType() string { return "gauge" }

// Describe sends what the metrics are.
func (c *userCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.throttled, c.unknown, c.near, c.rate, c.progress, c.bytes, c.limit, c.used, c.limited} {
		ch <- d
	}
}

// Collect sends what the users use now.
func (c *userCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	look := c.p.lookAtUsers(lookFor)
	gauge(c.throttled, float64(look.Totals.Throttled))
	gauge(c.unknown, float64(look.Unknown))
	// A standby would count users twice. Without Redis nothing is new, and a gap in a graph says so.
	if c.p.cutOff() != nil || !c.p.leads() {
		return
	}
	for of, n := range nearByTier(look.Near) {
		gauge(c.near, float64(n), of.Tier, of.Unit)
	}
	if c.top == 0 && len(c.named) == 0 {
		return
	}
	now := c.p.clock.Now()
	keys := c.keys(now, look)
	u := c.p.lockUsers()
	defer u.mu.Unlock()
	for _, key := range keys {
		use := u.view.UserLately(now, key)
		if use.Seen == nil && !slices.Contains(c.named, key) {
			continue // forgotten since. A named user has zeros, not a gap.
		}
		label := userLabel(key)
		gauge(c.rate, u.view.RequestRate(now, key), label, use.Tier)
		gauge(c.progress, float64(use.InProgress), label)
		gauge(c.bytes, float64(use.Down), label, "down")
		gauge(c.bytes, float64(use.Up), label, "up")
		for _, l := range use.Limits {
			used := l.Used
			// A scrape cuts the present second off at any instant.
			if l.Window == limits.Second.Seconds() && l.Last != nil {
				used = *l.Last
			}
			gauge(c.limit, float64(l.Max), label, l.Name)
			gauge(c.used, float64(used), label, l.Name)
		}
		for _, reason := range []api.Reason{api.RequestRate, api.ConcurrentRequests, api.Cost, api.LimitZero} {
			limited := 0.0
			if slices.ContainsFunc(use.Why, func(w api.Why) bool { return w.Reason == reason && w.Mode == limits.Enforce.String() }) {
				limited = 1
			}
			gauge(c.limited, limited, label, string(reason))
		}
	}
}

// keys are the wire keys with series: of the named users, and of those with most requests per second within topStay.
func (c *userCollector) keys(now time.Time, look *view.Look) []string {
	c.p.lockUsers()
	top := look.Top(api.ByRate, c.top)
	c.p.users.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.lately, func(_ string, at time.Time) bool { return now.Sub(at) >= topStay })
	for _, s := range top {
		if s.Rate > 0 {
			c.lately[s.User] = now
		}
	}
	keys := slices.SortedFunc(maps.Keys(c.lately), func(a, b string) int { return cmp.Or(c.lately[b].Compare(c.lately[a]), cmp.Compare(a, b)) })
	for _, key := range keys[min(2*c.top, len(keys)):] {
		delete(c.lately, key)
	}
	keys = append(keys[:min(2*c.top, len(keys))], c.named...)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// nearByTier counts users near their budgets under at most maxCountedTiers tiers, the same ones at each scrape.
func nearByTier(near map[view.TierUnit]int) map[view.TierUnit]int {
	counted, tiers := map[view.TierUnit]int{}, map[string]bool{}
	for _, of := range slices.SortedFunc(maps.Keys(near), func(a, b view.TierUnit) int { return cmp.Compare(a.Tier, b.Tier) }) {
		n := near[of]
		if !tiers[of.Tier] && len(tiers) >= maxCountedTiers {
			of.Tier = otherTier
		} else {
			tiers[of.Tier] = true
		}
		counted[of] += n
	}
	return counted
}

// userLabel is a wire key as a label: a hash of a key that is not UTF-8.
func userLabel(key string) string {
	if utf8.ValidString(key) && len(key) <= limits.MaxOwnKey {
		return key
	}
	return fmt.Sprintf("~%x", sha256.Sum256([]byte(key)))
}
