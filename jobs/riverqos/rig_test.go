package riverqos_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/sluice-qos/sluice/internal/testkit"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

var server *testkit.PostgresServer

// skipIfShort leaves a slow test to make test-postgres.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: make test-postgres runs this test")
	}
}

// TestMain starts one server; each test has a database of its own in it. Or it is a
// worker of one of the tests.
func TestMain(m *testing.M) {
	if options := os.Getenv(fleetWorkerEnv); options != "" {
		os.Exit(fleetWorkerMain(options))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if server, err = testkit.StartPostgres(); err != nil {
		log.Print(err)
		return 1
	}
	defer func() {
		if err := server.Stop(); err != nil {
			log.Print(err)
		}
	}()
	if err := template(context.Background()); err != nil {
		log.Print(err)
		return 1
	}
	return m.Run()
}

// template makes the database that those of the tests are copies of.
func template(ctx context.Context) error {
	admin, err := pgx.Connect(ctx, server.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close(ctx) }()
	if _, err := admin.Exec(ctx, "CREATE DATABASE river"); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, dsn("river"))
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	for range 2 { // the second time there is nothing to do
		if err := riverqos.Migrate(ctx, pool, ""); err != nil {
			return err
		}
	}
	return nil
}

func dsn(database string) string {
	u, err := url.Parse(server.DSN)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + database
	return u.String()
}

var databases atomic.Int64

// fresh is a pool of a database of the test's own, with River's tables.
func fresh(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(ctx) }()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE river"); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, dsn(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, dsn(name)
}

// task is what the tests' jobs do.
type task struct {
	User string `json:"user,omitempty"`
	Do   string `json:"do,omitempty"`
}

func (task) Kind() string { return "task" }

// tiers are a map from users to limits that a test may change.
type tiers struct {
	mu sync.Mutex
	of map[string]jobs.Limits
}

func (m *tiers) set(user string, l jobs.Limits) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[string]jobs.Limits{}
	}
	m.of[user] = l
}

// Tier is free, with one job at a time, for users who were not set.
func (m *tiers) Tier(_ context.Context, user string) (jobs.Tier, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := m.of[user]; ok {
		return jobs.Tier{Name: "pro", Class: jobs.Priority, Limits: l}, nil
	}
	return jobs.Tier{Name: "free", Class: jobs.Default, Limits: jobs.Limits{Total: 1}}, nil
}

// rig is River with one worker process, and what its jobs did.
type rig struct {
	testing.TB
	pool   *pgxpool.Pool
	dsn    string
	tiers  *tiers
	slots  jobs.Slots
	reg    *prometheus.Registry
	fair   *riverqos.Fairness
	client *river.Client[pgx.Tx]

	mu      sync.Mutex
	running map[string]int // by user
	most    map[string]int // at a time, by user
	begun   []string       // users, in order
	done    map[int64]bool
	free    map[string]chan struct{} // closed when the jobs that wait for it may end
	tries   map[int64]int
}

type option func(*riverqos.Config, *river.Config)

// start starts a worker with five slots for jobs in each of three queues. It polls and sweeps
// only now and then.
func start(t testing.TB, options ...option) *rig {
	t.Helper()
	r := newRig(t)
	r.pool, r.dsn = fresh(t)
	r.startWorker(options...)
	return r
}

func newRig(t testing.TB) *rig {
	return &rig{
		TB: t, tiers: &tiers{}, slots: jobs.NewMemory(nil), reg: prometheus.NewRegistry(),
		running: map[string]int{}, most: map[string]int{}, done: map[int64]bool{}, free: map[string]chan struct{}{}, tries: map[int64]int{},
	}
}

// startThroughPgBouncer is start with all connections through PgBouncer in transaction mode,
// and slots in PostgreSQL.
func startThroughPgBouncer(t testing.TB, options ...option) *rig {
	t.Helper()
	r := newRig(t)
	_, r.dsn = fresh(t)
	var err error
	if r.pool, err = pgxpool.New(context.Background(), testkit.PgBouncer(t, r.dsn)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	if err := pgslots.Migrate(context.Background(), r.pool, ""); err != nil {
		t.Fatal(err)
	}
	r.slots = pgslots.New(r.pool, "")
	r.startWorker(append(options, func(_ *riverqos.Config, rc *river.Config) { rc.PollOnly = true })...) // River listens in a session
	return r
}

// seldom is how often the sweep and River's polling make good what was not told in time, as on
// a machine so busy that a job is not written for seconds. Tests wait for longer.
const seldom = 5 * time.Second

func (r *rig) startWorker(options ...option) {
	r.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(r.work))
	cfg := riverqos.Config{Pool: r.pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: r.slots, Tiers: r.tiers, Registry: r.reg, Logger: slog.New(slog.NewTextHandler(r.Output(), nil))}}.SweptEvery(seldom)
	rcfg := &river.Config{
		Queues:  map[string]river.QueueConfig{"slow_default": {MaxWorkers: 5}, "fast_default": {MaxWorkers: 5}, river.QueueDefault: {MaxWorkers: 5}},
		Workers: workers, Logger: slog.New(slog.DiscardHandler), FetchPollInterval: seldom, TestOnly: true,
	}
	for _, o := range options {
		o(&cfg, rcfg)
	}
	r.slots = cfg.Runner.Slots
	var err error
	if r.fair, err = riverqos.New(cfg); err != nil {
		r.Fatal(err)
	}
	// A test's own comes first, and is told what River is.
	rcfg.Middleware = append(rcfg.Middleware, r.fair.Middleware()...)
	if r.client, err = river.NewClient(riverpgxv5.New(r.pool), rcfg); err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := r.fair.Run(ctx); err != nil {
			r.Errorf("Run() = %v", err)
		}
	})
	if err := r.client.Start(context.Background()); err != nil {
		r.Fatal(err)
	}
	client := r.client
	r.Cleanup(func() {
		stop, stopped := context.WithTimeout(context.Background(), testkit.Patience)
		defer stopped()
		if err := client.StopAndCancel(stop); err != nil {
			r.Errorf("StopAndCancel() = %v", err)
		}
		cancel()
		ran.Wait()
	})
}

// work is a job: it does what it says.
func (r *rig) work(ctx context.Context, job *river.Job[task]) error {
	user := job.Args.User
	r.mu.Lock()
	r.begun = append(r.begun, user)
	r.running[user]++
	r.tries[job.ID]++
	try := r.tries[job.ID]
	r.most[user] = max(r.most[user], r.running[user])
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running[user]--
	}()
	switch do := job.Args.Do; {
	case do == "fail" && try == 1:
		return fmt.Errorf("attempt %d fails", try)
	case do == "panic" && try == 1:
		panic("this job panics")
	case do == "cancel":
		return river.JobCancel(fmt.Errorf("not needed any more"))
	case do == "snooze" && try == 1:
		return river.JobSnooze(time.Hour)
	case do == "brief":
		time.Sleep(20 * time.Millisecond)
	case do == "hang", do == "gate":
		select {
		case <-r.gate(do):
		case <-ctx.Done():
			r.mu.Lock()
			r.begun = append(r.begun, fmt.Sprintf("cause: %v", context.Cause(ctx)))
			r.mu.Unlock()
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[job.ID] = true
	return nil
}

// gate is what some jobs wait for.
func (r *rig) gate(name string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free[name] == nil {
		r.free[name] = make(chan struct{})
	}
	return r.free[name]
}

func (r *rig) insert(n int, args task, queue string) []int64 {
	r.Helper()
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i] = river.InsertManyParams{Args: args, InsertOpts: &river.InsertOpts{Queue: queue}}
	}
	results, err := r.client.InsertMany(context.Background(), params)
	if err != nil {
		r.Fatal(err)
	}
	ids := make([]int64, n)
	for i, x := range results {
		ids[i] = x.Job.ID
	}
	return ids
}

// finished waits until jobs are done.
func (r *rig) finished(ids []int64) {
	r.Helper()
	testkit.Eventually(r, "jobs are done", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, id := range ids {
			if !r.done[id] {
				return fmt.Errorf("job %d, number %d of %d, is not", id, i+1, len(ids))
			}
		}
		return nil
	})
}

// runs waits until a number of a user's jobs run.
func (r *rig) runs(user string, n int) {
	r.Helper()
	testkit.Eventually(r, "jobs run", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.running[user] != n {
			return fmt.Errorf("%d of user %q run, want %d", r.running[user], user, n)
		}
		return nil
	})
}

// atMost says how many of a user's jobs ran at a time.
func (r *rig) atMost(user string, want int) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := r.most[user]; got != want {
		r.Errorf("at most %d jobs of user %q ran at a time, want %d", got, user, want)
	}
}

// states counts the jobs by state and mark.
func (r *rig) states() map[string]int {
	r.Helper()
	rows, err := r.pool.Query(context.Background(), "SELECT coalesce(metadata->>'sluice:wait', state::text), count(*) FROM river_job GROUP BY 1")
	if err != nil {
		r.Fatal(err)
	}
	states := map[string]int{}
	var state string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { states[state] = n; return nil }); err != nil {
		r.Fatal(err)
	}
	return states
}

// spent are the most attempts that any job has spent.
func (r *rig) spent() (n int) {
	r.Helper()
	if err := r.pool.QueryRow(context.Background(), "SELECT max(attempt) FROM river_job").Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

// sweeping repairs things, and polls.
func sweeping(c *riverqos.Config, rc *river.Config) {
	*c, rc.FetchPollInterval = c.SweptEvery(200*time.Millisecond), time.Second
}

func ungated(c *riverqos.Config, _ *river.Config) { c.Ungated = true }

// snoozing is the plain mode, with short naps, which River's polling ends.
func snoozing(c *riverqos.Config, r *river.Config) {
	c.Runner.Snooze, c.Runner.Environ = true, []string{"FAIRNESS_SNOOZE_DURATION=50ms", "FAIRNESS_SNOOZE_JITTER=50ms"}
	r.FetchPollInterval = river.FetchCooldownDefault
}

func (r *rig) usage(user string) jobs.Usage { r.Helper(); return r.usageOf(r.slots, user) }

func (r *rig) usageOf(s jobs.Slots, user string) jobs.Usage {
	r.Helper()
	u, err := s.User(context.Background(), user)
	if err != nil {
		r.Fatal(err)
	}
	return u
}

// counted returns nil if a metric with a label's value is above 0.
func (r *rig) counted(name, label string) error {
	if r.value(name, label) > 0 {
		return nil
	}
	return fmt.Errorf("%s{%s} is 0", name, label)
}

// afterTheOnlySweep waits until the first sweep is over, done or failed: a busy database may not answer it in time.
func (r *rig) afterTheOnlySweep() {
	r.Helper()
	testkit.Eventually(r, "the only sweep is over", func() error {
		if err := r.counted("sluice_jobs_sweeps_total", "error"); err == nil {
			return nil
		}
		return r.counted("sluice_jobs_sweeps_total", "done")
	})
}

// value is that of a metric with a label's value, or 0.
func (r *rig) value(name, label string) (v float64) {
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return v
}
