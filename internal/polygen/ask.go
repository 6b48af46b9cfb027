package polygen

import (
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// answerHead says which polygen answers.
func (p *Polygen) answerHead() api.From {
	from := api.From{
		Polygen: p.options.Name, Leading: p.leads() && p.cutOff() == nil, Version: p.set.Load().Version(),
		Time: p.clock.Now().UTC().Truncate(time.Millisecond),
	}
	// What it knows is from before then. To answer nothing would help nobody who looks for the reason.
	if why := p.cutOff(); why != nil {
		from.Degraded = truncated(why.Error())
	}
	return from
}

// Users returns the n users with most, 1000 at most.
func (p *Polygen) Users(by api.Sort, n int) api.Users {
	look := p.lookAtUsers(lookFor)
	u := p.lockUsers()
	out := api.Users{Sort: by, Units: p.costUnits(), Users: look.Top(by, n), Seen: look.Totals.Seen, Dropped: look.Totals.Dropped, Capacity: look.Totals.Capacity}
	u.mu.Unlock()
	out.From = p.answerHead()
	return out
}

// costUnits are the names of the units that requests cost, sorted.
func (p *Polygen) costUnits() (names []string) {
	for _, unit := range p.set.Load().CostUnits() {
		names = append(names, unit.Name)
	}
	return names
}

// UnknownUsers returns n of the users whom the limit file does not name.
func (p *Polygen) UnknownUsers(by api.Sort, n int) api.UnknownUsers {
	look := p.lookAtUsers(lookFor)
	u := p.lockUsers()
	out := api.UnknownUsers{Sort: by, Users: u.view.UnknownUsers(by, n), Seen: look.Unknown, Dropped: look.Totals.Dropped, Capacity: maxKnownUsers}
	u.mu.Unlock()
	out.From = p.answerHead()
	return out
}

// User returns what is known of a user.
func (p *Polygen) User(who api.Who) api.User {
	p.recall(who.Key())
	u := p.lockUsers()
	out := u.view.User(p.clock.Now(), who.Key())
	u.mu.Unlock()
	p.completeUser(who, &out)
	return out
}

// completeUser adds the head of an answer about a user, and where the limits of a user given by name come from.
func (p *Polygen) completeUser(who api.Who, out *api.User) {
	out.From, out.Name = p.answerHead(), who.Name()
	if !who.IsKey {
		tellOrigin(limitfile.OriginOf(p.set.Load(), who.User), out)
	}
}

// History returns what a user used in the last seconds. It is kept from the first question on.
func (p *Polygen) History(who api.Who) api.History {
	u := p.lockUsers()
	out := u.view.History(p.clock.Now(), who.Key())
	u.mu.Unlock()
	out.From, out.Name = p.answerHead(), who.Name()
	return out
}

// Instances returns the instances and the versions of their limits.
func (p *Polygen) Instances() api.Instances {
	u := p.lockUsers()
	list := u.fleet.instances()
	u.mu.Unlock()
	return api.Instances{From: p.answerHead(), Instances: list}
}

func tellOrigin(o limitfile.Origin, out *api.User) {
	if o.User > 0 {
		out.Entry = &api.Entry{File: o.File, Line: o.User, Pattern: o.Pattern, Comment: o.Comment, Then: o.Then, Expired: o.Expired}
		if !o.Until.IsZero() {
			out.Entry.Until = &o.Until
		}
	}
	if o.Override != nil {
		if out.Entry == nil {
			out.Entry = &api.Entry{}
		}
		out.Entry.Override = &api.OverrideNote{Reason: o.Override.Reason, By: o.Override.By, Until: o.Override.Until}
	}
	for i := range out.Limits {
		l := &out.Limits[i]
		name := l.Name
		// In answers limits of requests and costs are named by class or unit, in the file by the path of the field.
		switch {
		case l.Unit != "":
			name = "costs." + name
		case l.Window > 0:
			name = "requests." + name
		}
		if f, ok := o.FieldOrigin(name); ok {
			l.Origin = &api.Origin{Field: f.Name, File: f.File, Line: f.Line, Override: f.Layer != limitfile.TierLayer}
		}
	}
}
