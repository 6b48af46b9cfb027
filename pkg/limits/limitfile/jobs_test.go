package limitfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestJobsOfUsers(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
anonymous_tier: pro
exempt: {users: [probe]}
tiers:
  free: {}
  pro: {jobs: {total: 4, queues: {analysis: 1}}}
  enterprise: {concurrent: 2}
users:
  alice: pro
  bob: {tier: pro, jobs: 10}
  carol: {tier: pro, jobs: unlimited}
  dora: {tier: pro, jobs: {queues: {analysis: unlimited, specview: 2}, class: default}}
  ernie: {tier: enterprise, mode: dry-run}
  frank: {tier: enterprise, jobs: 7, concurrent: 9}
  grete: {tier: pro, mode: off}
  "team-*": enterprise
`)
	const enforce, dry, off = limits.Enforce, limits.DryRun, limits.Off
	analysis := map[string]int{"analysis": 1}
	for _, tt := range []struct {
		name, key string
		want      limits.Jobs
	}{
		{"a user without an entry has the default tier's", "nobody", limits.Jobs{Total: 1, Queues: nil, Class: limits.DefaultQueues, Mode: enforce, Source: limits.Builtin, Stated: true}},
		{"an address has the anonymous tier's", "10.0.0.1", limits.Jobs{Total: 4, Queues: analysis, Class: limits.PriorityQueues, Mode: enforce, Source: limits.OfTier, Stated: true}},
		{"a tier", "alice", limits.Jobs{Total: 4, Queues: analysis, Class: limits.PriorityQueues, Mode: enforce, Source: limits.OfTier, Stated: true}},
		{"a number leaves the queues and the class", "bob", limits.Jobs{Total: 10, Queues: analysis, Class: limits.PriorityQueues, Mode: enforce, Source: limits.OfUser, Stated: true}},
		{"unlimited lifts the queues, too", "carol", limits.Jobs{Total: 0, Queues: nil, Class: limits.PriorityQueues, Mode: enforce, Source: limits.OfUser, Stated: true}},
		{"a mapping leaves what it does not name", "dora", limits.Jobs{Total: 4, Queues: map[string]int{"specview": 2}, Class: limits.DefaultQueues, Mode: enforce, Source: limits.OfTier, Stated: true}},
		{"a dry run", "ernie", limits.Jobs{Total: 5, Queues: nil, Class: limits.PriorityQueues, Mode: dry, Source: limits.Builtin, Stated: true}},
		{"beside a limit of requests", "frank", limits.Jobs{Total: 7, Queues: nil, Class: limits.PriorityQueues, Mode: enforce, Source: limits.OfUser, Stated: true}},
		{"a pattern's tier", "team-x", limits.Jobs{Total: 5, Queues: nil, Class: limits.PriorityQueues, Mode: enforce, Source: limits.Builtin, Stated: true}},
		{"off", "grete", limits.Jobs{Total: 4, Queues: analysis, Class: limits.PriorityQueues, Mode: off, Source: limits.OfTier, Stated: true}},
		{"exempt", "probe", limits.Jobs{Class: limits.DefaultQueues}},
	} {
		if diff := cmp.Diff(tt.want, set.User(tt.key).Jobs()); diff != "" {
			t.Errorf("%s: User(%s).Jobs() (-want +got):\n%s", tt.name, tt.key, diff)
		}
	}
	if got, want := set.User("grete").OffFields(), []string{"jobs.queues.analysis", "jobs.total"}; !slices.Equal(got, want) {
		t.Errorf("Off() = %q, want %q", got, want)
	}
}

// TestJobsUnsaid: a file that knows nothing of jobs says so, and still has the numbers
// that its tiers' names give.
func TestJobsUnsaid(t *testing.T) {
	set := mustParse(t, "version: 1\ndefault_tier: basic\ntiers: {basic: {}, free: {}, pro: {}, pro_plus: {}, enterprise: {}, pro-plus: {}}\nusers: {alice: {tier: pro, concurrent: 3}}\n")
	want := map[string]limits.Jobs{
		"basic":      {Total: 1, Class: limits.DefaultQueues},
		"free":       {Total: 1, Class: limits.DefaultQueues},
		"pro":        {Total: 3, Class: limits.PriorityQueues},
		"pro_plus":   {Total: 3, Class: limits.PriorityQueues},
		"enterprise": {Total: 5, Class: limits.PriorityQueues},
		"pro-plus":   {Total: 1, Class: limits.DefaultQueues},
	}
	got := map[string]limits.Jobs{}
	for _, name := range set.TierNames() {
		l, _ := set.TierLimits(name)
		got[name] = l.Jobs()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the tiers' Jobs() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want["pro"], set.User("alice").Jobs()); diff != "" {
		t.Errorf("User(alice).Jobs() (-want +got):\n%s", diff)
	}
	if got := set.Queues(); len(got) != 0 {
		t.Errorf("Queues() = %v, want none", got)
	}
	if got, want := (&limits.Limits{}).Jobs(), (limits.Jobs{Class: limits.DefaultQueues}); !cmp.Equal(got, want) {
		t.Errorf("the zero Limits' Jobs() = %+v, want %+v", got, want)
	}
}

// TestLimitsAreSmall: the limits of a user who shares them with nobody are one of the
// allocator's 128 bytes, as they were before they knew of jobs.
func TestLimitsAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(limits.Limits{}); size > 128 {
		t.Errorf("Limits have %d bytes, want at most 128", size)
	}
}

// TestEqualJobsAreShared: users with jobs of their own share what is equal.
func TestEqualJobsAreShared(t *testing.T) {
	set := mustParse(t, "version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {}}\n"+
		"users: {a: {jobs: {queues: {x: 1, y: 2}}}, b: {jobs: {queues: {y: 2, x: 1}}}, c: {jobs: {queues: {}}}, d: {tier: pro, jobs: {queues: {x: 1}}}, e: {tier: pro, jobs: {queues: {x: 1, y: unlimited}}}}\n")
	free, _ := set.TierLimits("free")
	for _, tt := range [][2]string{{"a", "b"}, {"d", "e"}} {
		if set.User(tt[0]) != set.User(tt[1]) {
			t.Errorf("%s and %s have limits of their own, want the same", tt[0], tt[1])
		}
	}
	if c := set.User("c").Jobs(); free.Jobs().Stated || !c.Stated || c.Total != 1 || c.Queues != nil {
		t.Errorf("c has %+v, and free %+v, want the same, but stated", c, free.Jobs())
	}
}

// TestQueueClass: a user's own workers come before the tier's, class by class.
func TestQueueClass(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
tiers: {free: {}, pro: {}, pro_plus: {}}
workers: {free: {scheduled: 1}, pro_plus: {priority: 9, scheduled: 2}, users: {alice: {priority: 1}, "7": {default: 1}}}
`)
	for _, tt := range []struct{ class, tier, user, want string }{
		{"priority", "pro_plus", "bob", "priority-pro-plus"},
		{"scheduled", "pro_plus", "bob", "scheduled-pro-plus"},
		{"default", "pro_plus", "bob", "default"},
		{"priority", "pro", "bob", "priority"},
		{"priority", "pro_plus", "alice", "priority-user-alice"},
		{"scheduled", "pro_plus", "alice", "scheduled-pro-plus"},
		{"priority", "pro", "alice", "priority-user-alice"},
		{"default", "free", "alice", "default"},
		{"scheduled", "free", "alice", "scheduled-free"},
		{"default", "free", "7", "default-user-7"},
		{"default", "", "", "default"},
		{"priority", "alice", "pro_plus", "priority"},
		{"", "pro_plus", "alice", ""},
	} {
		if got := set.QueueClass(tt.class, tt.tier, tt.user); got != tt.want {
			t.Errorf("QueueClass(%q, %q, %q) = %q, want %q", tt.class, tt.tier, tt.user, got, tt.want)
		}
	}
}

// TestTooManyDedicated: each is a queue more of each service.
func TestTooManyDedicated(t *testing.T) {
	users := ""
	for i := range maxDedicated + 1 {
		users += fmt.Sprintf("u%d: {default: 1}, ", i)
	}
	_, err := Parse("f", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}}\nworkers: {users: {"+users+"}}"))
	if want := "f:4:10: workers has 65 tiers and users; at most 64 are possible"; err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

func TestQueues(t *testing.T) {
	for _, tt := range []struct {
		name, source string
		want         []limits.Queue
	}{
		{"by name", "{analysis: {scheduled: 2, priority: 5, default: 3}}", []limits.Queue{{Service: "analysis", Priority: 5, Default: 3, Scheduled: 2}}},
		{"in order", "{specview: [3, 2, 1]}", []limits.Queue{{Service: "specview", Priority: 3, Default: 2, Scheduled: 1}}},
		{"in order, as names without values", "{specview: {3, 2, 1}}", []limits.Queue{{Service: "specview", Priority: 3, Default: 2, Scheduled: 1}}},
		{"the order is that of the file", "{specview: {1, 2, 3}}", []limits.Queue{{Service: "specview", Priority: 1, Default: 2, Scheduled: 3}}},
		{"sorted by service", "{b: [1, 1, 1], a-1: [0, 0, 0], a: [10000, 10000, 10000]}", []limits.Queue{{Service: "a", Priority: 10000, Default: 10000, Scheduled: 10000}, {Service: "a-1", Priority: 0, Default: 0, Scheduled: 0}, {Service: "b", Priority: 1, Default: 1, Scheduled: 1}}},
		{"the longest name", "{" + strings.Repeat("x", maxService) + ": [1, 1, 1]}", []limits.Queue{{Service: strings.Repeat("x", maxService), Priority: 1, Default: 1, Scheduled: 1}}},
	} {
		set := mustParse(t, "version: 1\ndefault_tier: free\ntiers: {free: {}}\nqueues: "+tt.source)
		if got := set.Queues(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: Queues() = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestTooManyServices(t *testing.T) {
	names := make([]string, maxServices+1)
	for i := range names {
		names[i] = "s" + strings.Repeat("a", i%30) + string(rune('a'+i%26)) + strings.Repeat("0", i/26)
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) != maxServices+1 {
		t.Fatalf("%d names, want %d", len(names), maxServices+1)
	}
	all := "{" + strings.Join(names, ": [1, 1, 1], ") + ": [1, 1, 1]}"
	_, err := Parse("f", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}}\nqueues: "+all))
	if want := "f:4:9: queues must have 1 to 256 services, got 257"; err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
	all = "{" + strings.Join(names, ": 1, ") + ": 1}"
	_, err = Parse("f", []byte("version: 1\ndefault_tier: free\ntiers: {free: {jobs: {queues: "+all+"}}}"))
	if want := `f:3:31: tier "free": jobs.queues has 257 services; at most 256 are possible`; err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

// linesOf are the lines that set a user's limits, by field.
func linesOf(set *limits.Set, user string) map[string]int {
	lines := map[string]int{}
	for _, f := range OriginOf(set, user).Fields {
		lines[f.Name] = f.Line
	}
	return lines
}

func TestOriginOfJobs(t *testing.T) {
	set := mustParse(t, `version: 1
default_tier: free
tiers:
  free: {jobs: 2}
  pro:
    jobs:
      total: 4
      queues:
        analysis: 1
        specview: 2
      class: priority
users:
  bob: {tier: pro, jobs: 10}
  carol: {tier: pro, jobs: unlimited}
  dora:
    tier: pro
    jobs: {queues: {analysis: unlimited}}
  ernie: {tier: pro, jobs: {queues: unlimited, class: default}}
`)
	for _, tt := range []struct {
		user string
		want map[string]int // lines by field
	}{
		{"nobody", map[string]int{"jobs.total": 4}},
		{"bob", map[string]int{"jobs.total": 13, "jobs.queues.analysis": 9, "jobs.queues.specview": 10, "jobs.class": 11}},
		{"carol", map[string]int{"jobs.total": 14, "jobs.queues": 14, "jobs.class": 11}},
		{"dora", map[string]int{"jobs.total": 7, "jobs.queues.analysis": 17, "jobs.queues.specview": 10, "jobs.class": 11}},
		{"ernie", map[string]int{"jobs.total": 7, "jobs.queues": 18, "jobs.class": 18}},
	} {
		if diff := cmp.Diff(tt.want, linesOf(set, tt.user)); diff != "" {
			t.Errorf("Origin of %q (-want +got):\n%s", tt.user, diff)
		}
	}
	if f, ok := OriginOf(set, "carol").FieldOrigin("jobs.queues.analysis"); !ok || f.Line != 14 || f.Layer == TierLayer {
		t.Errorf("carol's jobs.queues.analysis is set by %+v, %v, want line 14", f, ok)
	}
}

func TestParseJobsAndWorkers(t *testing.T) {
	for _, tt := range []struct {
		text          string
		jobs, workers int // -1: an error
	}{
		{"0", -1, 0}, {"1", 1, 1}, {"10000", 10000, 10000}, {"10001", 10001, -1}, {"100000", 100000, -1}, {"100001", -1, -1},
		{"99999999999999999999", -1, -1}, {"", -1, -1}, {"-1", -1, -1}, {"01", -1, -1}, {"1.0", -1, -1}, {" 1", -1, -1}, {"unlimited", -1, -1}, {"+1", -1, -1},
	} {
		jobs, err := ParseJobs(tt.text)
		if (err != nil) != (tt.jobs < 0) || err == nil && jobs != tt.jobs {
			t.Errorf("ParseJobs(%q) = %d, %v, want %d", tt.text, jobs, err, tt.jobs)
		}
		workers, err := ParseWorkers(tt.text)
		if (err != nil) != (tt.workers < 0) || err == nil && workers != tt.workers {
			t.Errorf("ParseWorkers(%q) = %d, %v, want %d", tt.text, workers, err, tt.workers)
		}
	}
}

// TestValidService holds the names to what River says of a queue's name, with each
// class behind it.
func TestValidService(t *testing.T) {
	river := func(queue string) bool { // letters and digits, separated by single _ or -
		words := strings.FieldsFunc(queue, func(r rune) bool { return r == '_' || r == '-' })
		separators := strings.Count(queue, "_") + strings.Count(queue, "-")
		plain := !strings.ContainsFunc(queue, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
		})
		return plain && len(queue) <= 64 && len(words) == separators+1
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`[a-c0_-]{0,6}`), rapid.StringMatching(`[a-z]{52,56}`), rapid.String()).Draw(t, "name")
		want := name != "" && river(name+"_priority") && river(name+"_default") && river(name+"_scheduled")
		if got := ValidService(name); got != want {
			t.Errorf("ValidService(%q) = %v, want %v", name, got, want)
		}
	})
}
