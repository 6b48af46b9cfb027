package cost

import "github.com/sluice-qos/sluice/pkg/limits"

// A Pool names one total: what a user was charged of a unit in the window that begins at a
// second.
type Pool struct {
	User   string
	Unit   string
	Window limits.Window
	Start  int64 // seconds since the epoch
}

// A Total is what is in a pool.
type Total struct {
	Charged int64 // with the debt of the window before; never negative
	// Due is how much of it leaves no debt to the next window: the highest limit that was in
	// force in this one. A limit that is lowered makes nobody a debtor, nor does one in a dry
	// run.
	Due int64
}

// Pools are the totals of some users; a pool that is not there has not begun.
type Pools map[Pool]Total

// An Ask is what an agent wants of one user's pools: to charge a request, or, if it is
// Forced, to correct what was charged.
type Ask struct {
	User string
	Seq  uint64 // of the batch that it was collected in, which grows
	// Forced changes count whatever is left. They are never more than limits.MaxCost.
	Forced  bool
	Second  int64   // of the cluster: all windows are those that it is in
	Entries []Entry // at most limits.MaxCosts, each of another pool

	waits *Waiting // what the answer decides; nil: nothing
}

// An Entry is what an Ask changes in one pool.
type Entry struct {
	Unit   string
	Window limits.Window
	Start  int64
	Before int64 // when the window before begins
	Limit  int64 // 1 to limits.MaxCost
	DryRun bool  // the limit refuses nothing
	Change int64 // at least 0 in an ask that is not Forced
}

// A Grant is the pools' answer to an Ask.
type Grant struct {
	Granted bool    // the changes were made; always true of an Ask that is Forced
	Totals  []int64 // of each entry's pool, after the Ask
}

// Take answers an Ask. All of its changes are made or none.
//
// A charge is granted if each total stays within its limit, those of dry runs aside. One of
// nothing needs something to be left: it will cost something once its answer is known.
//
// A pool begins with the debt of the window before, at most a whole limit. A refund to a
// pool that has not begun, or is no longer known, changes nothing; no total becomes negative.
func (p Pools) Take(a Ask) Grant {
	g := Grant{Granted: true, Totals: make([]int64, len(a.Entries))}
	for i, e := range a.Entries {
		before := p.before(a.User, e)
		g.Totals[i] = before.Charged
		if !a.Forced && !e.Fits(before.Charged) {
			g.Granted = false
		}
	}
	if !g.Granted {
		return g
	}
	for i, e := range a.Entries {
		name := e.pool(a.User)
		// What was charged there is forgotten, or never was.
		if _, begun := p[name]; !begun && e.Change <= 0 {
			continue
		}
		total := p.before(a.User, e)
		total.Charged = max(0, total.Charged+e.Change)
		total.Due = max(total.Due, e.Limit)
		if e.DryRun {
			total.Due = max(total.Due, total.Charged)
		}
		p[name] = total
		g.Totals[i] = total.Charged
	}
	return g
}

// A Call is what the pools remember of an agent's last batch. The zero Call is none.
type Call struct {
	Seq     uint64
	granted []bool
}

// Answer answers a batch after an agent's last one, and returns what to remember. A batch
// that was heard before changes nothing: it is granted what it was, with the totals of now.
func (p Pools) Answer(last Call, asks []Ask) ([]Grant, Call) {
	grants := make([]Grant, 0, len(asks))
	if len(asks) > 0 && asks[0].Seq <= last.Seq {
		for i, a := range asks {
			g := Grant{Granted: a.Seq == last.Seq && last.granted[i]}
			for _, e := range a.Entries {
				g.Totals = append(g.Totals, p.before(a.User, e).Charged)
			}
			grants = append(grants, g)
		}
		return grants, last
	}
	var now Call
	for _, a := range asks {
		g := p.Take(a)
		now.Seq, now.granted = a.Seq, append(now.granted, g.Granted)
		grants = append(grants, g)
	}
	return grants, now
}

// Fits reports whether the limit lets an entry be added to a total.
func (e Entry) Fits(total int64) bool {
	return e.DryRun || total+max(1, e.Change) <= e.Limit
}

// before is the total of an entry's pool, of one that has not begun what it begins with.
func (p Pools) before(user string, e Entry) Total {
	name := e.pool(user)
	if total, begun := p[name]; begun {
		return total
	}
	name.Start = e.Before
	return Total{Charged: p[name].Debt(e.Limit)}
}

// Debt is what the next window begins with, under a limit that is enforced.
func (t Total) Debt(limit int64) int64 { return debt(t.Charged, max(t.Due, limit), limit) }

// debt is what a window begins with, of a total of the window before and how much of that
// left no debt.
func debt(last, due, limit int64) int64 {
	// One whole window at most is paid for later, or a single request could lock a user out for days.
	return max(0, min(last-due, limit))
}

func (e Entry) pool(user string) Pool {
	return Pool{User: user, Unit: e.Unit, Window: e.Window, Start: e.Start}
}
