package polygen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// lateAfter is how long an instance may enforce other limits than polygen's before the log
// says so: the limits are announced every announceEvery, and agents read them at once.
const lateAfter = 5 * time.Second

// An instance that is gone is shown for goneFor, but at most maxGone of them.
const (
	goneFor = 10 * time.Minute
	maxGone = 100
)

// fleet knows which limits the instances enforce, and which instances are gone. The zero
// value has no instances.
type fleet struct {
	at      time.Time // when the registry was read, by Redis' clock
	want    string    // the version that all should enforce
	members map[string]*member
}

type member struct {
	version string
	behind  time.Time // since when it enforces another version than wanted; zero if it does not
	logged  bool      // the log has said that it is late
	problem string    // why it does not fully work; "" if it does
	gone    time.Time // since when it is not in the registry; zero if it is
}

// lateInstance is an instance that has enforced other limits than it should for too long, or that
// enforces the right ones again.
type lateInstance struct {
	instance, version string
	behind            time.Duration // 0: it enforces the right ones again
}

// observe takes the registry and the version that all should enforce. It returns what the
// log has to say of instances, sorted, and whether an instance has another version than
// before, is new or gone.
func (f *fleet) observe(r redisbus.Registry, want string) (say []lateInstance, changed bool) {
	// A newer registry was faster: what this one says is over. One that is much newer is from before Redis' clock
	// was set back, and would stand for good.
	if back := f.at.Sub(r.Now); back > 0 && back < lateAfter {
		return nil, false
	}
	f.at, f.want = r.Now, want
	if f.members == nil {
		f.members = make(map[string]*member)
	}
	if f.noteMissing(r) {
		changed = true
	}
	for _, name := range r.Instances {
		m := f.members[name]
		// One that comes back under its name has begun anew: what it lacked before it went tells nothing.
		if m == nil || !m.gone.IsZero() {
			m = &member{}
			f.members[name] = m
			changed = true
		}
		// A registry that was published names who is there alone. The one that is read twice a second has the rest.
		if r.Problems != nil {
			m.problem = r.Problems[name]
		}
		if version := r.Versions[name]; r.Versions != nil && version != m.version {
			m.version = version
			changed = true
		}
		switch {
		case m.version == want:
			// Nobody was told that it lagged behind, so nobody waits to hear that it has caught up.
			if m.logged {
				say = append(say, lateInstance{instance: name, version: m.version})
			}
			m.behind, m.logged = time.Time{}, false
		case m.behind.IsZero() || m.behind.After(r.Now):
			// Also when Redis' clock was set back: a time to come would never be lateAfter ago.
			m.behind = r.Now
		case !m.logged && r.Now.Sub(m.behind) >= lateAfter:
			m.logged = true
			say = append(say, lateInstance{name, m.version, r.Now.Sub(m.behind)})
		}
	}
	return say, changed
}

// noteMissing notes which instances are not in the registry, and forgets those that have been gone
// for long or have been replaced. It reports whether an instance left.
func (f *fleet) noteMissing(r redisbus.Registry) (left bool) {
	// A restarted agent has another random part behind its name. Its last process is not missed.
	here := make(map[string]bool, len(r.Instances))
	for _, name := range r.Instances {
		here[baseName(name)] = true
	}
	var gone []string
	for name, m := range f.members {
		if _, there := slices.BinarySearch(r.Instances, name); there {
			continue
		}
		// It is not behind or in trouble any more. The version stays, for people ask what it last enforced.
		if m.gone.IsZero() {
			*m = member{version: m.version, gone: r.Now}
			left = true
		}
		if away := r.Now.Sub(m.gone); away >= goneFor || away < 0 || here[baseName(name)] {
			delete(f.members, name)
			continue
		}
		gone = append(gone, name)
	}
	// Of too many, as when machines come and go all day, those that left last are asked about.
	slices.SortFunc(gone, func(a, b string) int { return f.members[b].gone.Compare(f.members[a].gone) })
	for _, name := range gone[min(len(gone), maxGone):] {
		delete(f.members, name)
	}
	return left
}

// baseName is an instance's name without its random part.
func baseName(name string) string {
	if i := strings.LastIndexByte(name, '#'); i >= 0 {
		return name[:i]
	}
	return name
}

// versions are the versions that instances enforce, "none" for none.
func (f *fleet) versions(instances []string) map[string]string {
	of := make(map[string]string, len(instances))
	for _, name := range instances {
		of[name] = "none"
		if m := f.members[name]; m != nil && m.version != "" {
			of[name] = m.version
		}
	}
	return of
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
