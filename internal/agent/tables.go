package agent

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// throttleTable is haproxy.cfg's: the epoch second from which the key is no
// longer refused, the limit and its window in seconds, for the RateLimit fields.
var throttleTable = peers.Table{
	Name: "/throttle", KeyLen: 160, Expire: 5 * time.Second,
	Data: []peers.DataType{peers.GPT0, peers.GPC0, peers.GPC1},
}

// blockTable is haproxy.cfg's: the epoch second from which the user is no longer
// refused, their limit, and how many requests of theirs this HAProxy may have in
// progress while its agent does not answer.
var blockTable = peers.Table{
	Name: "/block", KeyLen: 128, Expire: time.Minute,
	Data: []peers.DataType{peers.GPT0, peers.GPC0, peers.GPC1},
}

// shareTable is haproxy.cfg's: the user's share down and up, in shareUnit.
var shareTable = peers.Table{
	Name: "sluice_share", KeyLen: 128, Expire: bandwidth.ShareFor,
	Data: []peers.DataType{peers.GPT0, peers.GPC0},
}

// shareUnit is what HAProxy counts shares in, bytes per second: 32 bits of it reach
// 256 GiB/s, and a share of 10 kB/s is right to less than a per cent.
const shareUnit = 64

// shareUnits is a share as HAProxy takes it: at least one unit, for none would not
// be a limit.
func shareUnits(bytes int64) uint32 {
	// Rounded, so that shares of all instances together are the limit in the mean.
	return uint32(min(max(1, (bytes+shareUnit/2)/shareUnit), math.MaxUint32))
}

// activeTable is the one that tells how many requests are in progress that were asked
// about, and heldTable how many by credit whose bodies are held to a share of bandwidth.
const (
	activeTable = "/active"
	heldTable   = "/held"
)

// earlyBytes is the unit in which that table tells what came up before it was tracked.
const earlyBytes = 64

// teachBlock has HAProxy refuse a user by itself, or no longer. Of a limit in a dry
// run it hears that there is none, and of one with exceptions nothing but what holds while no agent answers.
func (a *Agent) teachBlock(n concurrency.TableEntry) {
	// The core counts it as if it held, for the metrics and the log: what it decides must refuse nobody.
	switch of := a.limiter.inForce.limitsOf(n.User); {
	case of.ConcurrentMode != limits.Enforce:
		n = concurrency.TableEntry{User: n.User}
	// HAProxy would refuse what does not count as well.
	case len(of.Except()) > 0:
		n.Until = 0
	}
	values := peers.Values{peers.GPC0: uint64(n.Limit), peers.GPC1: uint64(n.Cap)}
	// Without an end it is an unblock: the entry stays, for its limit and cap count while no agent answers.
	if n.Until > 0 {
		values[peers.GPT0] = uint64(a.haproxySecond(n.Until))
		a.metrics.blocked.Inc()
	} else {
		a.metrics.unblocked.Inc()
	}
	a.teach(blockTable.Name, n.User, values, blockTable.Expire)
}

// haproxySecond is an epoch second of the cluster by this machine's clock, which is
// HAProxy's.
func (a *Agent) haproxySecond(second int64) int64 {
	// The nearest one: cut off, two clocks that differ by a microsecond would make it the second before.
	left := time.Unix(second, 0).Sub(a.clock.Now())
	return time.Now().Add(left).Round(time.Second).Unix()
}

// teachShare tells HAProxy a user's share, if the user has transfers in flight, which
// follow it (see transfers), also if they are not limited any more. (To delete the entry
// would not lift the share: without an entry, what the request brought holds.)
func (a *Agent) teachShare(e bandwidth.TableEntry) {
	values := shareValues(e.Share)
	if a.limiter.bodies.transfers.setShare(a.clock.Now(), e.User, values) {
		a.writeShare(e.User, values)
	}
}

func shareValues(share [2]int64) peers.Values {
	units := [2]uint64{math.MaxUint32, math.MaxUint32}
	for _, d := range bandwidth.Directions {
		// A direction without a limit has the largest number: an entry has a value for both.
		if share[d] > 0 {
			units[d] = uint64(shareUnits(share[d]))
		}
	}
	return peers.Values{peers.GPT0: units[bandwidth.Down], peers.GPC0: units[bandwidth.Up]}
}

func (a *Agent) writeShare(user string, values peers.Values) {
	a.metrics.shares.Inc()
	a.teach(shareTable.Name, user, values, shareTable.Expire)
}

// learnProgress takes what HAProxy says of a user's requests in progress and bytes.
func (a *Agent) learnProgress(u peers.Update) {
	set := a.limiter.inForce.set.Load()
	if u.Table != activeTable && u.Table != heldTable || set == nil || !validUser(u.Key) {
		return
	}
	of := set.User(u.Key)
	active := int64(u.Values[peers.ConnCur])
	// A name beyond the quota is tracked in table active for itself only if it passed for want of a
	// verdict in time. It must not take the memory that the quota is to save. Users in table held have
	// credit, and had a place when it was given.
	if active > 0 && !of.Unlimited() && set.MadeUp(u.Key) && !a.names.hasPlace(a.clock.Now(), u.Key, of) && u.Table == activeTable {
		return
	}
	count := concurrency.Count{Tracked: int64(u.Values[peers.HTTPReqCnt]), Active: active}
	moved := bandwidth.Count{Active: active, Moved: [2]int64{
		bandwidth.Down: int64(u.Values[peers.BytesOutCnt]), bandwidth.Up: int64(u.Values[peers.BytesInCnt] + earlyBytes*u.Values[peers.GPT0]),
	}}
	if u.Table == heldTable {
		a.learnHeld(u.Key, of, moved)
		return
	}
	a.starts.progress(u.Key, active)
	a.limiter.update(func(now time.Time) {
		a.limiter.coresOf(u.Key).slots.Progress(now, u.Key, of.Concurrent, count)
		a.limiter.bytes.Progress(now, u.Key, bandwidthOf(of), bandwidth.Asked, moved)
		if values, due := a.limiter.bodies.transfers.progress(now, u.Key, max(active, a.limiter.bytes.Active(u.Key)), nil); due {
			a.writeShare(u.Key, values)
		}
		a.limiter.bodies.moved.countTable(u.Key, bandwidth.Asked, moved.Moved)
	})
}

// learnHeld takes what HAProxy says of a user's requests by credit whose bodies it holds.
// They have places of the credit, so they are none of those that were asked about.
func (a *Agent) learnHeld(user string, of *limits.Limits, c bandwidth.Count) {
	limit := bandwidthOf(of)
	// What the core says of the user's share, now that there is a transfer, comes first.
	a.limiter.update(func(now time.Time) { a.limiter.bytes.Progress(now, user, limit, bandwidth.Held, c) })
	a.limiter.update(func(now time.Time) {
		lent := shareValues(a.limiter.bytes.Lend(limit))
		if values, due := a.limiter.bodies.transfers.progress(now, user, max(c.Active, a.limiter.bytes.Active(user)), &lent); due {
			a.writeShare(user, values)
		}
		a.limiter.bodies.moved.countTable(user, bandwidth.Held, c.Moved)
	})
}

// haproxySession is what the peers session says of the HAProxy at its other end. It is of
// the goroutine that tells of the session.
type haproxySession struct {
	up       time.Time // when it last came
	replaced bool      // HAProxy closed the one before
	process  uint64    // which has it, as the runtime API says; 0: unknown
}

// askProcessSpan is how long HAProxy may take to say which process it is: nothing else of the session is heard meanwhile.
const askProcessSpan = 500 * time.Millisecond

// sessionProcess is the process that answers on HAProxy's runtime socket, 0 if that is not known. What stops listening there
// at a reload has ended its sessions no earlier, so it is the one that a session has just begun with.
func (a *Agent) sessionProcess() uint64 {
	if a.runtime == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), askProcessSpan)
	defer cancel()
	_, process, err := a.runtime.Variable(ctx, countersVariable)
	if err != nil {
		return 0 // said by those who need the socket
	}
	return process
}

// followSession follows the peers session: a HAProxy that was replaced goes on with
// what it had in progress, and one that has ended does not.
func (a *Agent) followSession(s peers.Session) {
	switch s.State {
	case peers.Down:
		// Whether it was replaced or has ended is known by what follows: another process's Up, or Gone.
		a.session.replaced = s.Closed
	// HAProxy has ended, and its requests with it.
	case peers.Gone:
		a.session.replaced = false
		a.starts.restarted()
		a.limiter.update(func(now time.Time) {
			for _, s := range a.limiter.allCores() {
				s.tokens.Reloaded(now)
				s.slots.Restarted(now)
			}
			a.limiter.bytes.Restarted(now)
			// Its tables ended with it, so nobody has an entry any more.
			a.limiter.bodies.transfers = newTransfers()
		})
	// All has been told anew: whoever was not told of since the session is up has nothing in progress.
	case peers.Synced:
		a.limiter.update(func(now time.Time) {
			for _, s := range a.limiter.allCores() {
				s.slots.Synced(now, a.session.up)
			}
		})
	case peers.Up:
		before := a.session.process
		a.session.up, a.session.process = a.clock.Now(), a.sessionProcess()
		// HAProxy also closes a session in which it hears nothing for some seconds: because this agent stood still, or the line.
		if before != 0 && before == a.session.process {
			a.session.replaced = false
		}
		// Another process has connected, and the old one still works on what it has: both count.
		if a.session.replaced {
			a.workers.replaced()
			a.starts.restarted()
			a.limiter.update(func(now time.Time) {
				a.limiter.bodies.transfers.replaced(now)
				for _, s := range a.limiter.allCores() {
					s.tokens.Reloaded(now)
					s.slots.Replaced(now)
				}
				a.limiter.credits.withdrawAgain()
				// What the old one still moves cannot be seen, nor changed.
				a.limiter.bytes.Restarted(now)
			})
			a.metrics.draining.Set(1)
			a.options.Logger.Info("haproxy was replaced: its requests in progress count until it has ended",
				slog.Duration("at_most", a.options.DrainFor))
		}
	}
}

// endDraining ends the counting of a replaced HAProxy's requests once it has ended.
func (a *Agent) endDraining() {
	var draining bool
	a.limiter.update(func(time.Time) {
		for _, s := range a.limiter.shards {
			draining = draining || s.slots.Draining()
		}
	})
	// Where processes cannot be seen the core ends it after DrainFor.
	if draining && a.workers.oldEnded() {
		a.limiter.update(func(now time.Time) {
			for _, s := range a.limiter.allCores() {
				s.slots.Drained(now)
			}
		})
		draining = false
		a.options.Logger.Info("the replaced haproxy has ended")
	}
	a.metrics.draining.Set(map[bool]float64{true: 1}[draining])
}
