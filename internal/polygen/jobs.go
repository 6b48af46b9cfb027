package polygen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

const (
	// answerTimeout is how long workers may take to answer: longer than a worker waits for its database.
	answerTimeout = 3 * time.Second
	// answerFor is how long an answer serves further questions.
	answerFor = time.Second
	// maxWorkers bounds the workers: any worker of a database knows all of it.
	maxWorkers = 32
)

// workersFlags are those of polygen and sluice up.
var workersFlags = client.Flags{Address: "--jobs-worker", TokenFile: "--jobs-token-file", CA: "--jobs-ca"}

// workers are workers of background jobs. polygen knows neither the job queue nor the slots, so it asks them: only when
// somebody wants to know, and all at once. They are safe for concurrent use.
type workers struct {
	all []*worker
	log *slog.Logger

	mu     sync.Mutex // held while workers are asked, so that callers meanwhile share the answer
	asked  time.Time
	answer api.Jobs // without its head
}

type worker struct {
	*client.Worker
	away atomic.Bool // it did not answer the last question
}

func newWorkers(addresses []string, access client.Access, log *slog.Logger) (*workers, error) {
	if len(addresses) > maxWorkers {
		return nil, fmt.Errorf("%s: %d workers, want %d at most: any worker of a database knows all of it", workersFlags.Address, len(addresses), maxWorkers)
	}
	w := &workers{log: log}
	for _, address := range addresses {
		c, err := client.NewWorker(address, access, workersFlags)
		if err != nil {
			return nil, err
		}
		w.all = append(w.all, &worker{Worker: c})
	}
	return w, nil
}

func (w *workers) close() {
	for _, worker := range w.all {
		worker.Close()
	}
}

// Jobs returns the n users with most waiting background jobs, workerapi.MaxListed at most.
func (p *Polygen) Jobs(ctx context.Context, n int) api.Jobs {
	out := p.workers.jobs(ctx, n)
	out.From = p.answerHead()
	return out
}

func (w *workers) jobs(ctx context.Context, n int) api.Jobs {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.asked) >= answerFor {
		lists, asked := askWorkers(ctx, w, func(ctx context.Context, worker *worker) (workerapi.UserList, error) {
			return worker.Users(ctx, workerapi.MaxListed)
		})
		w.answer = mergeLists(lists)
		w.answer.Workers, w.asked = asked, time.Now()
	}
	out := w.answer
	out.Users = slices.Clone(out.Users[:min(n, len(out.Users))])
	return out
}

// Job returns why a background job waits. The error matches api.ErrNoJob if every worker says that there is none, and
// api.ErrNoWorker if none knows it and some did not answer.
func (p *Polygen) Job(ctx context.Context, id int64) (api.Job, error) {
	out, err := p.workers.job(ctx, id)
	out.From = p.answerHead()
	return out, err
}

func (w *workers) job(ctx context.Context, id int64) (api.Job, error) {
	answers, asked := askWorkers(ctx, w, func(ctx context.Context, worker *worker) (*workerapi.Why, error) {
		why, err := worker.Job(ctx, id)
		if errors.Is(err, api.ErrNoJob) {
			return nil, nil // an answer
		}
		return &why, err
	})
	job := api.Job{Workers: asked}
	for _, why := range answers {
		// Any worker of a database says the same.
		if why != nil && !slices.ContainsFunc(job.Jobs, func(other workerapi.Why) bool { return other.Database == why.Database }) {
			job.Jobs = append(job.Jobs, *why)
		}
	}
	if len(job.Jobs) > 0 {
		return job, nil
	}
	var problems []string
	for _, worker := range asked {
		if worker.Problem != "" {
			problems = append(problems, worker.Problem)
		}
	}
	if len(asked) == 0 {
		problems = []string{"polygen asks none: name them with its flag " + workersFlags.Address}
	}
	if len(problems) > 0 {
		return job, fmt.Errorf("%w: %s", api.ErrNoWorker, strings.Join(problems, "; "))
	}
	return job, api.ErrNoJob
}

// askWorkers asks all workers at once. Answers are in the order of the workers, without those that failed.
func askWorkers[T any](ctx context.Context, w *workers, question func(context.Context, *worker) (T, error)) (answers []T, asked []api.JobWorker) {
	// The answer is for others too, so the end of the client does not cancel it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	all, errs := make([]T, len(w.all)), make([]error, len(w.all))
	var asking sync.WaitGroup
	for i, worker := range w.all {
		asking.Go(func() { all[i], errs[i] = question(ctx, worker) })
	}
	asking.Wait()
	asked = []api.JobWorker{}
	for i, worker := range w.all {
		told, err := api.JobWorker{Address: worker.Address()}, errs[i]
		wasAway := worker.away.Swap(err != nil)
		switch err {
		case nil:
			answers = append(answers, all[i])
			if wasAway {
				w.log.Info("a worker of background jobs answers again", slog.String("worker", worker.Address()))
			}
		default:
			told.Problem = err.Error()
			if !wasAway {
				w.log.Warn("a worker of background jobs does not answer", slog.String("worker", worker.Address()), slog.Any("error", err))
			}
		}
		asked = append(asked, told)
	}
	return answers, asked
}

// mergeLists adds the lists of several databases up. Lists of one database are about the same jobs: what waits counts once, and
// jobs that run count by their ids, because workers with slots in memory name their own alone.
func mergeLists(lists []workerapi.UserList) api.Jobs {
	type of struct{ database, user string }
	merged, found, each := api.Jobs{Users: []api.UserJobs{}}, map[string]int{}, map[of]workerapi.UserJobs{}
	named := map[string]int{} // users in the lists of a database, which are cut
	for _, list := range lists {
		merged.Partial = merged.Partial || list.Partial
		found[list.Database] = max(found[list.Database], list.Found)
		for _, user := range list.Users {
			key := of{list.Database, user.User}
			if before, known := each[key]; known {
				before.Running = slices.Concat(before.Running, user.Running)
				user = before
			} else {
				named[list.Database]++
			}
			each[key] = user
		}
	}
	for database, n := range found {
		merged.Found += max(n, named[database])
	}
	users := map[string]*api.UserJobs{}
	for key, user := range each {
		sum := users[key.user]
		if sum == nil {
			sum = &api.UserJobs{Name: api.NameOfKey(key.user), Tier: user.Tier}
			users[key.user] = sum
		}
		slices.Sort(user.Running)
		sum.Running += len(slices.Compact(user.Running))
		sum.Waiting += user.Waiting
		sum.AtLeast = sum.AtLeast || user.AtLeast
		if user.Oldest != nil && (sum.Since == nil || user.Oldest.Since.Before(*sum.Since)) {
			sum.Oldest, sum.Since, sum.Held, sum.Tier = &user.Oldest.ID, &user.Oldest.Since, user.Held, user.Tier
		}
	}
	for _, user := range users {
		merged.Users = append(merged.Users, *user)
	}
	since := func(u api.UserJobs) time.Time {
		if u.Since == nil {
			return time.Time{}
		}
		return *u.Since
	}
	slices.SortFunc(merged.Users, func(a, b api.UserJobs) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Running, a.Running), since(a).Compare(since(b)), cmp.Compare(a.User, b.User))
	})
	return merged
}
