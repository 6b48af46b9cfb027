package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// oneAtATime are Tiers in which each user may run one job.
type oneAtATime struct{}

func (oneAtATime) Tier(context.Context, string) (Tier, error) {
	return Tier{Name: "free", Limits: Limits{Total: 1}}, nil
}

// noQueue has no jobs.
type noQueue struct{}

func (noQueue) Wake(context.Context, []string) (map[string]WakeResult, error) { return nil, nil }

func (noQueue) Parked(context.Context, time.Duration, func([]Job) error) error { return nil }

// newTestRunner completes a configuration that has Slots and a Queue.
func newTestRunner(t *testing.T, cfg RunnerConfig) *Runner {
	t.Helper()
	cfg.Name, cfg.Logger = "test", slog.New(slog.NewTextHandler(t.Output(), nil))
	if cfg.Tiers == nil {
		cfg.Tiers = oneAtATime{}
	}
	runner, err := NewRunner(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return runner
}

// runs calls Run until the test, or stop, ends it.
func runs(t *testing.T, runner *Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := runner.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	stop = func() { cancel(); ran.Wait() }
	t.Cleanup(stop)
	return stop
}

func claimOf(user, job, holder string) Claim {
	return Claim{Job: Job{User: user, ID: job, Queue: "slow"}, Holder: holder}
}

// memoryQueue is the smallest job queue that a Runner can work: jobs are available, run, or
// wait until a time.
type memoryQueue struct {
	mu   sync.Mutex
	jobs map[string]*memoryJob
}

type memoryJob struct {
	user      string
	available bool
	delay     *Delay // why it waits; nil: it does not
	until     time.Time
	refused   time.Time
	attempts  int // that count
	ended     error
	over      bool
	delayed   bool
}

func (q *memoryQueue) Wake(ctx context.Context, ids []string) (map[string]WakeResult, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	results := map[string]WakeResult{}
	for _, id := range ids {
		switch job := q.jobs[id]; {
		case job == nil || job.over:
		case job.available:
			results[id] = WakeAwake
		case job.delay == nil:
			results[id] = WakeEarly
		default:
			job.available, job.delay = true, nil
			results[id] = WakeDone
		}
	}
	return results, nil
}

func (q *memoryQueue) Parked(_ context.Context, age time.Duration, do func([]Job) error) error {
	q.mu.Lock()
	var parked []Job
	for id, job := range q.jobs {
		if job.delay != nil && job.delay.Parked && time.Since(job.refused) > age {
			parked = append(parked, Job{User: job.user, ID: id})
		}
	}
	q.mu.Unlock()
	return do(parked)
}

// add makes a job available.
func (q *memoryQueue) add(user, id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs == nil {
		q.jobs = map[string]*memoryJob{}
	}
	q.jobs[id] = &memoryJob{user: user, available: true}
}

// take returns a job that may run, the first by id.
func (q *memoryQueue) take() (id string, job *memoryJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, candidate := range q.jobs {
		if candidate.delay != nil && !time.Now().Before(candidate.until) {
			candidate.available, candidate.delay = true, nil
		}
		if candidate.available && !candidate.over && (id == "" || name < id) {
			id, job = name, candidate
		}
	}
	if job != nil {
		job.available = false
	}
	return id, job
}

// work is the loop of a worker, one job at a time.
func (q *memoryQueue) work(ctx context.Context, runner *Runner, do func(ctx context.Context, user, id string) error) {
	for ctx.Err() == nil {
		id, job := q.take()
		if job == nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		err := runner.Work(ctx, Attempt{
			User: job.user, ID: id, Queue: "slow_default", Since: time.Now(),
			Delayed: func(context.Context) bool { return job.delayed },
		}, func(ctx context.Context) error { return do(ctx, job.user, id) })
		q.mu.Lock()
		if delay := new(Delay); errors.As(err, &delay) {
			job.delay, job.until, job.refused = delay, time.Now().Add(delay.For), time.Now()
			job.delayed = job.delayed || errors.Is(err, ErrSlotsTaken)
		} else {
			job.attempts++
			job.over, job.ended = true, err
		}
		q.mu.Unlock()
	}
}

// begun notes which jobs have run, and how many of a user's at a time.
type begun struct {
	mu      sync.Mutex
	order   []string
	running map[string]int
	most    map[string]int
}

func (b *begun) during(user, id string, do func()) {
	b.mu.Lock()
	if b.running == nil {
		b.running, b.most = map[string]int{}, map[string]int{}
	}
	b.order = append(b.order, id)
	b.running[user]++
	b.most[user] = max(b.most[user], b.running[user])
	b.mu.Unlock()
	do()
	b.mu.Lock()
	b.running[user]--
	b.mu.Unlock()
}

// A long backlog of one user: their jobs run one after the other, each once and as soon as the
// one before it has ended, and another user's job waits for none of them.
func TestRunnerRunsUsersJobsInTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		queue, noted := &memoryQueue{}, &begun{}
		runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: queue, Registry: registry})
		runs(t, runner)
		for i := range 9 {
			queue.add("ann", fmt.Sprint("a", i))
		}
		queue.add("bob", "b")
		queue.add("", "system")
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var bobAfter time.Duration
		var workers sync.WaitGroup
		for range 3 {
			workers.Go(func() {
				queue.work(ctx, runner, func(_ context.Context, user, id string) error {
					if id == "b" {
						bobAfter = time.Since(began)
					}
					noted.during(user, id, func() { time.Sleep(time.Second) })
					return nil
				})
			})
		}
		time.Sleep(9*time.Second + 500*time.Millisecond)
		cancel()
		workers.Wait()
		if bobAfter > 100*time.Millisecond {
			t.Errorf("bob's job began after %v, want it not to wait for ann's", bobAfter)
		}
		slices.Sort(noted.order)
		if want := []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "b", "system"}; !slices.Equal(noted.order, want) {
			t.Errorf("within 9.5 s began %q, want %q", noted.order, want)
		}
		if noted.most["ann"] != 1 {
			t.Errorf("%d of ann's jobs ran at a time, want 1", noted.most["ann"])
		}
		for id, job := range queue.jobs {
			if job.attempts != 1 || job.ended != nil {
				t.Errorf("job %s spent %d attempts and ended with %v, want 1 and nil", id, job.attempts, job.ended)
			}
		}
		err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP sluice_jobs_delayed_total Jobs that had to wait because their user's slots were taken, by tier and by class of queue: priority, default, scheduled or other. Each is counted once, when it is first held back at its insert or refused a slot.
# TYPE sluice_jobs_delayed_total counter
sluice_jobs_delayed_total{class="default",tier="free"} 8
# HELP sluice_jobs_running Jobs that run in a slot in this process, by their user's tier and by queue.
# TYPE sluice_jobs_running gauge
sluice_jobs_running{queue="slow_default",tier="free"} 0
# HELP sluice_jobs_handed_total Slots that were reserved for parked jobs.
# TYPE sluice_jobs_handed_total counter
sluice_jobs_handed_total 8
`), "sluice_jobs_delayed_total", "sluice_jobs_running", "sluice_jobs_handed_total")
		if err != nil {
			t.Error(err)
		}
	})
}

// unreachable are Slots that may not answer.
type unreachable struct {
	Slots
	down atomic.Bool
}

func (u *unreachable) Acquire(ctx context.Context, c Claim, l Limits, lease time.Duration, park bool) (Verdict, error) {
	if u.down.Load() {
		return Verdict{}, errors.New("no answer")
	}
	return u.Slots.Acquire(ctx, c, l, lease, park)
}

func TestWork(t *testing.T) {
	failed := errors.New("it failed")
	for _, c := range []struct {
		name    string
		snooze  bool
		down    bool
		taken   bool // another job of the user has the slot
		user    string
		id      string // "" is a short one
		delayed bool   // before
		do      error
		ran     bool
		want    error
		delay   Delay // the least For
		most    time.Duration
		counts  string // refused by reason, delayed, snoozes
	}{
		{name: "a job without a user is governed by nothing", down: true, taken: true, ran: true, do: failed, want: failed, counts: "0 0 0"},
		{name: "a slot is free", user: "ann", ran: true, counts: "0 0 0"},
		{name: "the job's error", user: "ann", ran: true, do: failed, want: failed, counts: "0 0 0"},
		{name: "no slot", user: "ann", taken: true, want: ErrSlotsTaken, delay: Delay{For: 5 * time.Minute, Parked: true}, counts: "1 1 0"},
		{name: "no slot, once more", user: "ann", taken: true, delayed: true, want: ErrSlotsTaken, delay: Delay{For: 5 * time.Minute, Parked: true}, counts: "1 0 0"},
		{name: "no slot, and nobody parks", snooze: true, user: "ann", taken: true, want: ErrSlotsTaken, delay: Delay{For: 30 * time.Second}, most: 40 * time.Second, counts: "1 1 1"},
		{name: "an id that is too long", user: "ann", id: strings.Repeat("x", MaxName+1), want: ErrInvalid, counts: "0 0 0"},
		{name: "slots that do not answer", user: "ann", down: true, want: ErrSlotsDown, delay: Delay{For: 2 * time.Second, Parked: true}, counts: "1 0 1"},
		{name: "slots that do not answer, and nobody parks", snooze: true, user: "ann", down: true, want: ErrSlotsDown, delay: Delay{For: 2 * time.Second}, counts: "1 0 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			slots := &unreachable{Slots: NewMemory(nil)}
			runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: noQueue{}, Snooze: c.snooze})
			if c.taken {
				if _, err := slots.Acquire(t.Context(), claimOf("ann", "other", "x"), Limits{Total: 1}, time.Hour, false); err != nil {
					t.Fatal(err)
				}
			}
			slots.down.Store(c.down)
			ran := false
			err := runner.Work(t.Context(), Attempt{User: c.user, ID: cmp.Or(c.id, "1"), Queue: "slow_default", Delayed: func(context.Context) bool { return c.delayed }},
				func(context.Context) error { ran = true; return c.do })
			if ran != c.ran || !errors.Is(err, c.want) {
				t.Errorf("Work() = %v, and the job ran: %v; want %v, %v", err, ran, c.want, c.ran)
			}
			delay := new(Delay)
			if errors.As(err, &delay) != (c.delay.For > 0) || delay.For < c.delay.For || delay.For > cmp.Or(c.most, 2*c.delay.For) || delay.Parked != c.delay.Parked {
				t.Errorf("the delay is %+v, want %+v, and up to %v", delay, c.delay, cmp.Or(c.most, 2*c.delay.For))
			}
			refused := 0.0
			for _, reason := range []string{"total", "queue", "line", "unreachable"} {
				refused += testutil.ToFloat64(runner.metrics.Refused.WithLabelValues("free", reason))
			}
			got := fmt.Sprint(refused, testutil.ToFloat64(runner.metrics.Delayed.WithLabelValues("free", "default")), testutil.ToFloat64(runner.metrics.Snoozes.WithLabelValues("free")))
			if got != c.counts {
				t.Errorf("refused, delayed, snoozed: %s, want %s", got, c.counts)
			}
		})
	}
}

// Metrics count jobs of dedicated queues in one of the three classes, which alerts compare with.
func TestClassLabel(t *testing.T) {
	for queue, want := range map[string]string{
		"analysis_priority":            "priority",
		"analysis_priority-enterprise": "priority",
		"analysis_default-user-alice":  "default",
		"analysis_scheduled-pro-plus":  "scheduled",
		"analysis_priority-":           "other",
		"mail":                         "other",
	} {
		registry := prometheus.NewRegistry()
		runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}, Registry: registry})
		runner.CountDelayed("free", queue, 1)
		if err := runner.Work(t.Context(), Attempt{User: "ann", ID: "1", Queue: queue, Since: time.Now()}, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, family := range families {
			for _, label := range family.Metric[0].Label {
				if label.GetName() == "class" {
					got[family.GetName()] = label.GetValue()
				}
			}
		}
		if want := map[string]string{"sluice_jobs_delayed_total": want, "sluice_jobs_wait_seconds": want}; !maps.Equal(got, want) {
			t.Errorf("the classes of %s are %v, want %v", queue, got, want)
		}
	}
}

// A job that has run into a lost lease has not failed, but one that has done its work has.
func TestWorkOfALostLease(t *testing.T) {
	for _, err := range []error{nil, errors.New("it was cut off")} {
		synctest.Test(t, func(t *testing.T) {
			runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}}) // nobody calls Run
			released := 0
			got := runner.Work(t.Context(), Attempt{User: "ann", ID: "1", Released: func(Limits, bool) { released++ }}, func(ctx context.Context) error {
				<-ctx.Done()
				if cause := context.Cause(ctx); cause != ErrLeaseLost {
					t.Errorf("the job's context ended: %v, want %v", cause, ErrLeaseLost)
				}
				return err
			})
			if delay := new(Delay); errors.As(got, &delay) != (err != nil) || err != nil && (!errors.Is(got, ErrLeaseLost) || !errors.Is(got, err)) {
				t.Errorf("Work() = %v, want a delay for the lost lease if the job says %v", got, err)
			}
			if released != 1 {
				t.Errorf("Released was called %d times, want 1", released)
			}
		})
	}
}

// A worker that stops gives back the slot that it may have got, or that it could not give back.
func TestRunGivesSlotsBackAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := &unreachable{Slots: NewMemory(nil)}
		runner := newTestRunner(t, RunnerConfig{Slots: slots, Queue: noQueue{}, SweepInterval: time.Hour})
		stop := runs(t, runner)
		ctx, cancel := context.WithCancel(t.Context())
		err := runner.Work(ctx, Attempt{User: "ann", ID: "1"}, func(ctx context.Context) error {
			cancel() // as SIGTERM does
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Work() = %v, want %v", err, context.Canceled)
		}
		runner.releaser.releaseLater(claimed{claim: claimOf("bob", "2", "h"), tier: Tier{Limits: Limits{Total: 1}}})
		if _, err := slots.Acquire(t.Context(), claimOf("bob", "2", "h"), Limits{Total: 1}, time.Hour, false); err != nil {
			t.Fatal(err)
		}
		stop()
		for _, user := range []string{"ann", "bob", "~sweep.test"} {
			if usage, err := slots.User(t.Context(), user); err != nil || len(usage.Held) != 0 {
				t.Errorf("%s holds %+v (%v), want nothing", user, usage.Held, err)
			}
		}
	})
}

// oddQueue are Tiers whose limits no Slots take.
type oddQueue struct{}

func (oddQueue) Tier(context.Context, string) (Tier, error) {
	return Tier{Name: "free", Limits: Limits{Total: 1, Queues: map[string]int{strings.Repeat("x", MaxName+1): 1}}}, nil
}

// A call that the Slots refuse as invalid has taken no slot, and does not keep others from being given back.
func TestWhatSlotsRefuseAsInvalidIsNotGivenBack(t *testing.T) {
	runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}, Tiers: oddQueue{}})
	if err := runner.Work(t.Context(), Attempt{User: "ann", ID: "1"}, func(context.Context) error { return nil }); !errors.Is(err, ErrSlotsDown) {
		t.Errorf("Work() = %v, want %v", err, ErrSlotsDown)
	}
	if got := len(runner.releaser.unreleased); got != 0 {
		t.Errorf("%d slots are to be given back, want 0", got)
	}
	held := claimOf("bob", "2", "h")
	if _, err := runner.cfg.Slots.Acquire(t.Context(), held, Limits{Total: 1}, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	runner.releaser.releaseLater(claimed{claim: claimOf("ann", "1", "h")}) // with a limit of 0
	runner.releaser.releaseLater(claimed{claim: held, tier: Tier{Limits: Limits{Total: 1}}})
	runner.releaser.releaseAgain(t.Context())
	if usage, err := runner.cfg.Slots.User(t.Context(), "bob"); err != nil || len(usage.Held) != 0 || len(runner.releaser.unreleased) != 0 {
		t.Errorf("bob holds %+v (%v), and %d slots are to be given back; want none", usage.Held, err, len(runner.releaser.unreleased))
	}
}

func TestUnreleasedSlotsAreBounded(t *testing.T) {
	runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}})
	for range maxUnreleased + 5 {
		runner.releaser.releaseLater(claimed{})
	}
	if got := len(runner.releaser.unreleased); got != maxUnreleased {
		t.Errorf("%d slots are to be given back, want %d", got, maxUnreleased)
	}
	if got := testutil.ToFloat64(runner.metrics.Errors.WithLabelValues("release")); got != 5 {
		t.Errorf("%v slots are counted as left to their leases, want 5", got)
	}
}

func TestRunnerConfig(t *testing.T) {
	complete := RunnerConfig{Name: "test", Slots: NewMemory(nil), Tiers: oneAtATime{}, Queue: noQueue{}}
	for want, change := range map[string]func(*RunnerConfig){
		"Slots, Tiers, Queue and a Name of up to 256 bytes are required": func(c *RunnerConfig) { c.Queue = nil },
		"Lease is -1s, want a positive duration":                         func(c *RunnerConfig) { c.Lease = -time.Second },
		"ParkFor is -1s, want a positive duration":                       func(c *RunnerConfig) { c.ParkFor = -time.Second },
	} {
		cfg := complete
		change(&cfg)
		if _, err := NewRunner(cfg); err == nil || err.Error() != want {
			t.Errorf("NewRunner() = %v, want %s", err, want)
		}
	}
	if _, err := NewRunner(complete); err != nil {
		t.Errorf("NewRunner() = %v, want nil", err)
	}
}

func TestUserKey(t *testing.T) {
	for name, want := range map[string]string{
		"ann":    "ann",
		"~sweep": "~D83D44304A89452D631C5830118572E0C7B260F41DE74F86751C48A65CF17C45", // nobody is whom the turns to sweep are kept for
		"\xff":   "~A8100AE6AA1940D0B663BB31CD466142EBBDBD5187131B92D93818987832EB89",
	} {
		if got := UserKey(name); got != want {
			t.Errorf("UserKey(%q) = %q, want %q", name, got, want)
		}
	}
}
