package riverqos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// explain asks the handler about a job until its answer has a state.
func (r *rig) explain(id int64, state string) workerapi.Why {
	r.Helper()
	var why workerapi.Why
	testkit.Eventually(r, "the job's state", func() error {
		w := httptest.NewRecorder()
		r.fair.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/jobs/%d", id), nil))
		if w.Code != http.StatusOK {
			return fmt.Errorf("status %d: %s", w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &why); err != nil {
			return err
		}
		if why.State != state {
			return fmt.Errorf("it is %s, want %s", why.State, state)
		}
		return nil
	})
	return why
}

// Wherever the slots are.
func TestWhyAJobWaits(t *testing.T) { withEachBackEnd(t, whyAJobWaits) }

func whyAJobWaits(t *testing.T, in option) {
	r := start(t, in)
	r.tiers.set("ann", jobs.Limits{Total: 2, Queues: map[string]int{"slow": 1}})
	ids := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	ids = append(ids, r.insert(3, task{User: "ann", Do: "hang"}, "slow_default")...)
	r.inLine("ann", 1)
	fast := r.insert(2, task{User: "ann", Do: "hang"}, "fast_default")
	r.runs("ann", 2)
	r.inLine("ann", 2)
	if u := r.usage("ann"); u.Parked[1].ID == fmt.Sprint(fast[0]) { // they ran for the slot
		fast[0], fast[1] = fast[1], fast[0]
	}
	at := time.Now().Add(time.Hour)
	later, err := r.client.Insert(context.Background(), task{User: "ann"}, &river.InsertOpts{ScheduledAt: at})
	if err != nil {
		t.Fatal(err)
	}
	system := r.insert(1, task{Do: ""}, "nobodys")
	for _, c := range []struct {
		name, state string
		id          int64
		reason      string
	}{
		{"it runs", "running", ids[0], "It runs."},
		{"the next one", "parked", ids[1], "Its user's slots are taken: 2 of 2 in all; it is number 1 in their line."},
		{"the one after it", "gated", ids[2], "Its user may run 1 at a time in slow, and 2 of their jobs go before it."},
		{"the last one", "gated", ids[3], "Its user may run 1 at a time in slow, and 3 of their jobs go before it."},
		{"in another queue", "parked", fast[1], "Its user's slots are taken: 2 of 2 in all; it is number 2 in their line."},
		{"by its own will", "scheduled", later.Job.ID, "It is scheduled for " + at.UTC().Format(time.RFC3339) + "."},
		{"without user", "available", system[0], "It waits for a worker. It has no user, so no limit holds it up."},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func(whole testing.TB) { r.TB = whole }(r.TB)
			r.TB = t
			why := r.explain(c.id, c.state)
			if why.Reason != c.reason {
				t.Errorf("the reason is %q, want %q", why.Reason, c.reason)
			}
			if c.name != "without user" && (why.User != "ann" || why.Tier != "pro" || why.Max != 2 || len(why.Running) != 2 || why.Database == "") {
				t.Errorf("Why(%d) = %+v, want user ann, tier pro, max 2, 2 running, of a database", c.id, why)
			}
		})
	}
	close(r.gate("hang"))
	r.finished(append(ids, fast...))
	if why := r.explain(ids[0], "completed"); why.Reason != "It has finished: it is completed." {
		t.Errorf("the reason is %q", why.Reason)
	}
}

func TestTheHandlerRefuses(t *testing.T) {
	r := start(t)
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/jobs/4711", http.StatusNotFound, `{"error":"no such job"}`},
		{"GET", "/jobs/x", http.StatusBadRequest, `{"error":"the id of a job is a positive number"}`},
		{"GET", "/jobs/-1", http.StatusBadRequest, `{"error":"the id of a job is a positive number"}`},
		{"POST", "/jobs/1", http.StatusMethodNotAllowed, `Method Not Allowed`},
		{"GET", "/jobs?n=0", http.StatusBadRequest, `{"error":"n is a number from 1 to 1000"}`},
		{"GET", "/jobs?n=1001", http.StatusBadRequest, `{"error":"n is a number from 1 to 1000"}`},
		{"GET", "/jobs?n=x", http.StatusBadRequest, `{"error":"n is a number from 1 to 1000"}`},
		{"POST", "/jobs", http.StatusMethodNotAllowed, `Method Not Allowed`},
		{"GET", "/", http.StatusNotFound, `404 page not found`},
	} {
		w := httptest.NewRecorder()
		r.fair.Handler().ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.body {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, w.Code, got, c.status, c.body)
		}
	}
}

func TestMetrics(t *testing.T) {
	r := start(t, ungated)
	ids := r.insert(3, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	r.inLine("ann", 2)
	for _, m := range [][2]string{
		{"sluice_jobs_running", "free"}, {"sluice_jobs_refused_total", "total"}, {"sluice_jobs_sweeps_total", "done"},
	} {
		testkit.Eventually(t, "it is counted", func() error { return r.counted(m[0], m[1]) })
	}
	r.depthBecomes(map[string]int{"slow_default parked": 2, "slow_default running": 1}, river.QueueDefault, "fast_default", "slow_default")
	err := testutil.GatherAndCompare(r.reg, strings.NewReader(`
# HELP sluice_jobs_running Jobs that run in a slot in this process, by their user's tier and by queue.
# TYPE sluice_jobs_running gauge
sluice_jobs_running{queue="slow_default",tier="free"} 1
`), "sluice_jobs_running")
	if err != nil {
		t.Error(err)
	}
	close(r.gate("hang"))
	r.finished(ids)
	r.depthBecomes(nil, river.QueueDefault, "fast_default", "slow_default")
	testkit.Eventually(t, "it is counted", func() error { return r.counted("sluice_jobs_wakes_total", "done") })
	problems, err := testutil.GatherAndLint(r.reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want none", problems, err)
	}
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var waits []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "sluice_jobs_wait_seconds" {
				waits = append(waits, fmt.Sprint(m.GetLabel()[0].GetValue(), " ", m.GetLabel()[1].GetValue(), " ", m.GetHistogram().GetSampleCount()))
			}
		}
	}
	if want := []string{"default free 3"}; !slices.Equal(waits, want) {
		t.Errorf("waits by class and tier, and how many: %q, want %q", waits, want)
	}
}

func TestRoute(t *testing.T) {
	r := start(t)
	r.tiers.set("ann", jobs.Limits{Total: 3})
	for _, c := range []struct {
		user      string
		scheduled bool
		queue     string
	}{
		{"ann", false, "analysis_priority"},
		{"ann", true, "analysis_scheduled"},
		{"bob", false, "analysis_default"},
		{"", false, "analysis_default"},
		{"", true, "analysis_scheduled"},
	} {
		if got := r.fair.Route(context.Background(), c.user, "analysis", c.scheduled).Queue; got != c.queue {
			t.Errorf("Route(%q, analysis, %v) = %s, want %s", c.user, c.scheduled, got, c.queue)
		}
	}
}

func TestQueueConfigs(t *testing.T) {
	got := riverqos.QueueConfigs(jobs.Queues{"analysis": {Priority: 5, Default: 3}, "mail": {Scheduled: 1}})
	want := map[string]river.QueueConfig{"analysis_priority": {MaxWorkers: 5}, "analysis_default": {MaxWorkers: 3}, "mail_scheduled": {MaxWorkers: 1}}
	if !maps.Equal(got, want) {
		t.Errorf("QueueConfigs() = %v, want %v", got, want)
	}
}

func TestNewRefuses(t *testing.T) {
	pool, _ := fresh(t)
	good := riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: &tiers{}}}
	if _, err := riverqos.New(good); err != nil {
		t.Errorf("New() = %v", err)
	}
	for want, change := range map[string]func(*riverqos.Config){
		"riverqos: Slots, Tiers, Queue and a Name of up to 256 bytes are required": func(c *riverqos.Config) { c.Runner.Slots = nil },
		"riverqos: Lease is -1s, want a positive duration":                         func(c *riverqos.Config) { c.Runner.Lease = -time.Second },
	} {
		cfg := good
		change(&cfg)
		if _, err := riverqos.New(cfg); err == nil || err.Error() != want {
			t.Errorf("New() = %v, want %s", err, want)
		}
	}
}
