package polygen

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/api"

	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Answers of workers get the user's link and the head of the polygen that answers.
func TestJobs(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = workerapi.UserList{Database: "one", Found: 1, Users: []workerapi.UserJobs{{User: "staff", Tier: "staff", Running: []int64{7}}}}
		switch r.URL.Path {
		case "/jobs/7":
			answer = workerapi.Why{ID: 7, User: "staff"}
		case "/jobs/8":
			answer = workerapi.Why{ID: 8}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer worker.Close()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(tenGets), 0o600); err != nil {
		t.Fatal(err)
	}
	watcher, err := WatchLimits(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Name: "one", Bus: open(t, redis(t), 1), Limits: watcher, JobWorkers: []string{strings.TrimPrefix(worker.URL, "http://")}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.workers.close()
	list := p.Jobs(t.Context(), 10)
	if len(list.Users) != 1 || list.Users[0].User != "staff" || list.Users[0].Href != api.Path("staff") || list.Polygen != "one" {
		t.Errorf("Jobs() = %+v, want user staff at %s, told by one", list, api.Path("staff"))
	}
	for id, want := range map[int64]string{7: "staff", 8: ""} {
		job, err := p.Job(t.Context(), id)
		if err != nil || len(job.Jobs) != 1 || job.Jobs[0].User != want || job.Polygen != "one" {
			t.Errorf("Job(%d) = %+v, %v, want user %q, told by one", id, job, err, want)
		}
	}
}
