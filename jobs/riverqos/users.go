package riverqos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

const (
	// listTimeout bounds how long a list of users is made.
	listTimeout = 2 * time.Second
	// listFor is how long a list is the answer to further questions.
	listFor = time.Second
	// listedFlows bounds the users and queues that are looked at for a list.
	listedFlows = 10_000
	// countedJobs bounds the jobs that are counted of a user in a queue, for each of River's priorities.
	countedJobs = 1000
)

// lister makes lists of the users who have jobs that run or wait.
type lister struct {
	*resources
	mu     sync.Mutex // held while a list is made, so that those who ask meanwhile have the same one
	made   time.Time
	list   workerapi.UserList // the last one; its users are as many as were asked for
	length int                // how many that were
}

// Users returns the n users with most waiting jobs, workerapi.MaxListed at most. It costs the same
// however many jobs of a user wait.
func (f *Fairness) Users(ctx context.Context, n int) (workerapi.UserList, error) {
	l := f.lister
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.length || time.Since(l.made) >= listFor {
		// Without the end of whoever asks: others wait for this list.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		list, err := l.makeList(ctx, n)
		if err != nil {
			return workerapi.UserList{}, err
		}
		l.list, l.length, l.made = list, n, time.Now()
	}
	list := l.list
	list.Users = slices.Clone(list.Users[:min(n, len(list.Users))])
	return list, nil
}

type waitingFlow struct {
	flow
	Jobs   int
	More   bool   // there are more than were counted
	Oldest *int64 // nil if none waits
	Since  *time.Time
}

func (l *lister) makeList(ctx context.Context, n int) (list workerapi.UserList, err error) {
	database, err := l.store.database(ctx)
	if err != nil {
		return list, err
	}
	flows, err := readAll[waitingFlow](ctx, l.store, listTimeout, "users", listedFlows, countedJobs)
	if err != nil {
		return list, fmt.Errorf("users with jobs: %w", err)
	}
	users, partial := usersOf(flows)
	list = workerapi.UserList{Database: database, Found: len(users), Partial: partial}
	users = users[:min(n, len(users))]
	names := make([]string, len(users))
	for i, user := range users {
		names[i] = user.User
	}
	taken, err := l.cfg.Runner.Slots.Taken(ctx, names)
	if err != nil {
		return list, err
	}
	byUser := map[string][]jobs.Slot{}
	for _, slot := range taken {
		byUser[slot.User] = append(byUser[slot.User], slot)
	}
	budget := l.runner.Budget()
	list.Users = make([]workerapi.UserJobs, len(users))
	for i, user := range users {
		list.Users[i] = l.describe(user, budget.Tier(ctx, user.User), byUser[user.User])
	}
	return list, nil
}

type waitingUser struct {
	workerapi.UserJobs
	services map[string]int // that wait, by service
}

// since is when the oldest of them could have run; the zero time if none waits.
func (u *waitingUser) since() (since time.Time) {
	if u.Oldest != nil {
		since = u.Oldest.Since
	}
	return since
}

// usersOf are the users of flows, those with most waiting jobs first. It is partial if there
// may be more flows than these.
func usersOf(flows []waitingFlow) (users []*waitingUser, partial bool) {
	byName := map[string]*waitingUser{}
	for _, flow := range flows {
		user := byName[flow.User]
		if user == nil {
			user = &waitingUser{UserJobs: workerapi.UserJobs{User: flow.User}, services: map[string]int{}}
			byName[flow.User], users = user, append(users, user)
		}
		user.Waiting += flow.Jobs
		user.AtLeast = user.AtLeast || flow.More
		user.services[service(flow.Queue)] += flow.Jobs
		if flow.Oldest != nil && (user.Oldest == nil || flow.Since.Before(user.Oldest.Since)) {
			user.Oldest = &workerapi.WaitingJob{ID: *flow.Oldest, Since: *flow.Since}
		}
	}
	slices.SortFunc(users, func(a, b *waitingUser) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), a.since().Compare(b.since()), cmp.Compare(a.User, b.User))
	})
	return users, len(flows) >= listedFlows
}

// describe adds the tier, what runs, and which limit holds the jobs that wait.
func (l *lister) describe(user *waitingUser, tier jobs.Tier, taken []jobs.Slot) workerapi.UserJobs {
	described := user.UserJobs
	described.Tier, described.Running = tier.Name, []int64{}
	inService := map[string]int{}
	for _, slot := range taken {
		inService[slot.Queue]++
		// Others are reserved, or those of another database that shares the Slots, which count towards the limits as well.
		if id, ok := l.names.riverID(slot.ID); ok && slot.Holder != "" {
			described.Running = append(described.Running, id)
		}
	}
	slices.Sort(described.Running)
	if !l.runner.Disabled() {
		described.Held = heldBy(user.services, tier.Limits, len(taken), inService)
	}
	return described
}

// heldBy is the limit that holds jobs of services that wait: the total, or else that of the
// service with most of them.
func heldBy(waiting map[string]int, limits jobs.Limits, taken int, inService map[string]int) (held *workerapi.HeldBy) {
	most := 0
	for service, n := range waiting {
		switch limit := limits.Of(service); {
		case n == 0:
		// While the total is full, room in a service is of no use.
		case taken >= limits.Total:
			return &workerapi.HeldBy{Max: limits.Total}
		case inService[service] >= limit && (n > most || n == most && service < held.Service):
			most, held = n, &workerapi.HeldBy{Service: service, Max: limit}
		}
	}
	return held
}
