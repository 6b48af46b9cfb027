package spoa

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
)

const (
	// steadyFor is for how long the same shards must be lost before the log hears of them: they are
	// noticed one after the other, and one line is to name all that a master had.
	steadyFor = time.Second
	// logGap is how often losses are logged at most.
	logGap = 10 * time.Second
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
	for number, lost := range l.shards {
		if lost {
			names = append(names, fmt.Sprint(number))
		}
	}
	// A cluster may have 1024 of them, and a log line is read by people.
	if len(names) == len(l.shards) && len(names) > 1 {
		names = []string{"all"}
	}
	if l.registry {
		names = append(names, "registry")
	}
	return strings.Join(names, " ")
}

// count is how many shards are lost.
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

// divideLost divides a report of events into what Redis can take now, and what belongs to its parts that are lost.
func (l *limiter) divideLost(all bus.Events) (reachable, away bus.Events) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost.count() == 0 && !l.lost.registry {
		return all, bus.Events{}
	}
	// One call for all shards fails if one of them does, and is repeated until all of it was taken: what is away would
	// hold up the rest, and what comes behind it.
	reachable.Second, away.Second = all.Second, all.Second
	for _, of := range all.Users {
		part := &reachable
		if l.lost.shards[l.shardOf(of.Name).number] {
			part = &away
		}
		part.Users = append(part.Users, of)
	}
	// Tiers have users in all shards, and their bucket is where the registry is.
	if l.lost.registry {
		away.Tiers = all.Tiers
	} else {
		reachable.Tiers = all.Tiers
	}
	return reachable, away
}

// allLost reports whether there is no shard that can be reached.
func (l *limiter) allLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost.count() == len(l.shards)
}

// lossLog tells the log what is lost, in one line whatever that is. It is for one goroutine.
type lossLog struct {
	names string    // that are lost
	since time.Time // when they came to be these
	told  string    // of which the log knows
	began time.Time // when the loss began that the log knows of
	at    time.Time // when the log last heard of a loss
}

// note takes what is lost now.
func (g *lossLog) note(names string, why error, o *Options) {
	now := time.Now()
	// Each time that another one joins them the wait begins anew: a line with half of them would be followed by another.
	if names != g.names {
		g.names, g.since = names, now
	}
	switch {
	case names == g.told || now.Sub(g.since) < steadyFor:
	case names == "":
		g.told = ""
		o.Logger.Info("redis is back", slog.Duration("after", g.since.Sub(g.began)))
	// It comes and goes: the metric tells how often.
	case now.Sub(g.at) < logGap:
	default:
		// What is lost may change while it lasts: its end is told with the time since it began.
		if g.told == "" {
			g.began = g.since
		}
		g.told, g.at = names, now
		o.Logger.Warn("redis lost: going on alone for users of these shards", slog.String("shards", names), slog.Int("of", o.Bus.Shards()),
			slog.String("on_loss", string(o.OnLoss)), slog.Any("error", why))
	}
}
