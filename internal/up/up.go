// Package up runs a whole Sluice on one machine: an origin and a Redis if none
// are given, polygen, and for each instance a HAProxy with its agent. HAProxy
// runs as a child process on the shipped configuration; the rest runs in this
// process, each part through the same Run that its own command calls.
package up

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/bus/embedded"
	"github.com/sluice-qos/sluice/internal/group"
	"github.com/sluice-qos/sluice/internal/limitwatch"
	"github.com/sluice-qos/sluice/internal/listen"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/spoa"
	"github.com/sluice-qos/sluice/internal/tracing"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Options say what to run.
type Options struct {
	Limits     string       // the limit file
	Origin     string       // "host:port"; "" for the built-in demo origin
	Listen     string       // where the first instance listens; the i-th at port+i
	Instances  int          // 1 to 16
	Redis      string       // "host:port"; "" for an embedded one
	Identify   string       // chain of haproxy.ParseIdentify
	Admin      string       // where the admin API listens
	Access     admin.Access // to it
	HAProxy    string       // path or name of the program
	Unreadable string       // what becomes of requests whose credentials cannot be read: "share" or "deny"
	Refuse     int          // status of refusals, 429 or 503
	Metrics    polygen.UserMetrics
	MaxWait    time.Duration // of a request for its verdict
	OnLoss     spoa.OnLoss

	// KeySecrets is the file of the secrets that hide users' names; "" hides none. The
	// HAProxies have the one that is the current one when they start.
	KeySecrets string

	StartTimeout time.Duration // how long everything may take to come up; 0 means 30 s

	Stdout, Stderr io.Writer
	Logger         *slog.Logger
	Reload         <-chan os.Signal // SIGHUP
}

// pollEvery is how often is looked whether something serves.
const pollEvery = 20 * time.Millisecond

// Run starts everything, prints a line that begins with "ready" once every
// instance serves, and stops everything when ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.StartTimeout == 0 {
		o.StartTimeout = 30 * time.Second
	}
	addresses, err := listenAddresses(o.Listen, o.Instances)
	if err != nil {
		return err
	}
	if err := checkFree(addresses); err != nil {
		return err
	}
	program, err := findHAProxy(ctx, o.HAProxy)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &stack{Options: o, program: program, dir: dir, addresses: addresses, registry: prometheus.NewRegistry()}
	defer s.close()
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// The admin API listens first: that its address is taken is told before anything has started.
	adminListener, gate, err := o.Access.Listen(o.Admin, o.Logger, s.registry)
	if err != nil {
		return err
	}
	s.atEnd(func() { adminListener.Close() })
	for _, start := range []func(context.Context) error{s.startOrigin, s.startRedis, s.startPolygen, s.startInstances} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	s.serveAdmin(adminListener, gate)
	return group.Run(ctx, s.loops...)
}

// stack is what Run has started so far.
type stack struct {
	Options
	program   string // HAProxy's
	dir       string // of sockets and of HAProxy's files
	addresses []string
	registry  *prometheus.Registry
	loops     []func(context.Context) error // run until the context of Run ends
	ends      []func()                      // what close calls

	maxConns      int    // of an agent
	redisPassword string // of the embedded one
	suffix        string // of instances' names
	watcher       *limitwatch.Watcher
	generator     *polygen.Polygen
	agents        []*spoa.Agent
}

func (s *stack) atEnd(f func()) { s.ends = append(s.ends, f) }

// close ends what has started, the last first: an agent's bus before the Redis that it talks to.
func (s *stack) close() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// registerer tells the metrics of a part from those of the others.
func (s *stack) registerer(part string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"instance": part}, s.registry)
}

func (s *stack) startTracer(ctx context.Context, service, part string) (*tracing.Tracer, error) {
	tracer, err := tracing.Start(ctx, tracing.Options{Service: service, Logger: s.Logger, Registerer: s.registerer(part)})
	if err == nil {
		s.atEnd(func() { tracing.Stop(tracer) })
	}
	return tracer, err
}

// startOrigin starts the demo origin, unless there is an origin.
func (s *stack) startOrigin(context.Context) error {
	s.maxConns = listen.ForSPOE(listen.Descriptors(), s.Instances, s.Origin == "")
	if s.Origin != "" {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo origin: %w", err)
	}
	s.atEnd(func() { l.Close() })
	s.Origin = l.Addr().String()
	// It shares this process's file descriptors with the agents: its clients are one HAProxy for each.
	bounded := listen.BoundConnections(l, s.Instances*s.maxConns, nil)
	s.loops = append(s.loops, func(ctx context.Context) error { return origin.New().Serve(ctx, bounded) })
	return nil
}

// startRedis starts an embedded Redis, unless there is one. Anybody who could write to it could throttle
// every user, so it is a socket in a folder that only this process's user can open, with a password besides.
func (s *stack) startRedis(context.Context) error {
	if s.Redis != "" {
		s.suffix = "#" + rand.Text()[:8] // another machine's instances may have the same names
		return nil
	}
	l, err := net.Listen("unix", filepath.Join(s.dir, "redis.sock"))
	if err != nil {
		return fmt.Errorf("embedded redis: %w", err)
	}
	s.redisPassword, s.Redis = rand.Text(), l.Addr().String()
	stop, err := embedded.Start(l, s.redisPassword)
	if err != nil {
		return err
	}
	s.atEnd(stop)
	return nil
}

// openBus connects a part to Redis.
func (s *stack) openBus(log *slog.Logger, registerer prometheus.Registerer) (*bus.Bus, error) {
	b, err := bus.Open(bus.Options{Addresses: []string{s.Redis}, Password: s.redisPassword, Logger: log, Registerer: registerer})
	if err == nil {
		s.atEnd(func() { b.Close() })
	}
	return b, err
}

func (s *stack) startPolygen(ctx context.Context) error {
	log, registerer := s.Logger.With(slog.String("part", "polygen")), s.registerer("polygen")
	tracer, err := s.startTracer(ctx, "sluice-polygen", "polygen")
	if err != nil {
		return err
	}
	if s.watcher, err = limitwatch.NewHidden(s.Limits, s.KeySecrets, log, registerer); err != nil {
		return err
	}
	b, err := s.openBus(log, registerer)
	if err != nil {
		return err
	}
	s.generator, err = polygen.New(polygen.Options{Name: "polygen", Bus: b, Limits: s.watcher, UserMetrics: s.Metrics, Logger: log, Registerer: registerer, Tracer: tracer})
	if err != nil {
		return err
	}
	first := s.watcher.Set()
	s.loops = append(s.loops, s.generator.Run, func(ctx context.Context) error { return warnOfLimits(ctx, s.Options, s.watcher, first) },
		func(ctx context.Context) error { return s.generator.ReloadOn(ctx, s.Reload) })
	return nil
}

// startInstances starts the agents, and with each its HAProxy, which waits for it.
func (s *stack) startInstances(ctx context.Context) error {
	tracer, err := s.startTracer(ctx, "sluice-spoa", "instances")
	if err != nil {
		return err
	}
	set := s.watcher.Set() // one version for all HAProxies
	for i, address := range s.addresses {
		name, dir := fmt.Sprintf("instance-%d", i+1), filepath.Join(s.dir, strconv.Itoa(i+1))
		agent, err := s.newAgent(name, dir, tracer)
		if err != nil {
			return err
		}
		proxy := &process{program: s.program, dir: dir, address: address, options: &s.Options, set: set, wait: agent.Serving}
		if err := proxy.configure(); err != nil {
			return err
		}
		s.agents = append(s.agents, agent)
		s.loops = append(s.loops, agent.Run, proxy.runUntil)
	}
	return nil
}

func (s *stack) newAgent(name, dir string, tracer *tracing.Tracer) (*spoa.Agent, error) {
	log, registerer := s.Logger.With(slog.String("instance", name)), s.registerer(name)
	b, err := s.openBus(log, registerer)
	if err != nil {
		return nil, err
	}
	return spoa.New(spoa.Options{
		Instance: name + s.suffix, Bus: b,
		SPOE: "unix:" + spoeSocket(dir), Peers: "unix:" + peerSocket(dir), Runtime: runtimeSocket(dir),
		MaxConns: s.maxConns, MaxWait: s.MaxWait, OnLoss: s.OnLoss,
		Logger: log, Registerer: registerer, Tracer: tracer,
	})
}

// serveAdmin serves the admin API, and tells of it when every instance serves.
func (s *stack) serveAdmin(l net.Listener, gate *admin.Gate) {
	ready := func() error { return readiness(s.generator, s.agents, s.addresses) }
	s.loops = append(s.loops,
		func(ctx context.Context) error {
			h := admin.Handler(admin.Options{Gatherer: s.registry, Ready: ready, Reload: s.generator.Reload, API: s.generator, Live: s.generator, Overrides: s.generator, Gate: gate})
			return admin.Serve(ctx, l, h, s.Logger)
		},
		func(ctx context.Context) error {
			if err := awaitReady(ctx, s.StartTimeout, ready); err != nil || ctx.Err() != nil {
				return err
			}
			fmt.Fprintf(s.Stdout, "ready: %d instance(s) at http://%s%s, limits of %s, admin at %s://%s\n",
				len(s.addresses), s.addresses[0], lastPort(s.addresses), s.Limits, s.Access.Scheme(), l.Addr())
			return nil
		})
}

// warnOfLimits tells of every version of the limit file that wants another HAProxy
// configuration than the one of the first, or that names users whom HAProxy never finds.
func warnOfLimits(ctx context.Context, o Options, w *limitwatch.Watcher, first *limits.Set) error {
	warnOfNames(o, first)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	warned := first.Version()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		set := w.Set()
		if set.Version() != warned && !sameForHAProxy(set, first) {
			o.Logger.Warn("classes, exempt addresses or paths, limits of addresses, the first limit of bandwidth, or the current key secret have changed: start sluice up again for HAProxy to know them",
				slog.String("version", set.Version()))
		}
		if set.Version() != warned {
			warnOfNames(o, set)
		}
		warned = set.Version()
	}
}

// warnOfNames tells of users whose limits never count, because no request is found to be theirs.
func warnOfNames(o Options, set *limits.Set) {
	if set.Secrets() != nil {
		return // it has keys, whose capitals mean nothing, and the log is not to have names
	}
	names, err := haproxy.NeverFound(cmp.Or(o.Identify, "auto"), set)
	if err != nil || len(names) == 0 { // HAProxy's configuration was written with this chain
		return
	}
	o.Logger.Warn("users are named with capital letters, and the identify chain finds names in small letters only: write them small, or add :exact in the chain",
		slog.String("identify", o.Identify), slog.String("first", names[0]), slog.Int("users", len(names)))
}

// currentSecret is the secret that hides users' names, "" for none.
func currentSecret(set *limits.Set) string {
	if set.Secrets() == nil {
		return ""
	}
	return set.Secrets().Current()
}

// sameForHAProxy reports whether set makes the HAProxy configuration that first has made, or one that does no less.
func sameForHAProxy(set, first *limits.Set) bool {
	x, y := set.Exempt(), first.Exempt()
	return currentSecret(set) == currentSecret(first) && reflect.DeepEqual(set.Classes(), first.Classes()) &&
		slices.Equal(x.Addresses, y.Addresses) && slices.Equal(x.Paths, y.Paths) && set.AddressLimits() == first.AddressLimits() &&
		(first.LimitsBandwidth() || !set.LimitsBandwidth())
}

func spoeSocket(dir string) string { return filepath.Join(dir, "spoa.sock") }
func peerSocket(dir string) string { return filepath.Join(dir, "peers.sock") }

// runtimeSocket is where HAProxy's runtime API listens for the agent.
func runtimeSocket(dir string) string { return filepath.Join(dir, "runtime.sock") }

// configure writes the instance's HAProxy configuration.
func (p *process) configure() error {
	c := haproxy.ForLimits(p.set)
	c.KeySecret = currentSecret(p.set)
	c.Bind, c.Origin = p.address, p.options.Origin
	c.SPOE, c.Peer, c.Runtime = "unix@"+spoeSocket(p.dir), "unix@"+peerSocket(p.dir), runtimeSocket(p.dir)
	c.Stats = filepath.Join(p.dir, "stats.sock")
	c.Instance = "instance-" + filepath.Base(p.dir)
	c.Identify, c.RefuseStatus, c.Unreadable = p.options.Identify, p.options.Refuse, p.options.Unreadable
	c.VerdictTimeout = p.options.MaxWait + 10*time.Millisecond
	var err error
	p.file, p.env, err = haproxy.Write(p.dir, c)
	return err
}

// listenAddresses are the addresses of n instances: base, and the ports after it.
func listenAddresses(base string, n int) ([]string, error) {
	if n < 1 || n > 16 {
		return nil, fmt.Errorf("%d instances: want 1 to 16", n)
	}
	host, port, err := net.SplitHostPort(base)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port", base)
	}
	first, err := strconv.Atoi(port)
	if err != nil || first < 1 || first+n-1 > 65535 {
		return nil, fmt.Errorf("listen address %q with %d instance(s): want ports from 1 to 65535", base, n)
	}
	var addresses []string
	for i := range n {
		addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(first+i)))
	}
	return addresses, nil
}

// checkFree reports which address is taken. HAProxy does not: it shares a port with
// any other HAProxy of the same user (SO_REUSEPORT).
func checkFree(addresses []string) error {
	for i, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("instance %d: %w: choose other ports with --listen", i+1, err)
		}
		l.Close()
	}
	return nil
}

func lastPort(addresses []string) string {
	if len(addresses) == 1 {
		return ""
	}
	_, port, _ := net.SplitHostPort(addresses[len(addresses)-1])
	return " to :" + port
}

// readiness is why not everything serves yet, or nil.
func readiness(p *polygen.Polygen, agents []*spoa.Agent, addresses []string) error {
	if err := p.Ready(); err != nil {
		return partly("polygen", err)
	}
	for i, a := range agents {
		name := fmt.Sprintf("instance %d", i+1)
		if err := a.Ready(); err != nil {
			return partly(name, err)
		}
		conn, err := net.DialTimeout("tcp", addresses[i], time.Second)
		if err != nil {
			return fmt.Errorf("%s: HAProxy cannot be reached: %w", name, err)
		}
		conn.Close()
	}
	return nil
}

// partly names the part that is not ready: in front of what its error wraps, so that
// admin.Told has both.
func partly(name string, err error) error {
	cause := errors.Unwrap(err)
	if cause == nil {
		return errors.New(name + ": " + err.Error())
	}
	said, _, _ := strings.Cut(err.Error(), ": "+cause.Error())
	return fmt.Errorf("%s: %s: %w", name, said, cause)
}

// awaitReady polls until ready returns nil or ctx ends, for so long at most.
func awaitReady(ctx context.Context, limit time.Duration, ready func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready within %v: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
}
