package spoa

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	flushEvery = 5 * time.Millisecond
	// minWait and waitFactor: a request waits for its verdict max(10 ms, five
	// median round trips) at most, and never longer than Options.MaxWait.
	minWait    = 10 * time.Millisecond
	waitFactor = 5
	// lostAfter is how long an answer of the pool may be missing before the
	// agent goes on without it. It is longer than the stalls of a busy machine,
	// for whoever goes on alone cannot be exact.
	lostAfter = 100 * time.Millisecond
	// lostRetry is how often a lost pool is asked all the same.
	lostRetry = 100 * time.Millisecond
	// longLoss is after how long the others may have taken this instance for
	// gone (they do after 2 s): then it must have registered again, and they must
	// have heard of it, before it leases again.
	longLoss = 1500 * time.Millisecond
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

// exchange carries asks to the pool and grants back. One batch is on its way at
// a time: what comes up meanwhile goes with the next.
type exchange struct {
	limiter *limiter
	metrics *metrics
	take    func(context.Context, string, []ratelimit.Ask) (bus.Taken, error) // Bus.Take
	options *Options

	asks       []ratelimit.Ask
	overflowed uint64 // of which the metric knows
	trips      roundTrips
	tried      time.Time // when the pool was last asked

	mu     sync.Mutex // the watchdog runs beside the loop
	lost   bool
	lostAt time.Time
	beats  int       // heartbeats answered since then
	logged time.Time // when a loss was last logged
	quiet  bool      // this loss was not
}

func (e *exchange) run(ctx context.Context) error {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		flush := false
		select {
		case <-ctx.Done():
			// What has been admitted is reported, or the others would admit it again.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			for more := true; more; {
				more = e.round(last, true) && last.Err() == nil
			}
			return nil
		case <-ticker.C:
			flush = true
		case <-e.limiter.urgent:
		}
		e.round(ctx, flush)
	}
}

// round is one exchange with the pool, if there is anything to say. It reports
// whether the pool took it.
func (e *exchange) round(ctx context.Context, flush bool) bool {
	lost := e.isLost()
	e.limiter.update(func(core *ratelimit.Agent, now time.Time) {
		if flush {
			core.Tick(now)
			e.metrics.users.Set(float64(core.Users()))
			e.metrics.uncounted.Add(float64(core.Overflowed() - e.overflowed))
			e.overflowed = core.Overflowed()
		}
		if !lost || time.Since(e.tried) >= lostRetry {
			e.asks = core.Collect(now, flush, e.asks)
		}
	})
	if len(e.asks) == 0 {
		return false
	}
	e.tried = time.Now()
	err := e.send(ctx)
	e.asks = e.asks[:0]
	return err == nil
}

// send asks the pool, and lets the core know what came of it. Should the answer
// be long in coming, the pool counts as lost meanwhile: no request waits for it.
func (e *exchange) send(ctx context.Context) error {
	watchdog := time.AfterFunc(lostAfter, func() { e.lose(errOverdue) })
	sent := time.Now()
	taken, err := e.take(ctx, e.options.Instance, e.asks)
	received := time.Now()
	watchdog.Stop()
	if err != nil {
		e.lose(err)
		e.limiter.update(func(core *ratelimit.Agent, now time.Time) {
			for _, ask := range e.asks {
				core.Fail(now, ask)
			}
		})
		return err
	}
	e.limiter.update(func(core *ratelimit.Agent, now time.Time) {
		for i, ask := range e.asks {
			core.Reply(now, ask, taken.Grants[i])
		}
	})
	e.measure(received.Sub(sent))
	return nil
}

// measure adapts to how long the pool takes to answer. A pool that takes longer
// than a request may wait is as good as lost.
func (e *exchange) measure(roundTrip time.Duration) {
	e.trips.add(roundTrip)
	median := e.trips.median()
	e.limiter.wait.Store(int64(min(max(minWait, waitFactor*median), e.options.MaxWait)))
	e.limiter.update(func(core *ratelimit.Agent, _ time.Time) { core.RoundTrip(median) })
	switch {
	case roundTrip <= e.options.MaxWait && e.briefly():
		e.find()
	case median > e.options.MaxWait:
		e.lose(errSlow)
	}
}

// briefly reports whether the pool has not been lost for long.
func (e *exchange) briefly() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.lost || time.Since(e.lostAt) < longLoss
}

// answered notes that Redis answered a heartbeat: a lost pool is found again even
// if there is nothing to ask it, after a long loss with the second answer.
func (e *exchange) answered(roundTrip time.Duration) {
	if !e.isLost() || roundTrip > e.options.MaxWait {
		return
	}
	brief := e.briefly()
	e.mu.Lock()
	e.beats++
	again := e.beats > 1
	e.mu.Unlock()
	if brief || again {
		e.find()
	}
}

var (
	errOverdue = errors.New("an answer is overdue")
	errSlow    = errors.New("answers take longer than a request may wait")
)

func (e *exchange) isLost() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost && e.options.HoldFor > 0 && time.Since(e.lostAt) >= e.options.HoldFor && !e.limiter.open.Swap(true) {
		e.options.Logger.Warn("redis has been lost for long: not limiting", slog.Duration("for", e.options.HoldFor))
	}
	return e.lost
}

// lose goes on without the pool.
func (e *exchange) lose(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		return
	}
	e.lost, e.lostAt, e.beats = true, time.Now(), 0
	e.limiter.open.Store(e.options.OnLoss == Open)
	e.limiter.update(func(core *ratelimit.Agent, now time.Time) { core.Lost(now, true) })
	e.metrics.lost.Set(1)
	e.metrics.losses.Inc()
	if e.quiet = time.Since(e.logged) < logGap; e.quiet {
		return // it comes and goes: the metric tells how often
	}
	e.logged = time.Now()
	e.options.Logger.Warn("redis lost: going on alone", slog.String("on_loss", string(e.options.OnLoss)), slog.Any("error", why))
}

// find goes on with the pool.
func (e *exchange) find() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.lost {
		return
	}
	e.lost = false
	e.limiter.open.Store(false)
	e.limiter.update(func(core *ratelimit.Agent, now time.Time) { core.Lost(now, false) })
	e.metrics.lost.Set(0)
	if e.quiet {
		return
	}
	e.options.Logger.Info("redis is back", slog.Duration("after", time.Since(e.lostAt)))
}
