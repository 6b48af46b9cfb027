package api

import (
	"errors"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Jobs is the answer of /api/v1/jobs: users who have background jobs that run or wait, as
// the workers say that polygen asks.
type Jobs struct {
	From
	Users   []UserJobs  `json:"users"`   // those with most waiting jobs first
	Found   int         `json:"found"`   // users who have such jobs; of several databases, at most so many
	Partial bool        `json:"partial"` // a database has too many users with jobs: some are missing
	Workers []JobWorker `json:"workers"` // that were asked; none if polygen knows none
}

// UserJobs is what runs and waits of one user.
type UserJobs struct {
	Name
	Tier    string            `json:"tier"`
	Running int               `json:"running"`          // jobs that hold a slot
	Waiting int               `json:"waiting"`          // jobs that could run and do not
	AtLeast bool              `json:"at_least"`         // more wait than were counted
	Oldest  *int64            `json:"oldest,omitempty"` // River's id of the job that has waited for longest; absent if none waits
	Since   *time.Time        `json:"since,omitempty"`  // when that could have run
	Held    *workerapi.HeldBy `json:"held,omitempty"`   // the limit that holds them; absent if none waits, or no limit of the user does
}

// JobWorker is a worker that was asked.
type JobWorker struct {
	Address string `json:"address"`
	Problem string `json:"problem,omitempty"` // why it did not answer; absent if it did
}

// Job is the answer of /api/v1/jobs/{id}: why a job waits. Ids of several databases are of
// several jobs.
type Job struct {
	From
	Jobs    []workerapi.Why `json:"jobs"`
	Workers []JobWorker     `json:"workers"` // that were asked
}

var (
	// ErrNoJob says that no worker knows of a job.
	ErrNoJob = errors.New("no such job")
	// ErrNoWorker says that no worker could be asked.
	ErrNoWorker = errors.New("no worker of background jobs answers")
)
