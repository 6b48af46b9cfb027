// Package redislimits follows the limits that a polygen publishes in Redis, with what
// operators set by hand (sluice override), in a worker of background jobs. Its Set is for
// jobs.FileTiers:
//
//	published, err := redislimits.New(client, redislimits.Config{File: file.Set})
//	go published.Run(ctx)
//	tiers := jobs.FileTiers{Set: published.Set}
//
// It asks Redis for the version four times a second, and reads the limits when that is
// another one. What it has read stays in force whatever becomes of Redis and polygen, until
// the program ends; overrides end at their time all the same, for FileTiers look at the clock.
//
// In memory are the limits and their text, which is 64 MiB at most and what operators set.
package redislimits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// askEvery and the look at new tiers by riverqos (a tenth of a second) leave most of a second for jobs to start in.
	askEvery = 250 * time.Millisecond
	// retryAfter is the same after a failure.
	retryAfter = time.Second
	// readers is for how many workers there is time to read a new limit file. A worker does not know how many there are.
	readers = 100
)

// Config says what else there is. The zero Config is right where workers
// have no limit file.
type Config struct {
	// File returns the limits that count until some have been read, such as
	// jobs.LimitFile's Set; nil means those of jobs.FileTiers without a file.
	File func() *limits.Set
	// Logger is told of new limits and of failures; nil discards. No line has a user's name.
	Logger *slog.Logger
	// Registry gets the metrics; nil means none.
	Registry prometheus.Registerer
}

// Limits are what was published last. They are safe for concurrent use.
type Limits struct {
	config Config
	reader *redisbus.LimitReader
	set    atomic.Pointer[limits.Set] // nil before the first

	failed   bool // the last time
	failures daemon.LogLimit
	errors   *prometheus.CounterVec // reason
	answered prometheus.Gauge
}

// New makes Limits that read with a client, which remains the caller's, to configure and to
// close. It asks nobody: see Run. Without ContextTimeoutEnabled the client minds its own time
// limits alone.
func New(client redis.UniversalClient, config Config) *Limits {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.File == nil {
		config.File = func() *limits.Set { return nil }
	}
	metrics := daemon.Metrics(config.Registry)
	l := &Limits{
		config: config, reader: redisbus.NewLimitReader(client),
		errors: metrics.Counters("sluice_jobs_limits_errors_total",
			"Failures to read the limits that polygen publishes, by reason: redis (it did not answer in time, or refused), missing (none, or not all of them, are there), checksum (they are damaged) or invalid (this version of the worker does not understand them). Those of before count.", "reason"),
		answered: metrics.Gauge("sluice_jobs_limits_success_timestamp_seconds",
			"When the worker last knew what polygen publishes, in seconds since 1970; 0 if it never did, and the limit file counts."),
	}
	for _, reason := range []string{redisbus.UnreachableLimits, redisbus.MissingLimits, redisbus.DamagedLimits, redisbus.InvalidLimits} {
		l.errors.WithLabelValues(reason)
	}
	return l
}

// Set is what was published last, or before that what the limit file says. It is that of
// all times: see limits.Set.At.
func (l *Limits) Set() *limits.Set {
	if set := l.set.Load(); set != nil {
		return set
	}
	return l.config.File()
}

// Run reads what is published until the context ends, and returns nil then. It runs once at
// a time.
func (l *Limits) Run(ctx context.Context) error {
	for {
		wait := askEvery
		if err := l.follow(ctx); ctx.Err() == nil {
			l.note(err)
			if err != nil {
				wait = retryAfter
			}
		}
		// At random, so that workers that began together do not all ask at once.
		if !daemon.Sleep(ctx, wait-rand.N(wait/4)) {
			return nil
		}
	}
}

// note counts how a look ended, and logs it if that is new.
func (l *Limits) note(err error) {
	if err == nil {
		l.answered.SetToCurrentTime()
		if l.failed {
			l.config.Logger.Info("the published limits can be read again", slog.String("version", l.set.Load().Version()))
		}
		l.failed = false
		return
	}
	l.failed = true
	l.errors.WithLabelValues(reasonOf(err)).Inc()
	if skipped, ok := l.failures.Allow(); ok {
		l.config.Logger.Warn("the published limits could not be read: those of before count",
			slog.Bool("from_file", l.set.Load() == nil), slog.Any("error", err), slog.Int("failures", skipped+1))
	}
}

func reasonOf(err error) string {
	if errors.As(err, new(limitfile.Errors)) {
		return redisbus.InvalidLimits
	}
	return redisbus.LimitErrorReason(err)
}

func (l *Limits) follow(ctx context.Context) error {
	version, err := l.reader.Version(ctx)
	if err != nil {
		return err
	}
	before := l.set.Load()
	if before != nil && before.Version() == version {
		return nil
	}
	together := int64(readers)
	// The first limits are read at once.
	if before == nil {
		together = 1
	}
	published, err := l.reader.Limits(ctx, together)
	if err != nil {
		return err
	}
	set, err := limitfile.ParsePublished("published limits", published.File, published.Overrides, nil)
	if err != nil {
		return fmt.Errorf("parse the published limits %s: %w", published.Version, err)
	}
	l.set.Store(set)
	l.config.Logger.Info("limits in force", slog.String("version", published.Version), slog.Int("users", set.UserCount()), slog.Int("overrides", len(set.At(time.Now()).Overrides())))
	return nil
}
