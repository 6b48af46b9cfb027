package polygen

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
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

// topFor is how long a list of users is used for further questions: to make one, polygen
// looks at all users, and each part of that look holds up its decisions.
const topFor = 500 * time.Millisecond

// tops are the last lists of users that were made.
type tops struct {
	mu    sync.Mutex
	lists map[listed]api.Users
}

type listed struct {
	by     api.Sort
	length int
}

// lookTop makes a list of the n users with most of those whom this polygen knows.
func (p *Polygen) lookTop(now time.Time, by api.Sort, n int) view.Overview {
	s := p.lockDashboard()
	defer s.mu.Unlock()
	look := s.view.BeginLookNow(now, map[api.Sort]int{by: n})
	// The view keeps its users in the order of the last report, so for that one no look at all of them is needed.
	if by != api.ByRecent {
		s.finish(look)
	}
	return look.Overview()
}

// Users returns the n users with most, 1000 at most.
func (p *Polygen) Users(by api.Sort, n int) api.Users {
	t := &p.dashboard.tops
	// Held while a list is made, so that those who ask meanwhile have the same one.
	t.mu.Lock()
	defer t.mu.Unlock()
	which := listed{by, listLength(n)}
	out, now := t.lists[which], p.clock.Now()
	// Less than 0 is a clock that was set back: the list would be good for as long.
	if age := now.Sub(out.Time); age < 0 || age >= topFor {
		o := p.lookTop(now, by, which.length)
		out = api.Users{From: p.answerHead(), Sort: by, Units: p.costUnits(), Users: o.Tops[by], Seen: o.Totals.Seen, Dropped: o.Totals.Dropped, Capacity: o.Totals.Capacity}
		out.Time = now.UTC()
		if t.lists == nil {
			t.lists = make(map[listed]api.Users)
		}
		// An order by cost may name any unit: what nobody has asked for lately would be kept for ever.
		maps.DeleteFunc(t.lists, func(_ listed, list api.Users) bool { return now.Sub(list.Time) >= topFor })
		t.lists[which] = out
	}
	// A copy, for the caller may write into what others are given.
	out.Users = slices.Clone(out.Users[:min(n, len(out.Users))])
	out.Time = out.Time.Truncate(time.Microsecond)
	return out
}

// costUnits are the names of the units that requests cost, sorted.
func (p *Polygen) costUnits() (names []string) {
	for _, unit := range p.set.Load().CostUnits() {
		names = append(names, unit.Name)
	}
	return names
}

// listLength is how many users are looked for, for a question about n: one of two lengths, so that questions that
// differ a little share a look.
func listLength(n int) int {
	if n > shortList {
		return api.MaxTop
	}
	return shortList
}

// UnknownUsers returns n of the users whom the limit file does not name.
func (p *Polygen) UnknownUsers(by api.Sort, n int) api.UnknownUsers {
	s := p.lockDashboard()
	out := s.view.Unknown(by, n)
	s.mu.Unlock()
	out.From = p.answerHead()
	return out
}

// User returns what is known of a user, given by name.
func (p *Polygen) User(name string) api.User {
	set := p.set.Load()
	out := p.UserOfKey(limits.KeyOf(name))
	out.Name = api.NameOfUser(name)
	tellOrigin(limitfile.OriginOf(set, name), &out)
	return out
}

// UserOfKey returns what is known of a user, given by the key that the cluster knows.
func (p *Polygen) UserOfKey(key string) api.User {
	p.recallCosts(key)
	s := p.lockDashboard()
	out := s.view.User(p.clock.Now(), key)
	s.mu.Unlock()
	out.From = p.answerHead()
	return out
}

// Instances returns the instances and the versions of their limits.
func (p *Polygen) Instances() api.Instances {
	p.dashboard.mu.Lock()
	list := p.dashboard.fleet.instances()
	p.dashboard.mu.Unlock()
	return api.Instances{From: p.answerHead(), Instances: list}
}

// tellOrigin adds where the limits of a user come from.
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
