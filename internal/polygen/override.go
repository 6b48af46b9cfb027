package polygen

import (
	"context"
	"errors"
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
	list, problems := unexpired(h.state.list, p.clock.Now()), h.problems
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
	var unsafe string
	err := errByName(a)
	if err == nil {
		err = limitfile.CheckOverride(o)
	}
	if err == nil {
		unsafe, err = p.changeOverrides(ctx, func(s *overrideState) error {
			// Stamped with each try, or a write by another polygen since, with a clock ahead of this, would win.
			o.Since = s.stamp(now)
			*s = s.merge(overrideState{list: []limits.Override{o}})
			return nil
		})
	}
	// Whatever came of it: who tried what is the audit's business, too.
	p.auditWrite(a, o.Until, o.Limits, unsafe, err)
	if err == nil {
		p.tellOverride(o, "set: "+o.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(o), Unsafe: unsafe}, err
}

// RemoveOverride ends an override at once.
func (p *Polygen) RemoveOverride(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	var removed limits.Override
	var unsafe string
	err := errByName(a)
	if err == nil {
		unsafe, err = p.changeOverrides(ctx, func(s *overrideState) (err error) {
			var there bool
			// Said, not passed over: a name that was mistyped would seem to be done.
			if removed, there = s.find(a.User); !there {
				return api.ErrNoOverride
			}
			s.remove(removalOf(removed, s.stamp(p.clock.Now())))
			return nil
		})
	}
	p.auditWrite(a, removed.Until, removed.Limits, unsafe, err)
	if err == nil {
		p.tellOverride(removed, "removed: "+a.Reason)
	}
	return api.Override{From: p.answerHead(), UserOverride: overrideAnswer(removed), Unsafe: unsafe}, err
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
