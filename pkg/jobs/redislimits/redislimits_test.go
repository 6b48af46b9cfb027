package redislimits_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redislimits"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	fileLimits      = "version: 1\ndefault_tier: free\ntiers: {free: {jobs: 2}}\n"
	publishedLimits = "version: 1\ndefault_tier: free\ntiers: {free: {jobs: 3}, pro: {jobs: 7}}\nusers: {paula: pro}\n"
)

// follower is a worker that follows what a polygen publishes in a real Redis.
type follower struct {
	testing.TB
	redis  *testkit.Process
	addr   string
	bus    *redisbus.Bus // the polygen's
	limits *redislimits.Limits
	tiers  jobs.FileTiers
	reg    *prometheus.Registry
	log    *testkit.Buffer
}

func follow(t *testing.T) *follower {
	t.Helper()
	f := &follower{TB: t, addr: testkit.FreeAddr(t), reg: prometheus.NewPedanticRegistry(), log: &testkit.Buffer{}}
	f.startRedis()
	var err error
	if f.bus, err = redisbus.Open(redisbus.Options{Addresses: []string{f.addr}, Username: "sluice-polygen", Password: "sluice-polygen", Timeout: testkit.Patience}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.bus.Close() })
	client := redis.NewClient(&redis.Options{Addr: f.addr, Username: "sluice-jobs", Password: "sluice-jobs", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	file := parse(t, fileLimits)
	f.limits = redislimits.New(client, redislimits.Config{
		File: func() *limits.Set { return file }, Registry: f.reg, Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	})
	f.tiers = jobs.FileTiers{Set: f.limits.Set}
	return f
}

func (f *follower) startRedis() {
	f.redis = testkit.RedisAt(f, f.addr, "--aclfile", testkit.RedisUsers(f))
}

// run follows until the test ends.
func (f *follower) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.limits.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run() = %v", err)
		}
	})
}

func (f *follower) publish(set *limits.Set) {
	f.Helper()
	if err := f.bus.PublishLimits(f.Context(), redisbus.PublishedLimits{Version: set.Version(), File: set.Source(), Overrides: set.EncodedOverrides()}); err != nil {
		f.Fatal(err)
	}
}

// may waits until a user may run so many jobs.
func (f *follower) may(user string, total int) {
	f.Helper()
	testkit.Eventually(f, "the limit of "+user, func() error {
		if got := f.total(user); got != total {
			return fmt.Errorf("%d jobs, want %d", got, total)
		}
		return nil
	})
}

func (f *follower) total(user string) int {
	f.Helper()
	tier, err := f.tiers.Tier(f.Context(), user)
	if err != nil {
		f.Fatal(err)
	}
	return tier.Limits.Total
}

// counts waits until a reason is counted, and returns how often.
func (f *follower) counts(reason string, above float64) (n float64) {
	f.Helper()
	testkit.Eventually(f, "errors for the reason "+reason, func() error {
		if n = f.value("sluice_jobs_limits_errors_total", reason); n <= above {
			return fmt.Errorf("%v, want more than %v", n, above)
		}
		return nil
	})
	return n
}

func (f *follower) value(name, reason string) (v float64) {
	f.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == reason) {
				v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return v
}

func parse(t testing.TB, text string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// byHand is a set with an override of a user's jobs.
func byHand(t testing.TB, set *limits.Set, user string, until time.Time) *limits.Set {
	t.Helper()
	with, refused := limitfile.WithOverrides(set, []limits.Override{{User: user, Limits: []byte(`{"jobs":10}`), Reason: "launch", Since: time.Now(), Until: until}})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	return with
}

// The file counts until something is published, and what was published counts from then on, whatever becomes of
// Redis. Overrides end by the clock.
func TestFollow(t *testing.T) {
	f := follow(t)
	if got := f.total("ann"); got != 2 {
		t.Errorf("before Run a user may run %d jobs, want the 2 of the file", got)
	}
	f.run()
	f.counts("missing", 0)
	if got := f.total("ann"); got != 2 {
		t.Errorf("with nothing published a user may run %d jobs, want the 2 of the file", got)
	}
	if got := f.value("sluice_jobs_limits_success_timestamp_seconds", ""); got != 0 {
		t.Errorf("the last success is at %v, want none", got)
	}
	set := parse(t, publishedLimits)
	f.publish(set)
	f.may("ann", 3)
	f.may("paula", 7)
	f.publish(byHand(t, set, "ann", time.Now().Add(time.Hour)))
	f.may("ann", 10)

	f.redis.Stop()
	f.counts("redis", 0)
	if got := f.total("ann"); got != 10 {
		t.Errorf("without Redis a user may run %d jobs, want the 10 of before", got)
	}
	f.startRedis() // empty
	f.counts("missing", f.value("sluice_jobs_limits_errors_total", "missing"))
	if got := f.total("ann"); got != 10 {
		t.Errorf("with an empty Redis a user may run %d jobs, want the 10 of before", got)
	}
	// It ends though nobody publishes that it has.
	f.publish(byHand(t, set, "ann", time.Now().Add(2*time.Second)))
	f.may("ann", 3)
	f.publish(set)
	f.may("ann", 3)
	for _, want := range []string{
		`level=WARN msg="the published limits could not be read: those of before count" from_file=true error="read limits: no limits are published" failures=1`,
		`level=INFO msg="limits in force" version=` + set.Version() + ` users=1 overrides=0`,
		`level=INFO msg="the published limits can be read again" version=`,
	} {
		if !strings.Contains(f.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, f.log)
		}
	}
	if got := f.value("sluice_jobs_limits_success_timestamp_seconds", ""); time.Since(time.Unix(int64(got), 0)) > testkit.Patience {
		t.Errorf("the last success is at %v, want now", got)
	}
}

// What cannot be understood changes nothing.
func TestDamagedLimits(t *testing.T) {
	f := follow(t)
	set := parse(t, publishedLimits)
	f.publish(set)
	f.run()
	f.may("ann", 3)
	ctx := t.Context()
	if err := f.bus.PublishLimits(ctx, redisbus.PublishedLimits{Version: "newer", File: []byte("version: 2\n")}); err != nil {
		t.Fatal(err)
	}
	f.counts("invalid", 0)
	owner := redis.NewClient(&redis.Options{Addr: f.addr})
	defer owner.Close()
	if err := owner.HSet(ctx, "sluice:limits", "version", "damaged", "head", "1 x").Err(); err != nil {
		t.Fatal(err)
	}
	f.counts("checksum", 0)
	if got := f.total("ann"); got != 3 {
		t.Errorf("with damaged limits a user may run %d jobs, want the 3 of before", got)
	}
	f.publish(byHand(t, set, "ann", time.Now().Add(time.Hour)))
	f.may("ann", 10)
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	redislimits.New(nil, redislimits.Config{Registry: reg})
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(errors.Join(err, fmt.Errorf("%v", problems)))
	}
}
