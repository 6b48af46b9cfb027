package cost

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Waiting is a request that the pools are asked about. It is decided by a later call of the
// agent's methods, which return it in Output.Decided, or by Timeout.
type Waiting struct {
	Verdict Verdict // valid once the request is decided

	owner   *user
	needs   []Need
	heard   uint64 // Agent.heard when it began to wait
	decided bool
}

// Start decides a request of a user that needs all of this, each of another limit, or
// nothing of it. When only the pools know, the request waits: the Waiting is not nil and the
// verdict is not valid yet. Of several limits that refuse it, the verdict names the one that
// stays in force longest.
//
// Limits in a dry run are charged and refuse nothing, and no request waits for them alone.
func (a *Agent) Start(at time.Time, name string, needs []Need) (Verdict, *Waiting) {
	now := at.UnixNano()
	sec := a.second(now)
	if len(needs) == 0 {
		return Verdict{Allowed: true, Second: sec}, nil
	}
	u := a.findOrAddUser(name, now)
	if u == nil {
		// Fail open: a bound on memory must not refuse anybody.
		a.overflow++
		return Verdict{Allowed: true, Second: sec}, nil
	}
	u.last = now
	if v, refused := a.refusedBefore(u, needs, now); refused {
		return v, nil
	}
	if a.lost || !slices.ContainsFunc(needs, enforced) {
		return a.decideAlone(u, needs, now), nil
	}
	if len(u.queue) >= maxQueue {
		n := needs[slices.IndexFunc(needs, enforced)]
		return refuse(n.Cost, cause.QueueFull, sec), nil
	}
	w := &Waiting{owner: u, needs: slices.Clone(needs), heard: a.heard}
	u.queue = append(u.queue, w)
	a.queues[u] = struct{}{}
	a.toAsk = append(a.toAsk, w)
	a.out.Urgent = true
	return Verdict{}, w
}

func enforced(n Need) bool { return n.Cost.Mode == limits.Enforce }

func refuse(by limits.Cost, why cause.Cause, sec int64) Verdict {
	return Verdict{Limit: by, Cause: why, Second: by.WindowStart(sec)}
}

// refusedBefore refuses what the pools would: a request that costs more than a whole limit,
// or as much as one that they have just refused.
func (a *Agent) refusedBefore(u *user, needs []Need, now int64) (v Verdict, refused bool) {
	sec := a.second(now)
	for _, n := range needs {
		if !enforced(n) {
			continue
		}
		p := u.pool(n.Cost, sec)
		why := cause.Pool
		switch {
		case n.Cost.Max == 0:
			why = cause.LimitZero
		case !n.entry(sec).Fits(0):
			why = cause.EstimateTooLarge
		case now >= p.until || n.Amount < p.refused:
			continue
		}
		this := refuse(n.Cost, why, sec)
		// A request that is too large for any window is told so first: to come again would be in vain.
		hopeless := why != cause.Pool && v.Cause == cause.Pool
		if !refused || hopeless || why == v.Cause && this.End() > v.End() {
			v, refused = this, true
		}
	}
	return v, refused
}

func (n Need) entry(sec int64) Entry {
	c := n.Cost
	return Entry{Unit: c.Unit, Window: c.Window, Start: c.WindowStart(sec), Before: c.Previous(sec), Limit: c.Max, DryRun: c.Mode != limits.Enforce, Change: n.Amount}
}

// decideAlone decides by what this agent knows: it charges and tells the pools later.
func (a *Agent) decideAlone(u *user, needs []Need, now int64) Verdict {
	sec := a.second(now)
	v := Verdict{Allowed: true, Charged: true, Second: sec}
	for _, n := range needs {
		p, own := u.pool(n.Cost, sec), n.entry(sec)
		fits := own.Fits(p.total)
		own.Limit = a.part(n.Cost.Max)
		switch {
		case !enforced(n):
			if v.Allowed && p.total+max(1, n.Amount) > n.Cost.Max {
				v.WouldRefuse = n.Cost
			}
		case !fits || !own.Fits(p.own):
			// Others may have charged the rest.
			if by := refuse(n.Cost, cause.RedisLost, sec); v.Allowed || by.End() > v.End() {
				v = by
			}
		}
	}
	if !v.Allowed {
		return v
	}
	if !a.corrections.hasRoom(sec, u.name, needs, sec) {
		// The pools would never hear of it, and then of its refund, which would take away what others were charged.
		if i := slices.IndexFunc(needs, enforced); i >= 0 {
			return refuse(needs[i].Cost, cause.RedisLost, sec)
		}
		a.corrections.dropped++
		v.Charged = false
		return v
	}
	for _, n := range needs {
		p := u.pool(n.Cost, sec)
		p.own += n.Amount
		p.total += n.Amount
	}
	a.correctAll(sec, u.name, needs, sec, +1)
	return v
}

// part is what this agent may charge of a limit by itself in a window: the parts of all
// instances add up to the limit.
func (a *Agent) part(limit int64) int64 {
	n := int64(a.instances)
	part := limit / n
	if int64(a.rank)%n < limit%n {
		part++
	}
	return part
}

func (a *Agent) finish(w *Waiting, v Verdict) {
	w.Verdict, w.decided = v, true
	a.dropWaiting(w)
}

func (a *Agent) decided(w *Waiting, v Verdict) {
	a.finish(w, v)
	a.out.Decided = append(a.out.Decided, w)
}

// Timeout decides a request that has waited as long as it may: it is refused, and what the
// pools grant later goes back. While they are lost nobody waits.
func (a *Agent) Timeout(at time.Time, w *Waiting) Verdict {
	if !w.decided {
		n := w.needs[slices.IndexFunc(w.needs, enforced)]
		a.finish(w, refuse(n.Cost, cause.RedisLate, a.second(at.UnixNano())))
	}
	return w.Verdict
}

// HeardSince reports whether the pools have answered anything since a request began to wait.
func (a *Agent) HeardSince(w *Waiting) bool { return a.heard != w.heard }

// Abandon takes back a request that waits and need not be decided any more, or the charge of
// one that has just been allowed and will not run.
func (a *Agent) Abandon(at time.Time, w *Waiting) {
	if w.decided {
		a.Cancel(at, w.owner.name, w.needs, w.Verdict)
		return
	}
	// Its answer finds it decided, and gives back what was granted.
	a.finish(w, Verdict{})
}

// Cancel gives back the charge of a request that was allowed with these needs and will not
// run after all.
func (a *Agent) Cancel(at time.Time, name string, needs []Need, v Verdict) {
	if !v.Allowed || !v.Charged {
		return
	}
	a.giveBack(at.UnixNano(), name, needs, v.Second)
}

func (a *Agent) giveBack(now int64, name string, needs []Need, sec int64) {
	for _, n := range needs {
		a.noteChange(now, name, n.Cost, sec, -n.Amount)
	}
	a.correctAll(a.second(now), name, needs, sec, -1)
}

// correctAll corrects every unit of some needs, by its amount with a sign.
func (a *Agent) correctAll(now int64, name string, needs []Need, sec, sign int64) {
	for of := range units(needs) {
		a.corrections.add(now, correctionOf{name, of[0].Cost.Unit, sec}, costsOf(of), sign*of[0].Amount)
	}
}

// Settle corrects what was charged of a unit in a second: by how much the request cost more
// than was charged so far, or less if it is negative. costs are the user's limits of that
// unit. What it cost more is charged to the present windows, for those of the charge may be
// over.
func (a *Agent) Settle(at time.Time, name string, sec, change int64, costs []limits.Cost) {
	now := at.UnixNano()
	if change == 0 || len(costs) == 0 {
		return
	}
	change = max(-limits.MaxCost, min(change, limits.MaxCost))
	switch {
	case change > 0:
		sec = presentSecond
	// A second in the future is of no charge, nor is one before the epoch.
	case sec < 0 || sec > a.second(now)+1:
		return
	}
	for _, c := range costs {
		a.noteChange(now, name, c, sec, change)
	}
	a.corrections.add(a.second(now), correctionOf{name, costs[0].Unit, sec}, costs, change)
}

// noteChange takes a correction into what the agent knows. What goes back here may be asked
// for again at once.
func (a *Agent) noteChange(now int64, name string, c limits.Cost, sec, change int64) {
	u := a.users[name]
	if u == nil {
		return
	}
	var p *pool
	if sec == presentSecond {
		p = u.pool(c, a.second(now))
	} else if p = u.findPool(c.Unit, c.Window); p == nil || p.Start != c.WindowStart(sec) {
		return
	}
	p.own, p.total = max(0, p.own+change), max(0, p.total+change)
	if change < 0 {
		p.until = 0
	}
}

// Lost takes that the pools are lost, or that they are back. While they are lost nobody waits
// for them: this agent admits its part of each limit.
func (a *Agent) Lost(at time.Time, lost bool) {
	a.lost = lost
	if !lost {
		// There is less to tell then, and Collect finds what is of a user who asks.
		a.corrections.fold(a.second(at.UnixNano()))
		return
	}
	for u := range a.queues {
		for _, w := range slices.Clone(u.queue) {
			a.decided(w, a.decideAlone(u, w.needs, at.UnixNano()))
		}
	}
	// Those that were not asked about yet are decided, and nobody is to ask about them.
	a.toAsk = nil
}
