// The example is a worker whose users share it fairly. Run it with
//
//	go run ./example
//
// Two users each insert twelve jobs of a second at once: one is free and may run one at
// a time, the other pays and may run three: limits.yaml says so, and how many workers
// their queues have. Who pays is in a table. FAIRNESS_FREE_LIMIT and the other variables
// of docs/jobs.md come before the file. It shows the jobs run, and ends when all are done or
// with Ctrl-C. Meanwhile it says at -listen whose jobs run and wait: with more of them,
//
//	go run ./example -jobs 500
//	sluice up --jobs-worker 127.0.0.1:9092
//	sluice top --jobs
//	sluice explain --job 700 --worker 127.0.0.1:9092
//
// It starts a PostgreSQL server of its own; with DATABASE_URL it uses that one, in
// a schema of its own that is gone afterwards. Only one that was killed leaves its schema: the
// name begins with sluice_example_.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"
)

type options struct {
	database string        // "" starts a server
	jobs     int           // of each user
	each     time.Duration // how long a job takes
	listen   string        // where it answers operators; "" is nowhere
}

func main() {
	o := options{database: os.Getenv("DATABASE_URL")}
	flag.IntVar(&o.jobs, "jobs", 12, "jobs of each user")
	flag.DurationVar(&o.each, "each", time.Second, "how long a job takes")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:9092", "where to say whose jobs run and wait, for sluice up --jobs-worker and sluice explain --worker")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runExample(ctx, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runExample(ctx context.Context, out io.Writer, o options) (err error) {
	if o.database == "" {
		fmt.Fprintln(out, "starting PostgreSQL ...")
		server, err := testkit.StartPostgres()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		o.database = server.DSN
	}
	pool, err := pgxpool.New(ctx, o.database)
	if err != nil {
		return err
	}
	defer pool.Close()
	slots, err := pgxpool.New(ctx, o.database) // of their own: no job can have all of its connections
	if err != nil {
		return err
	}
	defer slots.Close()
	w := newWorker(pool, slots, o.jobs)
	drop, err := w.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	stop, err := w.startRiver(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if o.listen != "" {
		stop, err := w.serve(o.listen)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		fmt.Fprintf(out, "whose jobs wait, and why: sluice up --jobs-worker %s, and sluice top --jobs\n", o.listen)
	}
	if err := w.insert(ctx, o); err != nil {
		return err
	}
	return w.showProgress(ctx, out)
}
