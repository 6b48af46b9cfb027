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

// confirms are those keys, by throttle-table key, and the windows meant. The limiter's
// lock guards them.
type confirms map[string]policy.Confirm

// confirm has the agent say when HAProxy refuses a key by itself: at once if it does,
// and otherwise when it is taught to, should that happen within the window.
func (a *Agent) confirm(now time.Time, m policy.Confirm) {
	for key, asked := range a.confirms {
		if now.Unix() >= asked.Second+asked.Key.Window.Seconds() {
			delete(a.confirms, key)
		}
	}
	if len(a.confirms) >= maxConfirms {
		return
	}
	a.confirms[tableKey(m.Key)] = m
	if limit, told := a.limiter.tokens.Refusing(now, m.Key, m.Second); told {
		a.teachThrottle(ratelimit.TableEntry{Key: m.Key, WindowStart: m.Second, Limit: limit}) // once more, for the acknowledgement
	}
}

// confirming returns what is to be done when HAProxy has acknowledged a throttle, or
// nil if nobody wants to know.
func (a *Agent) confirming(n ratelimit.TableEntry) func() {
	if len(a.confirms) == 0 {
		return nil
	}
	key := tableKey(n.Key)
	asked, ok := a.confirms[key]
	if !ok || asked.Key != n.Key || asked.Second != n.WindowStart {
		return nil
	}
	delete(a.confirms, key)
	return func() {
		c := bus.Confirmed{Instance: a.options.Instance, At: a.clock.Now(), Second: n.WindowStart, Key: n.Key}
		select {
		case a.confirmed <- c:
		default: // polygen counts it as not confirmed
		}
	}
}

// sayConfirmed tells polygen.
func (a *Agent) sayConfirmed(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-a.confirmed:
			if err := a.options.Bus.Confirm(ctx, c); err != nil && ctx.Err() == nil {
				a.options.Logger.Debug("throttle not confirmed", slog.Any("error", err))
			}
		}
	}
}
