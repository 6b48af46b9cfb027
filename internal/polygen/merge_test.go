package polygen

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// waits is a user whose oldest job, of this id, could have run so long before noon.
func waits(user string, waiting int, id int64, ago time.Duration, running ...int64) workerapi.UserJobs {
	return workerapi.UserJobs{User: user, Tier: "free", Running: running, Waiting: waiting, Oldest: &workerapi.WaitingJob{ID: id, Since: noon.Add(-ago)}, Held: &workerapi.HeldBy{Max: len(running)}}
}

func runs(user string, running ...int64) workerapi.UserJobs {
	return workerapi.UserJobs{User: user, Tier: "free", Running: running}
}

// merged is what is said of such a user.
func merged(user string, running, waiting int, id int64, ago time.Duration, held int) api.UserJobs {
	u := api.UserJobs{Name: api.NameOfKey(user), Tier: "free", Running: running, Waiting: waiting}
	if waiting > 0 {
		waitsSince := noon.Add(-ago)
		u.Oldest, u.Since, u.Held = &id, &waitsSince, &workerapi.HeldBy{Max: held}
	}
	return u
}

func TestMergeLists(t *testing.T) {
	const one, other = "database one", "database two"
	for _, tt := range []struct {
		name  string
		lists []workerapi.UserList
		want  api.Jobs
	}{
		{"nobody answers", nil, api.Jobs{Users: []api.UserJobs{}}},
		{"shared slots: every worker says the same, which counts once", []workerapi.UserList{
			{Database: one, Found: 2, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 5, 6), runs("bob", 9)}},
			{Database: one, Found: 2, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 6, 5), runs("bob", 9)}},
		}, api.Jobs{Found: 2, Users: []api.UserJobs{merged("ann", 2, 4, 7, time.Minute, 2), merged("bob", 1, 0, 0, 0, 0)}}},
		{"slots in memory: each worker names the jobs that it runs itself", []workerapi.UserList{
			{Database: one, Found: 2, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 5), runs("bob")}},
			{Database: one, Found: 2, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 6), runs("bob", 9)}},
		}, api.Jobs{Found: 2, Users: []api.UserJobs{merged("ann", 2, 4, 7, time.Minute, 1), merged("bob", 1, 0, 0, 0, 0)}}},
		{"two databases have different jobs, whose ids may be the same", []workerapi.UserList{
			{Database: one, Found: 1, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 5)}},
			{Database: other, Found: 1, Users: []workerapi.UserJobs{waits("ann", 3, 8, time.Hour, 5, 6)}},
		}, api.Jobs{Found: 2, Users: []api.UserJobs{merged("ann", 3, 7, 8, time.Hour, 2)}}},
		{"a user who began between two answers", []workerapi.UserList{
			{Database: one, Found: 1, Users: []workerapi.UserJobs{waits("ann", 1, 7, time.Minute, 5)}},
			{Database: one, Found: 2, Users: []workerapi.UserJobs{waits("ann", 1, 7, time.Minute, 5), runs("bob", 9)}},
		}, api.Jobs{Found: 2, Users: []api.UserJobs{merged("ann", 1, 1, 7, time.Minute, 1), merged("bob", 1, 0, 0, 0, 0)}}},
		{"those with most waiting jobs first, then with most that run, then who has waited for longest", []workerapi.UserList{
			{Database: one, Found: 500, Partial: true, Users: []workerapi.UserJobs{
				runs("zoe", 1), runs("amy", 2), waits("late", 2, 7, time.Second, 3), waits("early", 2, 8, time.Minute, 4), waits("more", 2, 9, time.Second, 5, 6), waits("most", 3, 10, 0),
			}},
		}, api.Jobs{Found: 500, Partial: true, Users: []api.UserJobs{
			merged("most", 0, 3, 10, 0, 0), merged("more", 2, 2, 9, time.Second, 2), merged("early", 1, 2, 8, time.Minute, 1), merged("late", 1, 2, 7, time.Second, 1), merged("amy", 1, 0, 0, 0, 0), merged("zoe", 1, 0, 0, 0, 0),
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, mergeLists(tt.lists)); diff != "" {
				t.Errorf("mergeLists() (-want +got):\n%s", diff)
			}
		})
	}
}

// More than were counted wait, if that is so in one of the databases.
func TestMergeListsKeepsAtLeast(t *testing.T) {
	counted, more := waits("ann", 1, 1, 0), waits("ann", 1000, 2, 0)
	more.AtLeast = true
	got := mergeLists([]workerapi.UserList{{Database: "a", Users: []workerapi.UserJobs{counted}}, {Database: "b", Users: []workerapi.UserJobs{more}}})
	if u := got.Users[0]; !u.AtLeast || u.Waiting != 1001 {
		t.Errorf("mergeLists() = %+v, want at least 1001", u)
	}
}
