package riverqos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Mode is what becomes of a job that gets no slot.
type Mode = jobs.Mode

// The modes.
const (
	Park   = jobs.Park
	Snooze = jobs.Snooze
)

// Config says how to be fair. Pool, Slots, Tiers and User are required.
type Config struct {
	// Pool is of the database that River's tables are in. A worker needs a connection of
	// it beside the one that River's client listens on.
	Pool *pgxpool.Pool
	// Schema is that of River's tables; "" is the one that the search path finds.
	Schema string
	// Slots are shared by all workers.
	Slots jobs.Slots
	// Tiers know the users' limits. One below 1 counts as 1. They have to mind their
	// context: an insert, and each thousand users of a sweep, wait up to 2 s for
	// answers that do not come, and then take what comes at once. If they have a method
	// InForce() string, as jobs.FileTiers do, and it returns another text, a sweep follows
	// at once: it is asked ten times a second.
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

	// Of a jobs.RunnerConfig: 0 but in tests.
	sweep, tierTimeout, answerTimeout time.Duration

	// Logger is told of what went wrong; nil discards. It never sees a job's arguments.
	Logger *slog.Logger
	// Registry gets the metrics; nil means none.
	Registry prometheus.Registerer
}

// complete returns the configuration with its defaults, or what is wrong with it.
func (c Config) complete() (Config, error) {
	if c.Pool == nil || c.Slots == nil || c.Tiers == nil || c.User == nil {
		return Config{}, errors.New("riverqos: Pool, Slots, Tiers and User are required")
	}
	// River counts jobs from 1 in each schema.
	if c.Namespace == "" {
		c.Namespace = c.Schema
	}
	c.GateFor, c.Lease = cmp.Or(c.GateFor, time.Hour), cmp.Or(c.Lease, 15*time.Second)
	// A ticker of 0 would panic.
	if c.GateFor < 0 {
		return Config{}, fmt.Errorf("riverqos: GateFor is %v, want a positive duration", c.GateFor)
	}
	// Those that remain 0 are the jobs.Runner's to choose.
	if c.answerTimeout == 0 {
		c.answerTimeout = answerTimeout
	}
	return c, nil
}

// newRunner makes the runner of the jobs.
func (c Config) newRunner(q queue, sweep func(context.Context) error, afterSweeps func()) (*jobs.Runner, error) {
	runner, err := jobs.NewRunner(jobs.RunnerConfig{
		Name: "river." + c.Namespace, Slots: c.Slots, Tiers: c.Tiers, Queue: q, Mode: c.Mode,
		Lease: c.Lease, Reserve: c.Reserve, Snooze: c.Snooze, SnoozeJitter: c.SnoozeJitter, ParkFor: c.ParkFor,
		Sweep: sweep, AfterSweeps: afterSweeps, SweepInterval: c.sweep, TierTimeout: c.tierTimeout, AnswerTimeout: c.answerTimeout,
		Logger: c.Logger, Registry: c.Registry,
	})
	if err != nil {
		return nil, fmt.Errorf("riverqos: %w", err)
	}
	return runner, nil
}
