package polygen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/redisbus/embedded"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const tenGets = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10, "*": 20}, concurrent: 5}
  moving: {bandwidth: {down: 10MiB, up: 5MiB}}
  staff: {}
users: {staff: staff, mover: moving}
`

// redis starts an embedded one.
func redis(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	addr := l.Addr().String()
	stop, err := embedded.Start(l, "")
	testkit.Must(t, err)
	t.Cleanup(stop)
	return addr
}

// flush makes Redis forget everything, its connections excepted.
func flush(t *testing.T, addr string) {
	t.Helper()
	send(t, addr, "*1\r\n$8\r\nFLUSHALL\r\n")
}

// send sends Redis a command that it answers with OK.
func send(t *testing.T, addr, command string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	testkit.Must(t, err)
	defer conn.Close()
	answer := make([]byte, 5)
	if _, err := conn.Write([]byte(command)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(answer); err != nil || string(answer) != "+OK\r\n" {
		t.Fatalf("%q = %q, %v", command, answer, err)
	}
}

// open waits for a Redis that is slow, as on a busy machine: only one that is gone is
// an error.
func open(t testing.TB, addr string, shards int) *redisbus.Bus {
	t.Helper()
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Shards: shards, Timeout: testkit.Patience})
	testkit.Must(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// generator is a polygen with a limit file of its own.
type generator struct {
	*Polygen
	file     string
	registry *prometheus.Registry
	stop     context.CancelFunc
	ended    chan struct{}
	err      error // of Run, valid once ended
}

// newGenerator makes one that does not run yet.
func newGenerator(t testing.TB, addr, name string, change func(*Options)) *generator {
	t.Helper()
	g := &generator{
		file: filepath.Join(t.TempDir(), "limits.yaml"), registry: prometheus.NewPedanticRegistry(), ended: make(chan struct{}),
	}
	g.write(t, tenGets)
	watcher, err := WatchLimits(g.file, slog.New(slog.DiscardHandler), g.registry)
	testkit.Must(t, err)
	o := Options{Name: name, Bus: open(t, addr, 1), Limits: watcher, Registerer: g.registry}
	if change != nil {
		change(&o)
	}
	if g.Polygen, err = New(o); err != nil {
		t.Fatal(err)
	}
	return g
}

// run runs it until the test ends.
func (g *generator) run(t *testing.T) *generator {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g.stop = cancel
	go func() {
		defer close(g.ended)
		g.err = g.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		_ = g.wait(t)
	})
	return g
}

func (g *generator) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-g.ended:
		return g.err
	case <-time.After(testkit.Patience):
		t.Fatalf("Run did not end within %v", testkit.Patience)
		return nil
	}
}

// observe takes an event of one that does not run, and sendPolicies sends what follows, both as a round does.
func (g *generator) observe(now time.Time, e redisbus.Event) {
	g.Polygen.observe(now, e)
	g.showEvent(now, e)
}

func (g *generator) sendPolicies(ctx context.Context) {
	if sent := g.Polygen.sendPolicies(ctx); sent != nil {
		<-sent
	}
}

// User and History are by name.
func (g *generator) User(name string) api.User       { return g.Polygen.User(api.Who{User: name}) }
func (g *generator) History(name string) api.History { return g.Polygen.History(api.Who{User: name}) }

func (g *generator) write(t testing.TB, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(g.file, []byte(text), 0o600))
}

// parse reads a limit file.
func parse(t testing.TB, text string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits", []byte(text))
	testkit.Must(t, err)
	return set
}

// takeFile has one that does not run decide by another file.
func (g *generator) takeFile(t *testing.T, text string) {
	t.Helper()
	g.write(t, text)
	testkit.Must(t, g.Reload())
	g.adoptFile(g.options.Limits.Set())
}

// pretend has one that does not run lead, or be a standby, whatever Redis says.
func (g *generator) pretend(leads bool) {
	if g.lead.Store(nil); leads {
		g.lead.Store(&lead{leader: redisbus.Leader{Name: g.candidate}, until: time.Now().Add(time.Hour)})
	}
}

func (g *generator) awaitLead(t *testing.T) *generator {
	t.Helper()
	testkit.Eventually(t, g.options.Name+" leads", func() error {
		if !g.leads() {
			return errors.New("it does not")
		}
		return nil
	})
	return g
}

// agents play the agents of a cluster, the instances one and two: they use what is limited, and hear what
// polygen says.
type agents struct {
	t   *testing.T
	bus *redisbus.Bus

	mu    sync.Mutex
	heard []redisbus.Message
}

func startAgents(t *testing.T, addr string) *agents {
	t.Helper()
	return startAgentsOn(t, open(t, addr, 1))
}

func startAgentsOn(t *testing.T, b *redisbus.Bus) *agents {
	t.Helper()
	a := &agents{t: t, bus: b}
	ctx, cancel := context.WithCancel(t.Context())
	hear := func(subscribe func(handle func(redisbus.Event)) error) {
		connected, done := make(chan struct{}), make(chan struct{})
		var once sync.Once
		go func() {
			defer close(done)
			_ = subscribe(func(e redisbus.Event) {
				a.mu.Lock()
				defer a.mu.Unlock()
				switch e := e.(type) {
				case redisbus.Connected:
					once.Do(func() { close(connected) })
				case redisbus.Policies:
					a.heard = append(a.heard, e...)
				}
			})
		}()
		t.Cleanup(func() { cancel(); <-done })
		select {
		case <-connected:
		case <-time.After(testkit.Patience):
			t.Fatal("no subscription")
		}
	}
	hear(func(handle func(redisbus.Event)) error {
		return b.Subscribe(ctx, []redisbus.Channel{redisbus.PoliciesChannel}, handle)
	})
	for _, instance := range []string{"one", "two"} {
		hear(func(handle func(redisbus.Event)) error { return b.SubscribeOwn(ctx, instance, handle) })
	}
	return a
}

// use counts requests as an instance in the present second, all in one message
// to polygen, and returns the second.
func (a *agents) use(instance string, counts map[ratelimit.Key]int) (second int64, err error) {
	now, err := a.bus.Time(a.t.Context())
	if err != nil {
		return 0, err
	}
	var asks []ratelimit.Ask
	for k, n := range counts {
		asks = append(asks, ratelimit.Ask{Key: k, WindowStart: now.Unix(), Limit: 1, Debt: n})
	}
	_, err = a.bus.Take(a.t.Context(), instance, asks)
	return now.Unix(), err
}

// about is what was heard of a user, in order.
func (a *agents) about(user string) []redisbus.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	var messages []redisbus.Message
	for _, m := range a.heard {
		switch m := m.(type) {
		case redisbus.Throttle:
			if m.Key.User == user {
				messages = append(messages, m)
			}
		case redisbus.Hot:
			if m.Key.User == user {
				messages = append(messages, m)
			}
		}
	}
	return messages
}

// versions are the versions of limits heard of, repetitions left out.
func (a *agents) versions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var versions []string
	for _, m := range a.heard {
		if m, ok := m.(redisbus.Limits); ok {
			versions = append(versions, m.Version)
		}
	}
	return slices.Compact(versions)
}

// published waits until the limits in Redis are these.
func (a *agents) published(text string) {
	a.t.Helper()
	set := parse(a.t, text)
	testkit.Eventually(a.t, "the limits are published", func() error {
		published, err := a.bus.Limits(a.t.Context(), 1)
		if err != nil {
			return err
		}
		if published.Version != set.Version() || string(published.File) != text {
			return fmt.Errorf("Redis has version %s: %q", published.Version, published.File)
		}
		return nil
	})
}

// Events of a generator that does not run, beside those of the bus.
type (
	tick      time.Duration // the watch of requests in progress is looked at after so long
	bytesTick time.Duration // and that of bandwidth
	file      string        // new limits
	leads     bool
	// together are events that came meanwhile: what they bring about is sent together
	together []any
)

// play is what a polygen sends for events, a millisecond after each other, and when it
// ended by the clock of the generator.
func play(t *testing.T, text string, events []any, change func(*Options)) (sent []redisbus.Message, end time.Time) {
	t.Helper()
	g := newGenerator(t, "127.0.0.1:1", "polygen", change)
	g.pretend(true)
	g.takeFile(t, text)
	now := time.Now()
	var do func(any)
	do = func(e any) {
		switch e := e.(type) {
		case redisbus.Event:
			g.observe(now, e)
		case tick:
			now = now.Add(time.Duration(e))
			g.tickSlots(now)
		case bytesTick:
			now = now.Add(time.Duration(e))
			g.bytes.Tick(now)
		case file:
			g.takeFile(t, string(e))
		case leads:
			g.pretend(bool(e))
		case together:
			for _, e := range e {
				do(e)
			}
		default:
			t.Fatalf("event %T", e)
		}
	}
	for _, e := range events {
		now = now.Add(time.Millisecond)
		do(e)
		d := g.takeDecisions()
		all, divided := g.policies(&d)
		if !g.leads() {
			continue
		}
		sent = append(sent, all...)
		for _, m := range divided {
			sent = append(sent, m.Message)
		}
	}
	return sent, now
}
