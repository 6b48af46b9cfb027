package polygen

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// mergeLists puts the lists of workers together.
//
// Lists of one database are about the same jobs. What waits is the same in all of them, and is taken
// once. Jobs that run are named one by one: with slots in memory each worker names its own, and with
// shared slots all name the same, so that those with different ids are right in both cases. Different databases
// have different jobs, which are added up.
func mergeLists(lists []workerapi.UserList) api.Jobs {
	databases := map[string][]workerapi.UserList{}
	merged := api.Jobs{Users: []api.UserJobs{}}
	for _, list := range lists {
		databases[list.Database] = append(databases[list.Database], list)
		merged.Partial = merged.Partial || list.Partial
	}
	users := map[string]*api.UserJobs{}
	for _, database := range slices.Sorted(maps.Keys(databases)) {
		of := mergeDatabase(databases[database])
		for _, user := range of {
			addUser(users, user)
		}
		// The lists are cut, and say of how many users.
		found := len(of)
		for _, list := range databases[database] {
			found = max(found, list.Found)
		}
		merged.Found += found
	}
	for _, user := range users {
		merged.Users = append(merged.Users, *user)
	}
	slices.SortFunc(merged.Users, func(a, b api.UserJobs) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Running, a.Running), waitsSince(a).Compare(waitsSince(b)), cmp.Compare(a.User, b.User))
	})
	return merged
}

func waitsSince(u api.UserJobs) time.Time {
	if u.Since == nil {
		return time.Time{}
	}
	return *u.Since
}

// mergeDatabase puts lists of one database together.
func mergeDatabase(lists []workerapi.UserList) map[string]workerapi.UserJobs {
	users := map[string]workerapi.UserJobs{}
	for _, list := range lists {
		for _, user := range list.Users {
			before, known := users[user.User]
			if known {
				// A job may have begun between two answers: the rest is the first one's.
				before.Running = append(slices.Clone(before.Running), user.Running...)
				user = before
			}
			slices.Sort(user.Running)
			user.Running = slices.Compact(user.Running)
			users[user.User] = user
		}
	}
	return users
}

// addUser adds what a user has in one database to what they have in others.
func addUser(users map[string]*api.UserJobs, user workerapi.UserJobs) {
	sum := users[user.User]
	if sum == nil {
		sum = &api.UserJobs{Name: api.NameOfKey(user.User), Tier: user.Tier}
		users[user.User] = sum
	}
	sum.Running += len(user.Running)
	sum.Waiting += user.Waiting
	sum.AtLeast = sum.AtLeast || user.AtLeast
	if user.Oldest != nil && (sum.Since == nil || user.Oldest.Since.Before(*sum.Since)) {
		sum.Oldest, sum.Since = &user.Oldest.ID, &user.Oldest.Since
		// Of the job that has waited for longest.
		sum.Held, sum.Tier = user.Held, user.Tier
	}
}
