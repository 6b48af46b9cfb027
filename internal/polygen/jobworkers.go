package polygen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

const (
	// answerTimeout bounds how long workers are waited for. It is longer than a worker waits for its database.
	answerTimeout = 3 * time.Second
	// answerFor is how long an answer is that to further questions.
	answerFor = time.Second
	// mostWorkerUsers is how many users are asked for at least, so that most questions share an answer.
	mostWorkerUsers = 100
	// maxWorkers bounds the workers: any worker of a database knows all of it.
	maxWorkers = 32
)

// WorkersFlags are those of polygen and sluice up.
var WorkersFlags = client.Flags{Address: "--jobs-worker", TokenFile: "--jobs-token-file", CA: "--jobs-ca"}

// WorkersOptions say which workers to ask.
type WorkersOptions struct {
	Addresses []string              // host:port or https://host:port, 32 at most
	Access    client.Access         // to the workers
	Logger    *slog.Logger          // nil discards
	Register  prometheus.Registerer // nil registers nothing
}

// Workers asks workers of background jobs whose jobs run and wait. polygen knows neither the job queue nor where the
// slots are kept, so it asks those who do: only when somebody wants to know, all workers at once, and for a bounded time.
// It is safe for concurrent use.
type Workers struct {
	workers    []*worker
	unanswered prometheus.Counter
	log        *slog.Logger

	mu     sync.Mutex // held while workers are asked, so that those who ask meanwhile have the same answer
	asked  time.Time
	answer api.Jobs // without its head
	length int      // how many users were asked for
}

type worker struct {
	*client.Worker
	mu   sync.Mutex
	away bool // it did not answer the last question
}

// NewWorkers checks the options. It asks nobody.
func NewWorkers(o WorkersOptions) (*Workers, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(o.Addresses) > maxWorkers {
		return nil, fmt.Errorf("%s: %d workers, want %d at most: any worker of a database knows all of it", WorkersFlags.Address, len(o.Addresses), maxWorkers)
	}
	w := &Workers{
		log:        o.Logger,
		unanswered: daemon.Metrics(o.Register).Counter("sluice_job_workers_unanswered_total", "Questions to workers of background jobs (--jobs-worker) that got no answer in time."),
	}
	for _, address := range o.Addresses {
		client, err := client.NewWorker(address, o.Access, WorkersFlags)
		if err != nil {
			return nil, err
		}
		w.workers = append(w.workers, &worker{Worker: client})
	}
	return w, nil
}

// Close closes idle connections.
func (w *Workers) Close() {
	for _, worker := range w.workers {
		worker.Close()
	}
}

// Jobs are the n users with most waiting jobs, workerapi.MaxListed at most. The answer's head is empty.
func (w *Workers) Jobs(ctx context.Context, n int) api.Jobs {
	w.mu.Lock()
	defer w.mu.Unlock()
	length := mostWorkerUsers
	if n > length {
		length = workerapi.MaxListed
	}
	if length > w.length || time.Since(w.asked) >= answerFor {
		answers, workers := askWorkers(ctx, w, func(ctx context.Context, worker *worker) (workerapi.UserList, error) {
			return worker.Users(ctx, length)
		})
		w.answer = mergeLists(answers)
		w.answer.Workers = workers
		w.length, w.asked = length, time.Now()
	}
	answer := w.answer
	// Copies, because the caller adds to each user.
	answer.Users, answer.Workers = slices.Clone(answer.Users[:min(n, len(answer.Users))]), slices.Clone(answer.Workers)
	return answer
}

// Job is why a job waits. The error matches api.ErrNoJob if every worker says that there is none, and
// api.ErrNoWorker if none knows it and some did not answer.
func (w *Workers) Job(ctx context.Context, id int64) (api.Job, error) {
	// That there is no such job is an answer.
	answers, workers := askWorkers(ctx, w, func(ctx context.Context, worker *worker) (*workerapi.Why, error) {
		why, err := worker.Job(ctx, id)
		if errors.Is(err, api.ErrNoJob) {
			return nil, nil
		}
		return &why, err
	})
	job := api.Job{Workers: workers}
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
	for _, worker := range workers {
		if worker.Problem != "" {
			problems = append(problems, worker.Problem)
		}
	}
	if len(workers) == 0 {
		problems = []string{"polygen asks none: name them with its flag " + WorkersFlags.Address}
	}
	if len(problems) > 0 {
		return job, fmt.Errorf("%w: %s", api.ErrNoWorker, strings.Join(problems, "; "))
	}
	return job, api.ErrNoJob
}

// ask asks all workers at once. Answers are in the order of the workers, without those that failed.
func askWorkers[T any](ctx context.Context, w *Workers, question func(context.Context, *worker) (T, error)) (answers []T, workers []api.JobWorker) {
	// Without the end of whoever asks: others wait for this answer, and a worker is not away because somebody has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	all, errs := make([]T, len(w.workers)), make([]error, len(w.workers))
	var asking sync.WaitGroup
	for i, worker := range w.workers {
		asking.Go(func() { all[i], errs[i] = question(ctx, worker) })
	}
	asking.Wait()
	workers = []api.JobWorker{}
	for i, worker := range w.workers {
		told := api.JobWorker{Address: worker.Address()}
		w.note(worker, errs[i])
		if errs[i] != nil {
			told.Problem = errs[i].Error()
		} else {
			answers = append(answers, all[i])
		}
		workers = append(workers, told)
	}
	return answers, workers
}

// note counts questions without an answer, and logs when a worker goes away and comes back.
func (w *Workers) note(worker *worker, err error) {
	if err != nil {
		w.unanswered.Inc()
	}
	worker.mu.Lock()
	defer worker.mu.Unlock()
	switch was := worker.away; {
	case err != nil && !was:
		w.log.Warn("a worker of background jobs does not answer", slog.String("worker", worker.Address()), slog.Any("error", err))
	case err == nil && was:
		w.log.Info("a worker of background jobs answers again", slog.String("worker", worker.Address()))
	}
	worker.away = err != nil
}
