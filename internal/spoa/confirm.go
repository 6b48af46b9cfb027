package spoa

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// maxConfirms bounds the keys of which polygen wants to know when HAProxy refuses
// them: it asks for about ten a second.
const maxConfirms = 64

// confirmations are what polygen wants to know of throttles. The limiter's lock guards
// what is asked.
type confirmations struct {
	asked    map[string]policy.Confirm // by throttle-table key, and with the window that is meant
	answered chan bus.Confirmed
}

func newConfirmations() confirmations {
	return confirmations{asked: make(map[string]policy.Confirm), answered: make(chan bus.Confirmed, maxConfirms)}
}

// remember remembers what polygen wants to know, if there is room.
func (c *confirmations) remember(now time.Time, m policy.Confirm) bool {
	// What was not taught within its window will not be any more.
	for key, asked := range c.asked {
		if now.Unix() >= asked.Second+asked.Key.Window.Seconds() {
			delete(c.asked, key)
		}
	}
	// Polygen does not wait for the answer: it counts a throttle that was not confirmed.
	if len(c.asked) >= maxConfirms {
		return false
	}
	c.asked[tableKey(m.Key)] = m
	return true
}

// takeAsked reports whether polygen wants to know of a throttle. It is told once.
func (c *confirmations) takeAsked(n ratelimit.TableEntry) bool {
	// Nearly always: each throttle that is taught comes by here, under the limiter's lock.
	if len(c.asked) == 0 {
		return false
	}
	key := tableKey(n.Key)
	asked, ok := c.asked[key]
	// Of another window of the same key polygen has not asked: the table has one entry for all.
	if !ok || asked.Key != n.Key || asked.Second != n.WindowStart {
		return false
	}
	delete(c.asked, key)
	return true
}

// confirm has the agent say when HAProxy refuses a key by itself: at once if it does,
// and otherwise when it is taught to, should that happen within the window.
func (a *Agent) confirm(now time.Time, m policy.Confirm) {
	if !a.confirmations.remember(now, m) {
		return
	}
	if limit, told := a.limiter.coresOf(m.Key.User).tokens.Refusing(now, m.Key, m.Second); told {
		// Once more: only an entry that is sent now has an acknowledgement to come.
		a.teachThrottle(ratelimit.TableEntry{Key: m.Key, WindowStart: m.Second, Limit: limit})
	}
}

// confirming returns what is to be done when HAProxy has acknowledged a throttle, or
// nil if nobody wants to know.
func (a *Agent) confirming(n ratelimit.TableEntry) func() {
	if !a.confirmations.takeAsked(n) {
		return nil
	}
	return func() {
		c := bus.Confirmed{Instance: a.options.Instance, At: a.clock.Now(), Second: n.WindowStart, Key: n.Key}
		select {
		case a.confirmations.answered <- c:
		// Called by the peers session, which must not wait for Redis. Polygen counts it as not confirmed.
		default:
		}
	}
}

// sayConfirmed tells polygen.
func (a *Agent) sayConfirmed(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-a.confirmations.answered:
			if err := a.options.Bus.Confirm(ctx, c); err != nil && ctx.Err() == nil {
				a.options.Logger.Debug("throttle not confirmed", slog.Any("error", err))
			}
		}
	}
}
