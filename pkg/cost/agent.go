package cost

import (
	"iter"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const second = int64(time.Second)

const (
	// maxQueue bounds the requests of one user that wait for the pools: all of them are asked
	// about within some batches, before they have waited as long as they may.
	maxQueue = 256
	// forgetSpan is how long a user is known after the last request.
	forgetSpan = 10 * time.Second
	// askAgain is for how long a request that costs as much as one that the pools have just
	// refused is refused without asking them. What other agents give back is found that late.
	askAgain = 20 * time.Millisecond
)

// Config is what an Agent needs to know once.
type Config struct {
	// MaxUsers bounds the users that are known at a time. Requests of users beyond the bound are
	// admitted uncounted (Agent.Overflowed counts them). 0 means 500 000.
	MaxUsers int
	// MaxCorrections bounds the corrections that wait for the pools, summed by user, unit and
	// window. Beyond it no request is admitted without the pools, and one that was charged before
	// stays charged with its estimate (Agent.Dropped counts these). 0 means 100 000.
	MaxCorrections int
}

// A Need is what a request is charged of one limit. All needs of one unit have one Amount.
type Need struct {
	Cost   limits.Cost
	Amount int64 // 0 to limits.MaxCost
}

// Verdict is the answer to one request.
type Verdict struct {
	Allowed bool
	Charged bool        // it is to be settled
	Second  int64       // the cluster second of the charge, or at which the refusing limit's window began
	Limit   limits.Cost // the limit that refused it; zero if allowed
	Cause   cause.Cause // why; "" if allowed

	WouldRefuse limits.Cost // the limit in a dry run that would have refused an allowed request; zero if none
}

// End is the second at which the refusing limit's window is over.
func (v Verdict) End() int64 { _, end := v.Limit.Bounds(v.Second); return end }

// Output is what became due during the calls since the last one.
type Output struct {
	Decided []*Waiting // requests that need not wait any longer
	Urgent  bool       // Collect has something that should not wait for the next flush
	Sooner  bool       // Tick or Collect has something to do sooner than IdleFor last said
}

// Agent decides the requests of one instance. It is not safe for concurrent use.
type Agent struct {
	config Config
	users  map[string]*user
	queues map[*user]struct{} // users whose requests wait
	agenda agenda.Agenda[*user]
	idle   agenda.IdleTime
	out    Output

	toAsk       []*Waiting // not yet asked about, in the order of arrival
	corrections corrections
	unanswered  []Ask // a batch that got no answer
	seq         uint64
	heard       uint64 // answers of the pools, ever

	clock     int64 // the last second, see Agent.second
	instances int
	rank      int
	lost      bool // the pools cannot be asked
	overflow  uint64
}

type user struct {
	agenda.Place
	name   string
	pools  []pool
	queue  []*Waiting
	asking int   // asks on their way
	last   int64 // when the last request came, ns
}

type pool struct {
	Pool
	total int64 // as the pools said last, with what was charged without them since
	own   int64 // what this agent has charged
	// The smallest amount that the pools have refused, and until when, in ns, as much is refused
	// without asking them.
	refused int64
	until   int64
}

// NewAgent returns an agent that is alone until Cluster says otherwise.
func NewAgent(c Config) *Agent {
	if c.MaxUsers <= 0 {
		c.MaxUsers = 500_000
	}
	if c.MaxCorrections <= 0 {
		c.MaxCorrections = 100_000
	}
	return &Agent{config: c, users: make(map[string]*user), queues: make(map[*user]struct{}), corrections: newCorrections(c.MaxCorrections), instances: 1}
}

// Cluster takes how many instances there are, and which of them this one is, from 0 on.
func (a *Agent) Cluster(instances, rank int) { a.instances, a.rank = max(1, instances), rank }

// second is the present second. A clock that runs back a little stays in the last one, so
// that a window does not begin twice.
func (a *Agent) second(now int64) int64 {
	if s := now / second; s >= a.clock || s < a.clock-1 {
		a.clock = s
	}
	return a.clock
}

// findOrAddUser returns what is known of a user, or nil when there are too many.
func (a *Agent) findOrAddUser(name string, now int64) *user {
	u := a.users[name]
	if u == nil && len(a.users) < a.config.MaxUsers {
		u = &user{name: name}
		a.users[name] = u
		a.agenda.Put(u, now+int64(forgetSpan))
	}
	return u
}

// pool returns the user's pool of a limit in the window of a second. It is valid until the
// next call.
func (u *user) pool(c limits.Cost, at int64) *pool {
	name := Pool{User: u.name, Unit: c.Unit, Window: c.Window, Start: c.WindowStart(at)}
	p := u.findPool(c.Unit, c.Window)
	if p == nil {
		u.pools = append(u.pools, pool{Pool: name})
		return &u.pools[len(u.pools)-1]
	}
	if p.Start != name.Start {
		next := pool{Pool: name}
		if p.Start == c.Previous(at) && c.Mode == limits.Enforce {
			// As the pool will begin, as far as this agent knows.
			next.total = debt(p.total, c.Max, c.Max)
		}
		*p = next
	}
	return p
}

func (u *user) findPool(unit string, window limits.Window) *pool {
	// A user has few limits, so a list costs less than a map.
	for i := range u.pools {
		if p := &u.pools[i]; p.Unit == unit && p.Window == window {
			return p
		}
	}
	return nil
}

// Tick does what is due by time alone. It is to be called every few milliseconds, or when
// IdleFor says.
func (a *Agent) Tick(at time.Time) {
	now := at.UnixNano()
	a.agenda.Take(now, func(u *user) {
		if now-u.last >= int64(forgetSpan) && len(u.queue) == 0 && u.asking == 0 && !a.lost {
			delete(a.users, u.name)
			return
		}
		// While the pools are lost it must stay known what was charged without them.
		a.agenda.Put(u, max(now, u.last)+int64(forgetSpan))
	})
}

// IdleFor is for how long from a time on Tick and Collect have nothing to do if nothing else
// is called, but at most a given time. As soon as that is no longer true, an Output says Sooner.
func (a *Agent) IdleFor(at time.Time, most time.Duration) time.Duration {
	return a.idle.Announce(at.UnixNano(), a.workDue(), most)
}

func (a *Agent) workDue() int64 {
	if len(a.toAsk)+len(a.unanswered)+a.corrections.length() > 0 {
		return 0
	}
	if at, any := a.agenda.Next(); any {
		return at
	}
	return agenda.Never
}

// TakeOutput returns what has become due and forgets it. The slice is the caller's.
func (a *Agent) TakeOutput() Output {
	out := a.out
	out.Sooner = a.idle.Shortened(a.workDue())
	a.out = Output{}
	return out
}

// KnownUsers is the number of users known.
func (a *Agent) KnownUsers() int { return len(a.users) }

// Overflowed counts the requests that were admitted uncounted because too many users were
// known.
func (a *Agent) Overflowed() uint64 { return a.overflow }

// Dropped counts the corrections that had no room, and the requests under limits in a dry run
// whose charge had none.
func (a *Agent) Dropped() uint64 { return a.corrections.dropped }

// Left is how much of the present windows these needs leave of the limit that leaves room
// for the fewest such requests, as far as this agent knows. Without limits that are
// enforced it reports false.
func (a *Agent) Left(at time.Time, name string, needs []Need) (left int64, of Need, ok bool) {
	u := a.users[name]
	sec := a.second(at.UnixNano())
	for _, n := range needs {
		if n.Cost.Mode != limits.Enforce {
			continue
		}
		room := n.Cost.Max
		if u != nil {
			room = max(0, room-u.pool(n.Cost, sec).total)
		}
		if !ok || room/max(1, n.Amount) <= left/max(1, of.Amount) {
			left, of, ok = room, n, true
		}
	}
	return left, of, ok
}

func units(needs []Need) iter.Seq[[]Need] {
	return func(yield func([]Need) bool) {
		for len(needs) > 0 {
			n := 1
			for n < len(needs) && needs[n].Cost.Unit == needs[0].Cost.Unit {
				n++
			}
			if !yield(needs[:n]) {
				return
			}
			needs = needs[n:]
		}
	}
}

func costsOf(needs []Need) []limits.Cost {
	costs := make([]limits.Cost, len(needs))
	for i, n := range needs {
		costs[i] = n.Cost
	}
	return costs
}

func (a *Agent) dropWaiting(w *Waiting) {
	u := w.owner
	if u.queue = slices.DeleteFunc(u.queue, func(other *Waiting) bool { return other == w }); len(u.queue) == 0 {
		delete(a.queues, u)
	}
}
