package jobs

import "time"

// Why tells what a job is waiting for, and what its user's other jobs do: what a worker
// answers to GET /jobs/{id}, and sluice explain --job shows.
type Why struct {
	ID          int64     `json:"id"`
	Kind        string    `json:"kind"`
	Queue       string    `json:"queue"`
	State       string    `json:"state"` // the job queue's, or parked or gated
	Attempt     int       `json:"attempt"`
	Created     time.Time `json:"created"`
	Since       time.Time `json:"since"`        // it could have run from then on
	ScheduledAt time.Time `json:"scheduled_at"` // it comes by itself at the latest then

	User    string         `json:"user,omitempty"` // the key of the limit file; "" is a job without a user
	Tier    string         `json:"tier,omitempty"`
	Service string         `json:"service,omitempty"`
	Max     int            `json:"max,omitempty"`    // jobs of the user at a time; Unlimited if there is no such limit
	Queues  map[string]int `json:"queues,omitempty"` // of these, by service

	Running  []string `json:"running,omitempty"`  // jobs that have the user's slots
	Reserved []string `json:"reserved,omitempty"` // jobs that slots are reserved for
	Parked   int      `json:"parked,omitempty"`   // jobs in the user's line
	Place    int      `json:"place,omitempty"`    // of this job in it, from 1; 0 if it is not
	Behind   int      `json:"behind,omitempty"`   // gated jobs that go before this one, if it is gated

	Reason string `json:"reason"` // in one sentence
}
