package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Queue is what a Runner has to know of a job queue. The other thing that only an adapter
// knows is how its queue keeps a job for later: it does so when Work returns a *Delay.
type Queue interface {
	// Wake makes jobs available to workers, because slots are reserved for them. The ids are
	// those of Attempts. A job that is not in the answer is gone. A job that was not kept
	// because of a Delay (it sleeps by its own will, or it failed) is left as it is, and is
	// gone, too: its reservation goes to the user's next job.
	Wake(ctx context.Context, ids []string) (map[string]WakeResult, error)

	// Parked calls do with the jobs that the queue keeps because of a Delay that is Parked, of
	// attempts that were made longer ago than the given time, in any number of calls. It ends with the first
	// error of do. Those that Slots do not know are then woken, to try again.
	Parked(ctx context.Context, age time.Duration, do func([]Job) error) error
}

// WakeResult is what became of a try to wake a job.
type WakeResult int

const (
	WakeGone    WakeResult = iota // it will not come: it has finished, is deleted, or waits for something else
	WakeEarly                     // the queue has not yet written that it waits: it is tried again for 2 s, and then by each sweep
	WakeAwake                     // it was available already
	WakeDone                      // it was made available
	WakeForeign                   // it is of another queue that has the same Slots, and has runners of its own
)

// String is the label of the metric.
func (w WakeResult) String() string {
	return [...]string{"gone", "early", "awake", "done", "foreign"}[w]
}

// RunnerConfig says how a Runner works. Name, Slots, Tiers and Queue are required.
type RunnerConfig struct {
	// Name is that of the job queue and of its database, such as "river.app". Runners of one
	// name wake the same jobs, and take turns at sweeping. At most 256 bytes.
	Name string
	// Slots are shared by all workers.
	Slots Slots
	// Tiers know the users' limits. One below 1 counts as 1. They have to mind their context.
	Tiers Tiers
	// Queue is the job queue.
	Queue Queue

	// Snooze lets a job that gets no slot sleep for FAIRNESS_SNOOZE_DURATION (30 s) and up to FAIRNESS_SNOOZE_JITTER
	// (10 s) more, in the place of parking it. It needs no wake-up, and is slow: a job sleeps past free slots.
	Snooze bool
	// Disabled runs all jobs without a slot, as FAIRNESS_ENABLED=false does.
	Disabled bool
	// Workers are how many jobs of each queue this process works at a time (Queues.Workers), for the metric.
	Workers map[string]int
	// Environ is the environment; nil means os.Environ().
	Environ []string

	// Lease is how long a slot is held by a worker that died; 0 means 15 s.
	Lease time.Duration
	// Reserve is how long a slot is kept for a job that was woken; 0 means 5 s. It should be
	// longer than workers take to find a job that is available.
	Reserve time.Duration
	// ParkFor is after what time a parked job tries by itself, should nobody wake it; 0 means
	// 5 min.
	ParkFor time.Duration

	// Sweep repairs what only this queue has, with each sweep. It may be nil. AfterSweeps, if it is
	// not nil, is called when this process stops sweeping, because another one does or the
	// context has ended.
	Sweep       func(context.Context) error
	AfterSweeps func()
	// SweepInterval is the time from one sweep to the next; 0 means 1 s, or an eighth of the
	// lease if that is less.
	SweepInterval time.Duration
	// TierTimeout bounds how long a page of a sweep, or a Budget, waits for Tiers that do not answer;
	// 0 means 2 s. A worker waits up to 10 s.
	TierTimeout time.Duration
	// AnswerTimeout bounds a call of Slots or Queue that a sweep makes; 0 means 5 s. A search
	// for forgotten jobs has six times as long.
	AnswerTimeout time.Duration

	// Logger is told of what went wrong; nil discards.
	Logger *slog.Logger
	// Registry gets the metrics; nil means none.
	Registry prometheus.Registerer
}

// complete returns the configuration with its defaults, or what is wrong with it.
func (c RunnerConfig) complete() (RunnerConfig, error) {
	if c.Name == "" || len(c.Name) > 256 || c.Slots == nil || c.Tiers == nil || c.Queue == nil {
		return RunnerConfig{}, errors.New("Slots, Tiers, Queue and a Name of up to 256 bytes are required")
	}
	if c.Lease == 0 {
		// Before the others, for the default of SweepInterval depends on it.
		c.Lease = 15 * time.Second
	}
	for _, setting := range []struct {
		name         string
		value        *time.Duration
		defaultValue time.Duration
	}{
		{"Lease", &c.Lease, c.Lease},
		{"Reserve", &c.Reserve, 5 * time.Second},
		{"ParkFor", &c.ParkFor, 5 * time.Minute},
		{"SweepInterval", &c.SweepInterval, min(time.Second, c.Lease/8)},
		{"TierTimeout", &c.TierTimeout, 2 * time.Second},
		{"AnswerTimeout", &c.AnswerTimeout, 5 * time.Second},
	} {
		*setting.value = cmp.Or(*setting.value, setting.defaultValue)
		// A ticker of 0 would panic, and a lease of less would be over before the job begins.
		if *setting.value <= 0 {
			return RunnerConfig{}, fmt.Errorf("%s is %v, want a positive duration", setting.name, *setting.value)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	return c, nil
}

// Runner runs the jobs of a queue, whichever that is, in slots of their users. It takes a slot
// before a job runs, renews its lease, gives it back however the job ends, wakes the jobs
// for which a slot is reserved then, and sweeps up what crashes and lost messages left.
//
// An adapter calls Work for each attempt at a job, and Run once in each process. It supplies
// a Queue, and keeps a job for later when Work returns a *Delay: without spending an
// attempt, for Delay.For, and in a way by which Queue.Wake and Queue.Parked know it again.
//
// What it promises, if the Queue keeps its word: no more jobs of a user run at a time than
// the Slots grant, also while the Slots cannot be reached (jobs are delayed then, and none runs
// uncounted); a job whose slot is lost is told so by its context, whose cause is
// ErrLeaseLost; a worker never waits for another user's job.
//
// It is safe for concurrent use.
type Runner struct {
	*runnerParts
	leases   *leases   // of the slots that jobs of this process run in
	releaser *releaser // gives slots back
	waker    *waker    // makes parked jobs available
	sweeper  *sweeper  // repairs what crashes left

	process string        // begins the names of this process's claims
	claims  atomic.Uint64 // so far
}

// runnerParts are what the parts of a Runner share. They do not change after NewRunner.
type runnerParts struct {
	cfg      RunnerConfig // with its defaults
	env      Env
	failures *failureLog
	metrics  *runnerMetrics
}

// NewRunner checks the configuration. It starts nothing: see Run.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	env, err := FromEnv(lookUpIn(cfg.Environ))
	if err != nil {
		return nil, err
	}
	if names := ineffective(cfg); len(names) > 0 {
		cfg.Logger.Warn("environment variables have no effect", "names", names)
	}
	cfg.Disabled = cfg.Disabled || !env.Enabled
	metrics := newRunnerMetrics(cfg.Registry)
	for queue, n := range cfg.Workers {
		metrics.Workers.WithLabelValues(queue).Set(float64(n))
	}
	failures := &failureLog{log: cfg.Logger, errors: metrics.Errors}
	shared := &runnerParts{cfg: cfg, env: env, failures: failures, metrics: metrics}
	waker := &waker{shared, make(chan wakeTry, maxWakeRetries)}
	releaser := &releaser{shared, waker, make(chan claimed, maxUnreleased)}
	process := rand.Text()
	return &Runner{
		runnerParts: shared, waker: waker, releaser: releaser,
		leases:  &leases{runnerParts: shared, releaser: releaser, byHolder: map[string]*lease{}},
		sweeper: newSweeper(shared, waker, process),
		process: process,
	}, nil
}

// Run renews the leases, wakes jobs and sweeps, until the context ends; it then returns
// nil, within some seconds even if nobody answers. Every process that works jobs needs it, before
// and until some time after its workers: end it when they have stopped, for the slots that
// were not given back until then are given back at its end. Without it the context of each job
// ends a lease after the job began.
func (r *Runner) Run(ctx context.Context) error {
	// 0 so far: that nobody sweeps is an alert, also if nobody ever has.
	r.metrics.Sweeps.WithLabelValues("done")
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){r.leases.runRenewals, r.waker.runRetries, r.releaser.runReleases, r.sweeper.runSweeps} {
		loops.Go(func() { loop(ctx) })
	}
	loops.Wait()
	return nil
}

// RenewLeases renews the leases of all jobs that run here, which Run does three times in a
// lease. It reports whether each could be renewed or is known to be lost.
func (r *Runner) RenewLeases(ctx context.Context) bool { return r.leases.renewAll(ctx) }

// Disabled reports whether jobs run without slots.
func (r *runnerParts) Disabled() bool { return r.cfg.Disabled }

// Lease is how long a slot is held by a worker that died.
func (r *Runner) Lease() time.Duration { return r.cfg.Lease }

// Report counts a failure of the adapter in the metric of errors, and logs it once in 10 s
// for each operation. The message is a constant.
func (r *Runner) Report(operation, message string, err error) {
	r.failures.report(operation, message, err)
}

// CountDelayed counts jobs that had to wait for a slot of their user without an attempt of
// theirs: the adapter held them back. Each is counted once, so that Attempt.Delayed has to
// know of it.
func (r *Runner) CountDelayed(tier, queue string, jobs int) {
	r.metrics.Delayed.WithLabelValues(tier, classLabel(queue)).Add(float64(jobs))
}

// Budget asks for the tiers of several users, and waits for Tiers that do not answer no longer than
// RunnerConfig.TierTimeout in all.
func (r *runnerParts) Budget() *TierBudget { return &TierBudget{r, r.cfg.TierTimeout} }

// tiersInForce names what the tiers are now, for those that say it (see FileTiers.InForce).
func (r *runnerParts) tiersInForce() string {
	if tiers, ok := r.cfg.Tiers.(interface{ InForce() string }); ok {
		return tiers.InForce()
	}
	return ""
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

func within[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

func serviceOf(queue string) string {
	service, _ := Split(queue)
	return service
}

// classLabel is the class of a queue in metrics: priority, default, scheduled or other.
func classLabel(queue string) string {
	_, class := Split(queue)
	// A dedicated queue counts as the shared queue of its class. Alerts compare with that class alone.
	of, _, _ := strings.Cut(string(class), "-")
	return cmp.Or(of, "other")
}

// UserKey is the limit file's key of a user's name: limits.Key, and for a name that is not UTF-8 its hash,
// because PostgreSQL would refuse such a name. "" is no user, and has none.
func UserKey(name string) string {
	if name == "" {
		return ""
	}
	if utf8.ValidString(name) {
		return limits.Key(name)
	}
	return fmt.Sprintf("~%X", sha256.Sum256([]byte(name)))
}
