package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A lane carries one kind of asks to Redis, and the answers back. One batch is
// on its way at a time, so that none overtakes another: what comes up meanwhile
// goes with the next.
type lane[A any] struct {
	laneSignals
	loss    *loss
	flushes prometheus.Observer // of seconds that collecting for a flush took

	// collect takes what is to be said, with flush everything. Before a flush it
	// lets the core do what is due.
	collect func(flush, ask bool, asks []A) []A
	// send asks; what the pool answers, or that it does not, it tells the core.
	send func(ctx context.Context, asks []A) error
	// rest is for how long there will be nothing to collect.
	rest func() time.Duration
	// leave tells the core that what is to be said now is the last; nil: no need.
	leave func()

	asks  []A
	tried time.Time // when the pool was last asked
}

func (l *lane[A]) run(ctx context.Context) error {
	// What is under way when ctx ends is not broken off, and what has been admitted
	// is reported, or the others would admit it again. That has a second.
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })()
	timer := time.NewTimer(flushEvery)
	defer timer.Stop()
	flushed := time.Now()
	for {
		flush := false
		select {
		case <-ctx.Done():
			if l.leave != nil {
				l.leave()
			}
			for more := true; more; {
				more = l.exchangeOnce(last, true) && last.Err() == nil
			}
			return nil
		case <-timer.C:
			flush, flushed = true, time.Now()
		// The core has something to do before the rest is over, which it did not know when it was asked: the
		// rhythm goes on from the last flush.
		case <-l.sooner:
			timer.Reset(flushEvery - time.Since(flushed))
			continue
		case <-l.urgent:
		}
		l.exchangeOnce(last, flush)
		// An urgent exchange does not move the next flush, or a busy core would never tick.
		if flush {
			timer.Reset(max(l.untilFlush(), flushEvery-time.Since(flushed)))
		}
	}
}

// untilFlush is for how long nothing has to be flushed from now on.
func (l *lane[A]) untilFlush() time.Duration {
	// However little there is to say: that the pool is back, or lost for too long, is noticed by whoever comes by.
	if l.loss.isLost() {
		return 0
	}
	return l.rest()
}

// exchangeOnce is one exchange with the pool, if there is anything to say. It reports
// whether the pool took it. Should the answer be long in coming, the pool counts
// as lost meanwhile: no request waits for it.
func (l *lane[A]) exchangeOnce(ctx context.Context, flush bool) bool {
	// A pool that is lost is asked now and then: that is one way to find out that it is back.
	ask := !l.loss.isLost() || time.Since(l.tried) >= lostRetry
	began := time.Now()
	l.asks = l.collect(flush, ask, l.asks)
	if flush {
		l.flushes.Observe(time.Since(began).Seconds())
	}
	// Nothing is sent, so nothing is learned of Redis either: heartbeats tell whether it is there.
	if len(l.asks) == 0 {
		return false
	}
	l.tried = time.Now()
	// Beside the call, whose own time-out is longer than requests may wait: an answer that comes late still counts.
	watchdog := time.AfterFunc(l.loss.options.lostAfter(), func() { l.loss.loseRedis(errOverdue) })
	err := l.send(ctx, l.asks)
	took := time.Since(l.tried)
	watchdog.Stop()
	// The array is used again, and must not keep the names of the users who were asked for.
	clear(l.asks)
	l.asks = l.asks[:0]
	// How long a failure took says nothing about how long an answer takes.
	if err == nil {
		l.loss.measure(took)
	}
	return err == nil
}
