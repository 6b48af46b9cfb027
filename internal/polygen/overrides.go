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
	// overridesPollEvery is how often Redis is asked for overrides: a standby learns them, and who knows of later ones than Redis
	// writes them again.
	overridesPollEvery = 500 * time.Millisecond
	// overridesKeptLonger is how much longer than the last override the list of them is kept.
	overridesKeptLonger = 5 * time.Second
	// maxOverrideTries bounds how often a write is tried again because of another polygen's.
	maxOverrideTries = 3
)

// overrides has what was set by hand, and the limits that follow from it and the file. The polygen that leads changes it, in
// Redis and then here. Versions are numbered, and the higher number wins: a polygen takes what Redis has, and gives Redis what
// that has lost.
type overrides struct {
	metrics overrideMetrics
	read    atomic.Bool   // whether Redis was asked since this polygen began to lead: limits are not published before
	look    chan struct{} // holds one token when Redis should be asked at once

	mu       sync.Mutex // held while a set is made, which takes as long as reading the limit file
	file     *limits.Set
	version  string // of the list; "" for none
	list     []limits.Override
	problems map[string]string // by user: why some overrides of the list are not in force
}

type overrideMetrics struct {
	inForce  prometheus.Gauge
	dropped  prometheus.Counter
	restored prometheus.Counter
	writes   *prometheus.CounterVec // action, result
}

func newOverrideMetrics(reg prometheus.Registerer) overrideMetrics {
	f := daemon.Metrics(reg)
	m := overrideMetrics{
		inForce: f.Gauge("sluice_overrides",
			"Overrides by hand that are in force."),
		dropped: f.Counter("sluice_overrides_dropped_total",
			"Overrides by hand that went out of force because the limit file does not allow them any more."),
		restored: f.Counter("sluice_overrides_restored_total",
			"Times that Redis had lost overrides by hand, and this polygen wrote them again."),
		writes: f.Counters("sluice_admin_writes_total",
			"What was to be done by hand through the admin API, by action (override, remove, unblock) and result: ok, refused, or failed because Redis did not answer.", "action", "result"),
	}
	// From the start, so that the first failure is a change from 0 to 1 and an alert sees it.
	for _, action := range []api.Action{api.SetOverride, api.RemoveOverride, api.UnblockUser} {
		for _, result := range []string{"ok", "refused", "failed"} {
			m.writes.WithLabelValues(string(action), result)
		}
	}
	return m
}

// adoptFile takes a new limit file.
func (p *Polygen) adoptFile(file *limits.Set) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file = file
	// Overrides that it does not allow are out of force, and stay in the list: the file before may come back.
	set, refused := limitfile.WithOverrides(file, h.list)
	p.enforce(set, refused)
}

// enforce puts limits into force. The lock must be held.
func (p *Polygen) enforce(set *limits.Set, refused []limitfile.Refused) {
	h := &p.overrides
	now := p.clock.Now()
	set = set.At(now)
	was := p.set.Swap(set)
	// Nobody was told yet of overrides that ended since the last look, and expire will not find them in the new set.
	p.tellOfExpired(was, was.At(now), now)
	problems := make(map[string]string, len(refused))
	for _, r := range refused {
		why := r.Why.Error()
		// Told once: the set is made again with each override that somebody sets.
		if problems[r.User] = why; h.problems[r.User] != why {
			h.metrics.dropped.Inc()
			p.options.Logger.Warn("override by hand dropped: the limit file does not allow it any more",
				slog.String("user", r.User), slog.String("error", why), slog.String("version", set.Version()))
		}
	}
	h.problems = problems
	h.metrics.inForce.Set(float64(len(set.Overrides())))
	// The same limits, made anew, are no event.
	if was.Version() != set.Version() {
		p.metrics.limitsInForce(set.Version())
		p.publishEvent(api.Event{Kind: api.LimitsEvent, Version: set.Version()})
	}
	p.wantPublication()
}

// wantOverrides has Redis asked for overrides soon, and nothing published before.
func (p *Polygen) wantOverrides() {
	p.overrides.read.Store(false)
	select {
	case p.overrides.look <- struct{}{}:
	default:
	}
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

// readOverrides asks Redis whether the overrides have changed, and puts them into force.
func (p *Polygen) readOverrides(ctx context.Context) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	err := p.fetchOverrides(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, redisbus.ErrUnavailable):
		// Nothing was read, and the limits cannot be published either.
		return
	case err != nil && !h.read.Load():
		// A Redis that answers, and refuses: to wait does not help, and the limits of the file are better than none.
		p.options.Logger.Warn("overrides by hand cannot be read: going on without", slog.Any("error", err))
	}
	if !h.read.Swap(true) {
		p.wantPublication()
	}
}

// fetchOverrides takes what Redis has if it is later than what is known here, and writes it again if it is earlier. The lock must
// be held.
func (p *Polygen) fetchOverrides(ctx context.Context) error {
	h := &p.overrides
	version, data, err := p.options.Bus.Overrides(ctx, h.version)
	switch {
	case err != nil || version == h.version:
		return err
	// Redis was emptied, or failed over to a replica that lagged behind.
	case versionNumber(version) < versionNumber(h.version):
		return p.restoreOverrides(ctx)
	}
	h.version = version
	list, err := limitfile.DecodeOverrides(data)
	if err != nil {
		// It was damaged. What is in force stays, and the next change replaces what is there.
		p.options.Logger.Warn("overrides by hand in Redis cannot be read", slog.Any("error", err))
		return nil
	}
	h.list = unexpired(list, p.clock.Now())
	set, refused := limitfile.WithOverrides(h.file, h.list)
	p.enforce(set, refused)
	return nil
}

// restoreOverrides writes into Redis what it has lost. The lock must be held.
func (p *Polygen) restoreOverrides(ctx context.Context) error {
	h := &p.overrides
	list := unexpired(h.list, p.clock.Now())
	if len(list) == 0 {
		return nil
	}
	if err := p.keepOverrides(ctx, h.version, list); err != nil {
		return err
	}
	h.metrics.restored.Inc()
	p.options.Logger.Info("redis had lost overrides by hand: it was told again", slog.Int("overrides", len(list)))
	return nil
}

func (p *Polygen) keepOverrides(ctx context.Context, version string, list []limits.Override) error {
	needed := overridesKeptLonger
	for _, o := range list {
		needed = max(needed, o.Until.Sub(p.clock.Now())+overridesKeptLonger)
	}
	return p.options.Bus.KeepOverrides(ctx, version, limitfile.EncodeOverrides(list), needed)
}

// nextVersion is the version of a list that replaces one of a version. A write that is repeated has the same one.
func nextVersion(version string, list []limits.Override) string {
	sum := sha256.Sum256(limitfile.EncodeOverrides(list))
	return fmt.Sprintf("%d-%x", versionNumber(version)+1, sum[:8])
}

// versionNumber is the number of a version, 0 of what is none.
func versionNumber(version string) int64 {
	digits, _, _ := strings.Cut(version, "-")
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// unexpired are the overrides that have not ended.
func unexpired(list []limits.Override, now time.Time) []limits.Override {
	return slices.DeleteFunc(slices.Clone(list), func(o limits.Override) bool { return !o.Until.After(now) })
}

// changeOverrides changes the overrides, in Redis and then here. The change is refused if an override
// that was in force, or the new one, would not be in force after it. An error of change is the result.
func (p *Polygen) changeOverrides(ctx context.Context, change func([]limits.Override) ([]limits.Override, error)) error {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	// The client may go, but the audit needs the outcome.
	ctx = context.WithoutCancel(ctx)
	for range maxOverrideTries {
		// First, for another polygen may have changed them.
		err := p.fetchOverrides(ctx)
		if errors.Is(err, redisbus.ErrOverridesChanged) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w, and nothing was changed: %w", api.ErrUnavailable, err)
		}
		next, err := change(unexpired(h.list, p.clock.Now()))
		if err != nil {
			return err
		}
		set, refused, err := p.tryOverrides(next)
		if err != nil {
			return err
		}
		version := nextVersion(h.version, next)
		err = p.keepOverrides(ctx, version, next)
		if errors.Is(err, redisbus.ErrOverridesChanged) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w, so it is not certain that it was changed; GET /api/v1/overrides tells when it is back: %w", api.ErrUnavailable, err)
		}
		// In Redis before here: what is in force and nobody else knows would end with this process.
		h.version, h.list = version, next
		p.enforce(set, refused)
		return nil
	}
	return fmt.Errorf("%w: others change the overrides all the time", api.ErrUnavailable)
}

// tryOverrides returns the limits with a list of overrides, or why it may not be the next one.
func (p *Polygen) tryOverrides(next []limits.Override) (set *limits.Set, refused []limitfile.Refused, err error) {
	h := &p.overrides
	if len(next) > limitfile.MaxOverrides || len(limitfile.EncodeOverrides(next)) > limitfile.MaxOverridesSize {
		return nil, nil, fmt.Errorf("%w; %d are possible, of %d bytes together", api.ErrFull, limitfile.MaxOverrides, limitfile.MaxOverridesSize)
	}
	set, refused = limitfile.WithOverrides(h.file, next)
	for _, r := range refused {
		// One that was there before is no reason to refuse another one.
		if !containsOverride(h.list, r.Override) {
			return nil, nil, r.Why
		}
	}
	return set, refused, nil
}

// containsOverride reports whether an override is in a list.
func containsOverride(list []limits.Override, o limits.Override) bool {
	encoded := func(o limits.Override) string { return string(limitfile.EncodeOverrides([]limits.Override{o})) }
	return slices.ContainsFunc(list, func(b limits.Override) bool { return b.User == o.User && encoded(b) == encoded(o) })
}

// tellOfExpired tells of overrides that have ended between two sets of the same content.
func (p *Polygen) tellOfExpired(was, is *limits.Set, now time.Time) {
	left := is.Overrides()
	p.overrides.metrics.inForce.Set(float64(len(left)))
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
