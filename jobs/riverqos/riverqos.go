// Package riverqos makes River (github.com/riverqueue/river) fair among users: each
// user's jobs run in at most so many slots over all workers, nobody's backlog stands
// before another's job, and a job above its user's limit waits without spending an
// attempt. The limits are those of github.com/sluice-qos/sluice/pkg/jobs.
//
// Three things work together:
//
//   - The worker middleware takes a slot before a job runs and gives it back however it
//     ends. A job that gets none is parked: River has it as scheduled, and it is made
//     available the moment that a slot has been reserved for it. See work.go, wake.go.
//   - The insert middleware is a gate: of a user's jobs in a queue only as many are
//     available to workers as may run at once. The others are scheduled far in the
//     future, and let through one in, one out. See insert.go, gate.go.
//   - A sweep each second repairs what a crash or a lost message left: slots whose lease
//     has ended, wake-ups that did not arrive, users who are past the gate. See sweep.go.
//
// The slots hold exactly. The gate is only nearly exact: inserts of several processes
// at the same instant may let a few more through, which are refused a slot and parked.
package riverqos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/jobmetrics"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Mode is what becomes of a job that gets no slot.
type Mode int

const (
	// Park wakes the job as soon as there is a slot for it.
	Park Mode = iota
	// Snooze lets it try again after Config.Snooze. It needs no waker, and is slow: a job
	// sleeps past free slots.
	Snooze
)

// Config says how to be fair. Pool, Slots, Tiers and User are needed.
type Config struct {
	// Pool is of the database that River's tables are in. A worker needs a connection of
	// it beside the one that River's client listens on.
	//
	// A Fairness also has connections of its own, which are made as the Pool's are and
	// add "sluice" to their application_name: up to two with which inserts count, so that
	// one in a transaction needs no second connection of the Pool, and with Run one that
	// keeps the sweep's lock. They are made when they are needed, and closed after a
	// minute or two in which they are not, or when Run ends. A goroutine that watches
	// them begins with the first, and ends with Run; in a program that only inserts it
	// stays as long as the process.
	Pool *pgxpool.Pool
	// Schema is that of River's tables; "" is the one that the search path finds.
	Schema string
	// Slots are shared by all workers.
	Slots jobs.Slots
	// Tiers know the users' limits. One below 1 counts as 1. They have to mind their
	// context: an insert, and each thousand users of a sweep, wait up to 2 s for
	// answers that do not come, and then take what comes at once.
	Tiers jobs.Tiers
	// User finds the user of a job.
	User UserFunc
	// Namespace tells the jobs of this database from those of others that share the
	// Slots; "" is the schema.
	Namespace string

	// Mode is what becomes of a job that gets no slot; the zero value parks it.
	Mode Mode
	// Ungated lets all jobs be available to workers at once: a long backlog of one user
	// then holds up the others.
	Ungated bool
	// Disabled leaves all jobs alone. Run then lets those go that were held back.
	Disabled bool

	// Lease is how long a slot is held by a worker that died; 0 means 15 s.
	Lease time.Duration
	// Reserve is how long a slot is kept for a job that was woken; 0 means 5 s. It should
	// be longer than River's FetchPollInterval.
	Reserve time.Duration
	// Snooze and SnoozeJitter are how long a job sleeps in the mode of that name; 0 means
	// 30 s, and up to 10 s more.
	Snooze, SnoozeJitter time.Duration
	// ParkFor is after what time a parked job tries by itself, should nobody wake it; 0
	// means 5 min.
	ParkFor time.Duration
	// GateFor is after what time a gated job becomes available should nobody run Run; 0
	// means 1 h. Run keeps putting it off.
	GateFor time.Duration
	// Sweep is the time between two sweeps; 0 means 1 s, or an eighth of the lease if that
	// is less.
	Sweep time.Duration

	// Logger is told of what went wrong; nil discards. It never sees a job's arguments.
	Logger *slog.Logger
	// Registry gets the metrics; nil means none.
	Registry prometheus.Registerer
}

// Fairness ties River to the users' limits. It is safe for concurrent use, and one of
// a process can serve several River clients of the same database.
type Fairness struct {
	cfg     Config
	db      store
	log     *slog.Logger
	metrics *jobmetrics.Metrics
	quiet   quiet
	process string        // begins the names of this process's claims
	claims  atomic.Uint64 // so far

	held   leases
	naps   naps
	admits admits
	nudges nudges

	unwritten unwritten

	asking, counting, silence time.Duration // the constants of these names

	blinded atomic.Int64 // when the gate last got no answer, in ms since 1970

	mu      sync.Mutex
	unfreed []end // their release failed
}

// New checks the configuration. It starts nothing: see Run.
func New(cfg Config) (*Fairness, error) {
	if cfg.Pool == nil || cfg.Slots == nil || cfg.Tiers == nil || cfg.User == nil {
		return nil, errors.New("riverqos: Pool, Slots, Tiers and User are needed")
	}
	if cfg.Namespace == "" {
		cfg.Namespace = cfg.Schema
	}
	if cfg.Lease == 0 {
		cfg.Lease = 15 * time.Second
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"Lease", &cfg.Lease, cfg.Lease},
		{"Reserve", &cfg.Reserve, 5 * time.Second},
		{"Snooze", &cfg.Snooze, 30 * time.Second},
		{"SnoozeJitter", &cfg.SnoozeJitter, 10 * time.Second},
		{"ParkFor", &cfg.ParkFor, 5 * time.Minute},
		{"GateFor", &cfg.GateFor, time.Hour},
		{"Sweep", &cfg.Sweep, min(time.Second, cfg.Lease/8)},
	} {
		if *d.value == 0 {
			*d.value = d.zero
		}
		if *d.value <= 0 {
			return nil, fmt.Errorf("riverqos: %s of %v is not positive", d.name, *d.value)
		}
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Fairness{
		cfg: cfg, db: newStore(cfg.Pool, cfg.Schema), log: log, metrics: jobmetrics.New(cfg.Registry), asking: asking, counting: counting, silence: silence,
		process: rand.Text(), naps: naps{wake: make(chan struct{}, 1)}, nudges: nudges{wake: make(chan struct{}, 1)},
	}, nil
}

// Middleware is for river.Config.Middleware, of clients that work and of those that
// insert.
func (f *Fairness) Middleware() []rivertype.Middleware {
	return []rivertype.Middleware{&middleware{Fairness: f}}
}

// Run renews the leases, wakes jobs and sweeps, until the context ends; it then returns
// nil, within some seconds even if the database is silent. Every process that works jobs
// needs it, before and until some time after its River client: end it when the client has
// stopped. One that only inserts does not.
func (f *Fairness) Run(ctx context.Context) error {
	if f.cfg.Disabled {
		return f.ungateAll(ctx)
	}
	defer f.db.own.close()
	f.metrics.Sweeps.WithLabelValues("done") // 0 so far: nobody sweeps is an alert, also if nobody ever has
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context){f.renewLoop, f.wakeLoop, f.nudgeLoop, f.unwrittenLoop, f.freeLoop, f.sweepLoop} {
		wg.Go(func() { loop(ctx) })
	}
	wg.Wait()
	return nil
}

// tier is that of a user. An error has been dealt with: there always is a usable one.
func (f *Fairness) tier(ctx context.Context, user string) jobs.Tier {
	t, _ := f.ask(ctx, user)
	return t
}

// ask is tier, and reports whether the Tiers answered without an error.
func (f *Fairness) ask(ctx context.Context, user string) (t jobs.Tier, ok bool) {
	t, err := f.cfg.Tiers.Tier(ctx, user)
	if err != nil {
		f.failed("tier", "the tier of a user could not be found", err)
	}
	return usable(t), err == nil
}

// usable raises limits below 1, which no Slots take: jobs are never rejected.
func usable(t jobs.Tier) jobs.Tier {
	t.Limits.Total = max(t.Limits.Total, 1)
	queues := t.Limits.Queues
	for queue, n := range queues {
		if n < 1 {
			t.Limits.Queues = maps.Clone(t.Limits.Queues) // the Tiers' own is shared
			t.Limits.Queues[queue] = 1
		}
	}
	return t
}

// asking bounds how long an insert, or a page of a sweep, waits for Tiers that do not
// answer.
const asking = 2 * time.Second

// asker asks for the tiers of several users. Only failures spend its time, so that many
// users whose tiers come slowly have theirs all the same. When it is spent, questions
// fail that are not answered at once.
type asker struct {
	f    *Fairness
	left time.Duration
}

func (f *Fairness) asker() *asker { return &asker{f, f.asking} }

func (a *asker) tier(ctx context.Context, user string) jobs.Tier {
	t, _ := a.ask(ctx, user)
	return t
}

// ask is tier, and reports whether the Tiers answered without an error.
func (a *asker) ask(ctx context.Context, user string) (t jobs.Tier, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.left)
	defer cancel()
	began := time.Now()
	if t, ok = a.f.ask(ctx, user); ok {
		return t, true
	}
	// A clock that was read before or after the timer's would leave a rest.
	if a.left -= time.Since(began); ctx.Err() != nil {
		a.left = 0
	}
	return t, false
}

// every calls do about each d until the context ends.
func every(ctx context.Context, d time.Duration, do func()) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			do()
			timer.Reset(d)
		}
	}
}
