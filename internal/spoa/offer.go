package spoa

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// An offer is what HAProxy may be told.
type offer struct {
	credit.Grant
	generation uint32
	set        *limits.Set
	classes    string
	share      [2]int64 // of bandwidth, by direction, in bytes per second; 0: not limited
}

// currentOffer is what users may have by default now, or nil; the limiter's lock is held.
func (a *Agent) currentOffer(now time.Time, classes string, shares bool) *offer {
	l := a.limiter
	set := l.inForce.set.Load()
	// Another agent that does not know of this instance yet would count on more than is left.
	if set == nil || !l.agreed(now) {
		return nil
	}
	g, ok := credit.ByDefault(set, classes, shares, int(l.inForce.instances.Load()))
	if !ok {
		return nil
	}
	share := l.bytes.Lend(bandwidthOf(credit.DefaultLimits(set)))
	return &offer{Grant: g, generation: l.credits.generation, set: set, classes: classes, share: share}
}

// agreed reports whether all agents go by the same number of instances; the cores of all shards were
// told of it alike.
func (l *limiter) agreed(now time.Time) bool { return l.shards[0].tokens.Agreed(now) }

// sharesByDefault reports whether users of the default tier need a share of bandwidth.
func (a *Agent) sharesByDefault() bool {
	set := a.limiter.inForce.set.Load()
	return set != nil && bandwidthOf(credit.DefaultLimits(set)).Limited()
}

// keepsShares reports whether the configuration of a process of HAProxy holds bodies to a share that
// users have by default.
func (a *Agent) keepsShares(ctx context.Context, process uint64) (bool, error) {
	value, of, err := a.tables.Variable(ctx, sharesVariable)
	// Another process may have another configuration.
	return value != "" && of == process, err
}

// writeOffer tells HAProxy: whom it is not for first, and its generation last, which it
// compares with the one that it was taught.
func (a *Agent) writeOffer(ctx context.Context, o *offer) error {
	// Rows of another offer would hold for users whom this one does not name.
	if _, err := a.tables.Clear(ctx, defaultTable); err != nil {
		return err
	}
	process, err := a.tables.Set(ctx, defaultTable, a.offerRows(o))
	if err != nil {
		return err
	}
	begins, still := int64(0), false
	a.limiter.update(func(now time.Time) { begins, still = a.beginOffer(now, o, process) })
	// Limits or instances may have changed while it was written, which takes seconds with many names. Without
	// its generation HAProxy begins nothing of it.
	if !still {
		return nil
	}
	process, err = a.tables.Set(ctx, defaultTable, []runtimeapi.Row{
		{Key: rowFrom, Value: uint32(begins)}, {Key: rowGeneration, Value: o.generation},
	})
	if err != nil {
		return err
	}
	a.limiter.update(func(time.Time) {
		d := &a.limiter.credits.byDefault
		d.written = d.process == process && d.generation == o.generation
	})
	a.options.Logger.Debug("users of the default tier have credit by default", slog.String("version", o.set.Version()))
	return nil
}

// offerRows are what HAProxy is told of an offer before it may begin with it.
func (a *Agent) offerRows(o *offer) []runtimeapi.Row {
	var rows []runtimeapi.Row
	keys, _, _ := o.set.ExactKeys()
	for key := range keys {
		// Those who are named have limits of their own. A key that HAProxy never makes needs no row.
		if credit.DefaultKey(key) && validUser(key) {
			rows = append(rows, runtimeapi.Row{Key: key, Value: 1})
		}
	}
	for i, each := range o.Each {
		rows = append(rows, runtimeapi.Row{Key: "~" + strconv.Itoa(i), Value: each})
	}
	addresses := uint32(0)
	// Users who are an address have the limits of that tier then, not of the default tier.
	if o.set.AnonymousTier() != "" {
		addresses = 1
	}
	rows = append(rows,
		runtimeapi.Row{Key: rowPlaces, Value: o.Places},
		runtimeapi.Row{Key: rowFactor, Value: o.Factor},
		runtimeapi.Row{Key: rowMost, Value: uint32(min(maxByDefault, a.options.UnknownUsers))},
		runtimeapi.Row{Key: rowAddresses, Value: addresses})
	for d, row := range [2]string{bandwidth.Down: rowDown, bandwidth.Up: rowUp} {
		// No row is no limit; a share of 0 would stop every transfer.
		if o.share[d] > 0 {
			rows = append(rows, runtimeapi.Row{Key: row, Value: shareUnits(o.share[d])})
		}
	}
	return rows
}

// beginOffer tells the cores from which second on users have what a process of HAProxy was told, if
// that still is what they may have. It returns this machine's second in which HAProxy is to begin;
// the limiter's lock is held.
func (a *Agent) beginOffer(now time.Time, o *offer, process uint64) (begins int64, still bool) {
	l, d := a.limiter, &a.limiter.credits.byDefault
	// All that the offer was made of must still hold, for from here on HAProxy may begin.
	if process != d.process || l.credits.generation != o.generation || l.inForce.set.Load() != o.set || !l.agreed(now) || !a.placesByDefault(now, o, process) {
		return 0, false
	}
	// The cores must know before HAProxy can begin, and HAProxy begins by its own clock, so it is
	// given a second more.
	from := now.Unix() + offerLead
	begins = a.haproxySecond(from) + 1
	for _, s := range l.allCores() {
		s.tokens.CreditByDefault(from)
	}
	l.credits.classes = o.classes
	// It is not written yet: should the call that follows fail, HAProxy may have begun it or not (nextOfferStep).
	d.set, d.generation, d.process, d.begins, d.from = o.set, o.generation, process, begins, from
	d.over, d.through, d.written = false, 0, false
	return begins, true
}

// clearOffer takes from HAProxy what users have by default. Since the generation has changed, HAProxy
// renews nothing of it. Here it is certain that it begins nothing either.
func (a *Agent) clearOffer(ctx context.Context) error {
	cleared, err := a.tables.Clear(ctx, defaultTable)
	if err != nil {
		return err
	}
	a.limiter.update(func(now time.Time) {
		if d := &a.limiter.credits.byDefault; cleared == d.process {
			d.cleared = cleared
			// A second in force ends with the next one for a thread whose clock is behind.
			a.endOffer(now, now.Unix()+1)
		}
	})
	a.options.Logger.Debug("users of the default tier have no credit by default, for this agent or HAProxy is new, limits or instances have changed, or HAProxy may not have heard all of it")
	return nil
}

// placesByDefault reports whether HAProxy may be told of places in progress, or there are none to
// tell of: the core counts them from then on, and everyone who shall have none has an entry that
// says so. The limiter's lock is held.
func (a *Agent) placesByDefault(now time.Time, o *offer, process uint64) bool {
	// Without a limit of requests in progress nobody has to be denied any.
	if o.Places == credit.Unlimited {
		return true
	}
	// It is asked again each time: a core begins with the first call, and is ready once all entries are there.
	denied := true
	for _, s := range a.limiter.allCores() {
		if s.slots.CanBeginDefault(now, int64(process)) {
			s.slots.BeginDefault(now, int64(process), int(o.Places), func(user string) bool { return credit.HasDefault(o.set, user) })
		}
		denied = denied && s.slots.DefaultDenied()
	}
	return denied
}

// defaultOver reports whether a process has ended to give places by default of which the cores do not
// know yet whose requests are in progress by them; l.mu is held. A core whose shard was lost may
// never have begun.
func (l *limiter) defaultOver(process uint64) bool {
	return slices.ContainsFunc(l.shards, func(s *shard) bool { return s.slots.DefaultOver() == int64(process) })
}

// placesInUse tells the core whose requests are in progress by places that users had by default,
// when HAProxy has given none for a while: what is in force of another generation ends with its
// second, and with the next one for a thread whose clock is behind.
func (a *Agent) placesInUse(ctx context.Context, process uint64) error {
	rows, err := a.tables.Read(ctx, creditRows, []string{creditRow})
	if err != nil {
		return err
	}
	d, due := &a.limiter.credits.byDefault, false
	a.limiter.update(func(now time.Time) {
		generation := gpt(&rows[0], 0)
		// HAProxy's own word: what this agent has taught may not have arrived. Another process than
		// the one that offered knows nothing of it.
		if generation != d.taughtGeneration || rows[0].Process != process {
			d.taughtGeneration, d.taughtAt = generation, now
		}
		due = generation == a.limiter.credits.generation && now.Sub(d.taughtAt) > offerAfter
	})
	// Until then HAProxy may begin more, of which this look would not tell.
	if !due {
		return nil
	}
	var inUse []runtimeapi.Entry
	read, err := a.tables.InUse(ctx, creditEntries, func(e runtimeapi.Entry) { inUse = append(inUse, e) })
	if err != nil || read != process {
		return err
	}
	// Some at a time, for requests wait for the lock. In between HAProxy may be replaced, so each core is asked again.
	over := func(s *shard) bool { return s.slots.DefaultOver() == int64(process) }
	for some := range slices.Chunk(inUse, inUseAtOnce) {
		a.limiter.update(func(now time.Time) {
			for i := range some {
				if s := a.limiter.coresOf(some[i].Key); over(s) {
					s.slots.InUse(now, some[i].Key, some[i].ConnCur)
				}
			}
		})
	}
	a.limiter.update(func(time.Time) {
		for _, s := range a.limiter.allCores() {
			if over(s) {
				s.slots.DefaultEnded()
			}
		}
	})
	return nil
}
