package agent

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// flushEvery is the rhythm in which a core is asked what it has to say, and longestRest how
	// long it is left alone if it has nothing to do: to wake three times in 5 ms costs more than
	// all requests that HAProxy admits by itself.
	flushEvery  = 5 * time.Millisecond
	longestRest = 250 * time.Millisecond
	// minWait and waitFactor: a request waits for its verdict five median round trips
	// at most, but half of Options.MaxWait and 10 ms at least, and never longer than
	// Options.MaxWait.
	minWait    = 10 * time.Millisecond
	waitFactor = 5
	// lostFactor: the agent goes on without the pool when an answer is missing for this many times Options.MaxWait, 100 ms
	// by default. That is longer than the stalls of a busy machine, because an agent that goes on alone cannot be exact.
	lostFactor = 5
	// lostRetry is how often a lost pool is asked all the same.
	lostRetry = 100 * time.Millisecond
	// longLoss is after how long the others may have taken this instance for
	// gone (they do after 1.5 s, in a large cluster later): then it must have registered again, and they must
	// have heard of it, before it leases again.
	longLoss = time.Second
)

// OnLoss says what an agent does while Redis is lost.
type OnLoss string

// What an agent may do.
const (
	Hold OnLoss = "hold" // enforce its part of each limit
	Open OnLoss = "open" // admit everything
)

// loss knows whether a shard of Redis can be reached in time, and for how long it could not.
type loss struct {
	limiter *limiter
	metrics *metrics
	options *Options
	shard   *shard // nil: of what is published, which no limit depends on

	mu     sync.Mutex // the watchdogs run beside the lanes
	trips  roundTrips
	lost   bool
	lostAt time.Time
	beats  int   // heartbeats answered since then
	why    error // the pool was lost last
}

// measure adapts to how long the pool takes to answer. A pool that takes longer
// than a request may wait is as good as lost.
func (l *loss) measure(roundTrip time.Duration) {
	l.mu.Lock()
	l.trips.add(roundTrip)
	median := l.trips.median()
	l.mu.Unlock()
	// No request waits for what is published.
	if s := l.shard; s != nil {
		s.reach.wait.Store(int64(l.options.longestWait(median)))
		l.limiter.update(func(time.Time) {
			l.limiter.touch(s)
			s.tokens.RoundTrip(median)
		})
	}
	// One answer in time is enough after a short loss, for nobody can have taken this instance for gone. To be lost
	// it takes the median: a single slow answer is a busy machine.
	switch {
	case roundTrip <= l.options.MaxWait && l.briefly():
		l.findRedis()
	case median > l.options.MaxWait:
		l.loseRedis(errSlow)
	}
}

// longestWait is how long a request may wait at most while the pool takes so long to answer.
func (o *Options) longestWait(median time.Duration) time.Duration {
	// A Redis that is fast today may stall for a moment: half of what the operator allows is waited for in any case.
	return min(max(minWait, o.MaxWait/2, waitFactor*median), o.MaxWait)
}

// CallTimeout is how long calls of Options.Bus may take for an Options.MaxWait: an answer that comes after the pool was lost
// still counts.
func CallTimeout(maxWait time.Duration) time.Duration {
	return max(redisbus.DefaultTimeout, 2*lostFactor*maxWait)
}

func (o *Options) lostAfter() time.Duration { return lostFactor * o.MaxWait }

// briefly reports whether the pool has not been lost for long.
func (l *loss) briefly() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Nobody is taken for gone for what they do not publish.
	return !l.lost || l.shard == nil || time.Since(l.lostAt) < longLoss
}

// answered notes that Redis answered a heartbeat: a lost pool is found again even
// if there is nothing to ask it, after a long loss with the second answer.
func (l *loss) answered(roundTrip time.Duration) {
	// A Redis that is slower than a request may wait would be lost again with the next ask.
	if !l.isLost() || roundTrip > l.options.MaxWait {
		return
	}
	brief := l.briefly()
	l.mu.Lock()
	l.beats++
	again := l.beats > 1
	l.mu.Unlock()
	// The first heartbeat registered again; by the second one the others have heard of it.
	if brief || again {
		l.findRedis()
	}
}

var (
	errOverdue = errors.New("an answer is overdue")
	errSlow    = errors.New("answers take longer than a request may wait")
)

func (l *loss) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Looked at here because every lane comes by in each round: no timer has to be stopped.
	if l.lost && l.shard != nil && l.options.HoldFor > 0 && time.Since(l.lostAt) >= l.options.HoldFor {
		l.shard.reach.open.Store(true)
	}
	return l.lost
}

// loseRedis goes on without the pool, because an ask or a heartbeat has failed, is overdue, or took too long.
func (l *loss) loseRedis(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Both lanes and the heartbeats notice the same loss, which counts once.
	if l.lost {
		return
	}
	l.lost, l.lostAt, l.beats, l.why = true, time.Now(), 0, why
	// No core decides otherwise because nobody hears what is published.
	if l.shard == nil {
		return
	}
	l.shard.reach.open.Store(l.options.OnLoss == Open)
	l.tellCores(true)
	l.metrics.losses.Inc()
}

// findRedis goes on with the pool, because one of them was answered in time.
func (l *loss) findRedis() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lost {
		return
	}
	l.lost = false
	if l.shard == nil {
		return
	}
	l.shard.reach.open.Store(false)
	l.tellCores(false)
}

// tellCores lets the cores know that lease; shares hold without Redis.
func (l *loss) tellCores(lost bool) {
	l.limiter.update(func(now time.Time) {
		l.limiter.touch(l.shard)
		l.shard.tokens.Lost(now, lost)
		l.shard.slots.Lost(now, lost)
		l.shard.costs.Lost(now, lost)
		l.limiter.lost.shards[l.shard.number] = lost
		if lost {
			l.limiter.lost.why = l.why
		}
		l.limiter.showLost()
	})
	// A lane that rests knows nothing of it, and would wait for up to longestRest before it notices.
	for _, lane := range [...]laneSignals{l.shard.lanes.tokens, l.shard.lanes.slots, l.shard.lanes.costs} {
		lane.passOn(false, true)
	}
}

type roundTrips struct {
	last [31]time.Duration
	n    int
}

func (r *roundTrips) add(d time.Duration) {
	r.last[r.n%len(r.last)] = d
	r.n++
}

// median is 0 when nothing was measured yet.
func (r *roundTrips) median() time.Duration {
	// The median, not the mean: one stall of a second must not let other requests wait longer.
	n := min(r.n, len(r.last))
	if n == 0 {
		return 0
	}
	sorted := r.last
	slices.Sort(sorted[:n])
	return sorted[n/2]
}
