package polygen

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// lent lends bob a higher limit until a time.
func lent(until time.Time) string {
	return fmt.Sprintf(`version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10}}
users:
  bob: {requests: {GET: 50}, until: %s}
`, until.UTC().Format(time.RFC3339))
}

// An override is void from its time on, and valid again if the clock is set back.
func TestOverridesExpire(t *testing.T) {
	log := &testkit.Buffer{}
	g := newGenerator(t, "127.0.0.1:1", "polygen", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	until := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	g.takeFile(t, lent(until))
	version := g.set.Load().Version()
	for _, step := range []struct {
		name  string
		at    time.Time
		limit int
		told  int
	}{
		{"before", until.Add(-time.Nanosecond), 50, 0},
		{"at its time", until, 10, 1},
		{"after", until.Add(time.Second), 10, 1},
		{"when the clock was set back", until.Add(-time.Minute), 50, 1},
		{"and comes there again", until.Add(time.Minute), 10, 2},
	} {
		g.expire(step.at)
		if got := rateOf(g.set.Load(), ratelimit.Key{Class: "GET", User: "bob"}).Max; got != step.limit {
			t.Errorf("%s: limit %d, want %d", step.name, got, step.limit)
		}
		if n := strings.Count(log.String(), "overrides of the limit file have expired"); n != step.told {
			t.Errorf("%s: the log told it %d times, want %d: %s", step.name, n, step.told, log)
		}
		if got := g.set.Load().Version(); got != version {
			t.Errorf("%s: version %s, want %s as before", step.name, got, version)
		}
	}
	if want := "until=" + until.UTC().Format("2006-01-02T15:04:05.000Z"); !strings.Contains(log.String(), want) {
		t.Errorf("the log says %s, want %s", log, want)
	}
}

// The end of an override by hand is in the audit once, though limits came into force
// between its end and when that was looked at, and whatever the log's level.
func TestEndOfOverrideByHandIsAudited(t *testing.T) {
	log := &testkit.Buffer{}
	g := newGenerator(t, "127.0.0.1:1", "polygen", func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError}))
	})
	file, end := g.options.Limits.Set(), time.Now().Add(time.Hour)
	g.overrides.list = []limits.Override{{
		User: "bob", Limits: json.RawMessage(`{"concurrent":50}`), By: "ops", Reason: "launch", Since: end.Add(-time.Hour), Until: end,
	}}
	g.adoptFile(file)
	if got := len(g.set.Load().Overrides()); got != 1 {
		t.Fatalf("%d overrides are in force, want 1", got)
	}
	now := time.Now()
	g.clock.Sample(now, now, end) // by Redis' clock
	g.adoptFile(file)
	g.expire(g.clock.Now())
	if n := strings.Count(log.String(), "msg=audit action=expire result=ok user=bob"); n != 1 {
		t.Errorf("the audit has its end %d times, want once: %s", n, log)
	}
}

// A set whose overrides have expired before polygen starts never is in force.
func TestExpiredAtStart(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil)
	g.write(t, lent(time.Now().Add(-time.Hour)))
	testkit.Must(t, g.Reload())
	p, err := New(Options{Name: "other", Bus: g.options.Bus, Limits: g.options.Limits})
	testkit.Must(t, err)
	if got := rateOf(p.set.Load(), ratelimit.Key{Class: "GET", User: "bob"}).Max; got != 10 {
		t.Errorf("limit %d, want 10", got)
	}
}

const dry = `version: 1
default_tier: free
tiers:
  free:
    requests: {GET: {second: 10, burst: 5, minute: 30, mode: dry-run}, PUT: 10}
    concurrent: {limit: 5, mode: dry-run}
`

// Limits in a dry run are decided like others and counted apart, minutes like seconds.
func TestDryRunIsCountedApart(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	g := newGenerator(t, addr, "polygen", nil)
	g.pretend(true)
	g.takeFile(t, dry)
	now := g.clock.Now()
	minute := now.Unix() / 60 * 60
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{
		{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: now.Unix(), Total: 14}, // a burst: hot only
		{Key: ratelimit.Key{Class: "GET", User: "bob"}, Second: now.Unix(), Total: 15},
		{Key: ratelimit.Key{Class: "GET", User: "bob", Window: limits.Minute}, Second: minute, Total: 30},
		{Key: ratelimit.Key{Class: "PUT", User: "bob"}, Second: now.Unix(), Total: 10},
	}})
	g.observe(now, redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{{User: "bob", Held: 5, Active: 5, Refused: 1, Limit: 5}}})
	g.observe(now, redisbus.Registry{Instances: []string{"one", "two"}, Now: now})
	testkit.Eventually(t, "the policies are sent", func() error {
		g.sendPolicies(t.Context())
		if testutil.ToFloat64(g.metrics.policies.WithLabelValues("throttle", "dry-run")) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	for kind, want := range map[string][2]float64{"throttle": {1, 2}, "hot": {1, 3}, "block": {0, 1}, "unblock": {}} {
		sent := func(mode string) float64 { return testutil.ToFloat64(g.metrics.policies.WithLabelValues(kind, mode)) }
		if got := [2]float64{sent("enforce"), sent("dry-run")}; got != want {
			t.Errorf("%s: enforced and dry %v, want %v", kind, got, want)
		}
	}
	testkit.Eventually(t, "agents hear of the minute", func() error {
		for _, m := range a.about("bob") {
			if m, ok := m.(redisbus.Throttle); ok && m.Key.Window == limits.Minute && m.Second == minute && m.Limit == 30 {
				return nil
			}
		}
		return errors.New("not yet")
	})
	u := g.User("bob")
	for _, d := range u.Decisions {
		want := "dry-run"
		if d.Limit == "PUT" {
			want = "enforce"
		}
		if d.Mode != want {
			t.Errorf("decision %+v, want its mode %s", d, want)
		}
	}
	if len(u.Decisions) != 5 {
		t.Errorf("decisions %+v, want 5", u.Decisions)
	}
	if u.State == "blocked" {
		t.Error("blocked by a dry run")
	}
}
