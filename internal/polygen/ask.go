package polygen

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// from says who answers.
func (p *Polygen) from() view.From {
	from := view.From{
		Polygen: p.options.Name, Leading: p.leads(), Version: p.set.Load().Version(),
		Time: p.clock.Now().UTC().Truncate(1e6),
	}
	if why := p.cutOff(); why != nil {
		from.Degraded = short(why.Error())
	}
	return from
}

// topFor is how long a list of users is good for: to make one is to look at all of
// them, and polygen decides nothing meanwhile.
const topFor = 500 * time.Millisecond

// tops are the last lists of users that were made.
type tops struct {
	mu    sync.Mutex
	lists map[listed]view.Users
}

type listed struct {
	by     view.Sort
	length int
}

// lookTop makes a list of users.
func (p *Polygen) lookTop(now time.Time, by view.Sort, n int) view.Users {
	s := p.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt(p.set.Load())
	look := s.view.LookNow(now, by, n)
	if by != view.ByRecent { // whom the view has in that order
		s.finish(look)
	}
	return look.Top(by)
}

// Users returns the n users with most, 1000 at most.
func (p *Polygen) Users(by view.Sort, n int) view.Users {
	t := &p.seen.tops
	t.mu.Lock()
	defer t.mu.Unlock()
	length := shortList
	if n > shortList {
		length = view.MaxTop
	}
	which := listed{by, length}
	out, now := t.lists[which], p.clock.Now()
	if age := now.Sub(out.Time); age < 0 || age >= topFor {
		out = p.lookTop(now, by, length)
		out.From = p.from()
		out.Time = now.UTC()
		if t.lists == nil {
			t.lists = make(map[listed]view.Users)
		}
		t.lists[which] = out
	}
	out.Users = slices.Clone(out.Users[:min(n, len(out.Users))])
	out.Time = out.Time.Truncate(time.Microsecond)
	return out
}

// UnknownUsers returns n of the users whom the limit file does not name.
func (p *Polygen) UnknownUsers(by view.Sort, n int) view.UnknownUsers {
	p.seen.mu.Lock()
	out := p.seen.view.Unknown(by, n)
	p.seen.mu.Unlock()
	out.From = p.from()
	return out
}

// User returns what is known of a user by their name.
func (p *Polygen) User(name, endpoint string) view.User {
	set := p.set.Load()
	key, others := p.find(set, name, endpoint)
	out := p.userOfKey(key, endpoint)
	if !hides(set, name) {
		out.Name = view.Name{User: name, Endpoint: endpoint, Href: view.Path(name, endpoint)}
	}
	for _, other := range others {
		out.Others = append(out.Others, view.NameOfKey(limits.EndpointKey(endpoint, other)))
	}
	p.seen.where.of(set, name, &out)
	return out
}

// UserOfKey returns what is known of a user by the key that the cluster knows them by,
// without where the file sets their limits unless the key is hidden: others have a name to
// ask by.
func (p *Polygen) UserOfKey(key, endpoint string) view.User {
	out := p.userOfKey(key, endpoint)
	if limits.IsHidden(key) {
		p.seen.where.of(p.set.Load(), key, &out)
	}
	return out
}

func (p *Polygen) userOfKey(key, endpoint string) view.User {
	p.seen.mu.Lock()
	p.seen.adopt(p.set.Load())
	out := p.seen.view.User(p.clock.Now(), limits.EndpointKey(endpoint, key))
	p.seen.mu.Unlock()
	out.From = p.from()
	return out
}

// Instances returns the instances and the versions of their limits.
func (p *Polygen) Instances() view.Instances {
	p.seen.mu.Lock()
	list := p.seen.fleet.list()
	p.seen.mu.Unlock()
	return view.Instances{From: p.from(), Instances: list}
}

// maxWhere is of how many users is remembered where their limits come from.
const maxWhere = 64

// where remembers where users' limits come from: to find it out is to read the whole
// file again. Only one does so at a time; others are answered without it meanwhile.
// Its zero value remembers nothing.
type where struct {
	mu     sync.Mutex
	set    *limits.Set
	users  map[named]limits.Origin
	wanted atomic.Pointer[unknownOrigin] // by those who cannot wait
}

type unknownOrigin struct {
	set *limits.Set
	named
}

type named struct{ endpoint, user string }

// of tells where the limits of a user come from, who is named as Set.OriginAt wants it.
func (w *where) of(set *limits.Set, user string, out *view.User) {
	if !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	if w.set != set || len(w.users) >= maxWhere {
		w.set, w.users = set, make(map[named]limits.Origin)
	}
	who := named{out.Endpoint, user}
	o, ok := w.users[who]
	if !ok {
		o = set.OriginAt(who.endpoint, who.user)
		w.users[who] = o
	}
	tellOrigin(o, out)
}

// ofAtOnce tells it if it is known, and otherwise has it found out by run.
func (w *where) ofAtOnce(set *limits.Set, out *view.User) {
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

// run finds out what those want who cannot wait, until ctx ends. They ask every second.
func (w *where) run(ctx context.Context) error {
	ticker := time.NewTicker(topFor)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if u := w.wanted.Swap(nil); u != nil {
			w.of(u.set, u.user, &view.User{Name: view.Name{Endpoint: u.endpoint}})
		}
	}
}

func tellOrigin(o limits.Origin, out *view.User) {
	if o.User > 0 {
		out.Entry = &view.Entry{File: o.File, Line: o.User, Pattern: o.Pattern, Comment: o.Comment, Then: o.Then, Expired: o.Expired}
		if !o.Until.IsZero() {
			out.Entry.Until = &o.Until
		}
	}
	if len(o.Hand) > 0 {
		if out.Entry == nil {
			out.Entry = &view.Entry{}
		}
		h := o.Hand[len(o.Hand)-1] // that of the endpoint, if there is one
		out.Entry.Override = &view.InHand{Reason: h.Reason, By: h.By, Until: h.Until}
	}
	for i := range out.Limits {
		l := &out.Limits[i]
		name := l.Name
		if l.Window > 0 {
			name = "requests." + name
		}
		if f, ok := o.Field(name); ok {
			l.Origin = &view.Origin{Field: f.Name, File: f.File, Line: f.Line, Override: f.Override, Endpoint: f.Endpoint, Hand: f.Hand}
		}
	}
}
