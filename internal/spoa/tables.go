package spoa

import (
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// throttleTable is haproxy.cfg's: the epoch second from which the key is no
// longer refused, and the limit, for the RateLimit fields.
var throttleTable = peers.Table{
	Name: "/throttle", KeyLen: 160, Expire: 5 * time.Second,
	Data: []peers.DataType{peers.GPT0, peers.GPC0},
}

// blockTable is haproxy.cfg's: the epoch second from which the user is no longer
// refused, his limit, and how many requests of his this HAProxy may have in
// progress while its agent does not answer.
var blockTable = peers.Table{
	Name: "/block", KeyLen: 128, Expire: time.Minute,
	Data: []peers.DataType{peers.GPT0, peers.GPC0, peers.GPC1},
}

// activeTable is the one that tells how many requests are in progress.
const activeTable = "/active"

// teachThrottle writes a throttle into HAProxy's table, or takes it back. HAProxy
// compares the deadline with its own clock; before 3.2 it may keep the entry
// longer than its time, never shorter.
func (a *Agent) teachThrottle(n ratelimit.Native) {
	end := time.Unix(n.Second+1, 0)
	left := end.Sub(a.clock.Now())
	values := peers.Values{peers.GPT0: uint64(end.Unix()), peers.GPC0: uint64(n.Limit)}
	if n.Lift {
		values = peers.Values{}
		left += time.Second
		a.metrics.lifted.Inc()
	} else {
		a.metrics.throttled.Inc()
	}
	a.peers.Teach(throttleTable.Name, n.Key.Class+"|"+n.Key.User, values, left)
}

// teachBlock has HAProxy refuse a user by itself, or no longer.
func (a *Agent) teachBlock(n concurrency.Native) {
	values := peers.Values{peers.GPC0: uint64(n.Limit), peers.GPC1: uint64(n.Cap)}
	if n.Until > 0 {
		values[peers.GPT0] = uint64(a.here(n.Until))
		a.metrics.blocked.Inc()
	} else {
		a.metrics.unblocked.Inc()
	}
	a.peers.Teach(blockTable.Name, n.User, values, blockTable.Expire)
}

// here is an epoch second of the cluster by this machine's clock, which is
// HAProxy's: the nearest one, lest clocks that differ by a microsecond make it
// another.
func (a *Agent) here(second int64) int64 {
	left := time.Unix(second, 0).Sub(a.clock.Now())
	return time.Now().Add(left).Round(time.Second).Unix()
}

// learn takes what HAProxy says of a user's requests in progress.
func (a *Agent) learn(u peers.Update) {
	set := a.limiter.set.Load()
	if u.Table != activeTable || set == nil || !validUser(u.Key) {
		return
	}
	limit := set.User(u.Key).Concurrent
	count := concurrency.Count{Tracked: int64(u.Values[peers.HTTPReqCnt]), Active: int64(u.Values[peers.ConnCur])}
	a.limiter.updateSlots(func(core *concurrency.Agent, now time.Time) { core.Progress(now, u.Key, limit, count) })
}

// session follows the peers session: a HAProxy that was replaced goes on with
// what it had in progress, and one that has ended does not.
func (a *Agent) session(s peers.Session) {
	switch s.State {
	case peers.Down:
		a.down, a.replaced = a.clock.Now(), s.Closed
	case peers.Gone:
		a.replaced = false
		a.limiter.updateSlots(func(core *concurrency.Agent, now time.Time) { core.Restarted(now) })
	case peers.Synced:
		a.limiter.updateSlots(func(core *concurrency.Agent, now time.Time) { core.Synced(now, a.up) })
	case peers.Up:
		a.up = a.clock.Now()
		if a.replaced {
			a.workers.replaced()
			a.limiter.updateSlots(func(core *concurrency.Agent, now time.Time) { core.Replaced(now, a.down) })
			a.metrics.draining.Set(1)
			a.options.Logger.Info("haproxy was replaced: its requests in progress count until it has ended",
				slog.Duration("at_most", a.options.DrainFor))
		}
	}
}

// drain ends the counting of a replaced HAProxy's requests once it has ended.
func (a *Agent) drain() {
	draining := false
	a.limiter.updateSlots(func(core *concurrency.Agent, now time.Time) {
		if draining = core.Draining(); draining && a.workers.oldEnded() {
			core.Drained(now)
			draining = false
			a.options.Logger.Info("the replaced haproxy has ended")
		}
	})
	a.metrics.draining.Set(map[bool]float64{true: 1}[draining])
}
