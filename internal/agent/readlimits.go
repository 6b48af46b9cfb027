package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// staggerFor is how long agents wait on average, for each agent there is, before they ask for
	// new limits: they are all told of them in the same instant.
	staggerFor = time.Millisecond

	// An agent that could not read the limits tries again after retryLimits, and after twice as
	// long each time, up to maxRetryLimits.
	retryLimits    = 250 * time.Millisecond
	maxRetryLimits = 10 * time.Second
)

// stagger is how long to wait before new limits are read, with a random number from 0 to 1.
func stagger(instances int64, random float64) time.Duration {
	// Twice a random part, so that the mean is what is said above. One that is alone need not wait.
	return time.Duration(2 * random * float64(staggerFor) * float64(max(1, instances)-1))
}

// retryLimitsAfter is how long to wait after so many failures in a row, with a random number
// from 0 to 1.
func retryLimitsAfter(failures int, random float64) time.Duration {
	wait := maxRetryLimits
	// The sixth doubling is longer in any case, and after a night of failures the shift would overflow.
	if doublings := failures - 1; doublings < 6 {
		wait = min(wait, retryLimits<<doublings)
	}
	// At random: agents that Redis refused together would else come back together.
	return time.Duration((0.5 + random) * float64(wait))
}

// limitReading puts limits into force, one set after the other: those that are read and
// those whose time has come are of two goroutines.
type limitReading struct {
	wanted  chan struct{} // holds one token when the limits should be read
	forcing sync.Mutex    // held while limits are put into force
}

func (a *Agent) wantLimits() { notify(a.limitReading.wanted) }

// readLimits reads the limits whenever they may have changed.
func (a *Agent) readLimits(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.limitReading.wanted:
		}
		wanted := time.Now()
		wait := stagger(a.limiter.inForce.instances.Load(), rand.Float64())
		for failures := 1; ; failures++ {
			if !daemon.Sleep(ctx, wait) {
				return nil
			}
			err := a.fetchLimits(ctx, wanted, a.limiter.inForce.instances.Load())
			// What came up while it was read left a token: then they are read once more.
			if err == nil || ctx.Err() != nil {
				break
			}
			a.options.Logger.Warn("limits not read: the old ones stay in force", slog.Int("failures", failures), slog.Any("error", err))
			wait = retryLimitsAfter(failures, rand.Float64())
		}
	}
}

// firstLimits reads the limits, while the agent stays registered.
func (a *Agent) firstLimits(ctx context.Context) error {
	// With room for the result, so that the reader ends also when nobody waits for it any more.
	read := make(chan error, 1)
	// At once, as if it were alone: without limits it does not serve.
	go func() { read <- a.fetchLimits(ctx, time.Now(), 1) }()
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-read:
			return err
		case <-ticker.C:
		}
		// A large file takes many seconds, and after 1.5 the others take whoever is silent for gone.
		if _, err := a.heartbeat(ctx); err != nil && ctx.Err() == nil {
			a.options.Logger.Debug("heartbeat failed", slog.Any("error", err))
		}
	}
}

// fetchLimits puts the published limits into force, which were wanted at a time. The number of
// readers is that of redisbus.LimitReader.
func (a *Agent) fetchLimits(ctx context.Context, wanted time.Time, readers int64) error {
	published, err := a.options.Bus.Limits(ctx, readers)
	if err != nil {
		if ctx.Err() == nil {
			a.metrics.limitErrors.WithLabelValues(redisbus.LimitErrorReason(err)).Inc()
		}
		return err
	}
	// To force the same limits once more would begin another generation of credit, and so cost questions.
	if a.limiter.inForce.hasVersion(published.Version) {
		return nil
	}
	set, err := limitfile.ParsePublished("published limits", published.File, published.Overrides, a.limiter.inForce.set.Load())
	if err != nil {
		a.metrics.limitErrors.WithLabelValues(redisbus.InvalidLimits).Inc()
		return fmt.Errorf("parse the published limits %s: %w", published.Version, err)
	}
	a.limitReading.forcing.Lock()
	a.force(set.At(a.clock.Now()))
	a.limitReading.forcing.Unlock()
	a.metrics.limitsInForce(set.Version(), len(published.File)+len(published.Overrides))
	a.metrics.limitsDelay.Observe(time.Since(wanted).Seconds())
	a.options.Logger.Info("limits in force", slog.String("version", set.Version()), slog.Int("users", set.UserCount()), slog.Duration("after", time.Since(wanted)))
	return nil
}

// force puts limits into force, also for users whom HAProxy refuses by itself and
// who would not be asked about.
func (a *Agent) force(set *limits.Set) {
	// Requests are decided by the new ones from here on, without the lock. The cores hear of them next: until then they
	// may say something that is right for the old ones, which is repaired below.
	a.limiter.inForce.set.Store(set)
	a.limiter.update(func(now time.Time) {
		// Blocks are repeated, and so right again, in 200 ms.
		for _, s := range a.limiter.allCores() {
			s.slots.Limits(now, func(user string) int { return set.User(user).Concurrent })
		}
		a.limiter.bytes.Limits(now, func(user string) bandwidth.Limit { return bandwidthOf(set.User(user)) })
		for _, lift := range a.limiter.throttles.outdated(set) {
			a.teachThrottle(lift)
		}
		// What HAProxy has is of the old limits.
		a.nextGeneration()
	})
}

// expire puts limits into force whose time has come: what was overridden until now.
func (a *Agent) expire() {
	// A set that is just being read must not come between this look and its being put into force: it would be lost.
	a.limitReading.forcing.Lock()
	defer a.limitReading.forcing.Unlock()
	set, now := a.limiter.inForce.set.Load(), a.clock.Now()
	if set == nil || set.Expires().IsZero() || now.Before(set.Expires()) {
		return
	}
	a.force(set.At(now))
	a.options.Logger.Info("overrides of the limit file have ended", slog.String("version", set.Version()))
}
