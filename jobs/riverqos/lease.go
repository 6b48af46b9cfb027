package riverqos

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// renewing bounds the claims of one call of Renew.
const renewing = 500

// lease is a slot's, of a job that runs in this process.
type lease struct {
	claim  jobs.Claim
	limits jobs.Limits
	until  time.Time // it surely lasts; leases' lock guards it
	cancel context.CancelCauseFunc
}

// leases are those of this process.
type leases struct {
	mu sync.Mutex
	of map[string]*lease // by holder
}

func (l *leases) add(e *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*lease{}
	}
	l.of[e.claim.Holder] = e
}

func (l *leases) remove(holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, holder)
}

func (l *leases) claims() []jobs.Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	claims := make([]jobs.Claim, 0, len(l.of))
	for _, e := range l.of {
		claims = append(claims, e.claim)
	}
	return claims
}

// renewed prolongs the leases of claims.
func (l *leases) renewed(claims []jobs.Claim, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		if e := l.of[c.Holder]; e != nil {
			e.until = until
		}
	}
}

func (l *leases) get(holder string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[holder]
}

// over takes those leases out that nobody may count on any more.
func (l *leases) over(now time.Time) (over []*lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for holder, e := range l.of {
		if now.After(e.until) {
			over = append(over, e)
			delete(l.of, holder)
		}
	}
	return over
}

// renewLoop keeps the leases of running jobs. It goes on until the context ends, which
// is to be after the last job.
func (f *Fairness) renewLoop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { // not held up by Slots that do not answer
		every(ctx, f.cfg.Lease/20, func() {
			for _, e := range f.held.over(time.Now()) {
				f.lose(e)
			}
		})
	})
	every(ctx, f.cfg.Lease/3, func() {
		for claims := f.held.claims(); len(claims) > 0; {
			n := min(renewing, len(claims))
			f.renew(ctx, claims[:n])
			claims = claims[n:]
		}
	})
}

func (f *Fairness) renew(ctx context.Context, claims []jobs.Claim) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Lease/3)
	defer cancel()
	asked := time.Now() // the lease may have begun then
	lost, err := f.cfg.Slots.Renew(ctx, claims, f.cfg.Lease)
	if err != nil {
		f.failed("renew", "leases could not be renewed", err)
		return
	}
	gone := map[string]bool{}
	for _, c := range lost {
		gone[c.Holder] = true
	}
	kept := claims[:0:0]
	for _, c := range claims {
		if !gone[c.Holder] {
			kept = append(kept, c)
		}
	}
	f.held.renewed(kept, asked.Add(f.cfg.Lease))
	for _, c := range lost {
		if e := f.held.get(c.Holder); e != nil && !f.regain(ctx, e) {
			f.held.remove(c.Holder)
			f.lose(e)
		}
	}
}

// regain takes a slot anew for a job that runs and has lost its own, as when the Slots
// have lost their memory, unless the job runs elsewhere by now or there is no room.
func (f *Fairness) regain(ctx context.Context, e *lease) bool {
	usage, err := f.cfg.Slots.User(ctx, e.claim.User)
	if err != nil {
		return false
	}
	for _, s := range usage.Held {
		if s.ID == e.claim.ID {
			return s.Holder == e.claim.Holder
		}
	}
	asked := time.Now()
	v, err := f.cfg.Slots.Acquire(ctx, e.claim, e.limits, f.cfg.Lease, false)
	if err != nil || !v.Granted {
		return false
	}
	f.held.renewed([]jobs.Claim{e.claim}, asked.Add(f.cfg.Lease))
	if f.held.get(e.claim.Holder) == nil { // it ended meanwhile
		f.later(end{claim: e.claim, tier: jobs.Tier{Limits: e.limits}})
	}
	return true
}

// lose ends a job's context, so that another may have its slot.
func (f *Fairness) lose(e *lease) {
	f.metrics.Lost.Inc()
	f.log.Warn("a job lost its slot", "job", e.claim.ID)
	e.cancel(ErrLeaseLost)
}
