package polygen

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Overrides lists what was set by hand.
func (p *Polygen) Overrides() api.Overrides {
	h := &p.overrides
	h.mu.Lock()
	// Also those that the limit file does not allow: an operator looks for them, and finds why here.
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
	return api.UserOverride{
		Name:   api.NameOfUser(o.User),
		Limits: o.Limits, Reason: o.Reason, By: o.By, Since: o.Since.UTC(), Until: o.Until.UTC(),
	}
}

// Override sets an override, in place of the one that the user has.
func (p *Polygen) Override(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	now := p.clock.Now().UTC().Truncate(time.Millisecond)
	o := limits.Override{
		User: a.User, Limits: a.Limits, Reason: a.Reason, By: strings.ToValidUTF8(a.By, "\ufffd"),
		Since: now, Until: now.Add(a.For),
	}
	err := errByName(a)
	if err == nil {
		err = limitfile.CheckOverride(o)
	}
	if err == nil {
		err = p.changeOverrides(ctx, func(list []limits.Override) ([]limits.Override, error) {
			list = slices.DeleteFunc(list, func(before limits.Override) bool { return before.User == o.User })
			return append(list, o), nil
		})
	}
	// Whatever came of it: who tried what is the audit's business, too.
	p.auditWrite(a, o.Until, o.Limits, err)
	if err == nil {
		p.tellOverride(o, "set: "+o.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(o)}, err
}

// RemoveOverride ends an override at once.
func (p *Polygen) RemoveOverride(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	var removed limits.Override
	err := errByName(a)
	if err == nil {
		err = p.changeOverrides(ctx, func(list []limits.Override) ([]limits.Override, error) {
			at := slices.IndexFunc(list, func(o limits.Override) bool { return o.User == a.User })
			// Said, not passed over: a name that was mistyped would seem to be done.
			if at < 0 {
				return nil, api.ErrNoOverride
			}
			removed = list[at]
			return slices.Delete(list, at, at+1), nil
		})
	}
	p.auditWrite(a, removed.Until, removed.Limits, err)
	if err == nil {
		p.tellOverride(removed, "removed: "+a.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(removed)}, err
}

func errByName(a api.OverrideRequest) error {
	// Overrides are kept by name, and the key of a long name is its hash.
	if a.IsKey {
		return errors.New("an override needs the user's name, which the key does not tell")
	}
	return nil
}

// tellOverride tells the readers of events that an override was set or removed.
func (p *Polygen) tellOverride(o limits.Override, note string) {
	b := overrideAnswer(o)
	p.publishEvent(api.Event{Kind: api.OverrideEvent, Name: &b.Name, Until: &b.Until, Note: note})
}
