// Package jobs governs background jobs by the limits of their users: how many jobs of a
// user run at a time, over all workers, which queue each goes to, and which job comes
// next. It knows of no job queue in particular: github.com/sluice-qos/sluice/jobs/riverqos
// ties it to River.
//
// No job is ever rejected. A job above its user's limit waits, and jobs of other users do
// not wait for it.
package jobs

import (
	"context"
	"errors"
	"time"
)

// Job is one job of a user.
type Job struct {
	User  string // the key of the limit file's user (limits.Key); not ""
	ID    string // unique among all jobs of all times; not ""
	Queue string // name of the service in the limit file's queues; "" is a queue like any other
}

// Limits are how many of a user's jobs may run at a time.
type Limits struct {
	Total     int            // over all queues; at least 1
	Queues    map[string]int // in each of these queues
	EachQueue int            // in each queue that Queues does not name; 0: these are limited by Total alone
}

// Of is how many may run in a queue.
func (l Limits) Of(queue string) int {
	if n, ok := l.Queues[queue]; ok {
		return min(n, l.Total)
	}
	return l.OfOthers()
}

// OfOthers is how many may run in a queue that Queues does not name.
func (l Limits) OfOthers() int {
	if l.EachQueue > 0 {
		return min(l.EachQueue, l.Total)
	}
	return l.Total
}

// Claim is one attempt at a job.
type Claim struct {
	Job
	// Holder is the attempt, unique among all attempts at all jobs. A later holder of the
	// same job takes over its slot, because the earlier holder's worker has lost the job.
	Holder string
}

// Slots are the places in which users' jobs run, shared by all workers. All methods
// are atomic, safe for concurrent use, and may be called again when it is not known
// whether they happened. Time is the back end's.
//
// A slot is held for the length of a lease and has to be renewed; the slot of a worker that
// died is free when the lease is over. A job that was refused may be parked: it stands in
// the user's line, and a slot that becomes free is reserved for the first job in the line
// whose queue has room. A reservation lapses if the job does not come in time; the job is
// not parked any more then.
type Slots interface {
	// Acquire takes a slot for the lease. It is granted if the job has a slot already, or
	// one is reserved for it. Otherwise a free slot is granted only if no job whose queue has
	// room is parked before this one, however many slots are free: ReserveFree gives those
	// out. If the slot is refused and park is set, the job is parked in the same step; a job
	// that is parked already keeps its place. A job keeps the queue of its first Acquire as
	// long as it has a slot, a reservation or a place in the line.
	Acquire(ctx context.Context, c Claim, l Limits, lease time.Duration, park bool) (Verdict, error)

	// Renew begins the leases of claims anew, and returns those that are lost, in any order:
	// the lease had ended, or another holder has the job.
	Renew(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error)

	// Release gives a slot back, and then does what ReserveFree does. If the holder has no
	// slot, it only does what ReserveFree does.
	Release(ctx context.Context, c Claim, l Limits, reserve time.Duration) (reserved []Job, err error)

	// ReserveFree reserves the user's free slots for the first of the user's parked jobs, for
	// so long, and returns these jobs in their order; each has to be woken.
	ReserveFree(ctx context.Context, user string, l Limits, reserve time.Duration) (reserved []Job, err error)

	// Forget drops the place in the line, or the reservation, of a job that does not exist
	// any more. A slot that the job holds stays.
	Forget(ctx context.Context, j Job) error

	// Waiting returns up to n users who have parked or reserved jobs, sorted, from the one
	// after the given user on; "" for after begins with the first.
	Waiting(ctx context.Context, after string, n int) ([]string, error)

	// User returns the slots, reservations (the oldest first) and parked jobs of a user.
	User(ctx context.Context, user string) (Usage, error)

	// Taken returns the slots of users, each named once, that are held or reserved, in any
	// order. It does not look at the users' lines, which may be long.
	Taken(ctx context.Context, users []string) ([]Slot, error)
}

// Verdict is the answer to Acquire.
type Verdict struct {
	Granted bool
	Running int // the user's slots that are held or reserved after the call
	InQueue int // those among them that are in the job's queue
	Place   int // place of a parked job in the user's line, from 1; 0 if it is not parked
}

// Usage is the slots, reservations and parked jobs of a user.
type Usage struct {
	Held, Reserved []Slot
	Parked         []Job // in the order of their line, at most MaxParked
}

// Slot is a slot that is not free.
type Slot struct {
	Job
	Holder string        // "" if it is reserved
	Left   time.Duration // time left of the lease or reservation
}

const (
	// MaxParked bounds the parked jobs of a user. A further job is refused without being
	// parked, and has to come back by itself.
	MaxParked = 10_000
	// MaxName bounds a user, job, queue or holder, in bytes.
	MaxName = 512
)

// ErrInvalid says that the arguments of a call are wrong: a name that is empty or too long,
// a limit below 1, a lease that is not positive, or a page of less than one. Such a call
// does nothing. Neither does a call whose context has ended, which returns the context's
// error.
var ErrInvalid = errors.New("invalid")
