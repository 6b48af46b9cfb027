package polygen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// maxAudited bounds a text of the audit, in bytes: a request may be as long as a body.
const maxAudited = 2000

// Overrides lists what was set by hand, with what the limit file does not allow.
func (p *Polygen) Overrides() api.Overrides {
	h := &p.overrides
	h.mu.Lock()
	list, problems := unexpired(h.list, p.clock.Now()), h.problems
	h.mu.Unlock()
	out := api.Overrides{From: p.answerHead(), Overrides: []api.UserOverride{}, Capacity: limitfile.MaxOverrides}
	for _, o := range list {
		b := overrideAnswer(o)
		b.Problem = problems[o.User]
		out.Overrides = append(out.Overrides, b)
	}
	return out
}

func overrideAnswer(o limits.Override) api.UserOverride {
	return api.UserOverride{Name: api.NameOfUser(o.User), Limits: o.Limits, Reason: o.Reason, By: o.By, Since: o.Since.UTC(), Until: o.Until.UTC()}
}

// Override sets an override, in place of the one that the user has.
func (p *Polygen) Override(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	now := p.clock.Now().UTC().Truncate(time.Millisecond)
	o := limits.Override{User: a.User, Limits: a.Limits, Reason: a.Reason, By: strings.ToValidUTF8(a.By, "\ufffd"), Since: now, Until: now.Add(a.For)}
	return p.changeOverride(ctx, a, &o, "set: ", func(list []limits.Override) ([]limits.Override, error) {
		if err := limitfile.CheckOverride(o); err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(before limits.Override) bool { return before.User == o.User })
		return append(list, o), nil
	})
}

// RemoveOverride ends an override at once.
func (p *Polygen) RemoveOverride(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	var removed limits.Override
	return p.changeOverride(ctx, a, &removed, "removed: ", func(list []limits.Override) ([]limits.Override, error) {
		at := slices.IndexFunc(list, func(o limits.Override) bool { return o.User == a.User })
		if at < 0 {
			return nil, api.ErrNoOverride
		}
		removed = list[at]
		return slices.Delete(list, at, at+1), nil
	})
}

// changeOverride changes the list, audits the outcome and tells of o, which change may set.
func (p *Polygen) changeOverride(ctx context.Context, a api.OverrideRequest, o *limits.Override, note string, change func([]limits.Override) ([]limits.Override, error)) (api.Override, error) {
	var err error
	if a.IsKey {
		// Overrides are kept by name, and the key of a long name is its hash.
		err = errors.New("an override needs the user's name, which the key does not tell")
	} else {
		err = p.changeOverrides(ctx, change)
	}
	p.auditWrite(a, o.Until, o.Limits, err)
	if err == nil {
		p.tellOverride(*o, note+a.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(*o)}, err
}

func (p *Polygen) tellOverride(o limits.Override, note string) {
	b := overrideAnswer(o)
	p.publishEvent(api.Event{Kind: api.OverrideEvent, Name: &b.Name, Until: &b.Until, Note: note})
}

// Unblock lets a user in by hand: polygen forgets that the user is blocked, and tells the instances.
func (p *Polygen) Unblock(ctx context.Context, a api.OverrideRequest) (api.Unblocked, error) {
	who := api.Who{User: a.User, IsKey: a.IsKey}
	u := p.User(who)
	out := api.Unblocked{From: u.From, Name: u.Name, InProgress: u.InProgress, Max: p.set.Load().User(who.Key()).Concurrent}
	err := p.letIn(ctx, who.Key())
	out.Sent = err == nil
	out.Note = unblockNote(u, out)
	p.auditWrite(a, time.Time{}, nil, err)
	return out, err
}

// letIn has decide let a user in, by key.
func (p *Polygen) letIn(ctx context.Context, user string) error {
	if why := p.Ready(); why != nil {
		return fmt.Errorf("%w, so no instance can be told: %w", api.ErrUnavailable, why)
	}
	if !p.leads() {
		return fmt.Errorf("%w: ask again", api.ErrNotLeading)
	}
	select {
	case p.unblocks <- user:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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

// Refuse audits a request that was refused before any method here was called for it.
func (p *Polygen) Refuse(a api.OverrideRequest, why error) {
	p.auditWrite(a, time.Time{}, a.Limits, why)
}

// auditWrite counts and logs a request, whatever came of it. A zero until means that it has no end.
func (p *Polygen) auditWrite(a api.OverrideRequest, until time.Time, set []byte, err error) {
	result := "ok"
	switch {
	case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrNotLeading):
		result = "failed"
	case err != nil:
		result = "refused"
	}
	p.overrides.writes.WithLabelValues(string(a.Action), result).Inc()
	p.tellAudit(string(a.Action), result, limits.Override{User: a.User, By: a.By, Reason: a.Reason, Until: until, Limits: set}, err)
}

func (p *Polygen) tellAudit(action, result string, o limits.Override, err error) {
	attrs := []slog.Attr{
		slog.String("action", action), slog.String("result", result), slog.String("user", truncated(o.User)),
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
	// Past the level of the log: a log of warnings alone has the audit too.
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	line.AddAttrs(attrs...)
	_ = p.options.Logger.Handler().Handle(context.Background(), line)
}

func truncated(s string) string {
	if len(s) > maxAudited {
		return s[:maxAudited] + "…"
	}
	return s
}
