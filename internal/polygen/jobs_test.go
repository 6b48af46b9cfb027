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
	"github.com/sluice-qos/sluice/internal/limitwatch"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Workers know users by name. Answers have the name, and where names are hidden the key by which the cluster
// knows the user at the edge.
func TestJobsOfHiddenNames(t *testing.T) {
	const secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
	secrets, err := limits.ParseSecrets([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
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
	bus, dir := open(t, redis(t), 1), t.TempDir()
	for name, text := range map[string]string{"limits.yaml": tenGets, "secrets": secret} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, secrets, user, href string }{
		{"names are shown", "", "staff", api.Path("staff", "")},
		{"names are hidden", filepath.Join(dir, "secrets"), secrets.Keys("staff")[0], api.PathOfKey(secrets.Keys("staff")[0], "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			watcher, err := limitwatch.NewHidden(filepath.Join(dir, "limits.yaml"), tt.secrets, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(Options{Name: "one", Bus: bus, Limits: watcher, JobWorkers: []string{strings.TrimPrefix(worker.URL, "http://")}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.workers.Close()
			list := p.Jobs(t.Context(), 10)
			if len(list.Users) != 1 || list.Users[0].User != tt.user || list.Users[0].Href != tt.href || list.Polygen != "one" {
				t.Errorf("Jobs() = %+v, want user %s at %s, told by one", list, tt.user, tt.href)
			}
			for id, want := range map[int64]string{7: tt.user, 8: ""} {
				job, err := p.Job(t.Context(), id)
				if err != nil || len(job.Jobs) != 1 || job.Jobs[0].User != want || job.Polygen != "one" {
					t.Errorf("Job(%d) = %+v, %v, want user %q, told by one", id, job, err, want)
				}
			}
		})
	}
}
