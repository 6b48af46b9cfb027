package riverqos_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

const (
	costQueue   = "cost_default"
	costRounds  = 3
	costInserts = 200   // one by one, in a slice
	costJobs    = 4_000 // run in a slice, four of each user
)

// costWork is how long a job waits, as for another service, beside one that does nothing.
const costWork = 100 * time.Millisecond

// costTiers have five slots for the users whose jobs are measured, and one for those who wait.
type costTiers struct{}

func (costTiers) Tier(_ context.Context, user string) (jobs.Tier, error) {
	if strings.HasPrefix(user, "waits") {
		return jobs.Tier{Name: "free", Class: jobs.Default, Limits: jobs.Limits{Total: 1}}, nil
	}
	return jobs.Tier{Name: "enterprise", Class: jobs.Default, Limits: jobs.Limits{Total: 5}}, nil
}

// costs is River with and without fairness, in turn, on one database.
type costs struct {
	testing.TB
	pool  *pgxpool.Pool
	slots jobs.Slots
	fair  *riverqos.Fairness
	redis int           // the process id of Redis, or 0
	work  time.Duration // how long each job waits
	done  atomic.Int64  // jobs of any user who does not wait
	users int           // who have inserted
}

// slotsFor makes the slots of a back end. With Redis it returns its process id.
func slotsFor(b *testing.B, backend, dsn string) (slots jobs.Slots, redis int) {
	b.Helper()
	switch backend {
	case "redis":
		process, addr := testkit.Redis(b)
		return redisslots.New(redisOf(addr, "")), process.Pid()
	case "postgres":
		config, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			b.Fatal(err)
		}
		config.MaxConns = 8
		pool, err := pgxpool.NewWithConfig(b.Context(), config)
		if err == nil {
			err = pgslots.Migrate(b.Context(), pool, "")
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close)
		return pgslots.New(pool, ""), 0
	}
	return jobs.NewMemory(nil), 0
}

func newCosts(b *testing.B, backend string) *costs {
	b.Helper()
	pool, dsn := fresh(b)
	c := &costs{TB: b, pool: pool}
	c.slots, c.redis = slotsFor(b, backend, dsn)
	var err error
	if c.fair, err = riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: c.slots, Tiers: costTiers{}}}); err != nil {
		b.Fatal(err)
	}
	return c
}

// client is River's, with fairness or without.
func (c *costs) client(fair bool) *river.Client[pgx.Tx] {
	c.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[task]) error {
		if !strings.HasPrefix(job.Args.User, "waits") {
			time.Sleep(c.work)
			c.done.Add(1)
		}
		return nil
	}))
	config := &river.Config{
		Queues: map[string]river.QueueConfig{costQueue: {MaxWorkers: 200}}, Workers: workers,
		FetchCooldown: 5 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler), TestOnly: true,
	}
	if fair {
		config.Middleware = c.fair.Middleware()
	}
	client, err := river.NewClient(riverpgxv5.New(c.pool), config)
	if err != nil {
		c.Fatal(err)
	}
	return client
}

// runFair runs fairness until the function that it returns is called.
func (c *costs) runFair() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.fair.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// processors is the time that all processes so far have used of the processors: this one's, PostgreSQL's and Redis'.
func (c *costs) processors() map[int]time.Duration {
	c.Helper()
	pids, err := server.Processes()
	if err != nil {
		c.Fatal(err)
	}
	pids = append(pids, os.Getpid())
	if c.redis != 0 {
		pids = append(pids, c.redis)
	}
	used := map[int]time.Duration{}
	for _, pid := range pids {
		// One that has ended since has used next to nothing: its connection was not in a pool.
		if took, err := testkit.CPUOf(pid); err == nil {
			used[pid] = took
		}
	}
	return used
}

// run starts a client, and stops it when so many jobs are done.
func (c *costs) run(client *river.Client[pgx.Tx], until func() error) time.Duration {
	c.Helper()
	began := time.Now()
	if err := client.Start(context.Background()); err != nil {
		c.Fatal(err)
	}
	if err := testkit.Poll(5*time.Minute, until); err != nil {
		c.Fatal(err)
	}
	took := time.Since(began)
	if err := client.Stop(context.Background()); err != nil {
		c.Fatal(err)
	}
	return took
}

func (c *costs) insert(client *river.Client[pgx.Tx], users []string) {
	c.Helper()
	for chunk := range slices.Chunk(users, 2_000) {
		params := make([]river.InsertManyParams, len(chunk))
		for i, user := range chunk {
			params[i] = river.InsertManyParams{Args: task{User: user}, InsertOpts: &river.InsertOpts{Queue: costQueue}}
		}
		if _, err := client.InsertManyFast(context.Background(), params); err != nil {
			c.Fatal(err)
		}
	}
}

// wait has users wait for a slot that somebody holds: each has a parked job and a gated one.
func (c *costs) wait(n int) {
	c.Helper()
	var users []string
	for i := range n {
		user := fmt.Sprintf("waits-%05d", i)
		users = append(users, user, user)
		held := jobs.Claim{Job: jobs.Job{User: user, ID: "held"}, Holder: "another program"}
		if v, err := c.slots.Acquire(context.Background(), held, jobs.Limits{Total: 1}, time.Hour, false); err != nil || !v.Granted {
			c.Fatalf("Acquire = %+v, %v", v, err)
		}
	}
	client := c.client(true)
	c.insert(client, users)
	c.run(client, func() error {
		var parked int
		err := c.pool.QueryRow(context.Background(), "SELECT count(*) FROM river_job WHERE metadata->>'sluice:wait' = 'parked'").Scan(&parked)
		if err == nil && parked != n {
			err = fmt.Errorf("%d jobs are parked, want %d", parked, n)
		}
		return err
	})
}

// insertOneByOne returns how long inserts took in ms.
func (c *costs) insertOneByOne(client *river.Client[pgx.Tx]) (took []float64) {
	c.Helper()
	for range costInserts {
		c.users++
		began := time.Now()
		if _, err := client.Insert(context.Background(), task{User: fmt.Sprint("one-", c.users)}, &river.InsertOpts{Queue: costQueue}); err != nil {
			c.Fatal(err)
		}
		took = append(took, time.Since(began).Seconds()*1000)
	}
	return took
}

// costSlice is what a slice has measured.
type costSlice struct {
	inserts    []float64 // in ms
	throughput float64   // jobs/s
	processors float64   // µs of a processor for each job
}

// slice inserts and runs jobs.
func (c *costs) slice(fair bool) (measured costSlice) {
	c.Helper()
	if fair {
		defer c.runFair()()
	}
	client := c.client(fair)
	measured.inserts = c.insertOneByOne(client)
	var users []string
	for i := range costJobs {
		if i%4 == 0 {
			c.users++
		}
		users = append(users, fmt.Sprint("four-", c.users))
	}
	c.insert(client, users)
	const all = costJobs + costInserts
	want := c.done.Load() + all
	before := c.processors()
	took := c.run(client, func() error {
		if done := c.done.Load(); done != want {
			return fmt.Errorf("%d jobs are done, want %d", done, want)
		}
		return nil
	})
	for pid, used := range c.processors() {
		measured.processors += float64((used - before[pid]).Microseconds()) / all
	}
	measured.throughput = all / took.Seconds()
	return measured
}

// BenchmarkCost is what fairness costs an insert, and the throughput and processor time of jobs: by
// where the slots are, and by how many users wait for a slot. Jobs do nothing, and then wait as for
// another service, which most jobs do for most of their time. With and without fairness take turns.
func BenchmarkCost(b *testing.B) {
	for _, backend := range []string{"memory", "redis", "postgres"} {
		for _, waiting := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", backend, waiting), func(b *testing.B) {
				for b.Loop() {
					c := newCosts(b, backend)
					c.wait(waiting)
					empty := c.compare()
					c.work = costWork
					waits := c.compare()
					for fair, name := range []string{"without", "with"} {
						b.ReportMetric(median(empty[fair], func(s costSlice) []float64 { return s.inserts }), "insert-ms/"+name)
						b.ReportMetric(median(empty[fair], throughput), "jobs/s/"+name)
						b.ReportMetric(median(empty[fair], processors), "cpu-µs/"+name)
					}
					b.ReportMetric(100*median(empty[1], throughput)/median(empty[0], throughput), "%/empty")
					b.ReportMetric(100*median(waits[1], throughput)/median(waits[0], throughput), "%/100ms")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// compare measures without fairness and with it, in turn.
func (c *costs) compare() (measured [2][]costSlice) {
	for round := range costRounds {
		for turn := range 2 {
			fair := (round + turn) % 2
			measured[fair] = append(measured[fair], c.slice(fair == 1))
		}
	}
	return measured
}

func throughput(s costSlice) []float64 { return []float64{s.throughput} }
func processors(s costSlice) []float64 { return []float64{s.processors} }

// median is that of what slices have measured.
func median(slicesOf []costSlice, what func(costSlice) []float64) float64 {
	var all []float64
	for _, s := range slicesOf {
		all = append(all, what(s)...)
	}
	slices.Sort(all)
	return at(all, 50)
}
