package polygen

import (
	"net/http"
	"testing"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// Answers of workers get the user's link and the head of the polygen that answers.
func TestJobs(t *testing.T) {
	worker, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jobs/7":
			says(workerapi.Why{ID: 7, User: "staff"})(w, r)
		case "/jobs/8":
			says(workerapi.Why{ID: 8})(w, r)
		default:
			says(workerapi.UserList{Database: "one", Found: 1, Users: []workerapi.UserJobs{runs("staff", 7)}})(w, r)
		}
	})
	p := newGenerator(t, redis(t), "one", func(o *Options) { o.JobWorkers = []string{worker} })
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
