// Package riverqos makes River (github.com/riverqueue/river) fair among users: each
// user's jobs run in at most so many slots over all workers, nobody's backlog stands
// before another's job, and a job above its user's limit waits without spending an
// attempt. The limits are those of github.com/sluice-qos/sluice/pkg/jobs.
//
// Three things work together:
//
//   - The worker middleware takes a slot before a job runs and gives it back however it
//     ends. A job that gets none is parked: River has it as scheduled, and it is made
//     available the moment that a slot has been reserved for it. This is a jobs.Runner's,
//     which knows River by worker.go and queue.go.
//   - The insert middleware, with a trigger of River's table, is a gate: of a user's jobs in
//     a queue only as many wait for workers as may run at once. The others are scheduled far
//     in the future, and let through one in, one out. See insert.go, gate.go.
//   - A sweep each second repairs what a crash or a lost message left: slots whose lease
//     has ended, wake-ups that did not arrive, users who are past the gate. See repair.go.
//
// The slots hold exactly. The gate is only nearly exact: inserts of several processes
// at the same instant may let a few more through, which are refused a slot and parked.
package riverqos

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Fairness ties River to the users' limits. It is safe for concurrent use, and one of
// a process can serve several River clients of the same database.
type Fairness struct {
	*resources
	gate    *gate    // holds back jobs of long backlogs
	sweeper *sweeper // repairs what crashes left in River's table
	worker  *worker  // runs jobs in slots
	lister  *lister  // lists users with jobs
}

// resources are what the parts of a Fairness share. They do not change after New.
type resources struct {
	cfg     Config // with its defaults
	store   *store
	names   namespace
	runner  *jobs.Runner
	metrics *metrics
}

// New checks the configuration. It starts nothing: see Run.
func New(cfg Config) (*Fairness, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	shared := &resources{cfg: cfg, store: newStore(cfg.Pool, cfg.Schema), names: namespace(cfg.Namespace)}
	shared.store.answerTimeout = cmp.Or(cfg.Runner.AnswerTimeout, answerTimeout)
	gate := newGate(shared)
	shared.metrics = newMetrics(cfg.Runner.Registry)
	sweeper := &sweeper{resources: shared, gate: gate, depth: &depthGauge{series: shared.metrics.Depth}}
	runner := cfg.Runner
	runner.Queue, runner.Sweep, runner.AfterSweeps = queue{shared}, sweeper.sweepOnce, sweeper.stopSweeps
	if shared.runner, err = jobs.NewRunner(runner); err != nil {
		return nil, fmt.Errorf("riverqos: %w", err)
	}
	return &Fairness{resources: shared, gate: gate, sweeper: sweeper, worker: &worker{resources: shared, gate: gate}, lister: &lister{resources: shared}}, nil
}

// Middleware is for river.Config.Middleware, of clients that work and of those that
// insert.
func (f *Fairness) Middleware() []rivertype.Middleware {
	return []rivertype.Middleware{&middleware{worker: f.worker, gate: f.gate}}
}

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
	if f.runner.Disabled() {
		f.gate.ungateAll(ctx)
		return nil
	}
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){f.gate.runOpenings, f.gate.runAnnouncements} {
		loops.Go(func() { loop(ctx) })
	}
	err := f.runner.Run(ctx)
	loops.Wait()
	return err
}
