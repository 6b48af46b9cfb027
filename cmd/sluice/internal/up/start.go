package up

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sluice-qos/sluice/internal/agent"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/redisbus/embedded"
)

func (s *stack) registerer(part string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"instance": part}, s.registry)
}

// startOrigin starts the demo origin, unless there is an origin.
func (s *stack) startOrigin(context.Context) error {
	// All instances share this process's file descriptors, and the demo origin takes its part of them.
	s.maxConns = daemon.ForSPOE(daemon.Descriptors(), s.Instances, s.Origin == "")
	if s.Origin != "" {
		return nil
	}
	// A free port, so that the demo needs no third address that could be taken.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo origin: %w", err)
	}
	s.atEnd(func() { l.Close() })
	s.Origin = l.Addr().String()
	// It shares this process's file descriptors with the agents: its clients are one HAProxy for each.
	bounded := daemon.BoundConnections(l, s.Instances*s.maxConns, nil)
	s.loops = append(s.loops, func(ctx context.Context) error { return origin.New().Serve(ctx, bounded) })
	return nil
}

// startRedis starts an embedded Redis, unless there is one. Anybody who could write to it could throttle
// every user, so it is a socket in a folder that only this process's user can open, with a password besides.
func (s *stack) startRedis(context.Context) error {
	if s.Redis != "" {
		// Another machine's instances may have the same names.
		s.suffix = "#" + rand.Text()[:8]
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

func (s *stack) openBus(log *slog.Logger, registerer prometheus.Registerer) (*redisbus.Bus, error) {
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{s.Redis}, Password: s.redisPassword, Timeout: agent.CallTimeout(s.MaxWait), Logger: log, Registerer: registerer})
	if err == nil {
		s.atEnd(func() { b.Close() })
	}
	return b, err
}

func (s *stack) startPolygen(ctx context.Context) error {
	// One lives in this process, and dies with it: a second one, to take over, would be of no use.
	log, registerer := s.Logger.With(slog.String("part", "polygen")), s.registerer("polygen")
	var err error
	if s.watcher, err = polygen.WatchLimits(s.Limits, log, registerer); err != nil {
		return err
	}
	b, err := s.openBus(log, registerer)
	if err != nil {
		return err
	}
	s.generator, err = polygen.New(polygen.Options{Name: "polygen", Bus: b, Limits: s.watcher, UserMetrics: s.Metrics, JobWorkers: s.JobWorkers, JobAccess: s.JobAccess, Logger: log, Registerer: registerer})
	if err != nil {
		return err
	}
	// What the HAProxies are configured for, below: later versions are held against it.
	first := s.watcher.Set()
	s.loops = append(s.loops, s.generator.Run, func(ctx context.Context) error { return warnOfLimits(ctx, s.Options, s.watcher, first) },
		func(ctx context.Context) error { return s.generator.ReloadOn(ctx, s.Reload) })
	return nil
}

// startInstances starts the agents, and with each its HAProxy, which waits for it.
func (s *stack) startInstances(ctx context.Context) error {
	set := s.watcher.Set() // one version for all HAProxies
	for i, address := range s.addresses {
		name, dir := fmt.Sprintf("instance-%d", i+1), filepath.Join(s.dir, strconv.Itoa(i+1))
		agent, err := s.newAgent(name, dir)
		if err != nil {
			return err
		}
		// The configuration is written before anything runs: what is wrong in it is an error of the start.
		proxy := &process{program: s.program, dir: dir, address: address, options: &s.Options, set: set, wait: agent.Serving}
		if err := proxy.configure(); err != nil {
			return err
		}
		s.agents = append(s.agents, agent)
		s.loops = append(s.loops, agent.Run, proxy.runUntil)
	}
	return nil
}

func (s *stack) newAgent(name, dir string) (*agent.Agent, error) {
	// A bus of its own for each agent, as on machines of their own: what one waits for holds up no other.
	log, registerer := s.Logger.With(slog.String("instance", name)), s.registerer(name)
	b, err := s.openBus(log, registerer)
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Options{
		Instance: name + s.suffix, Bus: b,
		SPOE: "unix:" + spoeSocket(dir), Peers: "unix:" + peerSocket(dir), Runtime: runtimeSocket(dir),
		MaxConns: s.maxConns, MaxWait: s.MaxWait, OnLoss: s.OnLoss,
		Logger: log, Registerer: registerer,
	})
}

// serveAdmin serves the admin API, and tells of it when every instance serves.
func (s *stack) serveAdmin(l net.Listener, gate *daemon.Gate) {
	ready := func() error { return readiness(s.generator, s.agents, s.addresses) }
	s.loops = append(s.loops,
		func(ctx context.Context) error {
			h := daemon.AdminHandler(daemon.AdminOptions{Gatherer: s.registry, Ready: ready, Reload: s.generator.Reload, Routes: api.Routes(s.generator, s.generator, s.generator), Gate: gate})
			return daemon.ServeAdmin(ctx, l, h, s.Logger)
		},
		func(ctx context.Context) error {
			// Scripts wait for this line, so it comes once, and not before every instance serves.
			if err := awaitReady(ctx, s.StartTimeout, ready); err != nil || ctx.Err() != nil {
				return err
			}
			fmt.Fprintf(s.Stdout, "ready: %d instance(s) at http://%s%s, limits of %s, admin at %s://%s\n",
				len(s.addresses), s.addresses[0], lastPort(s.addresses), s.Limits, s.Access.Scheme(), l.Addr())
			return nil
		})
}
