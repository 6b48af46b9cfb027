// Package riverqos makes River (github.com/riverqueue/river) fair among users: each
// user's jobs run in at most so many slots over all workers, nobody's backlog stands
// before another's job, and a job above its user's limit waits without spending an
// attempt. The limits are those of github.com/sluice-qos/sluice/pkg/jobs.
//
// Three things work together:
//
//   - The worker middleware takes a slot before a job runs and gives it back however it
//     ends. A job that gets none is parked: River has it as scheduled, and it is made
//     available the moment that a slot has been reserved for it. See worker.go, waker.go.
//   - The insert middleware is a gate: of a user's jobs in a queue only as many are
//     available to workers as may run at once. The others are scheduled far in the
//     future, and let through one in, one out. See insert.go, gate.go.
//   - A sweep each second repairs what a crash or a lost message left: slots whose lease
//     has ended, wake-ups that did not arrive, users who are past the gate. See sweeper.go.
//
// The slots hold exactly. The gate is only nearly exact: inserts of several processes
// at the same instant may let a few more through, which are refused a slot and parked.
package riverqos

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// Fairness ties River to the users' limits. It is safe for concurrent use, and one of
// a process can serve several River clients of the same database.
type Fairness struct {
	*resources
	leases   *leases   // of the slots that jobs of this process run in
	releaser *releaser // gives slots back
	waker    *waker    // makes parked jobs available
	gate     *gate     // holds back jobs of long backlogs
	sweeper  *sweeper  // repairs what crashes left
	worker   *worker   // runs jobs in slots
	lister   *lister   // lists users with jobs
}

// resources are what the parts of a Fairness share. They do not change after New.
type resources struct {
	cfg      Config // with its defaults
	store    *store
	names    namespace
	tiers    *tierReader
	failures *failureLog
	metrics  *metrics
}

// New checks the configuration. It starts nothing: see Run.
func New(cfg Config) (*Fairness, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	metrics := newMetrics(cfg.Registry)
	failures := &failureLog{log: cfg.Logger, metrics: metrics}
	shared := &resources{
		cfg: cfg, store: newStore(cfg.Pool, cfg.Schema), names: namespace(cfg.Namespace),
		tiers: &tierReader{tiers: cfg.Tiers, failures: failures, timeout: tierTimeout}, failures: failures, metrics: metrics,
	}
	gate := newGate(shared)
	waker := newWaker(shared)
	releaser := &releaser{resources: shared, waker: waker, gate: gate}
	leases := &leases{resources: shared, releaser: releaser}
	return &Fairness{
		resources: shared, leases: leases, releaser: releaser, waker: waker, gate: gate,
		sweeper: &sweeper{resources: shared, waker: waker, gate: gate, depth: &depthGauge{series: metrics.Depth}, lockTimeout: lockTimeout},
		worker:  &worker{resources: shared, leases: leases, releaser: releaser, process: rand.Text()},
		lister:  &lister{resources: shared},
	}, nil
}

// Middleware is for river.Config.Middleware, of clients that work and of those that
// insert.
func (f *Fairness) Middleware() []rivertype.Middleware {
	return []rivertype.Middleware{&middleware{worker: f.worker, gate: f.gate}}
}

// middleware is River's middleware for workers and for inserts.
type middleware struct {
	river.MiddlewareDefaults
	worker *worker
	gate   *gate
}

var (
	_ rivertype.WorkerMiddleware    = (*middleware)(nil)
	_ rivertype.JobInsertMiddleware = (*middleware)(nil)
)

// Work runs a job in a slot of its user, or returns what makes River keep it for later.
func (m *middleware) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	return m.worker.workInSlot(ctx, row, doInner)
}

// InsertMany marks jobs with their users, and holds those back that are too many.
func (m *middleware) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	return m.gate.insert(ctx, params, doInner)
}

// Run renews the leases, wakes jobs and sweeps, until the context ends; it then returns
// nil, within some seconds even if the database is silent. Every process that works jobs
// needs it, before and until some time after its River client: end it when the client has
// stopped. One that only inserts does not.
func (f *Fairness) Run(ctx context.Context) error {
	if f.cfg.Disabled {
		f.gate.ungateAll(ctx)
		return nil
	}
	defer f.store.connections.closePool()
	// 0 so far: that nobody sweeps is an alert, also if nobody ever has.
	f.metrics.Sweeps.WithLabelValues("done")
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){
		f.leases.runRenewals, f.waker.runRetries, f.gate.runRechecks, f.gate.runUnwritten, f.releaser.runReleases, f.sweeper.runSweeps,
	} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
	return nil
}

// callEvery calls do about each interval until the context ends.
func callEvery(ctx context.Context, interval time.Duration, do func()) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			do()
			// Not a ticker: after a call that took long the next one should not follow at once.
			timer.Reset(interval)
		}
	}
}

// signal sends without waiting. If a message waits already, one more would say nothing new.
func signal(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
