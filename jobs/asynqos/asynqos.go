// Package asynqos makes asynq (github.com/hibiken/asynq) fair among users: each user's tasks run in at most so many slots
// over all workers. A task above that waits in asynq's set of retries, without spending one, until a slot is reserved for it.
// One that has no retry left waits in the archive, where asynq deletes all but the newest 9 999 tasks of a queue, for good:
// producers have to leave a retry, see docs/jobs.md. It is an adapter of jobs.Runner.
package asynqos

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	// SinceHeader says from when on a task could run (time.RFC3339Nano), for the metric of waits.
	SinceHeader = "sluice-since"
	// lastError is how tasks that wait are known again; true or false follows, by Delay.Parked.
	lastError = "sluice: waits for a slot of its user; somebody wakes it: "
	pageSize  = 1000 // tasks that are read at a time
)

// Config says how to be fair. All but the defaults of Runner are required.
type Config struct {
	// Runner needs Slots, Tiers and a Name, which tells this asynq from others with the same Slots.
	Runner jobs.RunnerConfig
	Redis  redis.UniversalClient // asynq's
	// User returns the name of a task's user, or "": such a task is governed by nothing.
	User func(*asynq.Task) string
}

// Fairness ties asynq to the users' limits. It is safe for concurrent use.
type Fairness struct {
	*jobs.Runner // Run is for each worker, until its asynq.Server has shut down
	user         func(*asynq.Task) string
	inspector    *asynq.Inspector
	prefix       string // of its jobs in the Slots

	mu     sync.Mutex
	paused map[string]pause // by queue
}

// pause is whether a queue is paused, as it was a moment ago.
type pause struct {
	is bool
	at time.Time
}

// New checks the configuration. It starts nothing: see Run.
func New(cfg Config) (f *Fairness, err error) {
	if cfg.Redis == nil || cfg.User == nil {
		return nil, errors.New("asynqos: Redis and User are required")
	}
	f = &Fairness{user: cfg.User, prefix: url.PathEscape(cfg.Runner.Name) + "/", inspector: asynq.NewInspectorFromRedisClient(cfg.Redis), paused: map[string]pause{}}
	cfg.Runner.Queue = f
	if f.Runner, err = jobs.NewRunner(cfg.Runner); err != nil {
		return nil, fmt.Errorf("asynqos: %w", err)
	}
	return f, nil
}

type waits struct{ *jobs.Delay }

func (w waits) Error() string { return fmt.Sprint(lastError, w.Parked) }

// Configure returns a server's configuration in which tasks that wait have not failed.
func (f *Fairness) Configure(cfg asynq.Config) asynq.Config {
	isFailure, retryDelay, handler := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler
	cfg.IsFailure = func(err error) bool { return !errors.As(err, new(waits)) && (isFailure == nil || isFailure(err)) }
	cfg.RetryDelayFunc = func(retried int, err error, task *asynq.Task) time.Duration {
		if wait := new(waits); errors.As(err, wait) {
			return wait.For
		} else if retryDelay == nil {
			return asynq.DefaultRetryDelayFunc(retried, err, task)
		}
		return retryDelay(retried, err, task)
	}
	cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		if handler != nil && !errors.As(err, new(waits)) {
			handler.HandleError(ctx, task, err)
		}
	})
	return cfg
}

// Middleware is for asynq.ServeMux.Use: it runs tasks in slots of their users.
func (f *Fairness) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := f.Work(ctx, f.attempt(ctx, task), func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
		// One that has ended itself is not needed any more, with or without a slot.
		if delay := new(jobs.Delay); errors.As(err, &delay) && !errors.Is(err, asynq.SkipRetry) && !errors.Is(err, asynq.RevokeTask) {
			return waits{delay}
		}
		return err
	})
}

func (f *Fairness) attempt(ctx context.Context, task *asynq.Task) jobs.Attempt {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	since, _ := time.Parse(time.RFC3339Nano, task.Headers()[SinceHeader]) // none is zero
	// asynq keeps one error of a task: after a failure nobody knows whether it waited before.
	delayed := func(context.Context) bool {
		info, err := f.inspector.GetTaskInfo(queue, id)
		return retried > 0 || err != nil || strings.HasPrefix(info.LastErr, lastError)
	}
	return jobs.Attempt{User: jobs.UserKey(f.user(task)), ID: f.jobID(queue, id), Queue: queue, Since: since, Retry: retried > 0, Delayed: delayed}
}

// isWaiting reports whether a task may be woken. From the archive it would not come by itself; nobody has put it
// there by hand if it has no retry left.
func isWaiting(info *asynq.TaskInfo) bool {
	archived := info.State == asynq.TaskStateArchived && info.Retried >= info.MaxRetry && strings.HasPrefix(info.LastErr, lastError)
	return archived || info.State == asynq.TaskStateRetry && info.LastErr == lastError+"true"
}

func (f *Fairness) isPaused(queue string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.paused[queue]
	if time.Since(last.at) > time.Second {
		info, err := f.inspector.GetQueueInfo(queue)
		last = pause{err == nil && info.Paused, time.Now()}
		f.paused[queue] = last
	}
	return last.is
}

// jobID is a task's id in the Slots: {Name}/{queue}/{task id}, with the special characters of the first two as in a URL.
func (f *Fairness) jobID(queue, id string) string { return f.prefix + url.PathEscape(queue) + "/" + id }

// Wake makes tasks available, one after the other. Tasks that no worker would start lose their reservations to the
// user's next tasks: those whose deadline has passed, and those in paused queues.
func (f *Fairness) Wake(ctx context.Context, ids []string) (results map[string]jobs.WakeResult, err error) {
	results = make(map[string]jobs.WakeResult, len(ids))
	for _, job := range ids {
		rest, ours := strings.CutPrefix(job, f.prefix)
		escaped, id, split := strings.Cut(rest, "/")
		queue, bad := url.PathUnescape(escaped)
		if !ours || !split || bad != nil {
			results[job] = jobs.WakeForeign
			continue
		}
		// asynq's inspector does not mind a context.
		if err := ctx.Err(); err != nil {
			return results, err
		}
		if results[job], err = f.wake(queue, id); err != nil {
			return results, err
		}
	}
	return results, nil
}

func (f *Fairness) wake(queue, id string) (jobs.WakeResult, error) {
	switch info, err := f.inspector.GetTaskInfo(queue, id); {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return jobs.WakeGone, nil
	case err != nil:
		return jobs.WakeGone, err
	case info.State == asynq.TaskStateActive:
		return jobs.WakeEarly, nil
	case !info.Deadline.IsZero() && time.Now().After(info.Deadline), f.isPaused(queue):
		return jobs.WakeGone, nil
	case info.State == asynq.TaskStatePending:
		return jobs.WakeAwake, nil
	case isWaiting(info):
		return jobs.WakeDone, f.inspector.RunTask(queue, id)
	}
	return jobs.WakeGone, nil
}

// Parked reads the retries and the archive of all queues, page by page. Tasks that leave a page meanwhile may have
// others be left out, until it is called again.
func (f *Fairness) Parked(ctx context.Context, age time.Duration, do func([]jobs.Job) error) error {
	queues, err := f.inspector.Queues()
	for _, queue := range queues {
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){f.inspector.ListRetryTasks, f.inspector.ListArchivedTasks} {
			more := err == nil
			for page := 1; more && ctx.Err() == nil; page++ {
				var tasks []*asynq.TaskInfo
				tasks, err = list(queue, asynq.PageSize(pageSize), asynq.Page(page))
				var waiting []jobs.Job
				for _, task := range tasks {
					if isWaiting(task) && time.Since(task.LastFailedAt) > age {
						user := f.user(asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers))
						waiting = append(waiting, jobs.Job{User: jobs.UserKey(user), ID: f.jobID(queue, task.ID)})
					}
				}
				err = errors.Join(err, do(waiting))
				more = err == nil && len(tasks) == pageSize
			}
		}
	}
	return errors.Join(err, ctx.Err())
}
