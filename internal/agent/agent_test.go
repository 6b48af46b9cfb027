package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/redisbus/embedded"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestOptions(t *testing.T) {
	b := open(t, "127.0.0.1:1", 1)
	good := Options{Instance: "a", Bus: b, SPOE: "unix:spoa", Peers: "unix:peers"}
	for _, tt := range []struct {
		name   string
		change func(*Options)
		want   string // error; "" for none
	}{
		{"the least", func(*Options) {}, ""},
		{"all", func(o *Options) { o.MaxWait, o.OnLoss, o.HoldFor = time.Second, Open, time.Minute }, ""},
		{"no instance", func(o *Options) { o.Instance = "" }, `agent: instance name "": want 1 to 200 bytes`},
		{"a long instance", func(o *Options) { o.Instance = strings.Repeat("a", 201) },
			`agent: instance name "` + strings.Repeat("a", 201) + `": want 1 to 200 bytes`},
		{"no bus", func(o *Options) { o.Bus = nil }, "agent: no bus"},
		{"too short a wait", func(o *Options) { o.MaxWait = 9 * time.Millisecond }, "agent: longest wait 9ms: want at least 10ms"},
		{"a negative wait", func(o *Options) { o.MaxWait = -1 }, "agent: longest wait -1ns: want at least 10ms"},
		{"another word for loss", func(o *Options) { o.OnLoss = "close" }, `agent: on loss of Redis "close": want "hold" or "open"`},
		{"a negative time to hold", func(o *Options) { o.HoldFor = -1 }, "agent: hold for -1ns: want 0 or more"},
		{"a negative time to drain", func(o *Options) { o.DrainFor = -1 }, "agent: drain for -1ns: want 0 or more"},
		{"no peers", func(o *Options) { o.Peers = "" }, `agent: peers address "": want unix:/path or host:port`},
		{"SPOE for other machines", func(o *Options) { o.SPOE = "0.0.0.0:9000" },
			`agent: SPOE address "0.0.0.0:9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`},
		{"peers on another machine", func(o *Options) { o.Peers = "10.0.0.7:8079" },
			`agent: peers address "10.0.0.7:8079" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := good
			tt.change(&o)
			_, err := New(o)
			if got := text(err); got != tt.want {
				t.Errorf("New() = %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("defaults", func(t *testing.T) {
		a, err := New(good)
		if err != nil {
			t.Fatal(err)
		}
		if a.options.MaxWait != 20*time.Millisecond || a.options.OnLoss != Hold || a.options.HoldFor != 0 {
			t.Errorf("defaults are %v, %q, %v; want 20ms, hold, 0", a.options.MaxWait, a.options.OnLoss, a.options.HoldFor)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestSplit(t *testing.T) {
	for _, tt := range []struct{ address, network, rest string }{
		{"unix:/run/sluice/spoa.sock", "unix", "/run/sluice/spoa.sock"},
		{"127.0.0.1:8079", "tcp", "127.0.0.1:8079"},
		{"[::1]:8079", "tcp", "[::1]:8079"},
	} {
		if network, rest := splitAddress(tt.address); network != tt.network || rest != tt.rest {
			t.Errorf("splitAddress(%q) = %q, %q, want %q, %q", tt.address, network, rest, tt.network, tt.rest)
		}
	}
}

// redis starts an embedded one.
func redis(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	stop, err := embedded.Start(l, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return addr
}

func open(t *testing.T, addr string, shards int) *redisbus.Bus {
	t.Helper()
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Shards: shards, Timeout: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func publish(t *testing.T, b *redisbus.Bus, version, source string) {
	t.Helper()
	if err := b.PublishLimits(t.Context(), redisbus.PublishedLimits{Version: version, File: []byte(source)}); err != nil {
		t.Fatal(err)
	}
}

// served is an agent that runs, on an embedded Redis.
type served struct {
	*Agent
	bus      *redisbus.Bus
	registry *prometheus.Registry
	dir      string
	stop     context.CancelFunc
	ended    chan struct{}
	err      error // of Run, valid once ended
}

// serve runs an agent until the test ends.
func serve(t *testing.T, addr, name string, change func(*Options)) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "spoa") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &served{bus: open(t, addr, 1), registry: prometheus.NewPedanticRegistry(), dir: dir, ended: make(chan struct{})}
	o := Options{
		Instance: name, Bus: s.bus, Registerer: s.registry,
		SPOE: "unix:" + filepath.Join(dir, "spoa.sock"), Peers: "unix:" + filepath.Join(dir, "peers.sock"),
		MaxWait: time.Second, // a slow machine must not make HAProxy let requests pass
	}
	if change != nil {
		change(&o)
	}
	if s.Agent, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() {
		defer close(s.ended)
		s.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		_ = s.wait(t)
	})
	return s
}

// wait waits for the end of Run.
func (s *served) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-s.ended:
		return s.err
	case <-time.After(testkit.Patience):
		t.Fatalf("Run did not end within %v", testkit.Patience)
		return nil
	}
}

// gauge waits until a metric has a value.
func gauge(t *testing.T, what string, c prometheus.Collector, want float64) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		if got := testutil.ToFloat64(c); got != want {
			return fmt.Errorf("metric = %v, want %v", got, want)
		}
		return nil
	})
}

// members are the instances that another process sees.
func members(t *testing.T, b *redisbus.Bus) []string {
	t.Helper()
	var r redisbus.Registry
	testkit.Eventually(t, "Redis answers", func() (err error) {
		r, err = b.Register(t.Context(), "observer", "", "")
		return err
	})
	return slices.DeleteFunc(slices.Clone(r.Instances), func(name string) bool { return name == "observer" })
}

// problemOf waits until the cluster hears this of the agent a.
func problemOf(t *testing.T, s *served, want string) {
	t.Helper()
	testkit.Eventually(t, "the cluster hears of its problem", func() error {
		r, err := s.bus.Instances(t.Context())
		if err == nil && (!slices.Contains(r.Instances, "a") || r.Problems["a"] != want) {
			err = fmt.Errorf("Instances() = %q with problems %q, want %q", r.Instances, r.Problems, want)
		}
		return err
	})
}

func TestAgentWithoutHAProxy(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	s := serve(t, addr, "a", nil)
	publish(t, s.bus, "1", testLimits)
	testkit.Eventually(t, "the agent serves", func() error {
		if !s.Serving() {
			return errors.New("not yet")
		}
		return nil
	})
	if err := s.Started(); err != nil { // HAProxy starts after this
		t.Errorf("Started() without HAProxy = %v, want nil", err)
	}
	if got := text(s.Ready()); got != "no peers session with HAProxy" {
		t.Errorf("Ready() without HAProxy = %q", got)
	}
	problemOf(t, s, "no peers session with HAProxy")

	if problems, err := testutil.GatherAndLint(s.registry); err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}

	s.stop()
	if err := s.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
	if s.Serving() {
		t.Error("Serving() after Run() = true")
	}
	if got := members(t, open(t, addr, 1)); len(got) != 0 {
		t.Errorf("instances after Run() = %v, want none", got)
	}
}

func TestAgentsKnowEachOther(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := serve(t, addr, "a", nil)
	publish(t, a.bus, "1", testLimits)
	gauge(t, "a is alone", a.metrics.instances, 1)
	b := serve(t, addr, "b", nil)
	gauge(t, "a knows of b", a.metrics.instances, 2)
	gauge(t, "b knows of a", b.metrics.instances, 2)
	b.stop()
	if err := b.wait(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	gauge(t, "a is alone again", a.metrics.instances, 1)
}

// inForce waits until the metrics say that the agent has limits.
func (s *served) inForce(t *testing.T, source string) {
	t.Helper()
	want := `# HELP sluice_limits_info The version of the limits in force, value 1.
# TYPE sluice_limits_info gauge
sluice_limits_info{version="` + version(t, source) + `"} 1
`
	testkit.Eventually(t, "limits are in force", func() error {
		return testutil.GatherAndCompare(s.registry, strings.NewReader(want), "sluice_limits_info")
	})
}

func version(t *testing.T, source string) string {
	t.Helper()
	return parse(t, source).Version()
}

func TestAgentTakesPolicies(t *testing.T) {
	t.Parallel()
	s := serve(t, redis(t), "a", nil)
	publish(t, s.bus, version(t, testLimits), testLimits)
	s.inForce(t, testLimits)
	kinds := func() float64 {
		var n float64
		for _, kind := range []string{"throttle", "hot", "block", "unblock", "slots"} {
			n += min(1, testutil.ToFloat64(s.metrics.policies.WithLabelValues(kind)))
		}
		return n
	}
	testkit.Eventually(t, "policies arrive", func() error { // once the agent has subscribed
		now := time.Now()
		if err := s.bus.PublishPolicies(t.Context(), []redisbus.Message{
			redisbus.Throttle{Key: alice, Second: now.Unix(), Limit: 4},
			redisbus.Hot{Key: alice, Until: now.Add(time.Second), Instances: 1},
			redisbus.Block{User: "alice", Limit: 2, Release: 1},
			redisbus.Unblock{User: "alice"},
			redisbus.Slots{User: "alice", Until: now.Add(time.Second), Shares: []redisbus.SlotShare{{Instance: "a", Slots: 1}}},
		}); err != nil {
			return err
		}
		if got := kinds(); got != 5 {
			return fmt.Errorf("%v kinds arrived, want 5", got)
		}
		return nil
	})
}

// An agent that waits for limits is there all the time: another one that starts
// beside it must know that it is not alone.
func TestAgentThatWaitsDoesNotLapse(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	s := serve(t, addr, "a", nil)
	observer := open(t, addr, 1)
	testkit.Eventually(t, "the agent registers", func() error {
		if got := members(t, observer); !slices.Equal(got, []string{"a"}) {
			return fmt.Errorf("instances = %v", got)
		}
		return nil
	})
	// Who registered only once would be gone for good after 3 s.
	began := time.Now()
	testkit.Eventually(t, "the agent is still there", func() error {
		if got := members(t, observer); !slices.Equal(got, []string{"a"}) || time.Since(began) < 3500*time.Millisecond {
			return fmt.Errorf("instances after %v = %v", time.Since(began), got)
		}
		return nil
	})
	s.stop()
	if err := s.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
	if got := members(t, observer); len(got) != 0 {
		t.Errorf("instances after Run() = %v, want none", got)
	}
}

func TestRunFails(t *testing.T) {
	t.Parallel()
	t.Run("where it cannot listen", func(t *testing.T) {
		t.Parallel()
		addr := redis(t)
		s := serve(t, addr, "a", func(o *Options) { o.SPOE = "unix:" + t.TempDir() })
		publish(t, s.bus, version(t, testLimits), testLimits)
		if err := s.wait(t); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("Run() = %v, want that the path is no socket", err)
		}
		if got := members(t, open(t, addr, 1)); len(got) != 0 {
			t.Errorf("instances after Run() = %v, want none", got)
		}
	})
	t.Run("in a cluster with another number of shards", func(t *testing.T) {
		t.Parallel()
		addr := redis(t)
		members(t, open(t, addr, 3))
		s := serve(t, addr, "a", nil)
		if err := s.wait(t); !errors.Is(err, redisbus.ErrShards) {
			t.Errorf("Run() = %v, want %v", err, redisbus.ErrShards)
		}
	})
}

// Without Redis there is nothing to serve, nothing to leave, and an end.
func TestAgentWithoutRedis(t *testing.T) {
	t.Parallel()
	s := serve(t, testkit.FreeAddr(t), "a", nil)
	if s.Serving() || s.Ready() == nil {
		t.Error("an agent that never reached Redis says that it serves")
	}
	s.stop()
	if err := s.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
}

// Agents hear of each other at once, not only by their heartbeats.
func TestRegistryIsFollowed(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a, err := New(Options{Instance: "a", Bus: open(t, addr, 1), SPOE: "unix:none", Peers: "unix:none"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.heartbeat(t.Context()); err != nil { // as before it serves
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.follow(ctx) }()
	defer func() { cancel(); <-done }()
	select {
	case <-a.limitReading.wanted: // the subscription has begun
	case <-time.After(testkit.Patience):
		t.Fatal("no subscription")
	}
	b, names := open(t, addr, 1), []string{"a", "b", "c"}
	for i, name := range names {
		testkit.Eventually(t, name+" is heard of", func() error {
			for _, name := range names[:i+1] { // all of them, or the first may lapse meanwhile
				if _, err := b.Register(t.Context(), name, "", ""); err != nil {
					return err
				}
			}
			if got := testutil.ToFloat64(a.metrics.instances); got != float64(i+1) {
				return fmt.Errorf("%v are, want %d", got, i+1)
			}
			return nil
		})
	}
}
