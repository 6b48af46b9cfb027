// Package polygen compares the cluster's use with the limits, sends the policies that follow to the agents, and publishes the
// limits. No limit depends on its policies, and what it sends lapses by itself.
//
// What must hold:
//
//	one polygen leads                  by a lease in Redis; a standby takes over within 2.5 s
//	a standby                          receives and decides the same, and sends and counts nothing
//	decisions                          are those of pkg/ratelimit, pkg/concurrency and pkg/bandwidth; one goroutine owns them
//	policies                           leave at once, in a busy cluster every 10 ms, never in another order than decided
//	published limits                   are the file's with the overrides by hand, never without
//	a limit file that does not load    leaves the last good one in force
//	an override by hand                is in Redis before it is in force; the leader writes again what Redis loses
//	users and instances                see view; reading them never delays a decision by more than 1000 records
package polygen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// tickEvery is how often requests in progress are looked at without a report of them.
	tickEvery = 100 * time.Millisecond
	// bytesEvery is how often bandwidth is looked at without a report of it.
	bytesEvery = 50 * time.Millisecond
)

// Options of a polygen. Fields without a stated default are required.
type Options struct {
	Name string // the polygen's name in answers and logs
	// Address is where other polygens reach this one's admin API, as a URL: they forward requests to the one that leads.
	Address string
	Bus     *redisbus.Bus
	Limits  *LimitWatcher
	Strict  bool // call keys hot at half of their limits already

	// Margin is how far below the limit the requests in progress of a blocked user must
	// fall before the user is let in again, in per cent of that limit. 0 means 5.
	Margin int

	UserMetrics UserMetrics // users who have series of their own

	JobWorkers []string      // addresses of workers of background jobs, to ask whose jobs run and wait; nil asks none
	JobAccess  client.Access // to them

	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil registers nothing
}

// Polygen is the policy generator.
type Polygen struct {
	options   Options
	candidate string // the name and a random part
	metrics   *metrics
	clock     *daemon.Clock
	rates     *ratelimit.Watch   // owned by decide
	slots     *concurrency.Watch // owned by decide
	bytes     *bandwidth.Watch   // owned by decide
	dropped   [4]uint64          // what there was no room for when the metric was last set; owned by decide
	users     users
	set       atomic.Pointer[limits.Set] // in force: without what has expired
	instances int                        // in the cluster; owned by decide
	unblocks  chan string                // users who are let in by hand
	lead      atomic.Pointer[lead]       // nil before the first answer of Redis
	lost      atomic.Pointer[error]      // why Redis cannot be reached; nil if it can
	publish   chan struct{}              // holds one token when the limits should be published

	overrides overrides
	workers   *workers // of background jobs
	streams   streams
	events    events
	live      live
}

// New checks the options and returns a polygen that does nothing until Run.
func New(o Options) (*Polygen, error) {
	switch {
	case o.Name == "":
		return nil, errors.New("polygen: no name")
	case o.Bus == nil:
		return nil, errors.New("polygen: no bus")
	case o.Limits == nil:
		return nil, errors.New("polygen: no limits")
	case o.Margin < 0 || o.Margin > 100:
		return nil, fmt.Errorf("a margin of %d %%: want 0 to 100", o.Margin)
	}
	if err := o.UserMetrics.validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	workers, err := newWorkers(o.JobWorkers, o.JobAccess, o.Logger)
	if err != nil {
		return nil, err
	}
	p := &Polygen{
		options: o,
		workers: workers,
		// Without the random part, two polygens that were given one name by mistake would both take the
		// lead for their own, and neither would ever give it up.
		candidate: o.Name + "#" + rand.Text()[:8],

		metrics: newMetrics(o.Registerer),
		clock:   &daemon.Clock{},
		rates:   ratelimit.NewWatch(o.Strict),
		slots:   concurrency.NewWatch(o.Margin),
		bytes:   bandwidth.NewWatch(),
		// One token is enough: whoever finds it there knows that the limits are going to be looked at after this.
		publish:  make(chan struct{}, 1),
		unblocks: make(chan string),
	}
	// The API answers before Run begins, by the limits of the file alone: overrides by hand are read in Run. For
	// this reason nothing is published before overrides.read.
	p.set.Store(o.Limits.Set().At(p.clock.Now()))
	p.users.view = view.New(p.set.Load(), maxKnownUsers)
	if o.Registerer != nil {
		o.Registerer.MustRegister(newUserCollector(p, o.UserMetrics))
	}
	p.metrics.limitsInForce(p.set.Load().Version())
	p.overrides = newOverrides(o.Limits.Set(), o.Registerer)
	return p, nil
}

// Run works until ctx ends; then it lets another polygen lead.
func (p *Polygen) Run(ctx context.Context) error {
	defer p.resign(ctx)
	defer p.workers.close()
	// A burst of reports waits here until a round takes them all. Beyond that they wait in the subscription, which
	// has a bound, counts what it drops, and says Connected after it.
	events := make(chan redisbus.Event, 1024)
	// Not those of what all agents tell at once, each second. They are taken up one at a time, and wait in the
	// subscription.
	starts := make(chan redisbus.Event)
	// Otherwise the first decisions would be by the file alone.
	p.readOverrides(ctx)
	return daemon.Run(ctx,
		func(ctx context.Context) error { return p.options.Limits.Run(ctx, p.adoptFile) },
		func(ctx context.Context) error { return p.hearInstances(ctx, events) },
		func(ctx context.Context) error { return p.hearReports(ctx, events, starts) },
		func(ctx context.Context) error { return p.decide(ctx, events, starts) },
		func(ctx context.Context) error { return p.keepLeading(ctx, events) },
		p.publishLimits,
		p.followOverrides,
		p.answerWatchers,
		p.countEvents,
	)
}

// hearReports takes what is reported of users until ctx ends.
func (p *Polygen) hearReports(ctx context.Context, events, starts chan<- redisbus.Event) error {
	return p.options.Bus.SubscribeReports(ctx, func(e redisbus.Event) {
		if _, ok := e.(redisbus.Starts); ok {
			pass(ctx, starts, e)
		} else {
			pass(ctx, events, e)
		}
	})
}

// hearInstances takes which instances there are until ctx ends.
func (p *Polygen) hearInstances(ctx context.Context, events chan<- redisbus.Event) error {
	return p.options.Bus.Subscribe(ctx, []redisbus.Channel{redisbus.InstancesChannel}, func(e redisbus.Event) {
		if _, ok := e.(redisbus.Connected); ok {
			p.wantPublication() // a Redis that was away may have lost the limits
		} else {
			pass(ctx, events, e)
		}
	})
}

func pass(ctx context.Context, to chan<- redisbus.Event, e redisbus.Event) {
	select {
	case to <- e:
	case <-ctx.Done():
	}
}

// Ready reports why polygen does not work, or nil. A standby is ready.
func (p *Polygen) Ready() error {
	if why := p.cutOff(); why != nil {
		return why
	}
	if p.lead.Load() == nil {
		return errors.New("redis cannot be reached: not asked yet")
	}
	return nil
}

// cutOff is why polygen has lost Redis, or nil, as before the first answer of Redis.
func (p *Polygen) cutOff() error {
	if why := p.lost.Load(); why != nil {
		return fmt.Errorf("redis cannot be reached: %w", *why)
	}
	return nil
}

// Reload reads the limit file now.
func (p *Polygen) Reload() error { return p.options.Limits.Reload() }

// ReloadOn reads the limit file on each signal, until ctx ends.
func (p *Polygen) ReloadOn(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			// An operator's mistake in the file must not end what enforces the last good one.
			if err := p.Reload(); err != nil {
				p.options.Logger.Error("reload failed: the old limits stay in force", slog.Any("error", err))
			}
		}
	}
}

// expire puts the limits of the present into force: without the overrides whose time is over.
func (p *Polygen) expire(now time.Time) {
	set := p.set.Load()
	// adoptFile and changeOverrides swap sets in other goroutines: a plain store would undo a swap since the load.
	if present := set.At(now); present != set && p.set.CompareAndSwap(set, present) {
		p.tellOfExpired(set, present, now)
	}
}
