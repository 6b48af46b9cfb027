package spoa

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
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
	// lostAfter is how long an answer of the pool may be missing before the
	// agent goes on without it. It is longer than the stalls of a busy machine,
	// for whoever goes on alone cannot be exact.
	lostAfter = 100 * time.Millisecond
	// lostRetry is how often a lost pool is asked all the same.
	lostRetry = 100 * time.Millisecond
	// longLoss is after how long the others may have taken this instance for
	// gone (they do after 1.5 s): then it must have registered again, and they must
	// have heard of it, before it leases again.
	longLoss = time.Second
	// logGap is how often losses are logged at most.
	logGap = 10 * time.Second
)

// OnLoss says what an agent does while Redis is lost.
type OnLoss string

// What an agent may do.
const (
	Hold OnLoss = "hold" // enforce its part of each limit
	Open OnLoss = "open" // admit everything
)

// loss knows whether Redis can be reached in time, and for how long it could not.
type loss struct {
	limiter *limiter
	metrics *metrics
	options *Options

	mu     sync.Mutex // the watchdogs run beside the lanes
	trips  roundTrips
	lost   bool
	lostAt time.Time
	beats  int       // heartbeats answered since then
	logged time.Time // when a loss was last logged
	quiet  bool      // this loss was not
	why    error     // the pool was lost last
}

// measure adapts to how long the pool takes to answer. A pool that takes longer
// than a request may wait is as good as lost.
func (l *loss) measure(roundTrip time.Duration) {
	l.mu.Lock()
	l.trips.add(roundTrip)
	median := l.trips.median()
	l.mu.Unlock()
	l.limiter.redis.wait.Store(int64(l.options.waitFor(median)))
	l.limiter.update(func(time.Time) { l.limiter.tokens.RoundTrip(median) })
	// One answer in time is enough after a short loss, for nobody can have taken this instance for gone. To be lost
	// it takes the median: a single slow answer is a busy machine.
	switch {
	case roundTrip <= l.options.MaxWait && l.briefly():
		l.findRedis()
	case median > l.options.MaxWait:
		l.loseRedis(errSlow)
	}
}

// waitFor is how long a request may wait while the pool takes so long to answer.
func (o *Options) waitFor(median time.Duration) time.Duration {
	return min(max(minWait, o.MaxWait/2, waitFactor*median), o.MaxWait)
}

// briefly reports whether the pool has not been lost for long.
func (l *loss) briefly() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost || time.Since(l.lostAt) < longLoss
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
	if l.lost && l.options.HoldFor > 0 && time.Since(l.lostAt) >= l.options.HoldFor && !l.limiter.redis.open.Swap(true) {
		l.options.Logger.Warn("redis has been lost for long: not limiting", slog.Duration("for", l.options.HoldFor))
	}
	return l.lost
}

// loseRedis goes on without the pool.
func (l *loss) loseRedis(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Three lanes and the heartbeats notice the same loss, which counts once.
	if l.lost {
		return
	}
	l.lost, l.lostAt, l.beats, l.why = true, time.Now(), 0, why
	l.limiter.redis.open.Store(l.options.OnLoss == Open)
	l.tellCores(true)
	l.metrics.lost.Set(1)
	l.metrics.losses.Inc()
	if l.quiet = time.Since(l.logged) < logGap; l.quiet {
		return // it comes and goes: the metric tells how often
	}
	l.logged = time.Now()
	l.options.Logger.Warn("redis lost: going on alone", slog.String("on_loss", string(l.options.OnLoss)), slog.Any("error", why))
}

// findRedis goes on with the pool.
func (l *loss) findRedis() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lost {
		return
	}
	l.lost = false
	l.options.Tracer.Record(context.Background(), "redis lost", l.lostAt, l.why)
	l.limiter.redis.open.Store(false)
	l.tellCores(false)
	l.metrics.lost.Set(0)
	// Of a loss that the log did not hear of it need not hear the end.
	if l.quiet {
		return
	}
	l.options.Logger.Info("redis is back", slog.Duration("after", time.Since(l.lostAt)))
}

// tellCores lets the cores know that lease; shares hold without Redis.
func (l *loss) tellCores(lost bool) {
	l.limiter.update(func(now time.Time) {
		l.limiter.tokens.Lost(now, lost)
		l.limiter.slots.Lost(now, lost)
	})
	for _, lane := range [...]laneSignals{l.limiter.lanes.tokens, l.limiter.lanes.slots, l.limiter.lanes.bytes} {
		lane.passOn(false, true) // one that rests knows nothing of it
	}
}

// roundTrips remembers how long the pool took to answer.
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
