// Package workerapi is what a worker says of its jobs, in JSON. Who reads it does not
// link what runs jobs.
package workerapi

import "time"

// MaxListed bounds the users of a UserList.
const MaxListed = 1000

// UserList is who has jobs that run or wait. It is a worker's answer to GET /jobs, which
// polygen asks for. Answers of one database are about the same jobs.
type UserList struct {
	Database string     `json:"database"` // names the database and its table of jobs; the same from whichever worker
	Users    []UserJobs `json:"users"`    // those with most waiting jobs first
	Found    int        `json:"found"`    // users who have such jobs
	Partial  bool       `json:"partial"`  // there are too many users: some were not looked at
}

// UserJobs is what runs and waits of one user.
type UserJobs struct {
	User string `json:"user"` // the key of the limit file
	Tier string `json:"tier"`

	// Running are the jobs that hold a slot, by their ids. Slots in memory know those of the
	// worker that answers; other slots know those of all workers.
	Running []int64 `json:"running"`
	Waiting int     `json:"waiting"`  // jobs that could run and do not
	AtLeast bool    `json:"at_least"` // more wait than were counted

	Oldest *WaitingJob `json:"oldest,omitempty"` // that has waited for longest; nil if none waits
	Held   *HeldBy     `json:"held,omitempty"`   // why they wait; nil if none waits, or no limit of the user holds them
}

// WaitingJob is a job that waits.
type WaitingJob struct {
	ID    int64     `json:"id"`
	Since time.Time `json:"since"` // when it could have run
}

// HeldBy is a limit of a user that has been reached.
type HeldBy struct {
	Service string `json:"service,omitempty"` // "" is the total
	Max     int    `json:"max"`               // jobs at a time
}
