// Package redisbus is Sluice's use of Redis: every key, script and channel, in one
// place. keys.go has the table of what is kept there and for how long.
//
// What must be atomic is a script. A call is one round trip and is sent once: a call that
// failed may have run, and its caller must be able to bear both. No call waits for Redis
// longer than Options.Timeout, but those that carry limit files. Errors that tell of its absence match ErrUnavailable, so
// that callers can go on alone.
package redisbus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// DefaultTimeout is a quarter of a second. It is longer than the pauses of a healthy Redis
// (a fork, a slow command of another client), during which new connections would only add
// to the load. It is short enough that an answer still serves the second it was asked for,
// and that the heartbeats lost in one time-out let no instance lapse.
const DefaultTimeout = 250 * time.Millisecond

// Options say how to reach Redis.
type Options struct {
	// Addresses are "host:port": of the server, of a cluster's nodes, or of the
	// Sentinels if MasterName is set. At least one. "/path" is a unix socket.
	Addresses []string

	MasterName string // of the master that Sentinels watch; "" for no Sentinel
	Cluster    bool   // Redis Cluster; implied by several addresses without MasterName
	Username   string // "" is Redis' default user
	Password   string // "" for none
	DB         int    // database; 0 in a cluster
	TLS        *tls.Config

	SentinelUsername string // as Username, of the Sentinels themselves
	SentinelPassword string // as Password

	// Shards is the number of parts that users are divided into, for Redis
	// Cluster. It must be the same in all processes. 0 means 1.
	Shards int

	Timeout time.Duration // of each call and dial; 0 means DefaultTimeout

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers no metrics; a second Bus needs another or a label
}

// A Bus is a pool of connections to Redis, safe for concurrent use.
type Bus struct {
	client       redis.UniversalClient
	limitsClient redis.UniversalClient // for limit files, so that no other call waits for a connection that carries one
	shards       int
	session      string // random
	timeout      time.Duration
	silenceLimit time.Duration // after which a subscription counts as lost
	logger       *slog.Logger
	membership   membership
	calls        atomic.Int64 // of scripts/registry.lua: their words

	limitPublisher limitPublisher
	limitReader    LimitReader

	requests     *prometheus.CounterVec   // op, result
	seconds      *prometheus.HistogramVec // op
	messages     *prometheus.CounterVec   // channel
	malformed    *prometheus.CounterVec   // channel
	dropped      *prometheus.CounterVec   // channel
	answered     prometheus.Gauge
	unsubscribed prometheus.Gauge

	policyLines, policyBytes *prometheus.CounterVec // kind
}

// Open makes a Bus. It does not connect: calls do, and go on doing so while
// Redis is away. The caller closes it.
func Open(o Options) (*Bus, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	logger := o.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	// go-redis prints to stderr what it also returns.
	logging.Disable()
	metrics := daemon.Metrics(o.Registerer)
	b := &Bus{
		client: o.connect(timeout, timeout),
		// Each of its calls has a deadline of its own, of which this is the longest.
		limitsClient: o.connect(timeout, maxLimitsTimeout),
		shards:       max(1, o.Shards),
		// An agent that starts again counts its calls from 1: Redis must not take them for those that it has heard.
		session:      rand.Text()[:8],
		timeout:      timeout,
		silenceLimit: silenceLimit,
		logger:       logger,
		requests: metrics.Counters("sluice_bus_requests_total",
			"Calls to Redis by operation and result (ok, unavailable, error).", "op", "result"),
		seconds: metrics.Histograms("sluice_bus_seconds",
			"Duration of calls to Redis in seconds.", "op", .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5),
		messages: metrics.Counters("sluice_bus_messages_total",
			"Published messages that were read, by channel, those of all shards together.", "channel"),
		malformed: metrics.Counters("sluice_bus_malformed_total",
			"Published messages, or policies in them, that were not understood.", "channel"),
		answered: metrics.Gauge("sluice_bus_last_success_timestamp_seconds",
			"When Redis last answered a call, in seconds since 1970; 0 before it ever did."),
		unsubscribed: metrics.Gauge("sluice_bus_subscriptions_lost",
			"Subscriptions to channels of Redis that are not connected now."),
		dropped: metrics.Counters("sluice_bus_dropped_total",
			"Published messages that came faster than they were handled.", "channel"),
		policyLines: metrics.Counters("sluice_bus_policies_total",
			"Policies sent or received, by kind: one that is divided among instances counts once for each, one that is sent to all counts once.", "kind"),
		policyBytes: metrics.Counters("sluice_bus_policy_bytes_total",
			"Bytes of these policies before compression, by kind.", "kind"),
	}
	read := metrics.Counter("sluice_bus_limits_read_bytes_total",
		"Bytes of published limit files that were read from Redis, compressed as they are there.")
	b.limitReader.client, b.limitReader.timeout, b.limitReader.call = b.limitsClient, timeout, b.callRedisWithin
	b.limitReader.count = func(bytes int) { read.Add(float64(bytes)) }
	return b, nil
}

// connect makes a pool of connections. It does not connect yet.
func (o Options) connect(dial, call time.Duration) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: o.Addresses, MasterName: o.MasterName, IsClusterMode: o.Cluster, DB: o.DB, TLSConfig: o.TLS,
		Username: o.Username, Password: o.Password, SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,

		DialTimeout: dial, ReadTimeout: call, WriteTimeout: call, PoolTimeout: call,
		// Or a call would end with these and not with its context.
		ContextTimeoutEnabled: true,

		// Callers call again, and know what may count twice; see also once. Five dials, which go-redis tries by itself,
		// would outlast every call.
		MaxRetries:    -1,
		DialerRetries: 1,

		// All calls are pipelines: one pool is enough.
		PipelinePoolSize: -1,

		// Nothing that older servers, proxies and the embedded one lack.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func (o Options) validate() error {
	switch {
	case len(o.Addresses) == 0:
		return errors.New("redis: no address")
	// Each of them costs each agent two lanes, two cores and two heartbeats a second.
	case o.Shards < 0 || o.Shards > 1024:
		return fmt.Errorf("redis: %d shards are not from 1 to 1024", o.Shards)
	case o.Timeout < 0:
		return fmt.Errorf("redis: timeout %v is negative", o.Timeout)
	case o.DB != 0 && o.MasterName == "" && (o.Cluster || len(o.Addresses) > 1):
		return fmt.Errorf("redis: a cluster has no database %d", o.DB)
	}
	return nil
}

// Close closes all connections. Subscriptions must have ended.
func (b *Bus) Close() error {
	// Both, also if the first one fails.
	if err := errors.Join(b.client.Close(), b.limitsClient.Close()); err != nil {
		return fmt.Errorf("close redis: %w", err)
	}
	return nil
}

// runScripts runs some scripts as one operation; see evalScripts.
func (b *Bus) runScripts(ctx context.Context, op, what string, calls ...call) (replies []any, err error) {
	err = b.callRedis(ctx, op, what, func(ctx context.Context) error {
		replies, err = b.evalScripts(ctx, calls...)
		return err
	})
	return replies, err
}

// callRedis runs one operation within the timeout, measures it, and wraps its error.
func (b *Bus) callRedis(ctx context.Context, op, what string, run func(context.Context) error) error {
	return b.callRedisWithin(ctx, b.timeout, op, what, run)
}

func (b *Bus) callRedisWithin(ctx context.Context, timeout time.Duration, op, what string, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	// Failures are measured too: what waited for the time-out is what an operator looks for.
	err := wrapError(what, run(ctx))
	b.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	came := result(err)
	b.requests.WithLabelValues(op, came).Inc()
	switch came {
	case "ok":
		b.answered.SetToCurrentTime()
	case "unavailable":
		// By itself go-redis would ask a replica that has been promoted up to ten seconds later.
		b.findMasters(ctx)
	}
	return err
}

// findMasters has the clients of a Redis Cluster ask anew which nodes are masters, in the background.
func (b *Bus) findMasters(ctx context.Context) {
	for _, client := range [...]redis.UniversalClient{b.client, b.limitsClient} {
		if cluster, ok := client.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx)
		}
	}
}

// Shards is the number of parts that users are divided into.
func (b *Bus) Shards() int { return b.shards }

func result(err error) string {
	switch {
	// Redis has answered that there are none.
	case err == nil || errors.Is(err, ErrNoLimits):
		return "ok"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	// Redis has answered, and refused: that does not pass by waiting.
	default:
		return "error"
	}
}
