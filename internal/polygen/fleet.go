package polygen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/polygen/view"
)

// lateAfter is how long an instance may enforce other limits than polygen's before
// that is said: the limits are announced every announceEvery, and read at once.
const lateAfter = 5 * time.Second

// fleet knows which limits the instances enforce. Its zero value knows of none.
type fleet struct {
	at      time.Time // when the registry was read, by Redis' clock
	want    string    // the version that all should enforce
	members map[string]*member
}

type member struct {
	version string
	behind  time.Time // since when it enforces another version than wanted; zero if it does not
	said    bool      // that it is late
	problem string    // why it does not fully work; "" if it does
}

// late is an instance that enforces other limits than it should for too long, or no
// more.
type late struct {
	instance, version string
	behind            time.Duration // 0: no more
}

// observe takes the registry and the version that all should enforce. It returns
// what is to be said of instances, sorted, and whether any has another version than
// before, is new or gone.
func (f *fleet) observe(r bus.Registry, want string) (say []late, changed bool) {
	if back := f.at.Sub(r.Now); back > 0 && back < lateAfter {
		return nil, false // it was overtaken; otherwise Redis' clock was set back
	}
	f.at, f.want = r.Now, want
	if f.members == nil {
		f.members = make(map[string]*member)
	}
	for name := range f.members {
		if _, there := slices.BinarySearch(r.Instances, name); !there {
			delete(f.members, name)
			changed = true
		}
	}
	for _, name := range r.Instances {
		m := f.members[name]
		if m == nil {
			m = &member{}
			f.members[name] = m
			changed = true
		}
		if r.Problems != nil {
			m.problem = r.Problems[name]
		}
		if version := r.Versions[name]; version != m.version {
			m.version = version
			changed = true
		}
		switch {
		case m.version == want:
			if m.said {
				say = append(say, late{instance: name, version: m.version})
			}
			m.behind, m.said = time.Time{}, false
		case m.behind.IsZero() || m.behind.After(r.Now):
			m.behind = r.Now
		case !m.said && r.Now.Sub(m.behind) >= lateAfter:
			m.said = true
			say = append(say, late{name, m.version, r.Now.Sub(m.behind)})
		}
	}
	return say, changed
}

// behind is how many instances enforce other limits than they should.
func (f *fleet) behind() (n int) {
	for _, m := range f.members {
		if !m.behind.IsZero() {
			n++
		}
	}
	return n
}

// list is what is known of the instances, sorted by name.
func (f *fleet) list() []view.Instance {
	list := make([]view.Instance, 0, len(f.members))
	for name, m := range f.members {
		i := view.Instance{Name: name, Version: m.version, Current: m.version == f.want, Problem: strings.ToValidUTF8(m.problem, "\ufffd")}
		if !m.behind.IsZero() {
			i.Behind = f.at.Sub(m.behind).Seconds()
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b view.Instance) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
