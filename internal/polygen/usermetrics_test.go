package polygen

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const userMetricsLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10, "*": {minute: 100}}, concurrent: 5}
  moving: {bandwidth: {down: 10MiB, up: 5MiB}}
  staff: {}
users: {mover: moving, staff: staff, dry: {tier: free, mode: dry-run}}
`

// metered is a polygen that leads, does not run, and has seen these.
func metered(t *testing.T, m UserMetrics, events func(now time.Time) []redisbus.Event) *generator {
	t.Helper()
	g := newGenerator(t, "127.0.0.1:1", "one", func(o *Options) { o.UserMetrics = m })
	g.set.Store(parse(t, userMetricsLimits))
	g.pretend(true)
	now := g.clock.Now()
	for _, e := range events(now) {
		g.showEvent(now, e)
	}
	return g
}

// A writer to Redis can name a user whom no label can have.
func TestUserMetricsOfAnOddName(t *testing.T) {
	g := metered(t, UserMetrics{Top: 5}, func(now time.Time) []redisbus.Event {
		return []redisbus.Event{redisbus.Starts{Instance: "a", Span: time.Second, Users: []redisbus.Started{{User: "\xff", Starts: 1}}}}
	})
	if got := g.series(t); len(got) == 0 || !utf8.ValidString(strings.Join(got, "")) {
		t.Errorf("series %q, want some, in UTF-8", got)
	}
}

// used is that so many requests were counted in the last second, or in the present window.
func used(now time.Time, key, class string, w limits.Window, n int) redisbus.UsageEntry {
	at := now.Unix() - 1
	if w != limits.Second {
		at = now.Unix() - now.Unix()%w.Seconds()
	}
	return redisbus.UsageEntry{Key: ratelimit.Key{User: key, Class: class, Window: w}, Second: at, Total: n}
}

// series are the user metrics in the text format, without help and type.
func (g *generator) series(t *testing.T) []string {
	t.Helper()
	families, err := g.registry.Gather()
	testkit.Must(t, err)
	var all []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "sluice_user_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all = append(all, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(f.GetName(), "sluice_user_"), strings.Join(labels, ","), m.GetGauge().GetValue()))
		}
	}
	return all
}

func TestUserMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := metered(t, UserMetrics{Users: []string{"alice", "dry", "mover", "never", "staff"}}, func(now time.Time) []redisbus.Event {
			return []redisbus.Event{
				redisbus.Usage{Entries: []redisbus.UsageEntry{
					used(now, "alice", "GET", limits.Second, 7), used(now, "alice", "*", limits.Minute, 42),
					used(now, "bob", "GET", limits.Second, 9),
				}},
				redisbus.Demand{{Instance: "a", User: "mover", Active: 2, Moved: [2]int64{bandwidth.Down: 1000, bandwidth.Up: 50}}},
			}
		})
		second := g.clock.Now().Unix()
		g.remember([]ratelimit.Throttle{{Key: ratelimit.Key{User: "alice", Class: "GET"}, WindowStart: second - 1, End: second, Limit: 10}, {Key: ratelimit.Key{User: "dry", Class: "GET"}, WindowStart: second - 1, End: second, Limit: 10}},
			concurrency.Decisions{Blocks: []concurrency.Block{{User: "dry", Limit: concurrency.Limit{Max: 5}}}})
		got := g.series(t)
		for _, want := range []string{
			`bytes_per_second{direction="down",user="mover"} 1000`,
			`bytes_per_second{direction="up",user="mover"} 50`,
			`limit{limit="GET",user="alice"} 10`,
			`limit{limit="*/minute",user="alice"} 100`,
			`limit{limit="concurrent",user="alice"} 5`,
			`limit{limit="bandwidth.down",user="mover"} 1.048576e+07`,
			`limited{reason="concurrent-requests",user="alice"} 0`,
			`limited{reason="request-rate",user="alice"} 1`,
			`limited{reason="request-rate",user="dry"} 0`,
			`limited{reason="concurrent-requests",user="dry"} 0`,
			`requests_in_progress{user="mover"} 2`,
			`requests_in_progress{user="never"} 0`,
			`requests_per_second{tier="free",user="alice"} 7`,
			`requests_per_second{tier="free",user="never"} 0`,
			`requests_per_second{tier="staff",user="staff"} 0`,
			`used{limit="GET",user="alice"} 7`,
			`used{limit="*/minute",user="alice"} 42`,
			`used{limit="bandwidth.down",user="mover"} 1000`,
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no series %s", want)
			}
		}
		for _, s := range got {
			if strings.Contains(s, `user="bob"`) {
				t.Errorf("series %s of a user who was not named", s)
			}
		}
		if t.Failed() {
			t.Logf("series:\n%s", strings.Join(got, "\n"))
		}

		if problems, err := testutil.GatherAndLint(g.registry); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		g.pretend(false)
		if got := g.series(t); len(got) > 0 {
			t.Errorf("a standby has the series %q, want none", got)
		}
	})
}

// The users with most requests have series, and keep them for a while.
func TestUserMetricsOfTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := metered(t, UserMetrics{Top: 2}, func(now time.Time) []redisbus.Event {
			return []redisbus.Event{redisbus.Usage{Entries: []redisbus.UsageEntry{
				used(now, "alice", "GET", limits.Second, 7), used(now, "bob", "GET", limits.Second, 9), used(now, "carol", "GET", limits.Second, 5),
				used(now, "alan", "GET", limits.Second, 8),
			}}}
		})
		rates := func() (of []string) {
			for _, s := range g.series(t) {
				if who, ok := strings.CutPrefix(s, "requests_per_second"); ok {
					of = append(of, who)
				}
			}
			slices.Sort(of)
			return of
		}
		want := []string{`{tier="free",user="alan"} 8`, `{tier="free",user="bob"} 9`}
		if diff := cmp.Diff(want, rates()); diff != "" {
			t.Errorf("the top (-want +got):\n%s", diff)
		}
		// Another one comes; those who were there stay.
		now := g.clock.Now()
		g.showEvent(now, redisbus.Usage{Entries: []redisbus.UsageEntry{used(now, "dave", "GET", limits.Second, 10)}})
		time.Sleep(lookFor)
		want = append(want, `{tier="free",user="dave"} 10`)
		slices.Sort(want)
		if diff := cmp.Diff(want, rates()); diff != "" {
			t.Errorf("after another one came (-want +got):\n%s", diff)
		}
		time.Sleep(topStay)
		if got := rates(); len(got) > 0 {
			t.Errorf("after five minutes without requests %q have series, want nobody", got)
		}
	})
}

func TestUserLabel(t *testing.T) {
	for _, key := range []string{"alice", "jürgen", strings.Repeat("n", 100)} {
		if got := userLabel(key); got != key {
			t.Errorf("userLabel(%q) = %q", key, got)
		}
	}
	labels := map[string]bool{}
	for _, key := range []string{"\xff", "\xfe", strings.Repeat("n", 101)} {
		label := userLabel(key)
		if !utf8.ValidString(label) || len(label) > 100 || labels[label] {
			t.Errorf("userLabel(%q) = %q, want one of its own, in UTF-8", key, label)
		}
		labels[label] = true
	}
}

// Hostile names make no answer that Prometheus cannot read, and there are never more
// series than was said.
func TestUserMetricsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range MaxUserMetrics {
			names = append(names, fmt.Sprintf("named-%d", i))
		}
		g := metered(t, UserMetrics{Top: MaxUserMetrics, Users: names}, func(now time.Time) []redisbus.Event {
			var usage []redisbus.UsageEntry
			for i := range 1000 {
				usage = append(usage, used(now, fmt.Sprintf("u\xff\"}\\%d", i), "GET", limits.Second, i+1))
			}
			return []redisbus.Event{redisbus.Usage{Entries: usage}}
		})
		rows := 0
		for _, s := range g.series(t) {
			if strings.HasPrefix(s, "requests_per_second") {
				rows++
			}
		}
		if rows != 2*MaxUserMetrics {
			t.Errorf("%d users have series, want the %d named and the %d with most", rows, MaxUserMetrics, MaxUserMetrics)
		}
	})
}

func TestUserMetricsErrors(t *testing.T) {
	for want, m := range map[string]UserMetrics{
		"metrics of the 101 users with most: want 0 to 100": {Top: 101},
		"metrics of the -1 users with most: want 0 to 100":  {Top: -1},
		"metrics of 101 users: want 100 at most":            {Users: make([]string, 101)},
		"metrics of a user without a name":                  {Users: []string{"a", ""}},
	} {
		if err := m.validate(); err == nil || err.Error() != want {
			t.Errorf("check(%+v) = %v, want %s", m, err, want)
		}
	}
	if err := errors.Join(UserMetrics{}.validate(), UserMetrics{Top: 100, Users: []string{"a"}}.validate()); err != nil {
		t.Errorf("check = %v, want nil", err)
	}
}
