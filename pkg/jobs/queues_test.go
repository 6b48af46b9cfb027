package jobs_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// env is an environment.
type env map[string]string

func (e env) lookup(name string) (string, bool) {
	text, ok := e[name]
	return text, ok
}

func workers(priority, byDefault, scheduled int) jobs.Workers {
	return jobs.Workers{Priority: priority, Default: byDefault, Scheduled: scheduled}
}

const queuesFile = "version: 1\ndefault_tier: free\ntiers: {free: {}}\nqueues: {analysis: {priority: 5, default: 3, scheduled: 2}, spec-view: [3, 0, 1]}\n"

func TestQueuesOf(t *testing.T) {
	file := jobs.Queues{"analysis": workers(5, 3, 2), "spec-view": workers(3, 0, 1)}
	with := func(service string, w jobs.Workers) jobs.Queues {
		q := maps.Clone(file)
		q[service] = w
		return q
	}
	analyzer := map[string]string{"analysis": "ANALYZER"}
	for _, tt := range []struct {
		name     string
		set      *limits.Set
		prefixes map[string]string
		env      env
		want     jobs.Queues
	}{
		{"the file's", parse(t, queuesFile), nil, nil, file},
		{"no file", nil, nil, nil, jobs.Queues{}},
		{"a variable", parse(t, queuesFile), nil, env{"ANALYSIS_QUEUE_PRIORITY_WORKERS": "9"}, with("analysis", workers(9, 3, 2))},
		{"all three", parse(t, queuesFile), nil, env{"ANALYSIS_QUEUE_PRIORITY_WORKERS": "9", "ANALYSIS_QUEUE_DEFAULT_WORKERS": "0", "ANALYSIS_QUEUE_SCHEDULED_WORKERS": "10000"}, with("analysis", workers(9, 0, 10000))},
		{"a name with a hyphen", parse(t, queuesFile), nil, env{"SPEC_VIEW_QUEUE_DEFAULT_WORKERS": "7"}, with("spec-view", workers(3, 7, 1))},
		{"an empty variable", parse(t, queuesFile), nil, env{"ANALYSIS_QUEUE_PRIORITY_WORKERS": ""}, file},
		{"another prefix", parse(t, queuesFile), analyzer, env{"ANALYZER_QUEUE_PRIORITY_WORKERS": "9"}, with("analysis", workers(9, 3, 2))},
		{"in place of the service's", parse(t, queuesFile), analyzer, env{"ANALYSIS_QUEUE_PRIORITY_WORKERS": "9"}, file},
		{"without a file", nil, analyzer, env{"ANALYZER_QUEUE_PRIORITY_WORKERS": "9", "ANALYZER_QUEUE_DEFAULT_WORKERS": "8", "ANALYZER_QUEUE_SCHEDULED_WORKERS": "7"}, jobs.Queues{"analysis": workers(9, 8, 7)}},
		{"one variable without a file", nil, analyzer, env{"ANALYZER_QUEUE_PRIORITY_WORKERS": "9"}, jobs.Queues{"analysis": workers(9, 3, 2)}},
		{"one variable of each, without a file and prefixes", nil, map[string]string{"analysis": "", "spec-view": ""}, env{"ANALYSIS_QUEUE_DEFAULT_WORKERS": "0", "SPEC_VIEW_QUEUE_SCHEDULED_WORKERS": "9"}, jobs.Queues{"analysis": workers(5, 0, 2), "spec-view": workers(3, 2, 9)}},
		{"no variable and no file", nil, map[string]string{"analysis": "ANALYZER", "specview": ""}, nil, jobs.Queues{"analysis": workers(5, 3, 2), "specview": workers(3, 2, 1)}},
		{"one that is not in the file", parse(t, queuesFile), map[string]string{"report": ""}, env{"REPORT_QUEUE_PRIORITY_WORKERS": "4"}, with("report", workers(4, 2, 1))},
		{"what the file says, not what is built in", parse(t, queuesFile), map[string]string{"spec-view": ""}, env{"SPEC_VIEW_QUEUE_PRIORITY_WORKERS": "4"}, with("spec-view", workers(4, 0, 1))},
	} {
		got, err := jobs.QueuesOf(tt.set, tt.prefixes, tt.env.lookup)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: QueuesOf = %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func TestQueuesOfErrors(t *testing.T) {
	alike := parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {}}\nqueues: {a-b: [1, 1, 1], a_b: [1, 1, 1]}\n")
	if _, err := jobs.QueuesOf(alike, nil, env{}.lookup); err != nil {
		t.Errorf("services of one prefix, no variable set: %v, want no error", err)
	}
	for _, tt := range []struct {
		name     string
		set      *limits.Set
		prefixes map[string]string
		env      env
		want     []string
	}{
		{"no numbers", parse(t, queuesFile), nil, env{
			"ANALYSIS_QUEUE_PRIORITY_WORKERS": "five", "ANALYSIS_QUEUE_DEFAULT_WORKERS": "-1", "ANALYSIS_QUEUE_SCHEDULED_WORKERS": "10001", "SPEC_VIEW_QUEUE_PRIORITY_WORKERS": " 5"}, []string{
			`ANALYSIS_QUEUE_PRIORITY_WORKERS="five": must be a whole number from 0 (none here) to 10000, got "five"`,
			`ANALYSIS_QUEUE_DEFAULT_WORKERS="-1": must be a whole number from 0 (none here) to 10000, got "-1"`,
			`ANALYSIS_QUEUE_SCHEDULED_WORKERS="10001": must be at most 10000, got 10001`,
			`SPEC_VIEW_QUEUE_PRIORITY_WORKERS=" 5": must be a whole number from 0 (none here) to 10000, got " 5"`,
		}},
		{"names that are none", nil, map[string]string{"Analysis": "A", "a": " ", "b": "B-C", "c": "1C"}, nil, []string{
			`service "Analysis": want 1 to 54 of a-z and 0-9, with single _ or - between them`,
			`service a: " " cannot begin the name of a variable`,
			`service b: "B-C" cannot begin the name of a variable`,
			`service c: "1C" cannot begin the name of a variable`,
		}},
		{"a variable of two services", alike, nil, env{"A_B_QUEUE_DEFAULT_WORKERS": "4"}, []string{
			`A_B_QUEUE_DEFAULT_WORKERS="4" is of both services a-b and a_b: give one another prefix`,
		}},
	} {
		q, err := jobs.QueuesOf(tt.set, tt.prefixes, tt.env.lookup)
		if want := strings.Join(tt.want, "\n"); err == nil || err.Error() != want || q != nil {
			t.Errorf("%s: QueuesOf = %v, %v, want\n%s", tt.name, q, err, want)
		}
	}
}

// TestDedicatedQueues: each service has those that the file dedicates to tiers and users.
func TestDedicatedQueues(t *testing.T) {
	set := parse(t, queuesFile+"workers: {free: {default: 7}, users: {a_b: {priority: 1, scheduled: 2}}}\n")
	q, err := jobs.QueuesOf(set, map[string]string{"report": ""}, env{"REPORT_QUEUE_DEFAULT_WORKERS": "0"}.lookup)
	want := map[string]int{
		"analysis_priority": 5, "analysis_default": 3, "analysis_scheduled": 2, "spec-view_priority": 3, "spec-view_scheduled": 1, "report_priority": 3, "report_scheduled": 1,
		"analysis_default-free": 7, "analysis_priority-user-a-b": 1, "analysis_scheduled-user-a-b": 2,
		"spec-view_default-free": 7, "spec-view_priority-user-a-b": 1, "spec-view_scheduled-user-a-b": 2,
		"report_default-free": 7, "report_priority-user-a-b": 1, "report_scheduled-user-a-b": 2,
	}
	if diff := cmp.Diff(want, q.Workers()); diff != "" || err != nil {
		t.Errorf("QueuesOf = %v (-want +got):\n%s", err, diff)
	}
	service := strings.Repeat("x", 54)
	set = parse(t, queuesFile+"workers: {free: {default: 7}}\n")
	q, err = jobs.QueuesOf(set, map[string]string{service: ""}, env{}.lookup)
	if want := "service " + service + ": the queue " + service + "_default-free has a name of 67 bytes, and River takes 64"; err == nil || !strings.HasPrefix(err.Error(), want) || q != nil {
		t.Errorf("QueuesOf = %v, %v, want %s", q, err, want)
	}
}

func TestQueuesWorkers(t *testing.T) {
	got := jobs.Queues{"analysis": workers(5, 3, 2), "spec-view": workers(3, 0, 1), "off": {}}.Workers()
	want := map[string]int{"analysis_priority": 5, "analysis_default": 3, "analysis_scheduled": 2, "spec-view_priority": 3, "spec-view_scheduled": 1}
	if !maps.Equal(got, want) {
		t.Errorf("Workers() = %v, want %v", got, want)
	}
	if n := workers(1, 2, 3).Of("other"); n != 0 {
		t.Errorf("Of(other) = %d, want 0", n)
	}
}

func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		queue, service string
		class          jobs.Class
	}{
		{"analysis_priority", "analysis", jobs.Priority}, {"analysis_default", "analysis", jobs.Default}, {"a_scheduled", "a", jobs.Scheduled},
		{"analysis_priority-enterprise", "analysis", "priority-enterprise"}, {"a_b-c_default-user-a-b", "a_b-c", "default-user-a-b"}, {"a_priority-x_scheduled", "a_priority-x", jobs.Scheduled},
		{"analysis_priority-", "analysis_priority-", ""}, {"analysis_other-x", "analysis_other-x", ""}, {"_priority-x", "_priority-x", ""}, {"analysis_priority-a_b", "analysis_priority-a_b", ""},
		{"a_b_default", "a_b", jobs.Default}, {"a_priority_default", "a_priority", jobs.Default},
		{"default", "default", ""}, {"_default", "_default", ""}, {"analysis", "analysis", ""}, {"analysis_other", "analysis_other", ""}, {"analysis-default", "analysis-default", ""}, {"", "", ""},
	} {
		service, class := jobs.Split(tt.queue)
		if service != tt.service || class != tt.class {
			t.Errorf("Split(%q) = %q, %q, want %q, %q", tt.queue, service, class, tt.service, tt.class)
		}
	}
}

func TestRoute(t *testing.T) {
	pro, free := jobs.Tier{Class: jobs.Priority}, jobs.Tier{Class: jobs.Default}
	own := jobs.Tier{Class: "priority-enterprise", Scheduled: "scheduled-enterprise"}
	long := jobs.Tier{Class: jobs.Class("priority-" + strings.Repeat("x", 50)), Scheduled: jobs.Class("scheduled-" + strings.Repeat("x", 50))}
	for _, tt := range []struct {
		name      string
		tier      jobs.Tier
		scheduled bool
		want      string
	}{
		{"a tier that pays", pro, false, "analysis_priority"},
		{"another", free, false, "analysis_default"},
		{"nobody's", jobs.Tier{}, false, "analysis_default"},
		{"a scheduler's, of any user", pro, true, "analysis_scheduled"},
		{"with workers of its own", own, false, "analysis_priority-enterprise"},
		{"a scheduler's, with workers of its own", own, true, "analysis_scheduled-enterprise"},
		{"a name that River would refuse", long, false, "analysis_priority"},
		{"a scheduler's, with such a name", long, true, "analysis_scheduled"},
		{"a scheduler's, of nobody", jobs.Tier{}, true, "analysis_scheduled"},
	} {
		if got := jobs.SelectQueue("analysis", tt.tier, tt.scheduled); got != tt.want {
			t.Errorf("%s: Route = %s, want %s", tt.name, got, tt.want)
		}
	}
}

// FuzzSplit: what QueueName joins, Split takes apart, and nothing gets lost.
func FuzzSplit(f *testing.F) {
	for _, queue := range []string{"analysis_priority", "_default", "a_scheduled_scheduled", "a_priority-b", "a_priority-b-c", "a_priority-", ""} {
		f.Add(queue)
	}
	f.Fuzz(func(t *testing.T, queue string) {
		service, class := jobs.Split(queue)
		again := service
		if class != "" {
			again = jobs.QueueName(service, class)
		}
		if again != queue {
			t.Fatalf("Split(%q) = %q, %q", queue, service, class)
		}
		if queue == "" {
			return
		}
		for _, class := range append(jobs.Classes[:], "priority-enterprise", "default-user-a-b") {
			if s, c := jobs.Split(jobs.QueueName(queue, class)); s != queue || c != class {
				t.Fatalf("Split(QueueName(%q, %s)) = %q, %q", queue, class, s, c)
			}
		}
	})
}
