package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"log/slog"
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

// newSchema names one for all tables of the example. Each run has its own: one that was
// killed has left its tables.
func newSchema() string { return "sluice_example_" + strings.ToLower(rand.Text()[:10]) }

// prepare makes the tables: River's, the indexes that the gate needs, and the slots.
func prepare(ctx context.Context, pool *pgxpool.Pool, schema string) (drop func() error, err error) {
	if _, err := pool.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		return nil, err
	}
	drop = func() error {
		_, err := pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+schema+" CASCADE")
		return err
	}
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: schema, Logger: logger()})
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := riverqos.Migrate(ctx, pool, schema); err != nil {
		return nil, errors.Join(err, drop())
	}
	if err := pgslots.Migrate(ctx, pool, schema); err != nil {
		return nil, errors.Join(err, drop())
	}
	return drop, nil
}

// analysis is a job. Its user is in its arguments.
type analysis struct {
	User string        `json:"user"`
	Each time.Duration `json:"each"`
}

func (analysis) Kind() string { return "analysis" }

func (w *worker) analyse(ctx context.Context, job *river.Job[analysis]) error {
	w.tally.jobBegan(job.Args.User, time.Now())
	defer w.tally.jobEnded(job.Args.User)
	select {
	case <-time.After(job.Args.Each):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// users are those who insert jobs. That paula pays is in the limit file, which knows
// nothing of fred.
var users = []string{"fred", "paula"}

//go:embed limits.yaml
var limitFile []byte

type worker struct {
	pool   *pgxpool.Pool
	schema string
	tiers  jobs.Tiers
	tally  tally
	fair   *riverqos.Fairness
	client *river.Client[pgx.Tx]
}

func newWorker(pool, slots *pgxpool.Pool, schema string) (*worker, error) {
	set, err := limitfile.Parse("limits.yaml", limitFile) // jobs.OpenLimitFile for one that is edited meanwhile
	if err != nil {
		return nil, err
	}
	queues, err := jobs.QueuesOf(set, nil, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	w := &worker{pool: pool, schema: schema, tiers: jobs.FileTiers{Set: func() *limits.Set { return set }}}
	w.fair, err = riverqos.New(riverqos.Config{
		Pool: pool, Schema: schema, Slots: pgslots.New(slots, schema), Tiers: w.tiers, User: riverqos.FromArgs("user"), Logger: logger(),
	})
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(w.analyse))
	w.client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema: schema, Workers: workers, Middleware: w.fair.Middleware(), Logger: logger(),
		Queues: riverqos.QueueConfigs(queues),
	})
	return w, err
}

// startRiver runs fairness for as long as River works.
func (w *worker) startRiver(ctx context.Context) (stop func() error, err error) {
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
		end()
		return errors.Join(err, <-ended)
	}, nil
}

func (w *worker) insert(ctx context.Context, o options) error {
	var params []river.InsertManyParams
	for _, user := range users {
		opts := w.fair.Route(ctx, user, "analysis", false)
		for range o.jobs {
			params = append(params, river.InsertManyParams{Args: analysis{user, o.each}, InsertOpts: opts})
		}
	}
	w.tally.inserted(time.Now())
	_, err := w.client.InsertMany(ctx, params)
	return err
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
