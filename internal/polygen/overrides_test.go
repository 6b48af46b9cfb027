package polygen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func act(user, set string) api.OverrideRequest {
	return api.OverrideRequest{Action: api.SetOverride, User: user, By: "ops from 127.0.0.1", Reason: "launch", For: time.Hour, Limits: json.RawMessage(set)}
}

// must sets an override.
func (g *generator) must(t *testing.T, a api.OverrideRequest) {
	t.Helper()
	if _, err := g.Override(t.Context(), a); err != nil {
		t.Fatalf("Override(%s: %s) = %v", a.User, a.Limits, err)
	}
}

// awaitConcurrent waits until a user has a limit.
func (g *generator) awaitConcurrent(t *testing.T, user string, want int) {
	t.Helper()
	testkit.Eventually(t, g.options.Name+": limit of "+user, func() error {
		if got := g.set.Load().User(user).Concurrent; got != want {
			return fmt.Errorf("got %d, want %d", got, want)
		}
		return nil
	})
}

// A standby learns what the polygen that leads sets, and has it in force when it takes over; what agents are given says the same.
func TestOverridesAreShared(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	one := newGenerator(t, addr, "one", nil).run(t).awaitLead(t)
	two := newGenerator(t, addr, "two", nil).run(t)
	a.published(tenGets)
	set, err := one.Override(t.Context(), act("bob", `{"concurrent":50}`))
	if err != nil || set.User != "bob" || set.By != "ops from 127.0.0.1" || !set.Until.Equal(set.Since.Add(time.Hour)) {
		t.Fatalf("Override = %+v, %v", set, err)
	}
	two.awaitConcurrent(t, "bob", 50)
	one.awaitConcurrent(t, "bob", 50)
	testkit.Eventually(t, "agents are given it", func() error {
		published, err := a.bus.Limits(t.Context(), 1)
		if err != nil {
			return err
		}
		given, err := limitfile.ParsePublished("given", published.File, published.Overrides, nil)
		if err != nil {
			return err
		}
		if got := given.User("bob").Concurrent; got != 50 || given.Version() != one.set.Load().Version() {
			return fmt.Errorf("limit %d, version %s, want 50 and %s", got, given.Version(), one.set.Load().Version())
		}
		return nil
	})
	one.stop()
	testkit.Must(t, one.wait(t))
	two.awaitLead(t)
	three := newGenerator(t, addr, "three", nil).run(t)
	three.awaitConcurrent(t, "bob", 50)
	if list := two.Overrides().Overrides; len(list) != 1 || list[0].Reason != "launch" || list[0].Problem != "" {
		t.Errorf("Overrides() = %+v, want that of bob", list)
	}
	two.remove(t, "bob")
	three.awaitConcurrent(t, "bob", 5)
	a.published(tenGets)
}

// A polygen never publishes limits without what was set by hand before it started.
func TestOverridesBeforeTheFirstPublication(t *testing.T) {
	addr := redis(t)
	g := newGenerator(t, addr, "one", nil)
	g.must(t, act("bob", `{"concurrent":50}`))
	a := startAgents(t, addr)
	again := newGenerator(t, addr, "two", nil).run(t).awaitLead(t)
	testkit.Eventually(t, "the limits are published", func() error {
		if len(a.versions()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if got := a.versions(); got[0] != again.set.Load().Version() || again.set.Load().User("bob").Concurrent != 50 {
		t.Errorf("published versions %q, want %s at once", got, again.set.Load().Version())
	}
}

// Nothing is published before Redis was asked for overrides, but if it has something
// else in their place.
func TestNothingPublishedBeforeOverridesAreRead(t *testing.T) {
	addr := redis(t)
	g := newGenerator(t, addr, "one", nil)
	g.pretend(true)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.publishLimits(ctx)
	}()
	defer func() { stop(); <-done }()
	for range 3 { // when the third one is taken, the first one is over
		g.publish <- struct{}{}
	}
	if _, err := g.options.Bus.Limits(t.Context(), 1); !errors.Is(err, redisbus.ErrNoLimits) {
		t.Errorf("Limits() = %v, want %v", err, redisbus.ErrNoLimits)
	}
	send(t, addr, "*3\r\n$3\r\nSET\r\n$26\r\nsluice:{cluster}:overrides\r\n$1\r\nx\r\n")
	testkit.Eventually(t, "the limits are published", func() error {
		g.readOverrides(t.Context())
		_, err := g.options.Bus.Limits(t.Context(), 1)
		return err
	})
}

// A Redis that forgets them is told again by the polygen that leads; one that was removed stays so.
func TestOverridesOutliveRedis(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	g := newGenerator(t, addr, "one", nil).run(t).awaitLead(t)
	g.must(t, act("bob", `{"concurrent":50}`))
	g.must(t, act("carol", `{"concurrent":60}`))
	g.remove(t, "carol")
	flush(t, addr)
	testkit.Eventually(t, "Redis has it again", func() error {
		_, list, err := g.options.Bus.Overrides(t.Context(), "")
		if err != nil || !strings.Contains(string(list), "bob") || strings.Contains(string(list), "carol") {
			return fmt.Errorf("Redis has %s, %w", list, err)
		}
		return nil
	})
	if got := g.set.Load().User("bob").Concurrent; got != 50 {
		t.Errorf("bob has %d, want 50", got)
	}
}

// remove removes an override.
func (g *generator) remove(t *testing.T, user string) {
	t.Helper()
	if _, err := g.RemoveOverride(t.Context(), api.OverrideRequest{Action: api.RemoveOverride, User: user, Reason: "over"}); err != nil {
		t.Fatal(err)
	}
}

// Of what Redis and a polygen have the later one counts, whichever polygen notices.
func TestOverridesOfDivergedHistories(t *testing.T) {
	addr := redis(t)
	one, two := newGenerator(t, addr, "one", nil), newGenerator(t, addr, "two", nil)
	one.must(t, act("bob", `{"concurrent":50}`))
	two.readOverrides(t.Context())
	one.must(t, act("carol", `{"concurrent":60}`)) // which two has not read
	version, list, err := one.options.Bus.Overrides(t.Context(), "")
	testkit.Must(t, err)
	for _, step := range []struct {
		name       string
		redis      func()
		notice     []*generator
		bob, carol int
	}{
		{"emptied, and the first to notice knows less", func() { flush(t, addr) }, []*generator{two, one}, 50, 60},
		{"emptied, and the other one notices first", func() { flush(t, addr) }, []*generator{two}, 50, 60}, // by now it has read both
		{"as it was a version before", func() {
			one.must(t, act("bob", `{"concurrent":70}`))
			two.readOverrides(t.Context())
			flush(t, addr)
			testkit.Must(t, one.options.Bus.KeepOverrides(t.Context(), version, list, time.Hour))
		}, []*generator{two}, 70, 60},
		{"removed meanwhile", func() {
			one.remove(t, "bob")
			one.remove(t, "carol")
		}, []*generator{two}, 5, 5},
	} {
		step.redis()
		started := newGenerator(t, addr, "started", nil)
		for _, g := range append(step.notice, one, two, started) {
			g.readOverrides(t.Context())
		}
		for _, g := range []*generator{one, two, started} {
			if bob, carol := g.set.Load().User("bob").Concurrent, g.set.Load().User("carol").Concurrent; bob != step.bob || carol != step.carol {
				t.Errorf("%s: %s has %d of bob and %d of carol, want %d and %d", step.name, g.options.Name, bob, carol, step.bob, step.carol)
			}
		}
	}
}

func TestOverridesRefused(t *testing.T) {
	log := &testkit.Buffer{}
	g := newGenerator(t, redis(t), "one", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	key := act("~AB", `{"concurrent":5}`)
	key.IsKey = true
	for _, tt := range []struct {
		name string
		act  api.OverrideRequest
		want string
	}{
		{"a value", act("bob", `{"concurrent":-1}`), "limits: concurrent must be"},
		{"a tier", act("bob", `"gold"`), `limits: tier: unknown tier "gold" (valid: free, moving, staff)`},
		{"a pattern", act("b*", `{"concurrent":5}`), `user "b*": a pattern cannot be overridden; name one user`},
		{"a key", key, "an override needs the user's name, which the key does not tell"},
	} {
		if _, err := g.Override(t.Context(), tt.act); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: Override = %v, want %s", tt.name, err, tt.want)
		}
	}
	if _, err := g.RemoveOverride(t.Context(), api.OverrideRequest{Action: api.RemoveOverride, User: "bob"}); !errors.Is(err, api.ErrNoOverride) {
		t.Errorf("RemoveOverride of none = %v, want %v", err, api.ErrNoOverride)
	}
	if n := testutil.ToFloat64(g.overrides.writes.WithLabelValues("override", "refused")); n != 4 {
		t.Errorf("refused overrides = %v, want 4", n)
	}
	if n := strings.Count(log.String(), "msg=audit"); n != 5 || !strings.Contains(log.String(), `action=override result=refused user=b* by="ops from 127.0.0.1" reason=launch`) {
		t.Errorf("%d audit lines, want 5: %s", n, log)
	}
	if got := g.Overrides().Overrides; len(got) != 0 {
		t.Errorf("Overrides() = %v, want none", got)
	}
}

// With Redis away nothing is changed, and that is said.
func TestOverridesWithoutRedis(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "one", nil)
	_, set := g.Override(t.Context(), act("bob", `{"concurrent":50}`))
	_, removed := g.RemoveOverride(t.Context(), api.OverrideRequest{Action: api.RemoveOverride, User: "bob"})
	_, in := g.Unblock(t.Context(), api.OverrideRequest{Action: api.UnblockUser, User: "bob"})
	for name, err := range map[string]error{"override": set, "remove": removed, "unblock": in} {
		if !errors.Is(err, api.ErrUnavailable) || !strings.HasPrefix(err.Error(), "redis does not answer, ") {
			t.Errorf("%s = %v, want %v", name, err, api.ErrUnavailable)
		}
		if n := testutil.ToFloat64(g.overrides.writes.WithLabelValues(name, "failed")); n != 1 {
			t.Errorf("failed writes of %s = %v, want 1", name, n)
		}
	}
	if got := g.set.Load().User("bob").Concurrent; got != 5 {
		t.Errorf("bob has %d, want 5 as before", got)
	}
}

// A limit file that does not allow an override wins, until one does again.
func TestFileWinsOverOverride(t *testing.T) {
	log := &testkit.Buffer{}
	g := newGenerator(t, redis(t), "one", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	g.must(t, act("bob", `{"tier":"moving","concurrent":50}`))
	g.must(t, act("carol", `{"concurrent":60}`))
	without := strings.NewReplacer("  moving: {bandwidth: {down: 10MiB, up: 5MiB}}\n", "", ", mover: moving", "").Replace(tenGets)
	for range 2 {
		g.takeFile(t, without)
		g.takeFile(t, without+"# the same, in other words\n")
	}
	if bob, carol := g.set.Load().User("bob"), g.set.Load().User("carol"); bob.Concurrent != 5 || bob.Tier != "free" || carol.Concurrent != 60 {
		t.Errorf("bob has %s with %d, carol %d, want free with 5, and 60", bob.Tier, bob.Concurrent, carol.Concurrent)
	}
	list := g.Overrides().Overrides
	if len(list) != 2 || !strings.HasPrefix(list[0].Problem, `limits: tier: unknown tier "moving"`) || list[1].Problem != "" {
		t.Errorf("Overrides() = %+v, want that of bob with a problem", list)
	}
	inForce := testutil.ToFloat64(g.overrides.inForce)
	if told := strings.Count(log.String(), "override by hand dropped"); told != 1 || inForce != 1 {
		t.Errorf("told %d times, in force %v, want 1 each: %s", told, inForce, log)
	}
	g.must(t, act("dave", `{"concurrent":70}`)) // others may be set beside it
	g.takeFile(t, tenGets)
	if bob := g.set.Load().User("bob"); bob.Concurrent != 50 || bob.Tier != "moving" {
		t.Errorf("with the tier again bob has %s with %d, want moving with 50", bob.Tier, bob.Concurrent)
	}
}

func TestTooManyOverrides(t *testing.T) {
	g := newGenerator(t, redis(t), "one", nil)
	list := make([]limits.Override, limitfile.MaxOverrides)
	for i := range list {
		list[i] = limits.Override{User: fmt.Sprint("u", i), Limits: json.RawMessage(`{"concurrent":7}`), Reason: "r", Until: time.Now().Add(time.Hour)}
	}
	testkit.Must(t, g.keepOverrides(t.Context(), "7-x", list))
	if _, err := g.Override(t.Context(), act("bob", `{"concurrent":50}`)); !errors.Is(err, api.ErrFull) {
		t.Errorf("Override beyond %d = %v, want %v", len(list), err, api.ErrFull)
	}
	g.must(t, act("u7", `{"concurrent":50}`)) // in place of the one that u7 has
	if n := testutil.ToFloat64(g.overrides.inForce); n != limitfile.MaxOverrides {
		t.Errorf("sluice_overrides = %v, want %d", n, limitfile.MaxOverrides)
	}
}

// An override ends by itself, and that is told.
func TestOverrideExpires(t *testing.T) {
	log := &testkit.Buffer{}
	g := newGenerator(t, redis(t), "one", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	g.must(t, act("bob", `{"concurrent":50}`))
	until, version := g.set.Load().Expires(), g.set.Load().Version()
	for _, step := range []struct {
		name  string
		at    time.Time
		limit int
		told  int
	}{
		{"before", until.Add(-1), 50, 0},
		{"at its time", until, 5, 1},
		{"after", until.Add(time.Second), 5, 1},
	} {
		g.expire(step.at)
		told := strings.Count(log.String(), "action=expire result=ok user=bob")
		if got := g.set.Load().User("bob").Concurrent; got != step.limit || told != step.told || g.set.Load().Version() != version {
			t.Errorf("%s: limit %d, told %d times, version %s, want %d, %d and %s", step.name, got, told, g.set.Load().Version(), step.limit, step.told, version)
		}
	}
	if n := testutil.ToFloat64(g.overrides.inForce); n != 0 {
		t.Errorf("sluice_overrides = %v, want 0", n)
	}
	if strings.Contains(log.String(), "of the limit file") {
		t.Errorf("the log says %s, and nothing of the file expired", log)
	}
	if got := unexpired([]limits.Override{{Until: until}}, until); len(got) != 0 {
		t.Errorf("at its end it is present: %v", got)
	}
}

// A blocked user can be let in, and is blocked again if as many of their requests are still in progress.
func TestUnblock(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	one := newGenerator(t, addr, "one", nil).run(t).awaitLead(t)
	about := func() (kinds []string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, m := range a.heard {
			switch m := m.(type) {
			case redisbus.Block:
				if m.User == "bob" {
					kinds = append(kinds, "block")
				}
			case redisbus.Unblock:
				if m.User == "bob" {
					kinds = append(kinds, "unblock")
				}
			}
		}
		return slices.Compact(kinds)
	}
	seq := uint64(0)
	report := func() error { // as agents do, who repeat it while it matters
		seq++
		_, err1 := a.bus.Register(t.Context(), "i", "", "")
		_, err2 := a.bus.Slots(t.Context(), "i", 1, []concurrency.Ask{{User: "bob", Seq: seq, Want: 5, Active: 5, Limit: 5}})
		return errors.Join(err1, err2)
	}
	await := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(want), func() error {
			err := report()
			if got := about(); err != nil || len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
				return fmt.Errorf("heard %v, %v", got, err)
			}
			return nil
		})
	}
	await("block")
	testkit.Eventually(t, "it knows of the block, and lifts it", func() error {
		if err := report(); err != nil {
			return err
		}
		if s := one.User("bob").State; s != api.Blocked {
			return fmt.Errorf("state %s", s)
		}
		out, err := one.Unblock(t.Context(), api.OverrideRequest{Action: api.UnblockUser, User: "bob", By: "ops", Reason: "r"})
		if err != nil || !out.Sent || out.InProgress != 5 || out.Max != 5 || out.User != "bob" ||
			out.Note != "the user has 5 of 5 requests in progress: unless some end, the next reports block the user again; an override of concurrent above 5 prevents that" {
			return fmt.Errorf("Unblock = %+v, %w", out, err)
		}
		return nil
	})
	await("block", "unblock", "block")
	testkit.Eventually(t, "the leader is ready", one.Ready)
}

func TestUnblockNote(t *testing.T) {
	for _, tt := range []struct {
		name  string
		state api.State
		out   api.Unblocked
		want  string
	}{
		{"without a limit", api.OK, api.Unblocked{}, "the user has no limit of requests in progress, so nothing blocks them"},
		{"throttled", api.Throttled, api.Unblocked{Max: 5, InProgress: 9}, "the user is throttled by a limit of requests"},
		{"at the limit", api.Blocked, api.Unblocked{Max: 5, InProgress: 5}, "the user has 5 of 5 requests in progress"},
		{"below the limit", api.Blocked, api.Unblocked{Max: 5, InProgress: 4}, "the user is let in, and is blocked again when"},
		{"not blocked", api.OK, api.Unblocked{Max: 5, InProgress: 4}, "the user was not known to be blocked"},
	} {
		if got := unblockNote(api.User{State: tt.state}, tt.out); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Where a limit comes from is told of what was set by hand, too.
func TestUserShowsOverride(t *testing.T) {
	g := newGenerator(t, redis(t), "one", nil)
	g.must(t, act("bob", `{"concurrent":50}`))
	u := g.User("bob")
	if u.Entry == nil || u.Entry.Override == nil || u.Entry.File != "" || u.Entry.Override.Reason != "launch" || u.Entry.Override.By != "ops from 127.0.0.1" || u.Entry.Override.Until.IsZero() {
		t.Errorf("entry %+v, want the override, and no file", u.Entry)
	}
	for _, l := range u.Limits {
		if byHand := l.Name == "concurrent"; l.Origin == nil || (l.Origin.File == "") != byHand || (l.Origin.Line == 0) != byHand {
			t.Errorf("%s comes from %+v, by hand %v", l.Name, l.Origin, byHand)
		}
	}
	if u := g.User("staff"); u.Entry == nil || u.Entry.Override != nil {
		t.Errorf("entry of staff %+v, want no override", u.Entry)
	}
}
