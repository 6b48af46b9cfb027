package limits

import "slices"

// The largest numbers of background jobs that a file may ask for.
const (
	MaxJobs    = 100_000 // of one user, at a time
	MaxWorkers = 10_000  // of one queue of a process: River takes no more
)

// The classes of queues. A tier's jobs go to one of the first two. Those that a scheduler starts
// have queues of their own, for users of all tiers.
const (
	PriorityQueues  = "priority"
	DefaultQueues   = "default"
	ScheduledQueues = "scheduled"
)

// Jobs limits a user's background jobs. The zero Jobs limits nothing. pkg/jobs enforces
// it; no HTTP request counts.
type Jobs struct {
	Total  int            // at a time, over all queues; 0 means not limited
	Queues map[string]int // the same by the service of the queue; 0 means limited by Total alone. The number of All is for each service that is not named
	Class  string         // of the queues they go to: PriorityQueues, or DefaultQueues (or "", which is the same)

	// Mode is Enforce, or DryRun or Off, with which none of it limits anything. A dry
	// run of jobs counts nothing.
	Mode Mode

	Source JobsSource // of Total

	// Stated is whether the file says something of jobs at all. It means nothing but for
	// people: one that does not has the numbers of JobsSource Builtin.
	Stated bool
}

// JobsSource tells who says how many jobs a user may have.
type JobsSource uint8

// The sources.
const (
	Builtin JobsSource = iota // the name of the tier: 1 for free, 3 for pro and pro_plus, 5 for enterprise, otherwise that of the default tier; none next to a limit for each queue
	OfTier                    // the user's tier
	OfUser                    // the user's own entry, or an override
)

// Jobs are the limits of background jobs: not limited for who is exempt, and for the
// zero Limits. Callers must not modify what
// they hold.
func (l *Limits) Jobs() Jobs {
	if l.BackgroundJobs == nil {
		return Jobs{Class: DefaultQueues}
	}
	return *l.BackgroundJobs
}

// Queue is how many workers one process has for a service's queues. Zero means that
// it leaves the queue to others.
type Queue struct {
	Service                      string // 1 to 54 of a-z, 0-9, and single _ and - between them
	Priority, Default, Scheduled int
}

// Queues are the queues of background jobs that the file states, sorted by service.
func (s *Set) Queues() []Queue { return slices.Clone(s.content.Queues) }

// Dedicated are the workers that take the jobs of one tier, or of one user, and no others: in
// the queues of each service, this number in one process. Zero means that jobs of this class go to
// the queues of all users.
type Dedicated struct {
	Tier, User string // one of them; the other is ""
	Name       string // of both in the names of queues: of a-z and 0-9, with single - between them
	Line       int    // of the file that names it

	Priority, Default, Scheduled int
}

// Of is the number in a class.
func (d Dedicated) Of(class string) int {
	switch class {
	case PriorityQueues:
		return d.Priority
	case DefaultQueues:
		return d.Default
	case ScheduledQueues:
		return d.Scheduled
	}
	return 0
}

// Workers are the numbers above 0, by the class of the queues, such as priority-enterprise.
func (d Dedicated) Workers() map[string]int {
	all := map[string]int{}
	for _, class := range [...]string{PriorityQueues, DefaultQueues, ScheduledQueues} {
		if n := d.Of(class); n > 0 {
			all[d.class(class)] = n
		}
	}
	return all
}

func (d Dedicated) class(of string) string { return of + "-" + d.Name }

// Dedicated are the workers that the file dedicates to tiers and users, users first, and sorted.
func (s *Set) Dedicated() []Dedicated { return slices.Clone(s.content.Dedicated) }

// QueueClass is the class of the queues to which jobs of a class go, of a user with a key whose
// tier is named: one of the user's own, else one of the tier's own, else the class itself.
func (s *Set) QueueClass(class, tier, user string) string {
	for _, d := range s.content.Dedicated {
		if d.Of(class) > 0 && (d.User != "" && d.User == user || d.Tier != "" && d.Tier == tier) {
			return d.class(class)
		}
	}
	return class
}
