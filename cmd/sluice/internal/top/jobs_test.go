package top

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	polygenapi "github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// withJobs is a polygen that knows of background jobs.
type withJobs struct {
	polygenapi.API
	list api.Jobs
}

func (w *withJobs) Jobs(_ context.Context, n int) api.Jobs {
	list := w.list
	list.Users = list.Users[:min(n, len(list.Users))]
	return list
}

func jobsOfFour() api.Jobs {
	waiting := func(id int64, ago time.Duration) (*int64, *time.Time) {
		since := apitest.Noon.Add(-ago)
		return &id, &since
	}
	l := api.Jobs{From: api.From{Polygen: "one", Leading: true, Version: "0123456789ab", Time: apitest.Noon}, Found: 213,
		Workers: []api.JobWorker{{Address: "w:9092"}, {Address: "x:9092", Problem: "nothing listens at x:9092\x1b[2J"}}}
	bulk := api.UserJobs{Name: api.NameOfUser("bulk"), Tier: "free", Running: 1, Waiting: 1000, AtLeast: true, Held: &workerapi.HeldBy{Max: 1}}
	bulk.Oldest, bulk.Since = waiting(4711, 200*time.Second)
	ann := api.UserJobs{Name: api.NameOfUser("ann\x1b b"), Tier: "pro", Running: 2, Waiting: 3, Held: &workerapi.HeldBy{Service: "analysis", Max: 2}}
	ann.Oldest, ann.Since = waiting(5, 1500*time.Millisecond)
	free := api.UserJobs{Name: api.NameOfUser("carol"), Tier: "pro", Waiting: 1}
	free.Oldest, free.Since = waiting(6, -time.Second) // a clock that is behind
	l.Users = []api.UserJobs{bulk, ann, free, {Name: api.NameOfUser("dave"), Tier: "pro", Running: 2}}
	return l
}

func TestTopOfJobs(t *testing.T) {
	server := apitest.Serve(&withJobs{list: jobsOfFour()})
	defer server.Close()
	a, err := client.NewClient(strings.TrimPrefix(server.URL, "http://"), client.Access{})
	testkit.Must(t, err)
	defer a.Close()
	l, err := readJobs(t.Context(), a, 10)
	testkit.Must(t, err)
	const head = `2026-11-20T12:00:00Z  polygen one, leading, users with jobs: 213; nothing listens at x:9092\x1b[2J
`
	for _, tt := range []struct {
		name   string
		people bool
		want   string
	}{
		{"for people", true, head + `user            tier  running  waiting  waits for  oldest job  held by         limit
bulk            free        1    1000+      3m20s        4711  total               1
"ann\x1b\x20b"  pro         2        3       1.5s           5  queue:analysis      2
carol           pro         0        1       0.0s           6  -                   -
dave            pro         2        0          -           -  -                   -`},
		{"for programs", false, head + `#user           tier  running  waiting  waits_s  oldest_job  held_by         limit
bulk            free        1     1000    200.0        4711  total               1
"ann\x1b\x20b"  pro         2        3      1.5           5  queue:analysis      2
carol           pro         0        1      0.0           6  -                   -
dave            pro         2        0        -           -  -                   -`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(formatTable(l, tt.people, 0), "\n")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("formatTable() (-want +got):\n%s", diff)
			}
			if err := apitest.PrintableOnly(got); err != nil {
				t.Error(err)
			}
		})
	}
	var out bytes.Buffer
	if err := Run(t.Context(), a, Options{Jobs: true, N: 1, Once: true, JSON: true}, &out, &out); err != nil || !strings.Contains(out.String(), `"oldest":4711,`) || strings.Contains(out.String(), "carol") {
		t.Errorf("as JSON: %v, %s, want one user", err, &out)
	}
}

// Without workers there is nobody to ask, which is no error.
func TestTopOfJobsWithoutWorkers(t *testing.T) {
	l := jobList{api.Jobs{From: jobsOfFour().From, Partial: true}}
	if got, want := l.headline(), "2026-11-20T12:00:00Z  polygen one, leading, users with jobs: 0 or more, no workers are asked (--jobs-worker of polygen)"; got != want {
		t.Errorf("headline() = %s, want %s", got, want)
	}
	s := screen{Screen: terminal.Screen{W: &bytes.Buffer{}, Size: func() (int, int) { return 80, 24 }}}
	if err := s.showPicture(&l); err != nil {
		t.Error(err)
	}
}
