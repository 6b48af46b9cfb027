package polygen

import (
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// maxKnownUsers bounds the users that are known: as many as are expected to be active at
	// once. Each costs about half a kilobyte, or three after many decisions about them.
	maxKnownUsers = 100_000
	// maxUnknown bounds the remembered users whom the file does not name.
	maxUnknown = 10_000
	// unknownEvery is how often the log tells of such users, at most.
	unknownEvery = time.Hour
	// unknownNamed is how many of them a log line names.
	unknownNamed = 5
	// maxVersions is how many instances have a metric.
	maxVersions = 1000
)

// dashboard is what people may ask about. What decides does not need it.
type dashboard struct {
	mu    sync.Mutex
	set   *limits.Set // the set that the view has
	view  *view.View
	past  *view.Histories
	fleet fleet
	tops  tops

	// These belong to decide.
	droppedUsers, droppedCosts, droppedUnknown uint64    // what the metrics were last set to
	told                                       time.Time // when the log last told of unknown users
}

func newDashboard(set *limits.Set) *dashboard {
	return &dashboard{set: set, view: view.New(set, maxKnownUsers, maxUnknown), past: view.NewHistories(maxHistories)}
}

// lockDashboard returns the dashboard, locked, with the limits in force and the users who are known now.
func (p *Polygen) lockDashboard() *dashboard {
	s := p.dashboard
	s.mu.Lock()
	s.adoptLimits(p.set.Load())
	return s
}

// adoptLimits gives the view the limits in force. The lock must be held.
func (s *dashboard) adoptLimits(set *limits.Set) {
	// By whoever looks next, not by who puts limits into force: that holds a lock of its own, and would wait for this.
	if s.set != set {
		s.set = set
		s.view.Limits(set)
	}
}

// finish looks at all users. It lets go of the lock, which must be held, now and then, so
// that decide does not wait for the whole look.
func (s *dashboard) finish(look interface{ LookAtMore(users int) (more bool) }) {
	for look.LookAtMore(lookAtOnce) {
		// A mutex that is taken again at once is mostly taken by who let it go. The other goroutine needs a turn.
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
}

// showEvents shows events to the view.
func (p *Polygen) showEvents(events []redisbus.Event) {
	for _, e := range events {
		p.showEvent(p.clock.Now(), e)
	}
}

func (p *Polygen) showEvent(now time.Time, e redisbus.Event) {
	v := p.lockDashboard().view
	defer p.dashboard.mu.Unlock()
	switch e := e.(type) {
	case redisbus.Usage:
		for _, u := range e.Entries {
			if unit, isCost := redisbus.CostUnit(u.Key); isCost {
				v.Charged(now, u.Key.User, unit, u.Key.Window, u.Second, int64(u.Total))
				continue
			}
			v.Usage(now, u.Key, u.Second, u.Total)
		}
	case redisbus.Progress:
		for _, u := range e.Entries {
			v.Progress(now, e.Instance, u.User, u.Active, u.Held, u.Refused)
		}
	case redisbus.Demand:
		for _, r := range e {
			v.Demand(now, r)
		}
	case redisbus.Starts:
		for _, u := range e.Users {
			v.Started(now, e.Instance, e.Span, u.User, startedOf(u))
		}
	case redisbus.Registry:
		v.Instances(e.Instances)
	}
}

// startedOf is what an instance saw of a user, as the view takes it.
func startedOf(u redisbus.Started) view.Started {
	s := view.Started{Active: u.Active, Starts: u.Starts, Classes: make([]view.ClassStarts, len(u.Classes))}
	for i, c := range u.Classes {
		s.Classes[i] = view.ClassStarts(c)
	}
	return s
}

// remember shows the view what was decided. It returns the users whose blocks begin, sorted; other blocks are
// repetitions.
func (p *Polygen) remember(throttles []ratelimit.Throttle, d concurrency.Decisions) (begun []string) {
	// Twenty times a second there is nothing, and who looks at all users should not be held up for it.
	if len(throttles)+len(d.Blocks)+len(d.Unblocks) == 0 {
		return nil
	}
	now := p.clock.Now()
	p.dashboard.mu.Lock()
	defer p.dashboard.mu.Unlock()
	// As in address: a user who is let in and blocked in one round is blocked after it.
	for _, user := range d.Unblocks {
		p.dashboard.view.Unblocked(now, user)
	}
	for _, t := range throttles {
		p.dashboard.view.Throttled(now, t)
		p.dashboard.past.RememberLimited(now, t.Key.User)
	}
	for _, b := range d.Blocks {
		if p.dashboard.view.Blocked(now, b.User) {
			begun = append(begun, b.User)
		}
		p.dashboard.past.RememberLimited(now, b.User)
	}
	return begun
}

// review does once a second what the view needs, and logs users whom the file does not
// name.
func (p *Polygen) review(now time.Time) {
	s := p.lockDashboard()
	s.view.Forget(now)
	users, unknown := s.view.Counts()
	droppedUsers, droppedCosts, droppedUnknown := s.view.Dropped()
	var names []string
	if unknown > 0 && (s.told.IsZero() || now.Sub(s.told) >= unknownEvery) {
		names = s.view.Newest(unknownNamed)
	}
	// The log may be a pipe that nobody reads for a while: whoever waits for it must not hold the lock.
	s.mu.Unlock()

	p.metrics.throttledUsers.Set(float64(p.throttledUsers.countWithin(now, time.Second)))
	// The view counts since it was made, and Prometheus wants what is new.
	p.metrics.usersSeen.Set(float64(users))
	p.metrics.unknownUsers.Set(float64(unknown))
	p.metrics.usersDropped.Add(float64(droppedUsers - s.droppedUsers))
	p.metrics.costsDropped.Add(float64(droppedCosts - s.droppedCosts))
	p.metrics.unknownDropped.Add(float64(droppedUnknown - s.droppedUnknown))
	s.droppedUsers, s.droppedCosts, s.droppedUnknown = droppedUsers, droppedCosts, droppedUnknown
	if len(names) > 0 {
		s.told = now
		p.options.Logger.Info("users whom the limit file does not name have the limits of the default tier: GET /api/v1/unknown-users lists them",
			slog.Int("users", unknown), slog.String("tier", p.set.Load().DefaultTier()), slog.Any("some", names))
	}
}

// takeRegistry takes the registry: which instances there are, and which limits they enforce.
func (p *Polygen) takeRegistry(r redisbus.Registry, want string) {
	p.dashboard.mu.Lock()
	say, changed := p.dashboard.fleet.observe(r, want)
	instances, behind := p.dashboard.fleet.counts()
	versions := p.dashboard.fleet.versions(r.Instances[:min(len(r.Instances), maxVersions)])
	p.dashboard.mu.Unlock()
	p.metrics.instances.Set(float64(instances))
	p.metrics.behind.Set(float64(behind))
	// Otherwise up to a thousand series would be made anew twice a second, and a scrape in between find some of them
	// missing.
	if changed {
		p.metrics.versions.Reset()
		for name, version := range versions {
			p.metrics.versions.WithLabelValues(name, version).Set(1)
		}
	}
	// The instances enforce what the leader has published. The file of another polygen may be older or newer, which
	// is no fault of theirs.
	if !p.leads() {
		return
	}
	for _, l := range say {
		if l.behind == 0 {
			p.options.Logger.Info("instance enforces the present limits again", slog.String("instance", l.instance), slog.String("version", l.version))
			continue
		}
		p.options.Logger.Warn("instance enforces other limits than these", slog.String("instance", l.instance), slog.String("version", l.version),
			slog.String("want", want), slog.Duration("since", l.behind.Round(time.Millisecond)))
	}
}
