package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// users are those who insert jobs. That paula pays is in the database, which knows nothing of
// fred.
var users = []string{"fred", "paula"}

//go:embed limits.yaml
var limitFile []byte

type analysis struct {
	User string        `json:"user"`
	Each time.Duration `json:"each"`
}

func (analysis) Kind() string { return "analysis" }

type worker struct {
	pool, slots *pgxpool.Pool
	schema      string // of all tables. Each run has its own: one that was killed has left its tables
	tiers       jobs.Tiers
	fair        *riverqos.Fairness
	client      *river.Client[pgx.Tx]
	tally       *tally
}

func newWorker(pool, slots *pgxpool.Pool, jobsEach int) *worker {
	return &worker{pool: pool, slots: slots, schema: "sluice_example_" + strings.ToLower(rand.Text()[:10]), tally: newTally(jobsEach)}
}

// prepare makes the tables: River's, the indexes that the gate needs, and the slots.
func (w *worker) prepare(ctx context.Context) (drop func() error, err error) {
	if _, err := w.pool.Exec(ctx, "CREATE SCHEMA "+w.schema); err != nil {
		return nil, err
	}
	drop = func() error {
		_, err := w.pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+w.schema+" CASCADE")
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(w.pool), &rivermigrate.Config{Schema: w.schema, Logger: logger()})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	// After River's, for the indexes are on its table.
	if err == nil {
		err = errors.Join(riverqos.Migrate(ctx, w.pool, w.schema), pgslots.Migrate(ctx, w.slots, w.schema))
	}
	// The application's own table of users, where their tiers are.
	if err == nil {
		_, err = w.pool.Exec(ctx, "CREATE TABLE "+w.schema+".users (id text PRIMARY KEY, tier text); INSERT INTO "+w.schema+".users VALUES ('paula', 'pro')")
	}
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	return drop, nil
}

// startRiver works jobs, and runs fairness for as long as River works.
func (w *worker) startRiver(ctx context.Context) (stop func() error, err error) {
	set, err := limitfile.Parse("limits.yaml", limitFile) // jobs.OpenLimitFile for one that is edited meanwhile
	if err != nil {
		return nil, err
	}
	queues, err := jobs.QueuesOf(set, nil, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	env, err := jobs.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	w.tiers = &jobs.NamedTiers{
		File: jobs.FileTiers{Set: func() *limits.Set { return set }, Totals: env.Totals},
		Name: jobs.Query(w.pool.QueryRow, "SELECT tier FROM "+w.schema+".users WHERE id = $1"),
	}
	w.fair, err = riverqos.New(riverqos.Config{
		Pool: w.pool, Schema: w.schema, User: riverqos.FromArgs("user"),
		Runner: jobs.RunnerConfig{Slots: pgslots.New(w.slots, w.schema), Tiers: w.tiers, Logger: logger()},
	})
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(w.analyse))
	w.client, err = river.NewClient(riverpgxv5.New(w.pool), &river.Config{
		Schema: w.schema, Workers: workers, Middleware: w.fair.Middleware(), Logger: logger(),
		Queues: riverqos.QueueConfigs(queues),
	})
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- w.fair.Run(running) }()
	if err := w.client.Start(context.WithoutCancel(ctx)); err != nil {
		end()
		return nil, errors.Join(err, <-ended)
	}
	return func() error {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := w.client.StopAndCancel(stopping)
		end() // behind the client: the slots of its last jobs are given back, and renewed until then
		return errors.Join(err, <-ended)
	}, nil
}

// serve answers operators. It is for this machine alone: the answers name users.
func (w *worker) serve(address string) (stop func() error, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: w.fair.Handler(), ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return func() error {
		err := server.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

func (w *worker) analyse(ctx context.Context, job *river.Job[analysis]) error {
	w.tally.jobBegan(job.Args.User, time.Now())
	select {
	case <-time.After(job.Args.Each):
		w.tally.jobEnded(job.Args.User)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *worker) insert(ctx context.Context, o options) error {
	var params []river.InsertManyParams
	for _, user := range users {
		opts := w.fair.Route(ctx, user, "analysis", false)
		for range o.jobs {
			params = append(params, river.InsertManyParams{Args: analysis{user, o.each}, InsertOpts: opts})
		}
	}
	_, err := w.client.InsertMany(ctx, params)
	return err
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
