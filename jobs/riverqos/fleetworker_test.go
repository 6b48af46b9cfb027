package riverqos_test

// A fleet worker is a process that works River's jobs, for tests in which such processes
// die: the test binary, started again. Its jobs note in a table when they begin and end.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

// fleetWorkerEnv is the variable with a process's fleetOptions as JSON.
const fleetWorkerEnv = "SLUICE_TESTWORKER"

// fleetOptions are those of a process.
type fleetOptions struct {
	DSN     string
	Redis   string // address of the Slots; "" has them in PostgreSQL
	Lease   time.Duration
	Workers int
	Snooze  bool // the plain way: no gate, and jobs above the limit snooze
	Without bool // no fairness at all
}

// String is for fleetWorkerEnv.
func (o fleetOptions) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return fleetWorkerEnv + "=" + string(text)
}

// fleetQueue is the one that the processes work.
const fleetQueue = "work_default"

// fleetJob are a job's.
type fleetJob struct {
	User string        `json:"user"`
	For  time.Duration `json:"for"`
}

// Kind is River's name of the jobs.
func (fleetJob) Kind() string { return "work" }

// fleetTable is where the jobs note what they do.
const fleetTable = `CREATE TABLE worked (job bigint, usr text, pid int, begun timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)`

// fleetTiers gives users whose names begin with pro three slots, and all others one.
type fleetTiers struct{}

// Tier never fails.
func (fleetTiers) Tier(_ context.Context, user string) (jobs.Tier, error) {
	if strings.HasPrefix(user, "pro") {
		return jobs.Tier{Name: "pro", Class: jobs.Priority, Limits: jobs.Limits{Total: 3}}, nil
	}
	return jobs.Tier{Name: "free", Class: jobs.Default, Limits: jobs.Limits{Total: 1}}, nil
}

// fleetWorkerMain works until it is told to end. It prints "ready" when it begins.
func fleetWorkerMain(options string) int {
	if err := runFleetWorker(options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// config is the one of a process, or of one that inserts its jobs.
func (o fleetOptions) config(ctx context.Context, pool *pgxpool.Pool) (riverqos.Config, error) {
	cfg := riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Ungated: o.Snooze, Runner: jobs.RunnerConfig{Tiers: fleetTiers{}, Lease: o.Lease, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Disabled: o.Without}}
	if o.Snooze {
		cfg.Runner.Snooze = true
	}
	if o.Redis != "" {
		cfg.Runner.Slots = redisslots.New(redisOf(o.Redis, ""))
		return cfg, nil
	}
	if err := pgslots.Migrate(ctx, pool, ""); err != nil {
		return cfg, err
	}
	cfg.Runner.Slots = pgslots.New(pool, "")
	return cfg, nil
}

// redisOf connects to a Redis as one of its users, whose password is the name, or as its
// default user.
func redisOf(addr, user string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: user, ContextTimeoutEnabled: true})
}

func runFleetWorker(options string) error {
	var o fleetOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, o.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	cfg, err := o.config(ctx, pool)
	if err != nil {
		return err
	}
	fair, err := riverqos.New(cfg)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[fleetJob]) error { return workFleetJob(ctx, pool, job) }))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{fleetQueue: {MaxWorkers: o.Workers}}, Workers: workers, Middleware: fair.Middleware(),
		Logger: slog.New(slog.DiscardHandler), TestOnly: true,
	})
	if err != nil {
		return err
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	var ran sync.WaitGroup
	ran.Go(func() { err = fair.Run(running) })
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		end()
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
	defer cancel()
	stopped := client.StopAndCancel(stopping)
	end()
	ran.Wait()
	return errors.Join(err, stopped)
}

func workFleetJob(ctx context.Context, pool *pgxpool.Pool, job *river.Job[fleetJob]) error {
	if _, err := pool.Exec(ctx, "INSERT INTO worked (job, usr, pid) VALUES ($1, $2, $3)", job.ID, job.Args.User, os.Getpid()); err != nil {
		return err
	}
	select {
	case <-time.After(job.Args.For):
	case <-ctx.Done():
	}
	_, err := pool.Exec(context.WithoutCancel(ctx), "UPDATE worked SET ended = clock_timestamp() WHERE job = $1 AND ended IS NULL", job.ID)
	return errors.Join(ctx.Err(), err)
}
