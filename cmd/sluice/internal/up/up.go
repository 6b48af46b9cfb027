// Package up runs a whole Sluice on one machine: an origin and a Redis if none
// are given, polygen, and for each instance a HAProxy with its agent. HAProxy
// runs as a child process on the shipped configuration; the rest runs in this
// process, each part through the same Run that its own command calls.
package up

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/agent"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/polygen"
)

// Options say what to run.
type Options struct {
	Limits     string        // the limit file
	Origin     string        // "host:port"; "" for the built-in demo origin
	Listen     string        // where the first instance listens; the i-th at port+i
	Instances  int           // 1 to 16
	Redis      string        // "host:port"; "" for an embedded one
	Identify   string        // chain of haproxy.ParseIdentify
	Admin      string        // where the admin API listens
	Access     daemon.Access // to it
	HAProxy    string        // path or name of the program
	Unreadable string        // what becomes of requests whose credentials cannot be read: "share" or "deny"
	Refuse     int           // status of refusals, 429 or 503
	Metrics    polygen.UserMetrics
	MaxWait    time.Duration // of a request for its verdict
	OnLoss     agent.OnLoss

	JobWorkers []string      // addresses of workers of background jobs that polygen asks
	JobAccess  client.Access // to them

	StartTimeout time.Duration // how long everything may take to come up; 0 means 30 s

	Stdout, Stderr io.Writer
	Logger         *slog.Logger
	Reload         <-chan os.Signal // SIGHUP
}

// Run starts everything, prints a line that begins with "ready" once every
// instance serves, and stops everything when ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.StartTimeout == 0 {
		o.StartTimeout = 30 * time.Second
	}
	// Whatever a command line can have wrong is told before anything has started.
	addresses, err := ListenAddresses(o.Listen, o.Instances)
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
	s := &stack{Options: o, program: program, dir: dir, addresses: addresses, registry: flags.NewRegistry()}
	defer s.close()
	// The admin API listens first: that its address is taken is told before anything has started.
	adminListener, gate, err := o.Access.Listen(o.Admin, o.Logger, s.registry)
	if err != nil {
		return err
	}
	s.atEnd(func() { adminListener.Close() })
	// Each needs those before it: the agents and polygen their Redis, a HAProxy its origin's address.
	for _, start := range []func(context.Context) error{s.startOrigin, s.startRedis, s.startPolygen, s.startInstances} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	s.serveAdmin(adminListener, gate)
	// Only now anything runs: what has failed to start leaves no loop behind. The first that ends ends all.
	return daemon.Run(ctx, s.loops...)
}

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
	watcher       *polygen.LimitWatcher
	generator     *polygen.Polygen
	agents        []*agent.Agent
}

func (s *stack) atEnd(f func()) { s.ends = append(s.ends, f) }

// close ends what has started, the last first: an agent's bus before the Redis that it talks to.
func (s *stack) close() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}
