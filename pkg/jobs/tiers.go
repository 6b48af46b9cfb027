package jobs

import "context"

// Tier is what a user may do with jobs.
type Tier struct {
	Name   string
	Class  Class // of the queues that the user's jobs go to
	Limits Limits

	// Scheduled is the class of the queues that the user's jobs go to which a scheduler starts;
	// "" is that of all users.
	Scheduled Class
}

// Tiers find the tier of a user. Jobs never say it themselves.
type Tiers interface {
	// Tier returns the tier of the user with this key (limits.Key). A user whom nobody
	// knows has the default tier. With an error comes the best that is known, which is
	// usable: the last one, or the default tier.
	Tier(ctx context.Context, user string) (Tier, error)
}

// Class is one of the queues of a service. Workers of one class leave those of the
// others alone. Where a limit file dedicates workers to a tier or a user, these have classes of
// their own, such as priority-enterprise and default-user-alice.
type Class string

// The classes of all users, as they end the names of queues.
const (
	Priority  Class = "priority"  // of tiers that pay
	Default   Class = "default"   // of the others, and of unknown users
	Scheduled Class = "scheduled" // of jobs that a scheduler starts, of any user
)
