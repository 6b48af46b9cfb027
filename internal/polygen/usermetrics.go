package polygen

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// UserMetrics says which users have series of their own. The zero UserMetrics names
// nobody, so that Prometheus stays small however many users there are.
type UserMetrics struct {
	Top   int      // how many of those with most requests per second, see busiest; 0 to MaxUserMetrics
	Users []string // names of further users; at most MaxUserMetrics
}

const (
	// MaxUserMetrics bounds both ways to choose users.
	MaxUserMetrics = 100
	// topStay is how long a user who was among those with most keeps their series, so
	// that graphs have no gaps. At most twice as many are kept as there are places.
	topStay = 5 * time.Minute
	// maxUserLabel is how many bytes of a name are in a label.
	maxUserLabel = 100
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

// userCollector reads the view when Prometheus asks the polygen that leads, so that no user has series of two.
type userCollector struct {
	p     *Polygen
	names []string // of the named users

	mu  sync.Mutex
	top topUsers

	rate, progress, bytes, limit, used, limited *prometheus.Desc
}

func newUserCollector(p *Polygen, m UserMetrics) *userCollector {
	c := &userCollector{p: p, names: m.Users, top: topUsers{most: 2 * m.Top}}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"user"}, labels...), nil)
	}
	const whose = " of users with series of their own (--user-metrics), by the polygen that leads."
	c.rate = desc("sluice_user_requests_per_second", "Requests per second that were admitted, limited or not, or on average over the last minute or hour where that is more,"+whose, "tier")
	c.progress = desc("sluice_user_requests_in_progress", "Requests in progress,"+whose)
	c.bytes = desc("sluice_user_bytes_per_second", "Bytes per second moved under a bandwidth limit,"+whose, "direction")
	c.limit = desc("sluice_user_limit", "The limits, in requests or units of cost per window, requests, or bytes per second,"+whose, "limit")
	c.used = desc("sluice_user_used", "What is used of each limit, of seconds in the last full one, of longer windows in the present one,"+whose, "limit")
	c.limited = desc("sluice_user_limited", "1 if requests were refused for this reason in the last second, as polygen sees it,"+whose, "reason")
	return c
}

// MetricType is the type of all the metrics.
func (c *userCollector) MetricType() string { return "gauge" }

// Describe sends what the metrics are.
func (c *userCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.rate, c.progress, c.bytes, c.limit, c.used, c.limited} {
		ch <- d
	}
}

// Collect sends what the users use now.
func (c *userCollector) Collect(ch chan<- prometheus.Metric) {
	// Without Redis it knows only what was. A gap in a graph says so, and a line that goes on flat does not.
	if c.p.cutOff() != nil || !c.p.leads() || len(c.names) == 0 && c.top.most == 0 {
		return
	}
	said := map[string]bool{}
	rows := c.userRows()
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		label := userLabel(key)
		// A series that comes twice makes the whole scrape fail, and two names may have one label: of a hash it has
		// some digits.
		if said[label] {
			continue
		}
		said[label] = true
		c.sendUser(ch, label, rows[key])
	}
}

func (c *userCollector) sendUser(ch chan<- prometheus.Metric, who string, u userUse) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{who}, labels...)...)
	}
	gauge(c.rate, u.rate, u.Tier)
	gauge(c.progress, float64(u.InProgress))
	gauge(c.bytes, float64(u.Down), "down")
	gauge(c.bytes, float64(u.Up), "up")
	for _, l := range u.Limits {
		used := l.Used
		// The present second is cut off by the scrape at a random instant: its use would be a sawtooth.
		if l.Window == limits.Second.Seconds() && l.Last != nil {
			used = *l.Last
		}
		gauge(c.limit, float64(l.Max), l.Name)
		gauge(c.used, float64(used), l.Name)
	}
	for _, reason := range []api.Reason{api.RequestRate, api.ConcurrentRequests, api.Cost} {
		limited := 0.0
		// A dry run refuses nobody.
		if slices.ContainsFunc(u.Why, func(w api.Why) bool { return w.Reason == reason && w.Mode == limits.Enforce.String() }) {
			limited = 1
		}
		gauge(c.limited, limited, string(reason))
	}
}

// userUse is what a user uses, limited within the last second or not, and their requests
// per second.
type userUse struct {
	api.User
	rate float64
}

// userRows are the wire keys that have series, with the use of each.
func (c *userCollector) userRows() map[string]userUse {
	// Before the lock, which it takes itself.
	top := c.topKeys()
	now, seen := c.p.clock.Now(), c.p.lockDashboard()
	defer seen.mu.Unlock()
	rows := map[string]userUse{}
	read := func(key string) userUse {
		return userUse{seen.view.UserLately(now, key), seen.view.RequestRate(now, key)}
	}
	keys := keysOf(c.names)
	// Also without reports: a graph should show 0, not a gap.
	for _, key := range keys {
		rows[key] = read(key)
	}
	for _, key := range top {
		// The view may have forgotten one who was among those with most some minutes ago.
		if u := read(key); u.Seen != nil {
			rows[key] = u
		}
	}
	return rows
}

// keysOf are the keys of users by their names, sorted.
func keysOf(names []string) []string {
	var keys []string
	for _, name := range names {
		keys = append(keys, limits.KeyOf(name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// topKeys are the keys of the users who are among those with most, or were within topStay.
func (c *userCollector) topKeys() []string {
	if c.top.most == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := func(by api.Sort, n int) []api.Summary { return c.p.lookTop(c.p.clock.Now(), by, n).Tops[by] }
	return c.top.update(time.Now(), busiest(list, c.top.most/2))
}

// busiest are the keys of the n users with most requests per second. If fewer have any,
// users with most bytes follow, and then those with most requests in progress.
func busiest(list func(api.Sort, int) []api.Summary, n int) []string {
	var keys []string
	for _, by := range []struct {
		sort api.Sort
		of   func(api.Summary) float64
	}{
		{api.ByRate, func(s api.Summary) float64 { return s.Rate }},
		{api.ByDown, func(s api.Summary) float64 { return float64(s.Down) }},
		{api.ByUp, func(s api.Summary) float64 { return float64(s.Up) }},
		{api.ByConcurrent, func(s api.Summary) float64 { return float64(s.InProgress) }},
	} {
		if len(keys) == n {
			break
		}
		for _, s := range list(by.sort, n) {
			key := s.User
			// Who uses nothing is in a list only because it is not full.
			if len(keys) < n && by.of(s) > 0 && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// topUsers are the keys of those who were among the users with most within topStay; of
// too many the ones who were so last.
type topUsers struct {
	most int                  // how many are kept
	last map[string]time.Time // when each was among them
}

// update takes the users with most now, and returns all who are kept, sorted.
func (t *topUsers) update(now time.Time, top []string) []string {
	if t.last == nil {
		t.last = make(map[string]time.Time)
	}
	maps.DeleteFunc(t.last, func(_ string, at time.Time) bool { return now.Sub(at) >= topStay })
	for _, key := range top {
		t.last[key] = now
	}
	keys := slices.Sorted(maps.Keys(t.last))
	// Among users who change with each scrape those of topStay could be a hundred times as many as there are places.
	if len(keys) > t.most {
		slices.SortStableFunc(keys, func(a, b string) int { return t.last[b].Compare(t.last[a]) })
		for _, key := range keys[t.most:] {
			delete(t.last, key)
		}
		keys = keys[:t.most]
		slices.Sort(keys)
	}
	return keys
}

// userLabel is a user's name as a label: UTF-8 of at most maxUserLabel bytes.
func userLabel(name string) string {
	if utf8.ValidString(name) && len(name) <= maxUserLabel {
		return name
	}
	// Two names that are alike for so long, or once they are UTF-8, are told apart by some digits of their hashes.
	sum := sha256.Sum256([]byte(name))
	hash := "~" + hex.EncodeToString(sum[:8])
	valid := strings.ToValidUTF8(name, "\ufffd")
	end := min(len(valid), maxUserLabel-len(hash))
	// Not within a character, or the label would not be UTF-8 after all.
	for end < len(valid) && !utf8.RuneStart(valid[end]) {
		end--
	}
	return valid[:end] + hash
}
