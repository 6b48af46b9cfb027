package polygen

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// answerHead says which polygen answers.
func (p *Polygen) answerHead() api.From {
	from := api.From{
		Polygen: p.options.Name, Leading: p.leadsAndSends(), Version: p.set.Load().Version(),
		Time: p.clock.Now().UTC().Truncate(1e6),
	}
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

// lookTop makes a list of users.
func (p *Polygen) lookTop(now time.Time, by api.Sort, n int) view.Overview {
	s := p.dashboard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adoptLimits(p.set.Load())
	look := s.view.BeginLookNow(now, map[api.Sort]int{by: n})
	if by != api.ByRecent { // the view keeps users in this order
		s.finish(look)
	}
	return look.Overview()
}

// ownTop are the n users with most of those whom this polygen knows.
func (p *Polygen) ownTop(by api.Sort, n int) []api.Summary {
	o := p.lookTop(p.clock.Now(), by, n)
	return o.Tops[by]
}

// Users returns the n users with most, 1000 at most.
func (p *Polygen) Users(by api.Sort, n int) api.Users {
	t := &p.dashboard.tops
	t.mu.Lock()
	defer t.mu.Unlock()
	length := shortList
	if n > shortList {
		length = api.MaxTop
	}
	which := listed{by, length}
	out, now := t.lists[which], p.clock.Now()
	if age := now.Sub(out.Time); age < 0 || age >= topFor {
		need := map[api.Sort]int{by: length}
		o := p.lookTop(now, by, length)
		replies, missing := p.askOthers(question{Tops: need, Now: true})
		mergeOverview(&o, replies, need)
		out = api.Users{From: p.answerHead(), Sort: by, Users: o.Tops[by], Seen: o.Totals.Seen, Dropped: o.Totals.Dropped, Capacity: o.Totals.Capacity}
		out.Degraded = cmp.Or(out.Degraded, missing)
		out.Time = now.UTC()
		if t.lists == nil {
			t.lists = make(map[listed]api.Users)
		}
		t.lists[which] = out
	}
	out.Users = slices.Clone(out.Users[:min(n, len(out.Users))])
	out.Time = out.Time.Truncate(time.Microsecond)
	return out
}

// UnknownUsers returns n of the users whom the limit file does not name.
func (p *Polygen) UnknownUsers(by api.Sort, n int) api.UnknownUsers {
	p.dashboard.mu.Lock()
	out := p.dashboard.view.Unknown(by, n)
	p.dashboard.mu.Unlock()
	replies, missing := p.askOthers(question{Unknown: by, UnknownN: n})
	mergeUnknown(&out, replies, n)
	out.From = p.answerHead()
	out.Degraded = cmp.Or(out.Degraded, missing)
	return out
}

// User returns what is known of a user, given by name.
func (p *Polygen) User(name, endpoint string) api.User {
	set := p.set.Load()
	key, others := p.findKey(set, name, endpoint)
	out := p.userOfKey(key, endpoint)
	if !hidesName(set, name) {
		out.Name = api.Name{User: name, Endpoint: endpoint, Href: api.Path(name, endpoint)}
	}
	for _, other := range others {
		out.Others = append(out.Others, api.NameOfKey(limits.EndpointKey(endpoint, other)))
	}
	p.dashboard.origins.tellOf(set, name, &out)
	return out
}

// UserOfKey returns what is known of a user, given by the key that the cluster knows. It
// tells where the file sets the limits only of a hidden key: any other user has a name to
// ask by.
func (p *Polygen) UserOfKey(key, endpoint string) api.User {
	out := p.userOfKey(key, endpoint)
	if limits.IsHidden(key) {
		p.dashboard.origins.tellOf(p.set.Load(), key, &out)
	}
	return out
}

func (p *Polygen) userOfKey(key, endpoint string) api.User {
	wire := limits.EndpointKey(endpoint, key)
	replies, missing := p.askOthersOf(wire, question{Users: [][]byte{[]byte(wire)}, Now: true})
	p.dashboard.mu.Lock()
	p.dashboard.adoptLimits(p.set.Load())
	out := p.dashboard.view.User(p.clock.Now(), wire)
	p.dashboard.mu.Unlock()
	if u, known := userIn(replies, 0); known {
		out = u
	}
	out.From = p.answerHead()
	out.Degraded = cmp.Or(out.Degraded, missing)
	return out
}

// Instances returns the instances and the versions of their limits.
func (p *Polygen) Instances() api.Instances {
	p.dashboard.mu.Lock()
	list := p.dashboard.fleet.instances()
	p.dashboard.mu.Unlock()
	return api.Instances{From: p.answerHead(), Instances: list}
}

// maxWhere bounds the users of whom polygen remembers where their limits come from.
const maxWhere = 64

// origins remembers where users' limits come from, because finding it out by a hidden key means making
// the keys of all users. Only one question at a time does so; others are answered without it
// meanwhile. The zero value remembers nothing.
type origins struct {
	mu     sync.Mutex
	set    *limits.Set
	users  map[named]limitfile.Origin
	wanted atomic.Pointer[unknownOrigin] // the last question of a live answer, which cannot wait
}

type unknownOrigin struct {
	set *limits.Set
	named
}

type named struct{ endpoint, user string }

// tellOf adds where the limits of a user come from. The user is named as for limitfile.OriginAt.
func (w *origins) tellOf(set *limits.Set, user string, out *api.User) {
	if !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	if w.set != set || len(w.users) >= maxWhere { // beginning anew is simpler than choosing whom to forget
		w.set, w.users = set, make(map[named]limitfile.Origin)
	}
	who := named{out.Endpoint, user}
	o, ok := w.users[who]
	if !ok {
		o = limitfile.OriginAt(set, who.endpoint, who.user)
		w.users[who] = o
	}
	tellOrigin(o, out)
}

// tellIfKnown is tellOf, without waiting: an origin that is not known yet is found out by findWanted, for
// the next answer.
func (w *origins) tellIfKnown(set *limits.Set, out *api.User) {
	who := named{out.Endpoint, out.User}
	if w.mu.TryLock() {
		o, ok := w.users[who]
		ok = ok && w.set == set
		w.mu.Unlock()
		if ok {
			tellOrigin(o, out)
			return
		}
	}
	w.wanted.Store(&unknownOrigin{set, who})
}

// findWanted finds out what live answers want to know, until ctx ends. They ask every second, so
// it is enough to keep the last question.
func (w *origins) findWanted(ctx context.Context) error {
	ticker := time.NewTicker(topFor)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if u := w.wanted.Swap(nil); u != nil {
			w.tellOf(u.set, u.user, &api.User{Name: api.Name{Endpoint: u.endpoint}})
		}
	}
}

func tellOrigin(o limitfile.Origin, out *api.User) {
	if o.User > 0 {
		out.Entry = &api.Entry{File: o.File, Line: o.User, Pattern: o.Pattern, Comment: o.Comment, Then: o.Then, Expired: o.Expired}
		if !o.Until.IsZero() {
			out.Entry.Until = &o.Until
		}
	}
	if len(o.Overrides) > 0 {
		if out.Entry == nil {
			out.Entry = &api.Entry{}
		}
		override := o.Overrides[len(o.Overrides)-1] // that of the endpoint, if there is one
		out.Entry.Override = &api.OverrideNote{Reason: override.Reason, By: override.By, Until: override.Until}
	}
	for i := range out.Limits {
		l := &out.Limits[i]
		name := l.Name
		if l.Window > 0 {
			name = "requests." + name
		}
		if f, ok := o.FieldOrigin(name); ok {
			l.Origin = &api.Origin{Field: f.Name, File: f.File, Line: f.Line, Override: f.Layer != limitfile.TierLayer, Endpoint: f.Endpoint}
		}
	}
}
