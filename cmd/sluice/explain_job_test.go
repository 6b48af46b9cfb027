package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/client"
	polygenapi "github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

func TestExplainJob(t *testing.T) {
	at := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	parked := workerapi.Why{
		ID: 7, Kind: "render", Queue: "analysis_default", State: "parked", Attempt: 1, Created: at, Since: at.Add(time.Second),
		User: "ali\x1bce", Tier: "free", Service: "analysis", Max: 3, Queues: map[string]int{"specview": 2, "analysis": 1, "sync": jobs.Unlimited}, Each: 3,
		Running: []string{"5"}, Reserved: []string{"6"}, Parked: 4, Place: 2, Reason: "Its user's slots are taken.",
	}
	system := workerapi.Why{ID: 8, Kind: "sweep", Queue: "x", State: "available", Created: at, Reason: "It waits for a worker."}
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jobs/7":
			_ = json.NewEncoder(w).Encode(parked)
		case "/jobs/8":
			_ = json.NewEncoder(w).Encode(system)
		case "/jobs/9":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error": "no such job"}`)
		case "/jobs/10":
			_, _ = io.WriteString(w, "hello")
		}
	}))
	defer worker.Close()
	address := strings.TrimPrefix(worker.URL, "http://")
	for _, tt := range []struct {
		name        string
		e           explainCommand
		out, errors string
	}{
		{"one that is parked", explainCommand{Job: 7, Worker: address}, `job 7, render, in the queue analysis_default: parked
Its user's slots are taken.
  created             2026-11-20T08:00:00Z
  could run since     2026-11-20T08:00:01Z
  attempts            1
  user                "ali\x1bce", of tier free
  may run             3 at a time, 1 of analysis, 2 of specview, any number of sync, 3 of each other service
  running             1: 5
  slots reserved      1: 6
  in the user's line  4, this one is number 2
`, ""},
		{"one without a user", explainCommand{Job: 8, Worker: worker.URL}, `job 8, sweep, in the queue x: available
It waits for a worker.
  created   2026-11-20T08:00:00Z
  attempts  0
`, ""},
		{"one that is gone", explainCommand{Job: 9, Worker: address}, "", "sluice explain: job 9: no such job\n"},
		{"somebody else", explainCommand{Job: 10, Worker: address}, "", "sluice explain: what listens at " + address + " does not know of jobs (it answers \"200 OK\"): " + client.WorkerFlags.Hint() + "\n"},
		{"no worker", explainCommand{Job: 7}, "", "sluice explain: --job: " + client.WorkerFlags.Hint() + ", or that of a polygen that knows the workers with --admin\n"},
		{"a worker and a polygen", explainCommand{Job: 7, Worker: address, Admin: address}, "", "sluice explain: --job: " + client.WorkerFlags.Hint() + ", or that of a polygen that knows the workers with --admin\n"},
		{"no address", explainCommand{Job: 7, Worker: "x"}, "", `sluice explain: address "x": want host:port or https://host:port: ` + client.WorkerFlags.Hint() + "\n"},
		{"no id", explainCommand{Job: -1, Worker: address}, "", "sluice explain: --job -1: want River's id of the job, a positive number\n"},
		{"a user too", explainCommand{Job: 7, Worker: address, User: "alice"}, "", "sluice explain: --job goes with --worker or --admin alone: a job's user is its own\n"},
		{"nobody", explainCommand{}, "", "sluice explain: name a user, or a background job with --job\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs strings.Builder
			code := 1
			if err := tt.e.Validate(); err != nil {
				errs.WriteString("sluice explain: " + err.Error() + "\n")
			} else {
				code = tt.e.execute(&out, &errs)
			}
			if diff := cmp.Diff(tt.out, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
			if errs.String() != tt.errors || code != map[bool]int{true: 0, false: 1}[tt.errors == ""] {
				t.Errorf("errors %q, code %d, want %q", errs.String(), code, tt.errors)
			}
		})
	}
}

// knowsJobs is a polygen that knows of the jobs 7, of two databases.
type knowsJobs struct{ polygenapi.API }

func (knowsJobs) Job(_ context.Context, id int64) (api.Job, error) {
	switch id {
	case 7:
		return api.Job{From: api.From{Polygen: "one"}, Jobs: []workerapi.Why{
			{ID: 7, Kind: "render", Queue: "analysis_default", State: "gated", User: "alice", Tier: "free", Max: 1, Running: []string{"5"}, Behind: 3, Reason: "It waits."},
			{ID: 7, Kind: "sweep", Queue: "x", State: "available", Reason: "It waits, too."},
		}}, nil
	case 8:
		return api.Job{}, fmt.Errorf("%w: w:9092 does not answer in time", api.ErrNoWorker)
	}
	return api.Job{}, api.ErrNoJob
}

// A polygen that knows the workers is asked in their place.
func TestExplainJobByPolygen(t *testing.T) {
	server := apitest.Serve(knowsJobs{})
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	for _, tt := range []struct {
		id          int64
		out, errors string
	}{
		{7, `job 7, render, in the queue analysis_default: gated
It waits.
  created              0001-01-01T00:00:00Z
  attempts             0
  user                 alice, of tier free
  may run              1 at a time
  running              1: 5
  slots reserved       none
  in the user's line   0
  held back before it  3

job 7, sweep, in the queue x: available
It waits, too.
  created   0001-01-01T00:00:00Z
  attempts  0
`, ""},
		{8, "", "sluice explain: ask " + address + `: "no worker of background jobs answers: w:9092 does not answer in time"` + "\n"},
		{9, "", "sluice explain: ask " + address + `: "no such job"` + "\n"},
	} {
		var out, errs strings.Builder
		e := explainCommand{Job: tt.id, Admin: address}
		testkit.Must(t, e.Validate())
		code := e.execute(&out, &errs)
		if diff := cmp.Diff(tt.out, out.String()); diff != "" || errs.String() != tt.errors || (code == 0) != (tt.errors == "") {
			t.Errorf("job %d: code %d, errors %q, want %q; printed (-want +got):\n%s", tt.id, code, errs.String(), tt.errors, diff)
		}
	}
}
