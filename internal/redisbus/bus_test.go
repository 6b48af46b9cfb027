package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/redisbus/embedded"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestMain overlooks the one goroutine that outlives a pool of connections to a Redis
// that was not there: it sees within a second that the pool is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestAStoppedRedisIsUnavailableInTimeAndThenUsedAgain(t *testing.T) {
	process, addr := testkit.Redis(t)
	s := newServer(t, addr)
	b := s.open(t, redisbus.Options{Timeout: 200 * time.Millisecond})
	ear := listen(t, b, redisbus.PoliciesChannel)
	calls := map[string]func(context.Context) error{
		"Take": func(ctx context.Context) error {
			_, err := b.Take(ctx, "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET"}, Limit: 5, Need: 1}})
			return err
		},
		"Slots": func(ctx context.Context) error {
			_, err := b.Slots(ctx, "a", 0, []concurrency.Ask{{User: "alice", Seq: 1, Want: 1, Limit: 5}})
			return err
		},
		"Register": func(ctx context.Context) error { _, err := b.Register(ctx, "a", "", ""); return err },
		"Lead": func(ctx context.Context) error {
			_, err := b.Lead(ctx, redisbus.Leader{Name: "a"}, time.Second)
			return err
		},
		"PublishPolicies": func(ctx context.Context) error {
			return b.PublishPolicies(ctx, []redisbus.Message{redisbus.Limits{Version: "1"}})
		},
		"Limits": func(ctx context.Context) error { _, err := b.Limits(ctx, 1); return err },
	}
	stop(t, process)
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if err := call(ctx); !errors.Is(err, redisbus.ErrUnavailable) || ctx.Err() != nil {
			t.Errorf("%s = %v, caller: %v; want %v by the bus' own timeout", name, err, ctx.Err(), redisbus.ErrUnavailable)
		}
		cancel()
	}
	if n := s.metric(t, "sluice_bus_requests_total"); n != float64(len(calls)) {
		t.Errorf("%v calls were counted, want %d", n, len(calls))
	}
	if at := s.metric(t, "sluice_bus_last_success_timestamp_seconds"); at != 0 {
		t.Errorf("the last success was at %v, want none", at)
	}
	resumed := float64(time.Now().Unix())
	// The caller's deadline counts if it comes before the bus' own timeout.
	patient := newServer(t, addr).open(t, redisbus.Options{Timeout: 10 * testkit.Patience})
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	registered := make(chan error, 1)
	go func() { _, err := patient.Register(short, "a", "", ""); registered <- err }()
	select {
	case err := <-registered:
		if !errors.Is(err, redisbus.ErrUnavailable) {
			t.Errorf("Register = %v, want %v", err, redisbus.ErrUnavailable)
		}
	case <-time.After(testkit.Patience):
		t.Error("Register goes on after the caller's 100ms")
	}
	// The subscription, too, notices, and says when it is back.
	testkit.Eventually(t, "the subscription's loss", func() error {
		if !strings.Contains(s.log.String(), `"no answer to pings"`) {
			return errors.New(s.log.String())
		}
		return nil
	})
	resume(t, process)
	for name, call := range calls {
		testkit.Eventually(t, name, func() error {
			if err := call(t.Context()); err != nil && !errors.Is(err, redisbus.ErrNoLimits) {
				return err
			}
			return nil
		})
	}
	ear.connected(t)
	if at := s.metric(t, "sluice_bus_last_success_timestamp_seconds"); at < resumed {
		t.Errorf("the last success was at %v, want %v or later", at, resumed)
	}
}

// A Redis that was stopped hears of all that was sent meanwhile when it goes on. What an
// agent reports again and again, because it gets no answer, is counted once.
func TestAStoppedRedisCountsOnce(t *testing.T) {
	process, addr := testkit.Redis(t)
	s := newServer(t, addr)
	b := s.open(t, redisbus.Options{Timeout: 200 * time.Millisecond})
	ctx := context.Background()
	key := ratelimit.Key{Class: "GET", User: "alice"}
	report := func(batch uint64, debt, back int) error {
		_, err := b.Take(ctx, "a", []ratelimit.Ask{
			{Key: key, Seq: batch, WindowStart: 17, Limit: 1000, Debt: debt, Back: back},
			{Key: key, Seq: batch, WindowStart: time.Now().Unix(), Limit: 1000, Burst: 1000, Debt: debt, Back: back},
		})
		return err
	}
	testkit.Eventually(t, "the scripts are known", func() error { return report(1, 100, 0) })
	stop(t, process)
	for range 5 {
		if err := report(2, 41, 20); !errors.Is(err, redisbus.ErrUnavailable) {
			t.Errorf("Take of a stopped Redis = %v, want %v", err, redisbus.ErrUnavailable)
		}
	}
	resume(t, process)
	testkit.Eventually(t, "the batch is heard", func() error { return report(2, 41, 20) })
	testkit.Eventually(t, "the next is heard", func() error { return report(3, 7, 0) })
	// What is still to be read of connections that were given up may come at any time.
	testkit.Eventually(t, "nothing waits to be read", func() error {
		if clients := fmt.Sprint(s.do(t, "INFO", "clients")); !strings.Contains(clients, "connected_clients:2\r\n") {
			return errors.New(clients)
		}
		return nil
	})
	if got := s.do(t, "HGET", "sluice:{0}:requests:17", "GET|alice"); got != "128" {
		t.Errorf("total = %v, want 128: 100, then 41 less 20 once, then 7", got)
	}
}

func TestSubscribeComesBackAfterRedis(t *testing.T) {
	addr := testkit.FreeAddr(t)
	process := testkit.RedisAt(t, addr)
	s := newServer(t, addr)
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Usage{})
	take := func() error {
		_, err := b.Take(context.Background(), "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET"}, WindowStart: 17, Limit: 2, Need: 1}})
		return err
	}
	testkit.Must(t, take())
	if u := ear.next(t).(redisbus.Usage); u.Entries[0].Total != 1 {
		t.Errorf("usage before = %+v, want 1", u)
	}
	process.Kill()
	if err := take(); !errors.Is(err, redisbus.ErrUnavailable) {
		t.Errorf("Take without Redis = %v, want %v", err, redisbus.ErrUnavailable)
	}
	testkit.RedisAt(t, addr)
	ear.connected(t)
	// The first call finds neither its script nor its pool.
	testkit.Eventually(t, "Take", take)
	if u := ear.next(t).(redisbus.Usage); u.Entries[0].Total != 1 {
		t.Errorf("usage after = %+v, want 1", u)
	}
}

// A call whose answer was lost may have run. Sent again it would count twice.
func TestALostAnswerIsNotAskedForAgain(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		t.Run(fmt.Sprintf("cluster=%v", cluster), func(t *testing.T) {
			proxy := startProxy(t)
			s := &server{}
			if cluster {
				s = startCluster(t, "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", proxy.port())
			} else {
				s = startRedis(t)
			}
			proxy.to.Store(&s.addr)
			b := s.openAt(t, proxy.listener.Addr().String())
			ctx := context.Background()
			asks := []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: 17, Limit: 9, Debt: 1}}
			if _, err := b.Take(ctx, "a", asks); err != nil { // connects
				t.Fatal(err)
			}
			proxy.loseNext.Store(true)
			if _, err := b.Take(ctx, "a", asks); !errors.Is(err, redisbus.ErrUnavailable) || proxy.loseNext.Load() {
				t.Errorf("Take without an answer = %v, want %v", err, redisbus.ErrUnavailable)
			}
			if got := s.do(t, "HGET", "sluice:{0}:requests:17", "GET|alice"); got != "2" {
				t.Errorf("total = %v, want 2: each Take counted once", got)
			}
			if taken, err := b.Take(ctx, "a", asks); err != nil || taken.Grants[0].Total != 3 {
				t.Errorf("the next Take = %+v, %v, want a total of 3", taken, err)
			}
		})
	}
}

func TestSubscribeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	addr := l.Addr().String()
	stop, err := embedded.Start(l, "")
	testkit.Must(t, err)
	defer stop()
	for _, at := range []string{addr, "127.0.0.1:1"} {
		b := newServer(t, addr).openAt(t, at)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := b.Subscribe(ctx, []redisbus.Channel{redisbus.PoliciesChannel}, func(redisbus.Event) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Subscribe(%s) = %v, want %v", at, err, context.DeadlineExceeded)
		}
		for _, none := range [][]redisbus.Channel{nil, {redisbus.UsageChannel}} {
			if err := b.Subscribe(context.Background(), none, nil); err == nil {
				t.Errorf("Subscribe(%q) = nil, want an error", none)
			}
		}
	}
}

func TestMetricsLint(t *testing.T) {
	s := newServer(t, "127.0.0.1:1")
	b := s.open(t, redisbus.Options{})
	_, _ = b.Register(context.Background(), "a", "", "")
	problems, err := testutil.GatherAndLint(s.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// A server is a Redis under test.
type server struct {
	addr    string
	cluster bool
	raw     redis.UniversalClient

	// Of the bus that was last opened:
	registry *prometheus.Registry
	log      *testkit.Buffer
}

func startEmbedded(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	addr := l.Addr().String()
	stop, err := embedded.Start(l, "")
	testkit.Must(t, err)
	t.Cleanup(stop)
	return newServer(t, addr)
}

func startRedis(t *testing.T) *server {
	_, addr := testkit.Redis(t)
	return newServer(t, addr)
}

// startCluster starts a Redis Cluster of one node: it refuses scripts whose keys
// lie in different slots, and is spoken to with the cluster's client.
func startCluster(t *testing.T, args ...string) *server {
	return startClusterBy(t, testkit.Redis, args...)
}

func startClusterBy(t *testing.T, start func(t testing.TB, args ...string) (*testkit.Process, string), args ...string) *server {
	_, port, _ := net.SplitHostPort(testkit.FreeAddr(t))
	_, addr := start(t, append([]string{"--cluster-enabled", "yes", "--cluster-port", port}, args...)...)
	s := newServer(t, addr)
	s.do(t, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	testkit.Eventually(t, "cluster", func() error {
		if state := s.do(t, "CLUSTER", "INFO").(string); !strings.Contains(state, "cluster_state:ok") {
			return errors.New(state)
		}
		return nil
	})
	s.cluster = true
	return s
}

func newServer(t *testing.T, addr string) *server {
	raw := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, ReadTimeout: testkit.Patience})
	t.Cleanup(func() { raw.Close() })
	return &server{addr: addr, raw: raw}
}

// open opens a bus with a registry and a log of its own. Its timeout is long,
// unless the test has its own, for slow machines.
func (s *server) open(t *testing.T, o redisbus.Options) *redisbus.Bus {
	t.Helper()
	o.Addresses = []string{s.addr}
	return s.openWith(t, o)
}

func (s *server) openAt(t *testing.T, addr string) *redisbus.Bus {
	t.Helper()
	return s.openWith(t, redisbus.Options{Addresses: []string{addr}})
}

func (s *server) openWith(t *testing.T, o redisbus.Options) *redisbus.Bus {
	t.Helper()
	s.registry, s.log = prometheus.NewRegistry(), &testkit.Buffer{}
	o.Registerer, o.Logger, o.Cluster = s.registry, slog.New(slog.NewTextHandler(s.log, nil)), s.cluster
	patient := o.Timeout == 0
	if patient {
		o.Timeout = testkit.Patience
	}
	b, err := redisbus.Open(o)
	testkit.Must(t, err)
	if patient { // a subscription that begins anew may have missed what the test waits for
		b.SetSilence(testkit.Patience)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// do sends a command past the bus.
func (s *server) do(t *testing.T, args ...any) any {
	t.Helper()
	v, err := s.raw.Do(context.Background(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// metric is the sum of a counter or a gauge over its labels.
func (s *server) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := s.registry.Gather()
	testkit.Must(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// An ear collects the events of a subscription.
type ear chan redisbus.Event

// listen subscribes until the test ends, and returns once it is subscribed.
func listen(t *testing.T, b *redisbus.Bus, channels ...redisbus.Channel) ear {
	t.Helper()
	e := make(ear, 10_000)
	listenWith(t, b, func(event redisbus.Event) { e <- event }, channels...)
	e.connected(t)
	return e
}

// listenToReports is listen to the channels of all shards. Other events than these are left out.
func listenToReports(t *testing.T, b *redisbus.Bus, kinds ...redisbus.Event) ear {
	t.Helper()
	e := make(ear, 10_000)
	listenBy(t, func(ctx context.Context) {
		_ = b.SubscribeReports(ctx, func(event redisbus.Event) {
			if slices.ContainsFunc(append(kinds, redisbus.Connected{}), func(kind redisbus.Event) bool { return reflect.TypeOf(kind) == reflect.TypeOf(event) }) {
				e <- event
			}
		})
	})
	for range b.Shards() {
		e.connected(t)
	}
	return e
}

// publish publishes a message, over a channel of a shard as agents do.
func (s *server) publish(t *testing.T, channel, message string) {
	t.Helper()
	command := "PUBLISH"
	if s.cluster && strings.Contains(channel, "{") {
		command = "SPUBLISH"
	}
	s.do(t, command, channel, message)
}

// listenOwn is listen to an instance's own channel.
func listenOwn(t *testing.T, b *redisbus.Bus, instance string) ear {
	t.Helper()
	e := make(ear, 10_000)
	listenBy(t, func(ctx context.Context) {
		_ = b.SubscribeOwn(ctx, instance, func(event redisbus.Event) { e <- event })
	})
	e.connected(t)
	return e
}

func listenWith(t *testing.T, b *redisbus.Bus, handle func(redisbus.Event), channels ...redisbus.Channel) {
	listenBy(t, func(ctx context.Context) {
		_ = b.Subscribe(ctx, channels, handle) // what it returns has its own test
	})
}

// listenBy calls what subscribes, until the test ends.
func listenBy(t *testing.T, subscribe func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		subscribe(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// next is the next event but those of connections.
func (e ear) next(t *testing.T) redisbus.Event {
	t.Helper()
	for {
		switch event := e.any(t).(type) {
		case redisbus.Connected:
		default:
			return event
		}
	}
}

// connected waits for a Connected.
func (e ear) connected(t *testing.T) {
	t.Helper()
	for e.any(t) != (redisbus.Connected{}) {
	}
}

func (e ear) any(t *testing.T) redisbus.Event {
	t.Helper()
	select {
	case event := <-e:
		return event
	case <-time.After(testkit.Patience):
		t.Fatal("no event came")
		return nil
	}
}

func stop(t *testing.T, p *testkit.Process) {
	t.Helper()
	testkit.Must(t, p.Signal(syscall.SIGSTOP))
}

func resume(t *testing.T, p *testkit.Process) {
	t.Helper()
	testkit.Must(t, p.Signal(syscall.SIGCONT))
}

// A proxy stands before a Redis and can lose its next answer, and with it the
// connection, or keep it until something has happened.
type proxy struct {
	listener net.Listener
	to       atomic.Pointer[string]
	loseNext atomic.Bool
	before   atomic.Pointer[func()] // happens before the next answer is passed on
}

func startProxy(t *testing.T) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &proxy{listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return p
}

func (p *proxy) port() string {
	_, port, _ := net.SplitHostPort(p.listener.Addr().String())
	return port
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	upstream, err := net.Dial("tcp", *p.to.Load())
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, client)
		upstream.Close()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := upstream.Read(b)
		if err != nil || p.loseNext.CompareAndSwap(true, false) {
			return
		}
		if before := p.before.Swap(nil); before != nil {
			(*before)()
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// A password that Redis refuses is what the error says.
func TestWrongPasswordIsTold(t *testing.T) {
	_, addr := testkit.Redis(t)
	raw := redis.NewClient(&redis.Options{Addr: addr})
	defer raw.Close()
	testkit.Must(t, raw.ConfigSet(t.Context(), "requirepass", "right").Err())
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Password: "wrong", Timeout: testkit.Patience})
	testkit.Must(t, err)
	defer b.Close()
	_, err = b.Register(t.Context(), "a", "", "")
	if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || errors.Is(err, redisbus.ErrUnavailable) {
		t.Errorf("Register = %v, want WRONGPASS, and not as if Redis were away", err)
	}
}
