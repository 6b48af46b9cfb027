package riverqos

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// The gate in River's table. Of each user's jobs in a queue, as many as may run at
// once are "in the flow": available, running or parked. The others have the state
// scheduled and the mark gated. One comes into the flow when one leaves it. The three
// queues of a service have a flow each, though its limit is of all together: jobs that
// wait for a worker of one must not hold those in another up. The slots do the rest.
//
// A job leaves it when it ends, but River writes that up to 250 ms later. So the
// statement that lets the next one in marks the row of the one that has ended with the
// time of its attempt, and nobody counts it from then on; if it is fetched again, it
// has another time. The same mark is on the rows of jobs whose worker died, which River
// rescues in an hour.

// pass lets jobs through in the place of one that has ended.
func (f *Fairness) pass(ctx context.Context, e end) {
	c := e.claim
	n, err := f.db.promote(ctx, []flow{{c.User, e.queue, e.tier.Limits.Of(c.Queue)}}, e.id)
	if err != nil {
		f.failed("promote", "the gate could not let a job through", err)
		return
	}
	f.metrics.Promoted.Add(float64(n))
}

// settling is after what time the gate looks again at users whose jobs it held back.
const settling = 100 * time.Millisecond

// maxNudges bounds the users that the gate looks at again. The sweep has the others.
const maxNudges = 10_000

// nudges are the users and queues to look at again, and the queues to announce again.
type nudges struct {
	mu     sync.Mutex
	of     map[flow]bool
	queues map[string]bool
	last   map[string]time.Time // insert into a queue
	wake   chan struct{}        // of capacity 1: there are some
}

func (n *nudges) add(flows []flow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[flow]bool{}
	}
	for _, f := range flows {
		if len(n.of) < maxNudges {
			n.of[f] = true
		}
	}
	poke(n.wake)
}

// inserted notes an insert. River announces at most one into a queue in its
// FetchCooldown of 100 ms; workers would find the jobs of one that comes sooner after
// another at their next poll only.
func (n *nudges) inserted(params []*rivertype.JobInsertParams, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == nil {
		n.last, n.queues = map[string]time.Time{}, map[string]bool{}
	}
	for _, p := range params {
		if p.State != rivertype.JobStateAvailable {
			continue
		}
		if last := n.last[p.Queue]; last != now && now.Sub(last) < 2*settling {
			if len(n.queues) < maxNudges { // nobody takes them in a program without Run
				n.queues[p.Queue] = true
			}
			poke(n.wake)
		}
		n.last[p.Queue] = now
	}
	if len(n.last) > maxNudges { // queues with names of their own for each user, say
		maps.DeleteFunc(n.last, func(_ string, at time.Time) bool { return now.Sub(at) >= 2*settling })
	}
}

func (n *nudges) take() (flows []flow, queues []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	flows, queues = slices.Collect(maps.Keys(n.of)), slices.Collect(maps.Keys(n.queues))
	clear(n.of)
	clear(n.queues)
	return flows, queues
}

// nudgeLoop looks at users soon after their jobs were held back: what stood before them
// may have ended before they could be seen, and then nothing else would let them in.
func (f *Fairness) nudgeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.nudges.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settling):
		}
		flows, queues := f.nudges.take()
		f.promote(ctx, flows)
		f.announce(ctx, queues)
	}
}

// promote lets jobs through where there is room. What fails is the sweep's.
func (f *Fairness) promote(ctx context.Context, flows []flow) {
	if len(flows) == 0 {
		return
	}
	n, err := f.db.promote(ctx, flows, 0)
	if err != nil && ctx.Err() == nil {
		f.failed("promote", "the gate could not let a job through", err)
	}
	f.metrics.Promoted.Add(float64(n))
}

// announce tells workers that queues have jobs.
func (f *Fairness) announce(ctx context.Context, queues []string) {
	if len(queues) == 0 {
		return
	}
	if err := f.db.announce(ctx, queues); err != nil && ctx.Err() == nil {
		f.failed("announce", "a queue could not be announced", err)
	}
}

// chunk bounds the rows of a statement that changes many.
const chunk = 1000

// ungateAll lets everything go that was held back.
func (f *Fairness) ungateAll(ctx context.Context) error {
	for {
		n, err := f.db.ungate(ctx, chunk)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			f.failed("ungate", "jobs could not be let go", err)
		}
		if n == chunk {
			continue
		}
		select { // a process that is not disabled may still hold jobs back
		case <-ctx.Done():
			return nil
		case <-time.After(f.cfg.Sweep):
		}
	}
}
