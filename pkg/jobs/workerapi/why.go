package workerapi

import "time"

// Why tells what a job is waiting for, and what its user's other jobs do. It is a worker's
// answer to GET /jobs/{id}, which sluice explain --job shows.
type Why struct {
	ID          int64     `json:"id"`
	Database    string    `json:"database"` // as in a UserList: ids of two databases are of two jobs
	Kind        string    `json:"kind"`
	Queue       string    `json:"queue"`
	State       string    `json:"state"` // the job queue's, or parked or gated
	Attempt     int       `json:"attempt"`
	Created     time.Time `json:"created"`
	Since       time.Time `json:"since"`        // since when the job could have run
	ScheduledAt time.Time `json:"scheduled_at"` // when the job tries again by itself, at the latest

	User    string         `json:"user,omitempty"` // the key of the limit file; "" is a job without a user
	Tier    string         `json:"tier,omitempty"`
	Service string         `json:"service,omitempty"`
	Max     int            `json:"max,omitempty"`    // jobs of the user at a time; jobs.Unlimited if there is no such limit
	Queues  map[string]int `json:"queues,omitempty"` // the same in the queues of these services
	Each    int            `json:"each,omitempty"`   // the same in those of each other service; 0 if there is no such limit

	Running  []string `json:"running,omitempty"`  // jobs that have the user's slots
	Reserved []string `json:"reserved,omitempty"` // jobs that slots are reserved for
	Parked   int      `json:"parked,omitempty"`   // jobs in the user's line
	Place    int      `json:"place,omitempty"`    // this job's place in that line, from 1; 0 if it is not there
	Behind   int      `json:"behind,omitempty"`   // gated jobs that go before this one, if it is gated

	Reason string `json:"reason"` // in one sentence
}
