package polygen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// clockBack is by how much an older registry means that Redis' clock was set back.
	clockBack = 5 * time.Second
	// goneFor is how long an instance that is gone is shown, and maxGone bounds those.
	goneFor = 10 * time.Minute
	maxGone = 100
)

// fleet knows which limits the instances enforce, and which instances are gone. The zero value has no instances.
type fleet struct {
	at      time.Time // when the registry was read, by Redis' clock
	want    string    // the version that all should enforce
	members map[string]*member
}

type member struct {
	version string
	behind  time.Time // since when it enforces another version than wanted; zero if it does not
	problem string    // why it does not fully work; "" if it does
	gone    time.Time // since when it is not in the registry; zero if it is
}

// takeRegistry takes the registry: which instances there are, and which limits they enforce.
func (p *Polygen) takeRegistry(r redisbus.Registry, want string) {
	u := p.lockUsers()
	u.fleet.observe(r, want)
	instances, behind := u.fleet.counts()
	u.mu.Unlock()
	p.metrics.instances.Set(float64(instances))
	p.metrics.behind.Set(float64(behind))
}

func (f *fleet) observe(r redisbus.Registry, want string) {
	// Ignore a registry older than ours. One that is much older was read after Redis' clock was set back.
	if back := f.at.Sub(r.Now); back > 0 && back < clockBack {
		return
	}
	f.at, f.want = r.Now, want
	if f.members == nil {
		f.members = make(map[string]*member)
	}
	for _, name := range r.Instances {
		m := f.members[name]
		if m == nil || !m.gone.IsZero() {
			m = &member{}
			f.members[name] = m
		}
		// A published registry has names only. The one that is read twice a second has the rest.
		if r.Problems != nil {
			m.problem = r.Problems[name]
		}
		if r.Versions != nil {
			m.version = r.Versions[name]
		}
		switch {
		case m.version == want:
			m.behind = time.Time{}
		case m.behind.IsZero() || m.behind.After(r.Now): // later than now: Redis' clock was set back
			m.behind = r.Now
		}
	}
	f.noteMissing(r)
}

// noteMissing notes which instances are not in the registry, and forgets those that have been gone for long or were replaced.
func (f *fleet) noteMissing(r redisbus.Registry) {
	// A restarted agent has another random part behind its name.
	here := make(map[string]bool, len(r.Instances))
	for _, name := range r.Instances {
		here[baseName(name)] = true
	}
	for name, m := range f.members {
		if _, there := slices.BinarySearch(r.Instances, name); there {
			continue
		}
		if m.gone.IsZero() {
			*m = member{version: m.version, gone: r.Now}
		}
		if away := r.Now.Sub(m.gone); away >= goneFor || away < 0 || here[baseName(name)] || len(f.members) > len(r.Instances)+maxGone {
			delete(f.members, name)
		}
	}
}

// baseName is an instance's name without its random part.
func baseName(name string) string {
	if i := strings.LastIndexByte(name, '#'); i >= 0 {
		return name[:i]
	}
	return name
}

// counts are how many instances are in the registry, and how many of them enforce other limits than they should.
func (f *fleet) counts() (present, behind int) {
	for _, m := range f.members {
		if m.gone.IsZero() {
			present++
		}
		if !m.behind.IsZero() {
			behind++
		}
	}
	return present, behind
}

// instances is what is known of the instances, also of those gone, sorted by name.
func (f *fleet) instances() []api.Instance {
	list := make([]api.Instance, 0, len(f.members))
	for name, m := range f.members {
		i := api.Instance{Name: name, Version: m.version, Current: m.version == f.want, Problem: strings.ToValidUTF8(m.problem, "\ufffd")}
		if !m.behind.IsZero() {
			i.Behind = f.at.Sub(m.behind).Seconds()
		}
		if !m.gone.IsZero() {
			since := m.gone.UTC().Truncate(time.Millisecond)
			i.Gone, i.Current, i.Problem = &since, false, "gone: not heard of since "+since.Format("15:04:05 UTC")
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b api.Instance) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
