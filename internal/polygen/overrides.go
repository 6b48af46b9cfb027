package polygen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// overridesPollEvery is how often Redis is asked for overrides that another polygen has set. They
	// take effect that much later if this polygen leads.
	overridesPollEvery = 500 * time.Millisecond
	// overridesKeptLonger is how much longer than the last override the list of them is kept.
	overridesKeptLonger = 5 * time.Second
	// maxOverrideTries bounds how often a write is tried again because of another one.
	maxOverrideTries = 10
)

// overrides has what was set by hand, and the limits that follow from it and the file. Redis
// keeps the list. It is read often, and replaced only if it is still the one that was read.
type overrides struct {
	metrics     overrideMetrics
	read        atomic.Bool                // whether Redis has ever been asked: limits are not published before
	fileInForce atomic.Pointer[limits.Set] // the limits of the file alone, without what has expired

	mu       sync.Mutex // held while a set is made, which takes as long as reading the limit file
	file     *limits.Set
	version  string // of the list in Redis
	list     []limits.Override
	problems map[overrideKey]string // why some overrides of the list are not in force
}

// overrideKey is the user, at an endpoint or everywhere, whom an override is for.
type overrideKey struct{ user, endpoint string }

func overrideKeyOf(o limits.Override) overrideKey { return overrideKey{o.User, o.Endpoint} }

type overrideMetrics struct {
	inForce prometheus.Gauge
	dropped prometheus.Counter
	writes  *prometheus.CounterVec // action, result
}

func newOverrideMetrics(reg prometheus.Registerer) overrideMetrics {
	f := promauto.With(reg)
	m := overrideMetrics{
		inForce: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_overrides",
			Help: "Overrides by hand that are in force.",
		}),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_overrides_dropped_total",
			Help: "Overrides by hand that went out of force because the limit file does not allow them any more.",
		}),
		writes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_admin_writes_total",
			Help: "What was to be done by hand through the admin API, by action (override, remove, unblock) and result: ok, refused, or failed because Redis did not answer.",
		}, []string{"action", "result"}),
	}
	for _, action := range []api.Action{api.SetOverride, api.RemoveOverride, api.UnblockUser} {
		for _, result := range []string{"ok", "refused", "failed"} {
			m.writes.WithLabelValues(string(action), result)
		}
	}
	return m
}

// adoptFile takes a new limit file. Overrides that it does not allow are out of force.
func (p *Polygen) adoptFile(file *limits.Set) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file = file
	h.fileInForce.Store(file.At(p.clock.Now()))
	set, refused := limitfile.WithOverrides(file, h.list)
	p.enforce(set, refused)
}

// enforce puts limits into force. The lock must be held.
func (p *Polygen) enforce(set *limits.Set, refused []limitfile.Refused) {
	h := &p.overrides
	now := p.clock.Now()
	set = set.At(now)
	was := p.set.Swap(set)
	p.tellOfExpired(was, was.At(now)) // nobody was told yet of overrides that ended since the last look
	problems := make(map[overrideKey]string, len(refused))
	for _, r := range refused {
		why := r.Why.Error()
		if problems[overrideKeyOf(r.Override)] = why; h.problems[overrideKeyOf(r.Override)] != why {
			h.metrics.dropped.Inc()
			p.options.Logger.Warn("override by hand dropped: the limit file does not allow it any more",
				slog.String("user", r.User), slog.String("endpoint", r.Endpoint), slog.String("error", why), slog.String("version", set.Version()))
		}
	}
	h.problems = problems
	h.metrics.inForce.Set(float64(len(set.Overrides())))
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

// readOverrides asks Redis whether the list has changed, and puts it into force. A Redis that
// was emptied is told the list again.
func (p *Polygen) readOverrides(ctx context.Context) {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	err := p.fetchOverrides(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, bus.ErrUnavailable):
		return // the limits cannot be published either
	case err != nil && !h.read.Load(): // waiting does not help, and the limits of the file are better than none
		p.options.Logger.Warn("overrides by hand cannot be read: going on without", slog.Any("error", err))
	}
	if !h.read.Swap(true) {
		p.wantPublication()
	}
}

// fetchOverrides reads the list if it has changed, and puts it into force. The lock must be
// held.
func (p *Polygen) fetchOverrides(ctx context.Context) error {
	h := &p.overrides
	version, data, err := p.options.Bus.Overrides(ctx, h.version)
	if err != nil || version == h.version {
		return err
	}
	list := unexpired(h.list, p.clock.Now())
	switch {
	case version != "":
		if list, err = limitfile.DecodeOverrides(data); err != nil {
			// The list is of another version of Sluice, or was damaged. What is in force stays,
			// and the next change replaces the list.
			p.options.Logger.Warn("overrides by hand in Redis cannot be read", slog.Any("error", err))
			h.version = version
			return nil
		}
		version, list = p.keepHidden(ctx, version, list)
	case len(list) > 0: // Redis was emptied: when the last override is removed, an empty list is kept
		if version, err = p.options.Bus.KeepOverrides(ctx, "", limitfile.EncodeOverrides(list), p.overridesTTL(list)); err != nil {
			return err
		}
		p.options.Logger.Info("redis has forgotten the overrides by hand: it was told again", slog.Int("overrides", len(list)))
	}
	h.version, h.list = version, list
	set, refused := limitfile.WithOverrides(h.file, list)
	p.enforce(set, refused)
	return nil
}

// unexpired are the overrides that have not ended.
func unexpired(list []limits.Override, now time.Time) []limits.Override {
	return slices.DeleteFunc(slices.Clone(list), func(o limits.Override) bool { return !o.Until.After(now) })
}

// overridesTTL is for how long Redis has to keep a list.
func (p *Polygen) overridesTTL(list []limits.Override) time.Duration {
	var last time.Time
	for _, o := range list {
		if o.Until.After(last) {
			last = o.Until
		}
	}
	return max(0, last.Sub(p.clock.Now())) + overridesKeptLonger
}

// changeOverrides changes the list, in Redis and then here. The change is refused if an override
// that was in force, or the new one, would not be in force after it. An error of change is
// the result.
func (p *Polygen) changeOverrides(ctx context.Context, change func([]limits.Override) ([]limits.Override, error)) error {
	h := &p.overrides
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // the client may go, but the audit needs the outcome
	for range maxOverrideTries {
		if err := p.fetchOverrides(ctx); err != nil {
			return fmt.Errorf("%w, and nothing was changed: %w", api.ErrUnavailable, err)
		}
		list, err := change(unexpired(h.list, p.clock.Now()))
		if err != nil {
			return err
		}
		data := limitfile.EncodeOverrides(list)
		if len(list) > limitfile.MaxOverrides || len(data) > limitfile.MaxOverridesSize {
			return fmt.Errorf("%w; %d are possible, of %d bytes together", api.ErrFull, limitfile.MaxOverrides, limitfile.MaxOverridesSize)
		}
		set, refused := limitfile.WithOverrides(h.file, list)
		for _, r := range refused {
			switch {
			case !containsOverride(h.list, r.Override):
				return r.Why
			case h.problems[overrideKeyOf(r.Override)] == "":
				return fmt.Errorf("it does not go with the override of %q at endpoint %q: %w", r.User, r.Endpoint, r.Why)
			}
		}
		version, err := p.options.Bus.KeepOverrides(ctx, h.version, data, p.overridesTTL(list))
		if errors.Is(err, bus.ErrOverridesChanged) {
			continue // another polygen was faster: the change is made to its list
		}
		if err != nil {
			return fmt.Errorf("%w, so it is not certain that it was changed; GET /api/v1/overrides tells when it is back: %w", api.ErrUnavailable, err)
		}
		h.version, h.list = version, list
		p.enforce(set, refused)
		return nil
	}
	return fmt.Errorf("%w: others change the overrides all the time", api.ErrUnavailable)
}

// containsOverride reports whether an override was there before.
func containsOverride(before []limits.Override, o limits.Override) bool {
	return slices.ContainsFunc(before, func(b limits.Override) bool {
		return overrideKeyOf(b) == overrideKeyOf(o) && b.Until.Equal(o.Until) && b.Since.Equal(o.Since) && string(b.Limits) == string(o.Limits)
	})
}

// Overrides lists what was set by hand.
func (p *Polygen) Overrides() api.Overrides {
	h := &p.overrides
	h.mu.Lock()
	list, problems := unexpired(h.list, p.clock.Now()), h.problems
	h.mu.Unlock()
	out := api.Overrides{From: p.answerHead(), Overrides: []api.UserOverride{}, Capacity: limitfile.MaxOverrides}
	for _, o := range list {
		b := overrideAnswer(o)
		b.Problem = problems[overrideKeyOf(o)]
		out.Overrides = append(out.Overrides, b)
	}
	return out
}

func overrideAnswer(o limits.Override) api.UserOverride {
	return api.UserOverride{
		Name:   api.Name{User: o.User, Endpoint: o.Endpoint, Href: api.Path(o.User, o.Endpoint)},
		Limits: o.Limits, Reason: o.Reason, By: o.By, Since: o.Since.UTC(), Until: o.Until.UTC(),
	}
}

// Override sets an override, in place of the one that the user has.
func (p *Polygen) Override(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	users := overrideNames(p.set.Load(), a.User)
	a = p.hideName(a)
	now := p.clock.Now().UTC().Truncate(time.Millisecond)
	o := limits.Override{
		User: users[0], Also: users[1:], Endpoint: a.Endpoint, Limits: a.Limits, Reason: a.Reason, By: strings.ToValidUTF8(a.By, "\ufffd"),
		Since: now, Until: now.Add(a.For),
	}
	err := errByName(a)
	if err == nil {
		err = limitfile.CheckOverride(o)
	}
	if err == nil {
		err = p.changeOverrides(ctx, func(list []limits.Override) ([]limits.Override, error) {
			return append(without(list, o.Endpoint, users), o), nil
		})
	}
	p.auditWrite(a, o.Until, o.Limits, err)
	if err == nil {
		p.tellOverride(o, "set: "+o.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(o)}, err
}

// RemoveOverride ends an override at once.
func (p *Polygen) RemoveOverride(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	var removed limits.Override
	users := overrideNames(p.set.Load(), a.User)
	a = p.hideName(a)
	err := errByName(a)
	if err == nil {
		err = p.changeOverrides(ctx, func(list []limits.Override) ([]limits.Override, error) {
			i := slices.IndexFunc(list, func(o limits.Override) bool { return o.Endpoint == a.Endpoint && o.AppliesTo(users...) })
			if i < 0 {
				return nil, api.ErrNoOverride
			}
			removed = list[i]
			return without(list, a.Endpoint, users), nil
		})
	}
	p.auditWrite(a, removed.Until, removed.Limits, err)
	if err == nil {
		p.tellOverride(removed, "removed: "+a.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(removed)}, err
}

func without(list []limits.Override, endpoint string, users []string) []limits.Override {
	return slices.DeleteFunc(slices.Clone(list), func(o limits.Override) bool { return o.Endpoint == endpoint && o.AppliesTo(users...) })
}

func errByName(a api.OverrideRequest) error {
	if a.IsKey && !limits.IsHidden(a.User) {
		return errors.New("an override needs the user's name, which the key does not tell")
	}
	return nil
}

// Unblock lets a user in by hand: all polygens forget that the user is blocked, and the
// one that leads tells the instances.
func (p *Polygen) Unblock(ctx context.Context, a api.OverrideRequest) (api.Unblocked, error) {
	set := p.set.Load()
	// All polygens and agents are told of every key of the user: while HAProxies change over
	// from one secret to another, each of the keys may be the blocked one.
	key, keys := a.User, []string{a.User}
	if !a.IsKey {
		key, _ = p.findKey(set, a.User, a.Endpoint)
		keys = set.Keys(a.User)
	}
	a = p.hideName(a)
	u := p.userOfKey(key, a.Endpoint)
	l := set.User(limits.EndpointKey(a.Endpoint, key))
	out := api.Unblocked{From: u.From, Name: u.Name, InProgress: u.InProgress, Max: l.Concurrent}
	if !a.IsKey {
		out.Name = api.Name{User: a.User, Endpoint: a.Endpoint, Href: api.Path(a.User, a.Endpoint)}
	}
	if err := errEndpoint(set, a.Endpoint); err != nil {
		p.auditWrite(a, time.Time{}, nil, err)
		return out, err
	}
	var err error
	for _, key := range keys {
		if err == nil {
			err = p.options.Bus.PublishUnblock(ctx, bus.Unblock{Polygen: p.options.Name, User: limits.EndpointKey(a.Endpoint, key)})
		}
	}
	if err != nil {
		err = fmt.Errorf("%w, so nobody was told for certain: %w", api.ErrUnavailable, err)
	}
	out.Sent = err == nil
	out.Note = unblockNote(u, out)
	p.auditWrite(a, time.Time{}, nil, err)
	return out, err
}

// errEndpoint is why there is no endpoint of that name, or nil. "", which is everywhere
// else, always exists.
func errEndpoint(set *limits.Set, name string) error {
	valid := set.Endpoints()
	switch {
	case name == "" || slices.Contains(valid, name):
		return nil
	case len(valid) == 0:
		return fmt.Errorf("unknown endpoint %q: the limit file has none", name)
	}
	return fmt.Errorf("unknown endpoint %q (valid: %s)", name, strings.Join(valid, ", "))
}

// unblockNote says what an operator can expect after letting a user in.
func unblockNote(u api.User, out api.Unblocked) string {
	switch {
	case out.Max == 0:
		return "the user has no limit of requests in progress, so nothing blocks them"
	case u.State == api.Throttled:
		return "the user is throttled by a limit of requests, which ends by itself; unblocking does not change that, an override of that limit does"
	case out.InProgress >= out.Max:
		return fmt.Sprintf("the user has %d of %d requests in progress: unless some end, the next reports block the user again; an override of concurrent above %d prevents that",
			out.InProgress, out.Max, out.InProgress)
	case u.State == api.OK:
		return "the user was not known to be blocked"
	}
	return "the user is let in, and is blocked again when their requests in progress reach the limit"
}

// Refuse notes a request that was refused before any method here was called for it.
func (p *Polygen) Refuse(a api.OverrideRequest, why error) {
	if p.set.Load().Secrets() != nil {
		why = errHidden // the text may quote the user's name
	}
	p.auditWrite(p.hideName(a), time.Time{}, a.Limits, why)
}

// tellOverride tells the readers of events that an override was set or removed.
func (p *Polygen) tellOverride(o limits.Override, note string) {
	b := overrideAnswer(o)
	p.publishEvent(api.Event{Kind: api.OverrideEvent, Name: &b.Name, Until: &b.Until, Note: note})
}

// maxAudited bounds a text of the audit, in bytes.
const maxAudited = 2000

// auditWrite counts and logs a request, whatever came of it. A zero until means that it has no
// end.
func (p *Polygen) auditWrite(a api.OverrideRequest, until time.Time, set []byte, err error) {
	result := "ok"
	switch {
	case errors.Is(err, api.ErrUnavailable):
		result = "failed"
	case err != nil:
		result = "refused"
	}
	p.overrides.metrics.writes.WithLabelValues(string(a.Action), result).Inc()
	p.tellAudit(string(a.Action), result, limits.Override{User: a.User, Endpoint: a.Endpoint, By: a.By, Reason: a.Reason, Until: until, Limits: set}, err)
}

func (p *Polygen) tellAudit(action, result string, o limits.Override, err error) {
	attrs := []slog.Attr{
		slog.String("action", action), slog.String("result", result), slog.String("user", truncated(o.User)), slog.String("endpoint", truncated(o.Endpoint)),
		slog.String("by", truncated(o.By)), slog.String("reason", truncated(o.Reason)),
	}
	if !o.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", o.Until))
	}
	if len(o.Limits) > 0 {
		attrs = append(attrs, slog.String("limits", truncated(string(o.Limits))))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", truncated(err.Error())))
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	line.AddAttrs(attrs...)
	_ = p.options.Logger.Handler().Handle(context.Background(), line) // whatever the level of the log
}

func truncated(s string) string {
	if len(s) > maxAudited {
		return s[:maxAudited] + "…"
	}
	return s
}

// tellOfExpired tells of overrides that have ended between two sets of the same content.
func (p *Polygen) tellOfExpired(was, is *limits.Set) {
	left := is.Overrides()
	p.overrides.metrics.inForce.Set(float64(len(left)))
	for _, o := range was.Overrides() {
		if !containsOverride(left, o) {
			p.tellAudit("expire", "ok", o, nil)
			p.tellOverride(o, "ended")
		}
	}
}
