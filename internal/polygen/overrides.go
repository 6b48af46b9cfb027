package polygen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/metric"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// overridesPollEvery is how often Redis is asked for overrides that another polygen has set. They
	// take effect that much later if this polygen leads.
	overridesPollEvery = 500 * time.Millisecond
	// overridesKeptLonger is how much longer than the last override the list of them is kept.
	overridesKeptLonger = 5 * time.Second
	// awaitReplicas is how long a write waits for Redis' replicas: much longer than one that works needs,
	// and as long as an operator does not notice.
	awaitReplicas = 500 * time.Millisecond
	// maxOverrideTries bounds how often a write is tried again because of another one.
	maxOverrideTries = 10
)

// overrides has what was set by hand, and the limits that follow from it and the file. Redis
// keeps it for all polygens. It is read often, merged with what is known here, for Redis may have gone
// back, and replaced only if it is still the one that was read.
type overrides struct {
	metrics     overrideMetrics
	read        atomic.Bool                // whether Redis has ever been asked: limits are not published before
	fileInForce atomic.Pointer[limits.Set] // the limits of the file alone, without what has expired

	mu       sync.Mutex // held while a set is made, which takes as long as reading the limit file
	file     *limits.Set
	version  string // of what Redis keeps
	state    overrideState
	problems map[string]string // by user: why some overrides of the state are not in force
}

type overrideMetrics struct {
	inForce  prometheus.Gauge
	dropped  prometheus.Counter
	restored prometheus.Counter
	surplus  prometheus.Counter
	writes   *prometheus.CounterVec // action, result
}

func newOverrideMetrics(reg prometheus.Registerer) overrideMetrics {
	f := metric.With(reg)
	m := overrideMetrics{
		inForce: f.Gauge("sluice_overrides",
			"Overrides by hand that are in force."),
		dropped: f.Counter("sluice_overrides_dropped_total",
			"Overrides by hand that went out of force because the limit file does not allow them any more."),
		restored: f.Counter("sluice_overrides_restored_total",
			"Times that Redis lacked overrides by hand, or removals of them, and this polygen wrote them again."),
		surplus: f.Counter("sluice_overrides_surplus_total",
			"Overrides by hand that were let go because Redis and this polygen together had more than there may be, and removals of them that were let go because there were too many."),
		writes: f.Counters("sluice_admin_writes_total",
			"What was to be done by hand through the admin API, by action (override, remove, unblock) and result: ok, unsafe because not all replicas of Redis have it yet, refused, or failed because Redis did not answer.", "action", "result"),
	}
	// From the start, so that the first failure is a change from 0 to 1 and an alert sees it.
	for _, action := range []api.Action{api.SetOverride, api.RemoveOverride, api.UnblockUser} {
		for _, result := range []string{"ok", "unsafe", "refused", "failed"} {
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
	h.fileInForce.Store(file.At(p.clock.Now()))
	// Overrides that it does not allow are out of force, and stay in the state: the file before may come back, and
	// other polygens may still have it.
	set, refused := limitfile.WithOverrides(file, h.state.list)
	p.enforce(set, refused)
}

// enforce puts limits into force. The lock must be held.
func (p *Polygen) enforce(set *limits.Set, refused []limitfile.Refused) {
	h := &p.overrides
	now := p.clock.Now()
	set = set.At(now)
	was := p.set.Swap(set)
	// Nobody was told yet of overrides that ended since the last look, and expire will not find them in the new set.
	p.tellOfExpired(was, was.At(now))
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

// followOverrides follows what other polygens keep, until ctx ends.
func (p *Polygen) followOverrides(ctx context.Context) error {
	ticker := time.NewTicker(overridesPollEvery)
	defer ticker.Stop()
	for {
		p.readOverrides(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
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
	case ctx.Err() != nil || errors.Is(err, bus.ErrUnavailable):
		// Nothing was read, and the limits cannot be published either.
		return
	case errors.Is(err, bus.ErrOverridesChanged):
		// Another polygen was faster: the next look finds what it wrote.
		return
	case err != nil && !h.read.Load():
		// A Redis that answers, and refuses: to wait does not help, and the limits of the file are better than none.
		p.options.Logger.Warn("overrides by hand cannot be read: going on without", slog.Any("error", err))
	}
	if !h.read.Swap(true) {
		p.wantPublication()
	}
}

// fetchOverrides reads what Redis keeps if it has changed, merges it with what is known here, and puts that
// into force. If Redis lacks some of it, it is told again. The lock must be held.
func (p *Polygen) fetchOverrides(ctx context.Context) error {
	h := &p.overrides
	// The version alone comes back, mostly: each polygen asks twice a second.
	kept, err := p.options.Bus.Overrides(ctx, h.version)
	if err != nil || kept.Version == h.version {
		return err
	}
	now := p.clock.Now()
	known := h.state.presentAt(now)
	theirs, err := decodeOverrides(kept)
	if err != nil {
		// It is of another version of Sluice, or was damaged. What is in force stays, and the
		// next change replaces what is there.
		p.options.Logger.Warn("overrides by hand in Redis cannot be read", slog.Any("error", err))
		h.version = kept.Version
		return nil
	}
	theirs = theirs.presentAt(now)
	merged := known.merge(theirs)
	// Each side had room, and both together may not: two polygens wrote while a failover kept them apart.
	if dropped := merged.fit(); dropped > 0 {
		h.metrics.surplus.Add(float64(dropped))
		p.options.Logger.Warn("more overrides by hand than there may be: the oldest were let go", slog.Int("overrides", dropped))
	}
	h.state = merged
	set, refused := limitfile.WithOverrides(h.file, merged.list)
	p.enforce(set, refused)
	// It was emptied, failed over to a replica that lagged behind, or another polygen wrote without what is known
	// here. Only by being told again it has what was acknowledged.
	lacks := !merged.equal(theirs)
	if lacks {
		// Without the replicas: nobody waits for this to be acknowledged. If it fails, h.version is still the one of
		// before, so that the next look tries again.
		if kept, err = p.keepOverrides(ctx, kept.Version, merged, 0); err != nil {
			return err
		}
	}
	h.version = kept.Version
	// What this polygen knew nothing of is not restored by it: it only wrote the same in another way.
	if lacks && !known.equal(overrideState{}) {
		h.metrics.restored.Inc()
		p.options.Logger.Info("redis lacked overrides by hand: it was told again", slog.Int("overrides", len(merged.list)), slog.Int("removals", len(merged.removed)))
	}
	return nil
}

// decodeOverrides reads what Redis keeps.
func decodeOverrides(kept bus.KeptOverrides) (s overrideState, err error) {
	for data, list := range map[*[]byte]*[]limits.Override{&kept.List: &s.list, &kept.Removed: &s.removed} {
		if len(*data) == 0 {
			continue
		}
		if *list, err = limitfile.DecodeOverrides(*data); err != nil {
			return overrideState{}, err
		}
	}
	return s, nil
}

// keepOverrides writes a state into Redis, in place of that of a version.
func (p *Polygen) keepOverrides(ctx context.Context, replaced string, s overrideState, await time.Duration) (bus.KeptOverrides, error) {
	keep := bus.KeptOverrides{List: limitfile.EncodeOverrides(s.list), Removed: limitfile.EncodeOverrides(s.removed)}
	// Longer than the last one holds, or polygens would find Redis emptied while it does, and restore what is about
	// to end.
	needed := max(0, s.lastUntil().Sub(p.clock.Now())) + overridesKeptLonger
	return p.options.Bus.KeepOverrides(ctx, replaced, keep, needed, await)
}

// changeOverrides changes the overrides, in Redis and then here. The change is refused if an override
// that was in force, or the new one, would not be in force after it. An error of change is
// the result. Unsafe is why the change could still be lost, or "".
func (p *Polygen) changeOverrides(ctx context.Context, change func(*overrideState) error) (unsafe string, err error) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	// The client may go, but the audit needs the outcome.
	ctx = context.WithoutCancel(ctx)
	for range maxOverrideTries {
		// First, for the change is made to what all polygens know, not to what was here half a second ago.
		err := p.fetchOverrides(ctx)
		if errors.Is(err, bus.ErrOverridesChanged) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w, and nothing was changed: %w", api.ErrUnavailable, err)
		}
		next := h.state.presentAt(p.clock.Now())
		if err := change(&next); err != nil {
			return "", err
		}
		// The oldest go, which none but an old copy of Redis could bring back: an override that cannot be removed is worse.
		dropped := fitList(&next.removed)
		set, refused, err := p.tryOverrides(next)
		if err != nil {
			return "", err
		}
		kept, err := p.keepOverrides(ctx, h.version, next, awaitReplicas)
		// Another polygen was faster: the change is made again, to what it wrote.
		if errors.Is(err, bus.ErrOverridesChanged) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w, so it is not certain that it was changed; GET /api/v1/overrides tells when it is back: %w", api.ErrUnavailable, err)
		}
		// In Redis before here: what is in force and nobody else knows would end with this process.
		h.version, h.state = kept.Version, next
		h.metrics.surplus.Add(float64(dropped))
		p.enforce(set, refused)
		return kept.Unsafe, nil
	}
	return "", fmt.Errorf("%w: others change the overrides all the time", api.ErrUnavailable)
}

// tryOverrides returns the limits with the overrides of a state, or why it may not be the next one.
func (p *Polygen) tryOverrides(next overrideState) (set *limits.Set, refused []limitfile.Refused, err error) {
	h := &p.overrides
	// Refused now, where somebody reads why, and not let go by fit later.
	if !fits(next.list) {
		return nil, nil, fmt.Errorf("%w; %d are possible, of %d bytes together", api.ErrFull, limitfile.MaxOverrides, limitfile.MaxOverridesSize)
	}
	set, refused = limitfile.WithOverrides(h.file, next.list)
	for _, r := range refused {
		// One that was there before is no reason to refuse another one.
		if !containsOverride(h.state.list, r.Override) {
			return nil, nil, r.Why
		}
	}
	return set, refused, nil
}

// containsOverride reports whether an override was there before.
func containsOverride(before []limits.Override, o limits.Override) bool {
	return slices.ContainsFunc(before, func(b limits.Override) bool { return compareWrites(b, o) == 0 })
}

// tellOfExpired tells of overrides that have ended between two sets of the same content.
func (p *Polygen) tellOfExpired(was, is *limits.Set) {
	left := is.Overrides()
	p.overrides.metrics.inForce.Set(float64(len(left)))
	for _, o := range was.Overrides() {
		if !containsOverride(left, o) {
			p.tellAudit("expire", "ok", o, nil)
			p.tellOverride(o, overrideEnded)
		}
	}
}
