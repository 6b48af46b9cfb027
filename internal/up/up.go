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
	Unreadable string       // what becomes of requests whose credentials cannot be read: one of haproxy.Unreadables
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

	redisPassword string // of the embedded one
	suffix        string // of instances' names
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

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	part := func(name string) prometheus.Registerer {
		return prometheus.WrapRegistererWith(prometheus.Labels{"instance": name}, registry)
	}

	generatorTracer, err := tracing.Start(ctx, tracing.Options{Service: "sluice-polygen", Logger: o.Logger, Registerer: part("polygen")})
	if err != nil {
		return err
	}
	agentTracer, err := tracing.Start(ctx, tracing.Options{Service: "sluice-spoa", Logger: o.Logger, Registerer: part("instances")})
	if err != nil {
		return err
	}
	defer tracing.Stop(generatorTracer, agentTracer)

	var loops []func(context.Context) error
	adminListener, gate, err := o.Access.Listen(o.Admin, o.Logger, registry)
	if err != nil {
		return err
	}
	defer adminListener.Close()

	maxConns := listen.ForSPOE(listen.Descriptors(), o.Instances, o.Origin == "")
	if o.Origin == "" {
		loop, stop, err := o.startOrigin(o.Instances * maxConns)
		if err != nil {
			return err
		}
		defer stop()
		loops = append(loops, loop)
	}
	if o.Redis == "" {
		stop, err := o.startRedis(dir)
		if err != nil {
			return err
		}
		defer stop()
	} else {
		o.suffix = "#" + rand.Text()[:8] // another machine's instances may have the same names
	}

	watcher, err := limitwatch.NewHidden(o.Limits, o.KeySecrets, o.Logger.With(slog.String("part", "polygen")), part("polygen"))
	if err != nil {
		return err
	}
	generator, closeBus, err := newPolygen(o, watcher, part("polygen"), generatorTracer)
	if err != nil {
		return err
	}
	defer closeBus()
	set := watcher.Set()
	loops = append(loops, generator.Run, func(ctx context.Context) error { return warnOfLimits(ctx, o, watcher, set) })

	var agents []*spoa.Agent
	for i, address := range addresses {
		name := fmt.Sprintf("instance-%d", i+1)
		own := filepath.Join(dir, strconv.Itoa(i+1))
		agent, closeBus, err := newAgent(o, name, own, maxConns, part(name), agentTracer)
		if err != nil {
			return err
		}
		defer closeBus()
		agents = append(agents, agent)
		proxy := &process{program: program, dir: own, address: address, options: &o, set: set, wait: agent.Serving}
		loops = append(loops, agent.Run, proxy.runUntil)
		if err := proxy.configure(); err != nil {
			return err
		}
	}

	ready := func() error { return readiness(generator, agents, addresses) }
	loops = append(loops,
		func(ctx context.Context) error {
			h := admin.Handler(admin.Options{Gatherer: registry, Ready: ready, Reload: generator.Reload, API: generator, Live: generator, Overrides: generator, Gate: gate})
			return admin.Serve(ctx, adminListener, h, o.Logger)
		},
		func(ctx context.Context) error { return generator.ReloadOn(ctx, o.Reload) },
		func(ctx context.Context) error {
			if err := awaitReady(ctx, o.StartTimeout, ready); err != nil || ctx.Err() != nil {
				return err
			}
			fmt.Fprintf(o.Stdout, "ready: %d instance(s) at http://%s%s, limits of %s, admin at %s://%s\n",
				len(addresses), addresses[0], lastPort(addresses), o.Limits, o.Access.Scheme(), adminListener.Addr())
			return nil
		})
	return group.Run(ctx, loops...)
}

// startOrigin starts the demo origin, for at most so many connections. The loop serves it.
func (o *Options) startOrigin(connections int) (loop func(context.Context) error, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("demo origin: %w", err)
	}
	o.Origin = l.Addr().String()
	// It shares this process's file descriptors with the agents: its clients are one HAProxy for each.
	bounded := listen.BoundConnections(l, connections, nil)
	return func(ctx context.Context) error { return origin.New().Serve(ctx, bounded) }, func() { l.Close() }, nil
}

// startRedis starts an embedded Redis. Anybody who could write to it could throttle every user,
// so it is a socket in a folder that only this process's user can open, with a password besides.
func (o *Options) startRedis(dir string) (stop func(), err error) {
	l, err := net.Listen("unix", filepath.Join(dir, "redis.sock"))
	if err != nil {
		return nil, fmt.Errorf("embedded redis: %w", err)
	}
	o.redisPassword = rand.Text()
	o.Redis = l.Addr().String()
	return embedded.Start(l, o.redisPassword)
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

func newPolygen(o Options, watcher *limitwatch.Watcher, reg prometheus.Registerer, tracer *tracing.Tracer) (*polygen.Polygen, func(), error) {
	log := o.Logger.With(slog.String("part", "polygen"))
	b, err := bus.Open(bus.Options{Addresses: []string{o.Redis}, Password: o.redisPassword, Logger: log, Registerer: reg})
	if err != nil {
		return nil, nil, err
	}
	p, err := polygen.New(polygen.Options{Name: "polygen", Bus: b, Limits: watcher, UserMetrics: o.Metrics, Logger: log, Registerer: reg, Tracer: tracer})
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	return p, func() { b.Close() }, nil
}

func newAgent(o Options, name, dir string, maxConns int, reg prometheus.Registerer, tracer *tracing.Tracer) (*spoa.Agent, func(), error) {
	log := o.Logger.With(slog.String("instance", name))
	b, err := bus.Open(bus.Options{Addresses: []string{o.Redis}, Password: o.redisPassword, Logger: log, Registerer: reg})
	if err != nil {
		return nil, nil, err
	}
	a, err := spoa.New(spoa.Options{
		Instance: name + o.suffix, Bus: b,
		SPOE: "unix:" + spoeSocket(dir), Peers: "unix:" + peerSocket(dir), Runtime: runtimeSocket(dir),
		MaxConns: maxConns, MaxWait: o.MaxWait, OnLoss: o.OnLoss,
		Logger: log, Registerer: reg, Tracer: tracer,
	})
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	return a, func() { b.Close() }, nil
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
	c.Identify, c.RefuseStatus = p.options.Identify, p.options.Refuse
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
