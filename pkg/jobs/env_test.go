package jobs_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestFromEnv(t *testing.T) {
	usual := func(change func(*jobs.Env)) jobs.Env {
		e := jobs.Env{Enabled: true, Totals: map[string]int{}, Snooze: 30 * time.Second, Jitter: 10 * time.Second}
		if change != nil {
			change(&e)
		}
		return e
	}
	for _, tt := range []struct {
		name string
		env  env
		want jobs.Env
	}{
		{"nothing", nil, usual(nil)},
		{"empty", env{"FAIRNESS_ENABLED": "", "FAIRNESS_FREE_LIMIT": "", "FAIRNESS_SNOOZE_JITTER": ""}, usual(nil)},
		{"off", env{"FAIRNESS_ENABLED": "False"}, usual(func(e *jobs.Env) { e.Enabled = false })},
		{"off as a number", env{"FAIRNESS_ENABLED": "0"}, usual(func(e *jobs.Env) { e.Enabled = false })},
		{"on", env{"FAIRNESS_ENABLED": "yes"}, usual(nil)},
		{"every limit", env{"FAIRNESS_FREE_LIMIT": "2", "FAIRNESS_PRO_LIMIT": "4", "FAIRNESS_PRO_PLUS_LIMIT": "6", "FAIRNESS_ENTERPRISE_LIMIT": "100000"},
			usual(func(e *jobs.Env) {
				e.Totals = map[string]int{"free": 2, "pro": 4, "pro_plus": 6, "enterprise": 100000}
			})},
		{"the limit of pro is that of pro_plus, too", env{"FAIRNESS_PRO_LIMIT": "4"}, usual(func(e *jobs.Env) { e.Totals = map[string]int{"pro": 4, "pro_plus": 4} })},
		{"and that of pro_plus is its own alone", env{"FAIRNESS_PRO_PLUS_LIMIT": "6"}, usual(func(e *jobs.Env) { e.Totals = map[string]int{"pro_plus": 6} })},
		{"durations", env{"FAIRNESS_SNOOZE_DURATION": "1m30s", "FAIRNESS_SNOOZE_JITTER": "500ms"}, usual(func(e *jobs.Env) { e.Snooze, e.Jitter = 90*time.Second, 500*time.Millisecond })},
		{"seconds", env{"FAIRNESS_SNOOZE_DURATION": "45", "FAIRNESS_SNOOZE_JITTER": "0.5"}, usual(func(e *jobs.Env) { e.Snooze, e.Jitter = 45*time.Second, 500*time.Millisecond })},
		{"no jitter", env{"FAIRNESS_SNOOZE_JITTER": "0"}, usual(func(e *jobs.Env) { e.Jitter = 0 })},
	} {
		got, err := jobs.FromEnv(tt.env.lookup)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: FromEnv = %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

// TestFromEnvErrors: all of them at once.
func TestFromEnvErrors(t *testing.T) {
	got, err := jobs.FromEnv(env{
		"FAIRNESS_ENABLED": "maybe", "FAIRNESS_FREE_LIMIT": "0", "FAIRNESS_PRO_LIMIT": "many", "FAIRNESS_PRO_PLUS_LIMIT": "100001", "FAIRNESS_ENTERPRISE_LIMIT": "-5",
		"FAIRNESS_SNOOZE_DURATION": "0", "FAIRNESS_SNOOZE_JITTER": "-1s",
	}.lookup)
	want := strings.Join([]string{
		`FAIRNESS_ENABLED="maybe": must be true or false`,
		`FAIRNESS_FREE_LIMIT="0": must be 1 or more, got 0; a job that may never run waits for ever`,
		`FAIRNESS_PRO_LIMIT="many": must be a whole number from 1 to 100000, got "many"`,
		`FAIRNESS_PRO_PLUS_LIMIT="100001": must be at most 100000, got 100001`,
		`FAIRNESS_ENTERPRISE_LIMIT="-5": must be 1 or more, got -5; a job that may never run waits for ever`,
		`FAIRNESS_SNOOZE_DURATION="0": must be from 1ms to 24h0m0s`,
		`FAIRNESS_SNOOZE_JITTER="-1s": must be from 0s to 24h0m0s`,
	}, "\n")
	if err == nil || err.Error() != want || !cmp.Equal(got, jobs.Env{}) {
		t.Errorf("FromEnv = %+v, %v, want\n%s", got, err, want)
	}
	for _, text := range []string{"soon", "1.2.3", ".", "25h", "1e3", "NaN", "9999999999999999999999"} {
		if got, err := jobs.FromEnv(env{"FAIRNESS_SNOOZE_DURATION": text}.lookup); err == nil || !strings.HasPrefix(err.Error(), "FAIRNESS_SNOOZE_DURATION=") {
			t.Errorf("FromEnv of a snooze of %q = %+v, %v, want an error", text, got, err)
		}
	}
}

// FuzzFromEnv: what is read is what the adapter takes, or an error that names the
// variable.
func FuzzFromEnv(f *testing.F) {
	f.Add("true", "3", "30s", "10")
	f.Add("off", "100000", "0.001", "24h")
	f.Add("", "", "", "")
	f.Add("?", "-1", "1e9", "-0")
	f.Fuzz(func(t *testing.T, enabled, limit, snooze, jitter string) {
		e, err := jobs.FromEnv(env{"FAIRNESS_ENABLED": enabled, "FAIRNESS_PRO_LIMIT": limit, "FAIRNESS_SNOOZE_DURATION": snooze, "FAIRNESS_SNOOZE_JITTER": jitter}.lookup)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "FAIRNESS_") {
				t.Fatalf("FromEnv = %v, want an error that names a variable", err)
			}
			return
		}
		if n, ok := e.Totals["pro"]; ok != (limit != "") || ok && (n < 1 || n > limits.MaxJobs) {
			t.Fatalf("a limit of %q is %d, %v", limit, n, ok)
		}
		if e.Snooze < time.Millisecond || e.Snooze > 24*time.Hour || e.Jitter < 0 || e.Jitter > 24*time.Hour {
			t.Fatalf("a snooze of %q and %q is %v and %v", snooze, jitter, e.Snooze, e.Jitter)
		}
	})
}

// The environment switches a Runner off, and variables that change nothing are named once.
func TestTheEnvironmentOfARunner(t *testing.T) {
	var log strings.Builder
	runner := func(snooze bool, environ ...string) (*jobs.Runner, error) {
		log.Reset()
		return jobs.NewRunner(jobs.RunnerConfig{
			Name: "test", Slots: jobs.NewMemory(nil), Tiers: jobs.FileTiers{Totals: map[string]int{"free": 2}}, Queue: queueOfNothing{}, Snooze: snooze,
			Environ: environ, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
	}
	for _, c := range []struct {
		name     string
		snooze   bool
		environ  []string
		disabled bool
		log      string
		err      string
	}{
		{"nothing", false, []string{}, false, "", ""},
		{"off", false, []string{"FAIRNESS_ENABLED=false"}, true, "", ""},
		{"neither on nor off", false, []string{"FAIRNESS_ENABLED=flase"}, false, "", `FAIRNESS_ENABLED="flase": must be true or false`},
		{"a limit", false, []string{"FAIRNESS_FREE_LIMIT=2"}, false, "", ""},
		{"limits of no tier, and of one whose limit is not passed on", false, []string{"FAIRNESS_GOLD_LIMIT=2", "FAIRNESS_PRO_LIMIT=4"}, false, `names="[FAIRNESS_GOLD_LIMIT FAIRNESS_PRO_LIMIT]"`, ""},
		{"sleep where jobs are parked", false, []string{"FAIRNESS_SNOOZE_JITTER=0"}, false, "names=[FAIRNESS_SNOOZE_JITTER]", ""},
		{"sleep", true, []string{"FAIRNESS_SNOOZE_JITTER=0"}, false, "", ""},
	} {
		r, err := runner(c.snooze, c.environ...)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: NewRunner = %v, want %s", c.name, err, c.err)
			}
			continue
		}
		if err != nil || r.Disabled() != c.disabled || !strings.Contains(log.String(), c.log) || (log.Len() > 0) != (c.log != "") {
			t.Errorf("%s: NewRunner = %v, disabled %v, and it logs %q, want %v and %q", c.name, err, r.Disabled(), &log, c.disabled, c.log)
		}
	}
	// Even slots that do not answer are not asked.
	r, err := jobs.NewRunner(jobs.RunnerConfig{Name: "test", Slots: jobs.Checked(nil), Tiers: jobs.FileTiers{}, Queue: queueOfNothing{}, Environ: []string{"FAIRNESS_ENABLED=0"}})
	if err != nil {
		t.Fatal(err)
	}
	ran := false
	if err := r.Work(t.Context(), jobs.Attempt{User: "ann", ID: "1"}, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("Work = %v, it ran: %v, want it to run", err, ran)
	}
}

type queueOfNothing struct{}

func (queueOfNothing) Wake(context.Context, []string) (map[string]jobs.WakeResult, error) {
	return nil, nil
}

func (queueOfNothing) Parked(context.Context, time.Duration, func([]jobs.Job) error) error {
	return nil
}
