package spoa

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// tableWriter tells HAProxy what users have by default: runtimeapi.Client.
type tableWriter interface {
	Variable(ctx context.Context, name string) (value string, process uint64, err error)
	Set(ctx context.Context, table string, rows []runtimeapi.Row) (process uint64, err error)
	Clear(ctx context.Context, table string) (process uint64, err error)
	Read(ctx context.Context, table string, keys []string) ([]runtimeapi.Entry, error)
	InUse(ctx context.Context, table string, each func(runtimeapi.Entry)) (process uint64, err error)
}

const (
	// defaultTable is haproxy.cfg's: what users have who have no entry in its table of credit,
	// and the keys of those whom that is not for. It is of one process, as the table of credit is.
	defaultTable = "sluice_default"
	// classesVariable names the classes that have tickets, and sharesVariable is set if credit by
	// default brings shares of bandwidth.
	classesVariable = "proc.sluice_classes"
	sharesVariable  = "proc.sluice_default_shares"

	// Rows of that table, beside "~0", "~1", …, the tickets of each class.
	rowGeneration = "~"          // 0 or none: nobody has credit by default
	rowFrom       = "~from"      // the second from which on they have it
	rowMost       = "~most"      // entries of the table of credit beyond which nobody gets any
	rowPlaces     = "~places"    // in progress
	rowFactor     = "~factor"    // by which all grow while no agent answers
	rowAddresses  = "~addresses" // 1: keys that may be addresses have none
	rowDown       = "~down"      // the share of bandwidth down, and the one up; 0: not limited
	rowUp         = "~up"

	// offerEvery is how often it is looked whether HAProxy should know something else.
	offerEvery = 250 * time.Millisecond
	// offerTimeout bounds the time to tell it. It may be many names.
	offerTimeout = 10 * time.Second
	// inUseAtOnce bounds the users of whom the core hears at a time that they have requests in
	// progress, which takes the limiter's lock for less than a millisecond.
	inUseAtOnce = 1000
	// offerAfter is how long nothing must have changed before HAProxy is told: a process that
	// was replaced has noticed by then, and so have other agents.
	offerAfter = 2 * time.Second
	// nameRate is how many users with limits of their own HAProxy is told of in a second in the
	// mean, should limits change all the time: one costs it some 5 us.
	nameRate = 2000
	// unreachedSpan is how long HAProxy's runtime API may not answer until users have no credit by
	// default: well below the 10 minutes for which HAProxy remembers that somebody has none, of which
	// 4 may have passed.
	unreachedSpan = 4 * time.Minute
	// offerLead is how many seconds after it is told HAProxy begins, at least.
	offerLead = 2
	// maxByDefault bounds the entries in HAProxy's table of credit up to which it makes some by
	// itself. Half of its table is left for users who are given credit with an answer. And
	// when it forgets an entry because it is full, all those are older that would have to expire
	// before it makes any: a withdrawal is never forgotten too soon.
	maxByDefault = 100_000
)

// byDefault is what HAProxy gives by itself to users whom nobody has asked about. It has
// them all if it has them at all: those are asked about who have no credit for another reason.
// The zero byDefault is nothing.
type byDefault struct {
	set        *limits.Set // whose users of the default tier have it; nil: none
	generation uint32
	process    uint64        // HAProxy's
	cleared    uint64        // the process that was last told to give nothing: a new agent finds what the one before told it
	begins     int64         // this machine's second from which on HAProxy gives it,
	from       int64         // and the cluster's first second in which they may have it,
	over       bool          // and whether no process is to give any from now on,
	through    int64         // but may until the end of this second
	written    bool          // HAProxy has all of it
	ready      time.Time     // no sooner is it told the next one,
	pause      time.Duration // for there were so many names in the last one

	taughtGeneration uint32    // that HAProxy was seen to renew,
	taughtAt         time.Time // then first
	reachedAt        time.Time // when HAProxy last answered
}

// mayHave reports whether HAProxy may have credit for a user without having been given it.
func (d *byDefault) mayHave(now time.Time, key string) bool {
	sec := now.Unix()
	// The machine's second may be the cluster's of the next number already, or still that before.
	begun := sec > d.from || time.Now().Unix() >= d.begins
	return d.set != nil && sec >= d.from && begun && (!d.over || sec <= d.through) && credit.HasDefault(d.set, key)
}

// active reports whether some process of HAProxy may begin to give any.
func (d *byDefault) active() bool { return d.set != nil && !d.over }

// endOffer notes that no process gives anything by itself any more, from the end of a second
// on; the limiter's lock is held.
func (a *Agent) endOffer(now time.Time, through int64) {
	d := &a.limiter.credits.byDefault
	// Of one that has ended before the core knows the end.
	for _, s := range a.limiter.allCores() {
		if d.active() {
			s.tokens.EndCreditByDefault(through)
		}
		s.slots.EndDefault()
	}
	d.over, d.through, d.ready = true, through, now.Add(offerAfter+d.pause)
}

// runOffers sees to it that HAProxy knows what users have by default, until ctx ends.
func (a *Agent) runOffers(ctx context.Context) error {
	for clock.Sleep(ctx, offerEvery) {
		// Debug only: without an offer HAProxy asks about these users, which costs time and breaks no limit.
		if err := a.offerCredit(ctx); err != nil && ctx.Err() == nil {
			a.metrics.byDefaultErrors.Inc()
			a.options.Logger.Debug("haproxy was not told what users have by default", slog.Any("error", err))
		}
	}
	return nil
}

// offerCredit tells HAProxy what users have by default, if it should know something else.
func (a *Agent) offerCredit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	classes, process, err := a.tables.Variable(ctx, classesVariable)
	shares := false
	// A configuration that does not hold bodies to shares can still give credit to users who need none.
	if err == nil && a.sharesByDefault() {
		shares, err = a.keepsShares(ctx, process)
	}
	a.limiter.update(func(now time.Time) { a.reachedOffer(now, err == nil) })
	if err != nil {
		return err
	}
	var step offerStep
	var o *offer
	a.limiter.update(func(now time.Time) { step, o = a.nextOfferStep(now, process, classes, shares) })
	// Each step leaves HAProxy in a state that the next look finds again, so a step that fails is
	// repeated, and none needs to know of the one before.
	defer a.showOffer()
	switch step {
	case offerClears:
		return a.clearOffer(ctx)
	case offerEnds:
		return a.placesInUse(ctx, process)
	case offerWrites:
		return a.writeOffer(ctx, o)
	}
	return nil
}

// offerStep is what is to be done next so that HAProxy knows what users have by default.
type offerStep uint8

const (
	offerStays  offerStep = iota // HAProxy knows it, or must not yet know it
	offerClears                  // HAProxy begins no more of what it knows
	offerEnds                    // HAProxy has begun none for a while: who still has some?
	offerWrites                  // HAProxy gets to know it
)

// nextOfferStep is the next step with a process of HAProxy, and what HAProxy may be told in it; the
// limiter's lock is held.
func (a *Agent) nextOfferStep(now time.Time, process uint64, classes string, shares bool) (offerStep, *offer) {
	l, d := a.limiter, &a.limiter.credits.byDefault
	if d.process != process {
		// The new process has none of the rows, and what the old one gave is still running.
		if d.active() {
			for _, s := range l.allCores() {
				s.tokens.Reloaded(now)
			}
		}
		a.endOffer(now, now.Unix())
		l.credits.withdrawAgain()
		d.process = process
	}
	if d.active() && !d.written && d.generation == l.credits.generation {
		// HAProxy may have it all and begin, or not. It must not be written once more under the same
		// generation: a request that stood still between its look at this table and the end of its entry
		// would find the generation unchanged, and have missed rows that were cleared meanwhile: a
		// share, or the row that says that it has limits of its own.
		a.nextGeneration()
	}
	o := a.currentOffer(now, classes, shares)
	switch {
	// Until it is taught this agent's generation, HAProxy would begin what the agent before offered, and
	// this one take that for portions of its own.
	case d.cleared != process:
		return offerClears, nil
	// What HAProxy has is not what users may have any more.
	case d.active() && (o == nil || o.generation != d.generation):
		return offerClears, nil
	case d.active():
		return offerStays, nil
	case l.defaultOver(process):
		return offerEnds, nil
	// Who shall have no credit must have an entry that says so first.
	case o != nil && now.After(d.ready) && l.credits.confirmedAgain() && a.placesByDefault(now, o, process):
		_, n, _ := o.set.ExactKeys()
		d.pause = time.Duration(n) * time.Second / nameRate
		d.ready = now.Add(offerAfter + d.pause) // should it fail
		return offerWrites, o
	}
	return offerStays, nil
}

// showOffer has the metric say whether HAProxy gives credit by default.
func (a *Agent) showOffer() {
	a.limiter.update(func(time.Time) {
		active := 0.0
		if d := &a.limiter.credits.byDefault; d.active() && d.written {
			active = 1
		}
		a.metrics.byDefault.Set(active)
	})
}

// reachedOffer notes whether HAProxy's runtime API answered. Who shall have no credit is not told
// again meanwhile, and HAProxy forgets that they have none after 10 minutes: before that it is taught
// by its peers that it gives none by default; l.mu is held.
func (a *Agent) reachedOffer(now time.Time, answered bool) {
	d := &a.limiter.credits.byDefault
	switch {
	// So long as it answers, withdrawals are repeated before HAProxy forgets them.
	case answered:
		d.reachedAt = now
	case d.active() && now.Sub(d.reachedAt) > unreachedSpan:
		d.reachedAt = now
		a.nextGeneration()
	}
}
