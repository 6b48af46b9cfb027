// Package agent is the agent beside one HAProxy: it answers each request start
// with a verdict, exchanges leases and usage with the other agents through
// Redis, and writes the policies of polygen into HAProxy's tables.
//
// The decisions are pkg/ratelimit's, pkg/concurrency's and pkg/bandwidth's; this
// package owns the clock, the lock and the connections. When in doubt it fails open:
// a request that cannot be decided is admitted, and counted.
package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"

	"github.com/sluice-qos/sluice/internal/agent/costfeed"
	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// Agent is one instance's agent.
type Agent struct {
	options  Options
	metrics  *metrics
	clock    *daemon.Clock
	limiter  *limiter
	names    *names
	exchange *exchange
	starts   *starts
	seconds  *secondReader // nil: HAProxy admits nothing by itself
	peers    *peers.Client
	runtime  runtimeAPI // nil: HAProxy gets no credit
	spop     *spop.Server
	serving  atomic.Bool

	membership   membership
	lossLog      lossLog
	limitReading limitReading
	session      haproxySession

	// Into HAProxy's tables: peers.Teach.
	teach   func(table, key string, values peers.Values, ttl time.Duration)
	workers workers // the HAProxies that have asked

	settler *costfeed.Listener // nil: HAProxy does not say what requests cost

	unheldLog, unsettledLog daemon.LogLimit // of requests that HAProxy's files do not fit
}

// New checks the options and returns an agent that does nothing until Run.
func New(o Options) (*Agent, error) {
	if err := o.prepare(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{options: o, metrics: newMetrics(o.Registerer), clock: &daemon.Clock{}, starts: newStarts(),
		limitReading: limitReading{wanted: make(chan struct{}, 1)}}
	a.limiter = newLimiter(a.clock, a.metrics, concurrency.Config{Instance: o.Instance, DrainFor: o.DrainFor}, o.Bus.Shards(), o.Bus.ShardOf)
	a.names = newNames(o.UnknownUsers, a.metrics)
	a.limiter.tables.throttle, a.limiter.tables.block, a.limiter.tables.share = a.teachThrottle, a.teachBlock, a.teachShare
	a.membership.untold = make([]int, o.Bus.Shards())
	a.exchange = newExchange(a.limiter, a.metrics, &a.options)

	network, address := splitAddress(o.Peers)
	a.peers = peers.New(peers.Options{
		Network: network, Address: address,
		Local: "agent", Remote: o.LocalPeer,
		Teach: []peers.Table{throttleTable, blockTable, shareTable, creditTable},
		Learn: a.learnProgress, OnSession: a.followSession,
		Logger: o.Logger, Registerer: o.Registerer,
	})
	a.teach = a.peers.Teach
	// Without a way to withdraw credit none is given: there is nothing to count.
	if o.Runtime != "" {
		client := runtimeapi.New(o.Runtime)
		a.runtime = client
		a.seconds = newSecondReader(client, a.limiter.inForce.limitsOf, a.metrics, o.Logger)
		a.seconds.hearers = creditHearers{natives: a.takeNativeCounts, inherited: a.takeInherited, present: a.presentByCredit, absent: a.forgetPlaces}
	}
	if o.Costs != "" {
		a.settler = costfeed.New(costfeed.Options{Apply: a.settle, Unheard: a.takeUnheard, Logger: o.Logger, Registerer: o.Registerer})
	}
	a.spop = spop.New(spop.Options{
		Handler:  a.answerQuestion,
		OnCheck:  a.workers.checked,
		MaxConns: o.MaxConns,
		Logger:   o.Logger, Registerer: o.Registerer,
	})
	return a, nil
}

// Run works until ctx ends; then it leaves the cluster, goes on until the second ends if there are other instances, answers
// what has been asked, and reports what it admitted.
func (a *Agent) Run(ctx context.Context) error {
	defer a.leave(ctx)
	listener, err := a.prepareToServe(ctx)
	if err != nil {
		// To be ended while it waits for the cluster is an ordinary end.
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	loops := a.hearCosts()
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	// The exchange outlives the serving, so that the last reports are complete.
	exchanging, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	loops = append(loops,
		func(working context.Context) error { return a.part(ctx, working, end) },
		func(context.Context) error { return a.exchange.run(exchanging) },
		func(ctx context.Context) error {
			defer stop()
			// Who waits in line would hold up the end for as long as they may wait.
			defer context.AfterFunc(ctx, func() { close(a.limiter.over) })()
			a.serving.Store(true)
			defer a.serving.Store(false)
			return a.spop.Serve(ctx, listener)
		},
		a.peers.Run,
		a.follow,
		a.followOwn,
		a.heartbeats,
		a.reportStarts,
		a.readLimits,
	)
	if a.runtime != nil {
		loops = append(loops, a.runWithdrawals, a.seconds.watch)
	}
	return daemon.Run(working, loops...)
}

// Serving reports whether HAProxy gets verdicts.
func (a *Agent) Serving() bool { return a.serving.Load() }

// Started reports why the agent does not answer HAProxy yet, or nil.
func (a *Agent) Started() error {
	switch {
	// In the order in which they come about, so that the first one names what is waited for.
	case a.limiter.inForce.set.Load() == nil:
		return errors.New("no limits yet: is polygen running?")
	case !a.Serving():
		return errors.New("not serving yet")
	}
	return nil
}

// Ready reports why the agent does not fully work yet, or nil.
func (a *Agent) Ready() error {
	if err := a.Started(); err != nil {
		return err
	}
	if !a.peers.Connected() {
		return errors.New("no peers session with HAProxy")
	}
	return nil
}

// splitAddress divides "unix:/path" or "host:port" into network and address.
func splitAddress(address string) (network, rest string) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix", path
	}
	return "tcp", address
}
