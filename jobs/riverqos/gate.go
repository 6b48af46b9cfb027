package riverqos

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// The gate is in River's table. Of each user's jobs in a queue, as many as may run at once
// are "in the flow": available, running or parked. The others have the state scheduled and
// the mark gated. A job comes into the flow when another one leaves it. The three queues of
// a service have a flow each, although the limit is for all of them together: jobs that
// wait for a worker of one queue must not hold up those in another. The slots keep the
// limit.
//
// A job leaves the flow when it ends, but River writes that up to 250 ms later. So the
// statement that lets the next job in marks the row of the one that has ended with the
// time of its attempt, and that row is not counted from then on. If it is fetched again, it
// has another time. The same mark is on the rows of jobs whose worker died, which River
// rescues in an hour. A row that is locked cannot be marked: see unwritten.go.

// pass lets jobs through in the place of one that has ended.
func (f *Fairness) pass(ctx context.Context, e end) {
	c := e.claim
	own, now := flow{c.User, e.queue, e.tier.Limits.Of(c.Queue)}, attempt{e.id, e.at}
	_, left, err := f.let(ctx, []flow{own}, now)
	if err != nil {
		f.failed("promote", "the gate could not let a job through", err)
	}
	if err != nil || slices.Contains(left, e.id) {
		f.unwritten.add(now, own)
	}
}

// let lets jobs through where there is room, in the place of those whose attempts have
// ended now, too. It returns how many, with most there may be more, and the ids of ended
// ones whose rows could not be marked.
func (f *Fairness) let(ctx context.Context, flows []flow, now ...attempt) (n int, left []int64, err error) {
	ended := f.unwritten.among(flows)
	n, left, err = f.db.promote(ctx, flows, slices.Concat(ended, now))
	if err != nil {
		return 0, nil, err
	}
	f.unwritten.settle(ended, left)
	f.metrics.Promoted.Add(float64(n))
	return n, left, nil
}

// settling is the time after which the gate looks again at users whose jobs it held back.
const settling = 100 * time.Millisecond

// maxNudges bounds the users that the gate looks at again. The sweep looks at all.
const maxNudges = 10_000

// nudges are the users and queues to look at again, and the queues to announce again.
type nudges struct {
	mu      sync.Mutex
	of      map[flow]bool
	queues  map[string]bool
	inserts map[string]*inserts // by queue
	wake    chan struct{}       // of capacity 1; has a message when there is something to look at
}

// inserts are the inserts into a queue.
type inserts struct {
	begun, under int       // inserts that ever began, and those that are under way
	ended        time.Time // when the last one ended
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

// inserting notes an insert, and its end when the result is called. River announces at most
// one insert into a queue within its FetchCooldown of 100 ms, at some time between the
// begin and the end of the insert. Workers would find the jobs of other inserts only at
// their next poll.
func (n *nudges) inserting(params []*rivertype.JobInsertParams) (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inserts == nil {
		n.inserts = map[string]*inserts{}
	}
	now, near := time.Now(), map[string]bool{} // whether another one is near, by queue
	for _, p := range params {
		if _, noted := near[p.Queue]; noted || p.State != rivertype.JobStateAvailable {
			continue
		}
		i := n.inserts[p.Queue]
		if i == nil {
			i = &inserts{}
			n.inserts[p.Queue] = i
		}
		near[p.Queue] = i.under > 0 || now.Sub(i.ended) < 2*settling
		i.begun++
		i.under++
	}
	begun := map[string]int{}
	for queue := range near {
		begun[queue] = n.inserts[queue].begun
	}
	if len(n.inserts) > maxNudges { // such as with a queue for each user
		maps.DeleteFunc(n.inserts, func(_ string, i *inserts) bool { return i.under == 0 && now.Sub(i.ended) >= 2*settling })
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for queue, near := range near {
			i := n.inserts[queue]
			i.under--
			i.ended = time.Now()
			if (near || i.begun != begun[queue]) && len(n.queues) < maxNudges { // nobody takes them in a program without Run
				if n.queues == nil {
					n.queues = map[string]bool{}
				}
				n.queues[queue] = true
				poke(n.wake)
			}
		}
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

// nudgeLoop looks at users soon after their jobs were held back. The jobs before them may
// have ended before the held ones were visible, and then nothing but the sweep would let
// these in.
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

// promote lets jobs through where there is room. If it fails, the sweep does so later.
func (f *Fairness) promote(ctx context.Context, flows []flow) {
	if len(flows) == 0 {
		return
	}
	if _, _, err := f.let(ctx, flows); err != nil && ctx.Err() == nil {
		f.failed("promote", "the gate could not let a job through", err)
	}
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

// ungateAll lets all jobs go that were held back.
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
