package agent

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// steadyFor is for how long the same shards must be lost before the log hears of them: they are
	// noticed one after the other, and one line is to name all that a master had.
	steadyFor = time.Second
	// logGap is how often losses are logged at most.
	logGap = 10 * time.Second
	// maxNamed is how many shards are named at most. A cluster may have 1024 of them, each heartbeat carries their names,
	// and a log line is read by people.
	maxNamed = 32
)

// lost is which parts of Redis are lost; the limiter's lock guards it.
type lost struct {
	shards   []bool // by number
	registry bool   // the list of instances stays as it is
	why      error  // the last of them was lost
}

// names are the parts that are lost, "" for none.
func (l *lost) names() string {
	var names []string
	n := l.count()
	for number, lost := range l.shards {
		if lost && len(names) < maxNamed {
			names = append(names, strconv.Itoa(number))
		}
	}
	switch {
	case n == len(l.shards) && n > 1:
		names = []string{"all"}
	case n > maxNamed:
		names = append(names, fmt.Sprintf("and %d more", n-maxNamed))
	}
	if l.registry {
		names = append(names, "registry")
	}
	return strings.Join(names, " ")
}

func (l *lost) count() (n int) {
	for _, lost := range l.shards {
		if lost {
			n++
		}
	}
	return n
}

// showLost has the metrics say what is lost; l.mu is held.
func (l *limiter) showLost() {
	n, any := l.lost.count(), 0.0
	if n > 0 || l.lost.registry {
		any = 1
	}
	l.metrics.lostShards.Set(float64(n))
	// At once: a scrape in between must not find that nothing is lost.
	l.metrics.lost.Set(any)
}

// lostParts names what is lost, and says why the last of it was.
func (l *limiter) lostParts() (names string, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost.names(), l.lost.why
}

// Lost names the shards of Redis that the agent goes on without, such as "3 7 registry", or "all";
// "" for none.
func (a *Agent) Lost() string {
	names, _ := a.limiter.lostParts()
	return names
}

// withoutLost returns what Redis can take now of a report of events, and whether that is all of it: one
// call for all shards fails if one of them does.
func (l *limiter) withoutLost(events redisbus.Events) (reachable redisbus.Events, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost.count() == 0 && !l.lost.registry {
		return events, true
	}
	reachable.Second = events.Second
	for _, of := range events.Users {
		if !l.lost.shards[l.shardOf(of.Name).number] {
			reachable.Users = append(reachable.Users, of)
		}
	}
	// Tiers have users in all shards, and their bucket is where the registry is.
	if !l.lost.registry {
		reachable.Tiers = events.Tiers
	}
	return reachable, false
}

// openShards is for how many lost shards users are not limited any more, because they were held for long enough.
func (a *Agent) openShards() (n int) {
	for _, s := range a.limiter.shards {
		// Of --on-redis-loss open the log hears when they are lost.
		if s.reach.open.Load() && a.options.OnLoss == Hold {
			n++
		}
	}
	return n
}

func (l *limiter) allLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost.count() == len(l.shards)
}

// lossLog tells the log what is lost, in one line whatever that is. It is for one goroutine.
type lossLog struct {
	lost  steady[string] // the names of what is
	open  steady[int]    // for how many shards nobody is limited
	began time.Time      // when the loss began that the log knows of
	at    time.Time      // when the log last heard of a loss
}

// steady is something of which the log is told when it has been the same for steadyFor.
type steady[T comparable] struct {
	now, told T
	since     time.Time // when it came to be what it is
}

// take takes what it is now, and reports whether the log should be told.
func (s *steady[T]) take(value T) bool {
	// Each time that another one joins them the wait begins anew: a line with half of them would be followed by another.
	if value != s.now {
		s.now, s.since = value, time.Now()
	}
	return s.now != s.told && time.Since(s.since) >= steadyFor
}

func (g *lossLog) note(names string, why error, o *Options) {
	switch {
	case !g.lost.take(names):
	case names == "":
		g.lost.told = ""
		o.Logger.Info("redis is back", slog.Duration("after", g.lost.since.Sub(g.began)))
	// It comes and goes: the metric tells how often.
	case time.Since(g.at) < logGap:
	default:
		// What is lost may change while it lasts: its end is told with the time since it began.
		if g.lost.told == "" {
			g.began = g.lost.since
		}
		g.lost.told, g.at = names, time.Now()
		o.Logger.Warn("redis lost: going on alone for users of these shards", slog.String("shards", names), slog.Int("of", o.Bus.Shards()),
			slog.String("on_loss", string(o.OnLoss)), slog.Any("error", why))
	}
}

// noteOpen takes for how many shards users are not limited now.
func (g *lossLog) noteOpen(shards int, o *Options) {
	if !g.open.take(shards) {
		return
	}
	// That they are fewer, the line says that Redis is back, or what is still lost.
	if shards > g.open.told {
		o.Logger.Warn("redis has been lost for long: not limiting users of so many shards", slog.Int("shards", shards), slog.Int("of", o.Bus.Shards()), slog.Duration("for", o.HoldFor))
	}
	g.open.told = shards
}
