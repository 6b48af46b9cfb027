package polygen

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// overridesPollEvery is how often overrides are compared with Redis: a standby learns them, and the polygen that knows
	// later ones writes them again.
	overridesPollEvery = 500 * time.Millisecond
	// overridesKeptLonger is how much longer than the last override the list is kept.
	overridesKeptLonger = 5 * time.Second
)

// overrides are the limits set by hand, and what follows from them and the file. The polygen that leads changes them, in Redis
// and then here. Versions are numbered and the higher number wins: a polygen takes what Redis has, and gives Redis what that
// has lost.
type overrides struct {
	inForce prometheus.Gauge
	writes  *prometheus.CounterVec // action, result
	read    atomic.Bool            // Redis was read since this polygen leads: limits are not published before
	look    chan struct{}          // holds one token when Redis should be read at once

	mu       sync.Mutex // held while a set is made, which takes as long as reading the limit file
	file     *limits.Set
	version  string // of the list; "" for none
	list     []limits.Override
	problems map[string]string // by user: why some overrides of the list are not in force
}

func newOverrides(file *limits.Set, reg prometheus.Registerer) overrides {
	f := daemon.Metrics(reg)
	return overrides{file: file, look: make(chan struct{}, 1),
		inForce: f.Gauge("sluice_overrides",
			"Overrides by hand that are in force."),
		writes: f.Counters("sluice_admin_writes_total",
			"What was to be done by hand through the admin API, by action (override, remove, unblock) and result: ok, refused, or failed because Redis did not answer.", "action", "result"),
	}
}

func (p *Polygen) adoptFile(file *limits.Set) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file = file
	p.enforce(limitfile.WithOverrides(file, h.list))
}

// enforce puts limits into force. Overrides that the file refuses stay in the list, because the file before may come back. The
// lock must be held.
func (p *Polygen) enforce(set *limits.Set, refused []limitfile.Refused) {
	h := &p.overrides
	now := p.clock.Now()
	set = set.At(now)
	was := p.set.Swap(set)
	// expire cannot find overrides that ended since its last look.
	p.tellOfExpired(was, was.At(now), now)
	problems := make(map[string]string, len(refused))
	for _, r := range refused {
		why := r.Why.Error()
		// Once: the set is made again with each further override.
		if problems[r.User] = why; h.problems[r.User] != why {
			p.options.Logger.Warn("override by hand dropped: the limit file does not allow it any more",
				slog.String("user", r.User), slog.String("error", why), slog.String("version", set.Version()))
		}
	}
	h.problems = problems
	h.inForce.Set(float64(len(set.Overrides())))
	if was.Version() != set.Version() {
		p.metrics.limitsInForce(set.Version())
		p.publishEvent(api.Event{Kind: api.LimitsEvent, Version: set.Version()})
	}
	p.wantPublication()
}

// tellOfExpired tells of overrides that have ended between two sets of the same content.
func (p *Polygen) tellOfExpired(was, is *limits.Set, now time.Time) {
	left := is.Overrides()
	p.overrides.inForce.Set(float64(len(left)))
	byHand := false
	for _, o := range was.Overrides() {
		if !containsOverride(left, o) {
			byHand = true
			p.tellAudit("expire", "ok", o, nil)
			p.tellOverride(o, overrideEnded)
		}
	}
	until := was.Expires()
	if was == is || byHand || until.IsZero() || now.Before(until) { // before: the clock was set back
		return
	}
	p.publishEvent(api.Event{Kind: api.LimitsEvent, Version: is.Version(), Until: &until})
	p.options.Logger.Info("overrides of the limit file have expired", slog.Time("until", until), slog.String("version", is.Version()))
}

// followOverrides compares the overrides with those of Redis, until ctx ends.
func (p *Polygen) followOverrides(ctx context.Context) error {
	ticker := time.NewTicker(overridesPollEvery)
	defer ticker.Stop()
	for {
		p.readOverrides(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-p.overrides.look:
		}
	}
}

func (p *Polygen) readOverrides(ctx context.Context) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	err := p.fetchOverrides(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, redisbus.ErrUnavailable):
		return // the limits cannot be published either
	case err != nil && !h.read.Load():
		// A Redis that answers with an error will not improve by waiting.
		p.options.Logger.Warn("overrides by hand cannot be read: going on without", slog.Any("error", err))
	}
	if !h.read.Swap(true) {
		p.wantPublication()
	}
}

// fetchOverrides takes what Redis has if it is later, and writes the list again if Redis has lost it. The lock must be held.
func (p *Polygen) fetchOverrides(ctx context.Context) error {
	h := &p.overrides
	version, data, err := p.options.Bus.Overrides(ctx, h.version)
	if err != nil || version == h.version {
		return err
	}
	// Redis was emptied, or failed over to a replica that lagged behind.
	if versionNumber(version) < versionNumber(h.version) {
		list := unexpired(h.list, p.clock.Now())
		if len(list) == 0 {
			return nil
		}
		if err := p.keepOverrides(ctx, h.version, list); err != nil {
			return err
		}
		p.options.Logger.Info("redis had lost overrides by hand: they are written again", slog.Int("overrides", len(list)))
		return nil
	}
	h.version = version
	list, err := limitfile.DecodeOverrides(data)
	if err != nil {
		// What is in force stays, and the next change replaces the damaged list.
		p.options.Logger.Warn("overrides by hand in Redis cannot be read", slog.Any("error", err))
		return nil
	}
	h.list = unexpired(list, p.clock.Now())
	p.enforce(limitfile.WithOverrides(h.file, h.list))
	return nil
}

func (p *Polygen) keepOverrides(ctx context.Context, version string, list []limits.Override) error {
	needed := overridesKeptLonger
	for _, o := range list {
		needed = max(needed, o.Until.Sub(p.clock.Now())+overridesKeptLonger)
	}
	return p.options.Bus.KeepOverrides(ctx, version, limitfile.EncodeOverrides(list), needed)
}

func nextVersion(version string, list []limits.Override) string {
	sum := sha256.Sum256(limitfile.EncodeOverrides(list))
	return fmt.Sprintf("%d-%x", versionNumber(version)+1, sum[:8])
}

// versionNumber is the number of a version, 0 of "".
func versionNumber(version string) int64 {
	digits, _, _ := strings.Cut(version, "-")
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// unexpired are the overrides that have not ended.
func unexpired(list []limits.Override, now time.Time) []limits.Override {
	return slices.DeleteFunc(slices.Clone(list), func(o limits.Override) bool { return !o.Until.After(now) })
}

// changeOverrides changes the overrides, in Redis and then here. It refuses a change after which a former override, or the new
// one, would not be in force. An error of change is the result.
func (p *Polygen) changeOverrides(ctx context.Context, change func([]limits.Override) ([]limits.Override, error)) error {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // the client may go, but the audit needs the outcome
	if err := p.fetchOverrides(ctx); err != nil {
		return fmt.Errorf("%w, and nothing was changed: %w", api.ErrUnavailable, err)
	}
	next, err := change(unexpired(h.list, p.clock.Now()))
	if err != nil {
		return err
	}
	if len(next) > limitfile.MaxOverrides || len(limitfile.EncodeOverrides(next)) > limitfile.MaxOverridesSize {
		return fmt.Errorf("%w; %d are possible, of %d bytes together", api.ErrFull, limitfile.MaxOverrides, limitfile.MaxOverridesSize)
	}
	set, refused := limitfile.WithOverrides(h.file, next)
	for _, r := range refused {
		if !containsOverride(h.list, r.Override) { // a former one does not refuse another one
			return r.Why
		}
	}
	version := nextVersion(h.version, next)
	err = p.keepOverrides(ctx, version, next)
	switch {
	case errors.Is(err, redisbus.ErrOverridesChanged): // by a polygen that led until now
		return fmt.Errorf("%w, and has changed the overrides: ask again", api.ErrNotLeading)
	case err != nil:
		return fmt.Errorf("%w, so it is not certain that it was changed; GET /api/v1/overrides tells when it is back: %w", api.ErrUnavailable, err)
	}
	h.version, h.list = version, next
	p.enforce(set, refused)
	return nil
}

func containsOverride(list []limits.Override, o limits.Override) bool {
	encoded := func(o limits.Override) string { return string(limitfile.EncodeOverrides([]limits.Override{o})) }
	return slices.ContainsFunc(list, func(b limits.Override) bool { return b.User == o.User && encoded(b) == encoded(o) })
}
