package asynqos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/asynqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

const queue, otherQueue = "report_default", "other_default"

// payload is of the tests' tasks.
type payload struct {
	User string `json:"user"`
	Name string `json:"name"`
}

func payloadOf(task *asynq.Task) (p payload) {
	_ = json.Unmarshal(task.Payload(), &p)
	return p
}

// rig is one worker process, the Redis of its queue, and that of the slots.
type rig struct {
	testing.TB
	client    *asynq.Client
	inspector *asynq.Inspector
	slots     jobs.Slots
	slotsAddr string
	slotsProc *testkit.Process
	redisAddr string
	reg       *prometheus.Registry

	mu       sync.Mutex
	running  map[string]int // by user
	most     map[string]int // at a time, by user
	ended    []string       // names, in order
	failures []error        // that the server's ErrorHandler was told
	held     chan struct{}  // closed when tasks whose names begin with "hold" may end
	cause    error          // of the end of the context of a task named "watch"
}

// configOf is what all workers of the tests have.
func configOf(redisClient, slotsClient redis.UniversalClient) asynqos.Config {
	return asynqos.Config{
		Runner: jobs.RunnerConfig{Name: "asynq", Slots: redisslots.New(slotsClient), Tiers: oneEach{}, Lease: 2 * time.Second, SweepInterval: 100 * time.Millisecond},
		Redis:  redisClient,
		User:   func(task *asynq.Task) string { return payloadOf(task).User },
	}
}

// oneEach are Tiers in which each user may run one task.
type oneEach struct{}

func (oneEach) Tier(context.Context, string) (jobs.Tier, error) {
	return jobs.Tier{Name: "free", Limits: jobs.Limits{Total: 1}}, nil
}

func connect(t testing.TB, addr string) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// serve starts a server for so many tasks at a time until the test ends.
func serve(t testing.TB, redisClient redis.UniversalClient, cfg asynqos.Config, server asynq.Config, handler asynq.HandlerFunc) {
	t.Helper()
	fair, err := asynqos.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server.Queues, server.LogLevel = map[string]int{queue: 1, otherQueue: 1}, asynq.FatalLevel
	server.TaskCheckInterval, server.DelayedTaskCheckInterval, server.ShutdownTimeout = 20*time.Millisecond, 100*time.Millisecond, time.Second
	mux := asynq.NewServeMux()
	mux.Use(fair.Middleware)
	mux.Handle("task", handler)
	srv := asynq.NewServerFromRedisClient(redisClient, fair.Configure(server))
	if err := srv.Start(mux); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := fair.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(func() {
		srv.Shutdown()
		cancel()
		ran.Wait()
	})
}

func start(t testing.TB, concurrency int, change func(*asynqos.Config)) *rig {
	t.Helper()
	r := &rig{TB: t, reg: prometheus.NewRegistry(), running: map[string]int{}, most: map[string]int{}, held: make(chan struct{})}
	_, r.redisAddr = testkit.Redis(t)
	r.slotsProc, r.slotsAddr = testkit.Redis(t)
	redisClient, slotsClient := connect(t, r.redisAddr), connect(t, r.slotsAddr)
	cfg := configOf(redisClient, slotsClient)
	cfg.Runner.Registry, cfg.Runner.Logger = r.reg, slog.New(slog.NewTextHandler(t.Output(), nil))
	if change != nil {
		change(&cfg)
	}
	r.slots, r.client, r.inspector = cfg.Runner.Slots, asynq.NewClientFromRedisClient(redisClient), asynq.NewInspectorFromRedisClient(redisClient)
	serve(t, redisClient, cfg, asynq.Config{
		Concurrency:    concurrency,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Millisecond },
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failures = append(r.failures, err)
		}),
	}, r.work)
	return r
}

var errOnPurpose = errors.New("on purpose")

func (r *rig) work(ctx context.Context, task *asynq.Task) error {
	p := payloadOf(task)
	r.mu.Lock()
	r.running[p.User]++
	r.most[p.User] = max(r.most[p.User], r.running[p.User])
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running[p.User]--
		r.ended = append(r.ended, p.Name)
	}()
	retried, _ := asynq.GetRetryCount(ctx)
	switch {
	case strings.HasPrefix(p.Name, "hold"):
		<-r.held
	case p.Name == "fail once" && retried == 0:
		return errOnPurpose
	case strings.HasPrefix(p.Name, "fail for good"):
		return fmt.Errorf("%w: %w", errOnPurpose, asynq.SkipRetry)
	case p.Name == "watch":
		r.mu.Lock()
		first := r.cause == nil
		r.mu.Unlock()
		if !first {
			return nil
		}
		<-ctx.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cause = context.Cause(ctx)
		return ctx.Err()
	}
	return nil
}

// enqueue adds a task whose id is its name.
func (r *rig) enqueue(user, name string, options ...asynq.Option) {
	r.Helper()
	text, err := json.Marshal(payload{user, name})
	if err != nil {
		r.Fatal(err)
	}
	task := asynq.NewTaskWithHeaders("task", text, map[string]string{asynqos.SinceHeader: time.Now().Format(time.RFC3339Nano)})
	if _, err := r.client.Enqueue(task, append(options, asynq.Queue(queue), asynq.TaskID(name), asynq.Retention(time.Hour))...); err != nil {
		r.Fatal(err)
	}
}

// runs waits until a task of a user runs. It has its slot then, which one that is active in asynq may have still to get.
func (r *rig) runs(user string) {
	r.Helper()
	testkit.Eventually(r, "a task of "+user+" runs", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.running[user] != 1 {
			return fmt.Errorf("%d run", r.running[user])
		}
		return nil
	})
}

// failedOnPurpose fails the test unless one task has failed, and once.
func (r *rig) failedOnPurpose() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) != 1 || !errors.Is(r.failures[0], errOnPurpose) {
		r.Errorf("the failures are %v, want %v once", r.failures, errOnPurpose)
	}
}

// state waits until a task has a state, with so many retries spent.
func (r *rig) state(name string, want asynq.TaskState, retried int) {
	r.Helper()
	testkit.Eventually(r, name+" is "+want.String(), func() error {
		info, err := r.inspector.GetTaskInfo(queue, name)
		if err == nil && (info.State != want || info.Retried != retried) {
			err = fmt.Errorf("it is %s, with %d retries spent and the error %q, want %d", info.State, info.Retried, info.LastErr, retried)
		}
		return err
	})
}

// A user's tasks run one after the other; those that wait are kept wherever asynq keeps them, spend no retry, are
// told to nobody as failures, come as soon as there is a slot, and no other user waits for them.
func TestTasksOverTheLimitWait(t *testing.T) {
	r := start(t, 2, nil)
	r.enqueue("ann", "hold 1")
	r.runs("ann")
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("wait ", i))
		r.enqueue("ann", names[i], asynq.MaxRetry(3))
	}
	r.enqueue("ann", "last attempt", asynq.MaxRetry(0))
	names = append(names, "last attempt")
	r.enqueue("bob", "bob's")
	r.enqueue("", "nobody's")
	r.state("bob's", asynq.TaskStateCompleted, 0)
	r.state("nobody's", asynq.TaskStateCompleted, 0)
	for _, name := range names[:20] {
		r.state(name, asynq.TaskStateRetry, 0)
	}
	r.state("last attempt", asynq.TaskStateArchived, 0)
	info, err := r.inspector.GetTaskInfo(queue, names[0])
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(info.NextProcessAt); left < 4*time.Minute || left > 6*time.Minute {
		t.Errorf("a task that waits comes by itself in %v, want about 5 min", left)
	}
	if usage, err := r.slots.User(t.Context(), "ann"); err != nil || len(usage.Held) != 1 || len(usage.Parked) != 21 {
		t.Errorf("ann has %+v (%v), want one slot and 21 tasks in the line", usage, err)
	}
	err = testutil.GatherAndCompare(r.reg, strings.NewReader(`
# HELP sluice_jobs_delayed_total Jobs that had to wait because their user's slots were taken, by tier and by class of queue: priority, default, scheduled or other. Each is counted once, when it is first held back at its insert or refused a slot.
# TYPE sluice_jobs_delayed_total counter
sluice_jobs_delayed_total{class="default",tier="free"} 21
# HELP sluice_jobs_running Jobs that run in a slot in this process, by their user's tier and by queue.
# TYPE sluice_jobs_running gauge
sluice_jobs_running{queue="report_default",tier="free"} 1
`), "sluice_jobs_delayed_total", "sluice_jobs_running")
	if err != nil {
		t.Error(err)
	}
	close(r.held)
	for _, name := range names { // far sooner than they would come by themselves (ParkFor, 5 min)
		r.state(name, asynq.TaskStateCompleted, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most["ann"] != 1 || len(r.failures) != 0 {
		t.Errorf("%d of ann's tasks ran at a time, with the failures %v; want 1 and none", r.most["ann"], r.failures)
	}
	if slices.Sort(r.ended); len(r.ended) != 24 || len(slices.Compact(r.ended)) != 24 {
		t.Errorf("ended: %q, want 24 tasks, each once", r.ended)
	}
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "sluice_jobs_wait_seconds" {
			if n := family.GetMetric()[0].GetHistogram().GetSampleCount(); n != 23 { // all but nobody's
				t.Errorf("the waits of %d tasks are known, want 23", n)
			}
		}
	}
}

// A task that fails does so as without Sluice: it spends a retry, waits as long as the server says, and its error is told.
func TestATaskThatFails(t *testing.T) {
	r := start(t, 2, nil)
	r.enqueue("ann", "fail once", asynq.MaxRetry(3))
	r.state("fail once", asynq.TaskStateCompleted, 1)
	r.failedOnPurpose()
}

// In the archive asynq may delete it. Its handler says when it has failed for good, and nobody wakes it then.
func TestATaskWithARetryLeftDoesNotWaitInTheArchive(t *testing.T) {
	r := start(t, 2, nil)
	r.enqueue("ann", "hold")
	r.runs("ann")
	r.enqueue("ann", "fail for good", asynq.MaxRetry(1))
	r.state("fail for good", asynq.TaskStateRetry, 0)
	close(r.held)
	r.state("fail for good", asynq.TaskStateArchived, 0)
	r.enqueue("ann", "after it", asynq.MaxRetry(1))
	r.state("after it", asynq.TaskStateCompleted, 0)
	r.state("fail for good", asynq.TaskStateArchived, 0)
	r.failedOnPurpose()
}

// inLine waits until so many of a user's tasks are in the line.
func (r *rig) inLine(user string, n int) {
	r.Helper()
	testkit.Eventually(r, "tasks wait", func() error {
		usage, err := r.slots.User(context.Background(), user)
		if err == nil && len(usage.Parked) != n {
			err = fmt.Errorf("%d do, want %d", len(usage.Parked), n)
		}
		return err
	})
}

// Tasks that no worker would start do not hold up those behind them: each reservation would last for 5 s.
func TestATaskBehindThoseThatCannotStart(t *testing.T) {
	deadline := time.Now().Add(10 * time.Second) // until then a slow machine has tried each task
	for name, c := range map[string]struct {
		option asynq.Option
		cannot func(*rig)
	}{
		"their deadline has passed": {
			asynq.Deadline(deadline),
			func(*rig) { time.Sleep(time.Until(deadline.Add(time.Second))) },
		},
		"their queue is paused": {
			asynq.MaxRetry(3),
			func(r *rig) {
				if err := r.inspector.PauseQueue(queue); err != nil {
					r.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, 2, nil)
			r.enqueue("ann", "hold")
			r.runs("ann")
			const n = 20
			for i := range n {
				r.enqueue("ann", fmt.Sprint("cannot start ", i), c.option)
			}
			r.inLine("ann", n)
			text, err := json.Marshal(payload{"ann", "behind"})
			if err != nil {
				t.Fatal(err)
			}
			behind, err := r.client.Enqueue(asynq.NewTask("task", text), asynq.Queue(otherQueue), asynq.Retention(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			r.inLine("ann", n+1)
			c.cannot(r)
			began := time.Now()
			close(r.held)
			testkit.Eventually(t, "the task behind them is done", func() error {
				info, err := r.inspector.GetTaskInfo(otherQueue, behind.ID)
				if err == nil && info.State != asynq.TaskStateCompleted {
					err = fmt.Errorf("it is %s", info.State)
				}
				return err
			})
			// One reservation alone takes 5 s.
			if took := time.Since(began); took > n*5*time.Second/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// asynq keeps a task unique for as long as its producer says, also while it waits for a slot: see docs/jobs.md.
func TestAUniqueTaskIsUniqueForItsTTL(t *testing.T) {
	r := start(t, 2, nil)
	r.enqueue("ann", "hold")
	r.runs("ann")
	text, err := json.Marshal(payload{"ann", "unique"})
	if err != nil {
		t.Fatal(err)
	}
	enqueue := func() error {
		_, err := r.client.Enqueue(asynq.NewTask("task", text), asynq.Queue(queue), asynq.Unique(2*time.Second))
		return err
	}
	if err := enqueue(); err != nil {
		t.Fatal(err)
	}
	if err := enqueue(); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("a second one: %v, want %v", err, asynq.ErrDuplicateTask)
	}
	testkit.Eventually(t, "it is unique no more, though it waits", enqueue)
	close(r.held)
	testkit.Eventually(t, "both run", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.ended) != 3 {
			return fmt.Errorf("%q have ended", r.ended)
		}
		return nil
	})
}

// No slots take it, and nobody would learn why it waits.
func TestATaskWhoseIDIsTooLongFails(t *testing.T) {
	r := start(t, 2, nil)
	id := strings.Repeat("x", jobs.MaxName)
	r.enqueue("ann", id, asynq.MaxRetry(0))
	r.state(id, asynq.TaskStateArchived, 0)
	r.enqueue("ann", "short", asynq.MaxRetry(3))
	r.state("short", asynq.TaskStateCompleted, 0)
	r.state(id, asynq.TaskStateArchived, 0) // no sweep takes it for one that waits
	r.mu.Lock()
	defer r.mu.Unlock()
	want := "acquire a slot: job of 533 bytes: invalid, want names of up to 512 bytes"
	if len(r.failures) != 1 || r.failures[0].Error() != want || slices.Contains(r.ended, id) {
		t.Errorf("the failures are %v, want %s", r.failures, want)
	}
}

// Without slots nothing runs, and nothing is lost.
func TestSlotsThatCannotBeReached(t *testing.T) {
	skipIfShort(t)
	r := start(t, 2, nil)
	r.slotsProc.Kill()
	r.enqueue("ann", "plain", asynq.MaxRetry(3))
	r.enqueue("ann", "last attempt", asynq.MaxRetry(0))
	r.enqueue("", "nobody's")
	r.state("nobody's", asynq.TaskStateCompleted, 0)
	r.state("plain", asynq.TaskStateRetry, 0)
	r.state("last attempt", asynq.TaskStateArchived, 0)
	if r.mu.Lock(); r.most["ann"] != 0 {
		t.Errorf("%d tasks ran uncounted, want none", r.most["ann"])
	}
	r.mu.Unlock()
	testkit.RedisAt(t, r.slotsAddr)
	r.state("plain", asynq.TaskStateCompleted, 0)
	r.state("last attempt", asynq.TaskStateCompleted, 0)
}

// Redis is flushed, or a reservation lapsed before asynq had written that the task waits.
func TestTasksThatTheSlotsForgot(t *testing.T) {
	skipIfShort(t)
	r := start(t, 2, func(c *asynqos.Config) { c.Runner.Lease = time.Hour })
	r.enqueue("ann", "hold")
	r.runs("ann")
	r.enqueue("ann", "waits", asynq.MaxRetry(3))
	r.enqueue("ann", "last attempt", asynq.MaxRetry(0))
	r.state("waits", asynq.TaskStateRetry, 0)
	r.state("last attempt", asynq.TaskStateArchived, 0)
	if err := connect(t, r.slotsAddr).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.state("waits", asynq.TaskStateCompleted, 0)
	r.state("last attempt", asynq.TaskStateCompleted, 0)
	close(r.held)
	r.state("hold", asynq.TaskStateCompleted, 0)
}

// A new version of the program has no user for tasks that wait: they run without a slot.
func TestTasksThatLoseTheirUserWhileTheyWait(t *testing.T) {
	var system atomic.Bool
	r := start(t, 2, func(c *asynqos.Config) {
		c.Runner.Reserve = time.Second
		c.User = func(task *asynq.Task) string {
			if system.Load() {
				return ""
			}
			return payloadOf(task).User
		}
	})
	r.enqueue("ann", "hold")
	r.runs("ann")
	r.enqueue("ann", "waits", asynq.MaxRetry(3))
	r.enqueue("ann", "last attempt", asynq.MaxRetry(0))
	r.state("waits", asynq.TaskStateRetry, 0)
	r.state("last attempt", asynq.TaskStateArchived, 0)
	system.Store(true)
	r.state("waits", asynq.TaskStateCompleted, 0)
	r.state("last attempt", asynq.TaskStateCompleted, 0)
	close(r.held)
	r.state("hold", asynq.TaskStateCompleted, 0)
}

// A task whose slot is lost is told so, and tried again without having spent a retry.
func TestALostSlotEndsATask(t *testing.T) {
	r := start(t, 2, nil)
	r.enqueue("ann", "watch", asynq.MaxRetry(3))
	r.runs("ann")
	other := jobs.Claim{Job: jobs.Job{User: "ann", ID: "asynq/" + queue + "/watch", Queue: "report"}, Holder: "another attempt"}
	if verdict, err := r.slots.Acquire(t.Context(), other, jobs.Limits{Total: 1}, 10*time.Second, false); err != nil || !verdict.Granted {
		t.Fatalf("Acquire() = %+v, %v, want another attempt to take over the slot", verdict, err)
	}
	r.state("watch", asynq.TaskStateCompleted, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(r.cause, jobs.ErrLeaseLost) || len(r.failures) != 0 {
		t.Errorf("the task's context ended: %v, with the failures %v; want %v and none", r.cause, r.failures, jobs.ErrLeaseLost)
	}
}

// workerEnv makes this program a worker whose tasks never end: the two Redis.
const workerEnv = "ASYNQOS_TEST_WORKER"

// skipIfShort leaves a slow test to make test-postgres.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: make test-postgres runs this test")
	}
}

func TestMain(m *testing.M) {
	if addrs := os.Getenv(workerEnv); addrs != "" {
		runWorker(addrs)
	}
	os.Exit(m.Run())
}

func runWorker(addrs string) {
	queueAddr, slotsAddr, _ := strings.Cut(addrs, " ")
	client := redis.NewClient(&redis.Options{Addr: queueAddr})
	fair, err := asynqos.New(configOf(client, redis.NewClient(&redis.Options{Addr: slotsAddr})))
	if err != nil {
		panic(err)
	}
	go func() { _ = fair.Run(context.Background()) }()
	server := asynq.NewServerFromRedisClient(client, fair.Configure(asynq.Config{Queues: map[string]int{queue: 1}, Concurrency: 1}))
	err = server.Run(fair.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { <-ctx.Done(); return ctx.Err() })))
	fmt.Println(err)
	os.Exit(1)
}

// The slot of a worker that was killed is free when its lease is over, and the task that waits for it comes then,
// though nobody gave the slot back.
func TestAKilledWorkersSlotIsFreeAfterItsLease(t *testing.T) {
	_, queueAddr := testkit.Redis(t)
	_, slotsAddr := testkit.Redis(t)
	worker := testkit.Start(t, []string{workerEnv + "=" + queueAddr + " " + slotsAddr}, os.Args[0])
	redisClient, slotsClient := connect(t, queueAddr), connect(t, slotsAddr)
	r := &rig{TB: t, running: map[string]int{}, most: map[string]int{}, client: asynq.NewClientFromRedisClient(redisClient), inspector: asynq.NewInspectorFromRedisClient(redisClient)}
	r.enqueue("ann", "of the dead", asynq.MaxRetry(3))
	r.state("of the dead", asynq.TaskStateActive, 0)
	cfg := configOf(redisClient, slotsClient)
	testkit.Eventually(t, "it has its slot", func() error {
		if usage, err := cfg.Runner.Slots.User(t.Context(), "ann"); err != nil || len(usage.Held) != 1 {
			return fmt.Errorf("%+v, %v", usage, err)
		}
		return nil
	})
	serve(t, redisClient, cfg, asynq.Config{Concurrency: 2}, r.work)
	r.enqueue("ann", "waits", asynq.MaxRetry(3))
	r.state("waits", asynq.TaskStateRetry, 0)
	if err := worker.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.state("waits", asynq.TaskStateCompleted, 0)
}

func TestConfig(t *testing.T) {
	if _, err := asynqos.New(asynqos.Config{}); err == nil || err.Error() != "asynqos: Redis and User are required" {
		t.Errorf("New() = %v, want what is missing", err)
	}
	cfg := configOf(connect(t, "127.0.0.1:1"), connect(t, "127.0.0.1:1"))
	cfg.Runner.Lease = -time.Second
	if _, err := asynqos.New(cfg); err == nil || err.Error() != "asynqos: Lease is -1s, want a positive duration" {
		t.Errorf("New() = %v, want what is wrong", err)
	}
}
