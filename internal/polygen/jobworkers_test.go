package polygen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// serve is a worker that answers so at /jobs and below; it counts the questions.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), asked
}

func says(answer any) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer) }
}

func refuses(status int, text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error": %q}`, text)
	}
}

// A worker that does not answer is told, logged once, counted, and waited for only so long. The others
// answer all the same.
func TestWorkersThatDoNotAnswer(t *testing.T) {
	ann := workerapi.UserList{Database: "one", Found: 1, Users: []workerapi.UserJobs{waits("ann", 4, 7, time.Minute, 5)}}
	good, _ := serve(t, says(ann))
	release := make(chan struct{})
	silent, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	sick, _ := serve(t, refuses(http.StatusServiceUnavailable, "the database or the slots do not answer"))
	stranger, _ := serve(t, says("hello"))
	older, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	closed := testkit.FreeAddr(t)
	var log bytes.Buffer
	w, err := newWorkers([]string{silent, sick, good, stranger, closed, older}, client.Access{}, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.Must(t, err)
	got := w.jobs(t.Context(), 10)
	const hint = "name the address of a worker's riverqos handler with --jobs-worker"
	want := api.Jobs{Found: 1, Users: []api.UserJobs{merged("ann", 1, 4, 7, time.Minute, 1)}, Workers: []api.JobWorker{
		{Address: silent, Problem: silent + " does not answer in time"},
		{Address: sick, Problem: sick + `: "the database or the slots do not answer"`},
		{Address: good},
		{Address: stranger, Problem: "what listens at " + stranger + ` does not know of jobs (it answers "200 OK"): ` + hint},
		{Address: closed, Problem: "nothing listens at " + closed + ": " + hint},
		{Address: older, Problem: "what listens at " + older + ` does not know of jobs (it answers "404 Not Found"): ` + hint},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Jobs() (-want +got):\n%s", diff)
	}
	w.asked = time.Time{} // or the same answer would do
	w.jobs(t.Context(), 10)
	if n := strings.Count(log.String(), "a worker of background jobs does not answer"); n != 5 {
		t.Errorf("%d lines about 5 workers after two questions, want 5:\n%s", n, &log)
	}
}

// When a worker is back that is logged, too.
func TestAWorkerComesBack(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	address, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			refuses(http.StatusServiceUnavailable, "no")(w, r)
			return
		}
		says(workerapi.UserList{Database: "one"})(w, r)
	})
	var log bytes.Buffer
	w, err := newWorkers([]string{address}, client.Access{}, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.Must(t, err)
	w.jobs(t.Context(), 1)
	away.Store(false)
	w.asked = time.Time{}
	if got := w.jobs(t.Context(), 1); got.Workers[0].Problem != "" {
		t.Errorf("Jobs() = %+v, want no problem", got)
	}
	if want := "a worker of background jobs answers again"; strings.Count(log.String(), want) != 1 {
		t.Errorf("the log is\n%s\nwant one line %q", &log, want)
	}
}

// However many look at once and again, workers are asked once.
func TestQuestionsShareAnAnswer(t *testing.T) {
	users := make([]workerapi.UserJobs, 200)
	for i := range users {
		users[i] = runs(fmt.Sprintf("user%03d", i), int64(i))
	}
	address, asked := serve(t, func(w http.ResponseWriter, r *http.Request) {
		says(workerapi.UserList{Database: "one", Found: len(users), Users: users})(w, r)
	})
	w, err := newWorkers([]string{address}, client.Access{}, slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	w.jobs(t.Context(), 1)
	for _, n := range []int{50, 3, 150, 2} {
		w.asked = time.Now() // however slow the machine
		got := w.jobs(t.Context(), n)
		if len(got.Users) != n || got.Found != 200 || got.Users[0].User != "user000" {
			t.Errorf("Jobs(%d) has %d users of %d, want %d of 200", n, len(got.Users), got.Found, n)
		}
		got.Users[0].User = "hidden" // which is not the next one's
	}
	if asked.Load() != 1 {
		t.Errorf("the worker was asked %d times, want once", asked.Load())
	}
}

func TestJob(t *testing.T) {
	of := func(database string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/jobs/7" {
				refuses(http.StatusNotFound, "no such job")(w, r)
				return
			}
			says(workerapi.Why{ID: 7, Database: database, User: "ann"})(w, r)
		}
	}
	one, _ := serve(t, of("one"))
	again, _ := serve(t, of("one"))
	other, _ := serve(t, of("two"))
	sick, _ := serve(t, refuses(http.StatusServiceUnavailable, "no database"))
	for _, tt := range []struct {
		name    string
		workers []string
		id      int64
		jobs    []workerapi.Why
		err     error
		text    string
	}{
		{"two workers of a database, and one of another", []string{one, again, other}, 7, []workerapi.Why{{ID: 7, Database: "one", User: "ann"}, {ID: 7, Database: "two", User: "ann"}}, nil, ""},
		{"one that does not answer is not needed", []string{sick, one}, 7, []workerapi.Why{{ID: 7, Database: "one", User: "ann"}}, nil, ""},
		{"no worker has it", []string{one, other}, 8, nil, api.ErrNoJob, "no such job"},
		{"it may be with one that does not answer", []string{one, sick}, 8, nil, api.ErrNoWorker, "no worker of background jobs answers: " + sick + `: "no database"`},
		{"no worker is known", nil, 7, nil, api.ErrNoWorker, "no worker of background jobs answers: polygen asks none: name them with its flag --jobs-worker"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := newWorkers(tt.workers, client.Access{}, slog.New(slog.DiscardHandler))
			testkit.Must(t, err)
			job, err := w.job(t.Context(), tt.id)
			if diff := cmp.Diff(tt.jobs, job.Jobs); diff != "" || !errors.Is(err, tt.err) || err != nil && err.Error() != tt.text {
				t.Errorf("Job(%d) = %v, want %s (-want +got):\n%s", tt.id, err, tt.text, diff)
			}
			if len(job.Workers) != len(tt.workers) {
				t.Errorf("Job(%d) asked %v, want %v", tt.id, job.Workers, tt.workers)
			}
		})
	}
}

// A token is sent to this machine, or by https, and nowhere else.
func TestTheToken(t *testing.T) {
	access := client.Access{TokenFile: apitest.WriteFile(t, t.TempDir(), "token", apitest.Token)}
	address, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+apitest.Token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		says(workerapi.UserList{Database: "one"})(w, r)
	})
	askWorkers := func(access client.Access, address string) string {
		w, err := newWorkers([]string{address}, access, slog.New(slog.DiscardHandler))
		testkit.Must(t, err)
		return w.jobs(t.Context(), 1).Workers[0].Problem
	}
	if got := askWorkers(access, address); got != "" {
		t.Errorf("with the token: %s, want no problem", got)
	}
	if got, want := askWorkers(client.Access{}, address), address+" wants a token: give one with --jobs-token-file"; got != want {
		t.Errorf("without a token: %s, want %s", got, want)
	}
	if got, want := askWorkers(access, "192.0.2.1:80"), "a token is not sent to 192.0.2.1:80 unencrypted: use https://192.0.2.1:80 with --jobs-worker"; got != want {
		t.Errorf("to another machine: %s, want %s", got, want)
	}
}

func TestNewRefuses(t *testing.T) {
	none := client.Access{}
	for _, tt := range []struct {
		addresses []string
		access    client.Access
		want      string
	}{
		{[]string{"x"}, none, `address "x": want host:port or https://host:port: name the address of a worker's riverqos handler with --jobs-worker`},
		{make([]string, 33), none, "--jobs-worker: 33 workers, want 32 at most: any worker of a database knows all of it"},
		{[]string{"a:1"}, client.Access{CA: "/none"}, "--jobs-ca: open /none: no such file or directory"},
	} {
		if _, err := newWorkers(tt.addresses, tt.access, nil); err == nil || err.Error() != tt.want {
			t.Errorf("newWorkers() = %v, want %s", err, tt.want)
		}
	}
}
