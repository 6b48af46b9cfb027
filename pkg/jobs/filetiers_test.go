package jobs_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const tiersFile = `version: 1
default_tier: free
anonymous_tier: guest
exempt: {users: [probe]}
tiers:
  free: {}
  guest: {jobs: 2}
  pro: {jobs: {total: 4, queues: {analysis: 1}}}
  enterprise: {jobs: unlimited}
  team: {jobs: {class: priority}}
  trial: {jobs: 1, mode: dry-run}
  stopped: {jobs: 1, mode: off}
  each: {jobs: {queues: {"*": 2, csv: 3, sync: unlimited}}}
users:
  alice: pro
  bob: {tier: pro, jobs: 10}
  carol: enterprise
  dora: trial
  ernie: stopped
  "team-*": team
  frank: each
`

func parse(t testing.TB, source string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits.yaml", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func setOf(t testing.TB, source string) func() *limits.Set {
	set := parse(t, source)
	return func() *limits.Set { return set }
}

func tier(name string, class jobs.Class, total int, queues map[string]int) jobs.Tier {
	return jobs.Tier{Name: name, Class: class, Limits: jobs.Limits{Total: total, Queues: queues}}
}

func TestFileTiers(t *testing.T) {
	analysis := map[string]int{"analysis": 1}
	each := tier("each", jobs.Default, jobs.Unlimited, map[string]int{"csv": 3, "sync": jobs.Unlimited})
	each.Limits.EachQueue = 2
	env := map[string]int{"free": 7, "pro": 8, "enterprise": 9, "trial": 9, "stopped": 9}
	for _, tt := range []struct {
		name, user string
		totals     map[string]int
		want       jobs.Tier
	}{
		{"a tier", "alice", nil, tier("pro", jobs.Priority, 4, analysis)},
		{"a number of one's own", "bob", nil, tier("pro", jobs.Priority, 10, analysis)},
		{"not limited", "carol", nil, tier("enterprise", jobs.Priority, jobs.Unlimited, nil)},
		{"a dry run holds nobody back", "dora", nil, tier("trial", jobs.Default, jobs.Unlimited, nil)},
		{"a limit that is off holds nobody back", "ernie", nil, tier("stopped", jobs.Default, jobs.Unlimited, nil)},
		{"a limit for each queue", "frank", nil, each},
		{"by a pattern", "team-x", nil, tier("team", jobs.Priority, 1, nil)},
		{"a user whom nobody knows", "zoe", nil, tier("free", jobs.Default, 1, nil)},
		{"an address", "10.0.0.1", nil, tier("guest", jobs.Default, 2, nil)},
		{"a long name", limits.Key(string(make([]byte, 300))), nil, tier("free", jobs.Default, 1, nil)},
		{"exempt", "probe", nil, tier("exempt", jobs.Default, jobs.Unlimited, nil)},

		{"the environment's number of the tier", "alice", env, tier("pro", jobs.Priority, 8, analysis)},
		{"not in place of one's own number", "bob", env, tier("pro", jobs.Priority, 10, analysis)},
		{"of the default tier", "zoe", env, tier("free", jobs.Default, 7, nil)},
		{"where the file has no limit", "carol", env, tier("enterprise", jobs.Priority, 9, nil)},
		{"not in a dry run", "dora", env, tier("trial", jobs.Default, jobs.Unlimited, nil)},
		{"not where it is off", "ernie", env, tier("stopped", jobs.Default, jobs.Unlimited, nil)},
		{"not of another tier", "team-x", env, tier("team", jobs.Priority, 1, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := jobs.FileTiers{Set: setOf(t, tiersFile), Totals: tt.totals}
			got, err := f.Tier(context.Background(), tt.user)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("Tier(%q) = %v (-want +got):\n%s", tt.user, err, diff)
			}
			claim := jobs.Claim{Job: jobs.Job{User: tt.user, ID: "1"}, Holder: "worker"}
			if _, err := jobs.NewMemory(nil).Acquire(t.Context(), claim, got.Limits, time.Minute, false); err != nil {
				t.Errorf("Tier(%q) has limits that no Slots take: %v", tt.user, err)
			}
		})
	}
}

// tierNamed is the tier of a user who has the tier of that name.
func tierNamed(f jobs.FileTiers, name string) (jobs.Tier, error) {
	tiers := jobs.NamedTiers{File: f, Name: func(context.Context, string) (string, error) { return name, nil }}
	return tiers.Tier(context.Background(), "somebody")
}

func TestFileTiersWithoutAFile(t *testing.T) {
	for name, f := range map[string]jobs.FileTiers{
		"no function": {}, "a function without a set": {Set: func() *limits.Set { return nil }},
	} {
		for want, total := range map[string]int{"free": 1, "pro": 3, "pro_plus": 3, "enterprise": 5} {
			got, err := tierNamed(f, want)
			if err != nil || got.Name != want || got.Limits.Total != total || (got.Class == jobs.Priority) != (want != "free") {
				t.Errorf("%s: the tier %s is %+v, %v, want %d jobs", name, want, got, err, total)
			}
		}
		if got, err := tierNamed(f, "gold"); err == nil {
			t.Errorf("%s: the tier gold is %+v, want an error", name, got)
		}
		if got, err := f.Tier(context.Background(), "zoe"); err != nil || got.Name != "free" {
			t.Errorf("%s: Tier(zoe) = %+v, %v, want free", name, got, err)
		}
	}
}

// TestFileTiersFollowTheFile: an edit counts with the next job, and what ends does so
// by itself.
func TestFileTiersFollowTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(time.Hour).UTC()
		file := "version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {}}\nusers: {bob: {tier: free, jobs: 6, until: " + end.Format(time.RFC3339) + ", then: pro}}\n"
		set := parse(t, file)
		f := jobs.FileTiers{Set: func() *limits.Set { return set }}
		total := func() int {
			got, _ := f.Tier(context.Background(), "bob")
			return got.Limits.Total
		}
		if got := total(); got != 6 {
			t.Errorf("bob has %d jobs, want 6", got)
		}
		time.Sleep(time.Hour - time.Second)
		if got := total(); got != 6 {
			t.Errorf("a second before the end bob has %d jobs, want 6", got)
		}
		time.Sleep(time.Second)
		if got := total(); got != 3 {
			t.Errorf("at the end bob has %d jobs, want 3", got)
		}
		set = parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {jobs: 2}}\n")
		if got := total(); got != 2 {
			t.Errorf("with another file bob has %d jobs, want 2", got)
		}
	})
}

// TestDedicatedWorkers: jobs of who has workers of their own go to the queues of these.
func TestDedicatedWorkers(t *testing.T) {
	file := jobs.FileTiers{Set: setOf(t, `version: 1
default_tier: free
tiers: {free: {}, enterprise: {}, trial: {jobs: {class: priority}, mode: dry-run}}
workers: {enterprise: {priority: 10, scheduled: 1}, trial: {priority: 1}, users: {alice: {default: 2}, bob: {priority: 3}}}
users: {carol: enterprise, dora: trial, bob: enterprise}
`)}
	stored := &jobs.NamedTiers{File: file, Name: func(context.Context, string) (string, error) { return "enterprise", nil }}
	for _, tt := range []struct {
		name, user       string
		tiers            jobs.Tiers
		queue, scheduled string
	}{
		{"nobody's", "zoe", file, "x_default", "x_scheduled"},
		{"the user's", "alice", file, "x_default-user-alice", "x_scheduled"},
		{"the user's before the tier's", "bob", file, "x_priority-user-bob", "x_scheduled-enterprise"},
		{"the tier's", "carol", file, "x_priority-enterprise", "x_scheduled-enterprise"},
		{"in a dry run", "dora", file, "x_priority-trial", "x_scheduled"},
		{"of a tier from elsewhere", "zoe", stored, "x_priority-enterprise", "x_scheduled-enterprise"},
		{"not the user's of another class", "alice", stored, "x_priority-enterprise", "x_scheduled-enterprise"},
	} {
		tier, err := tt.tiers.Tier(t.Context(), tt.user)
		if queue, scheduled := jobs.SelectQueue("x", tier, false), jobs.SelectQueue("x", tier, true); queue != tt.queue || scheduled != tt.scheduled || err != nil {
			t.Errorf("%s: %s's jobs go to %s and %s, %v, want %s and %s", tt.name, tt.user, queue, scheduled, err, tt.queue, tt.scheduled)
		}
	}
}

// TestTiersAreTheCallers: what somebody does to a tier's limits is nobody else's.
func TestTiersAreTheCallers(t *testing.T) {
	f := jobs.FileTiers{Set: setOf(t, tiersFile)}
	got, _ := tierNamed(f, "pro")
	got.Limits.Queues["analysis"] = 99
	if again, _ := tierNamed(f, "pro"); again.Limits.Queues["analysis"] != 1 {
		t.Errorf("the next one gets %v, want analysis 1", again.Limits.Queues)
	}
}

func TestUnlimitedFitsEveryBackEnd(t *testing.T) {
	if jobs.Unlimited > math.MaxInt32 || jobs.Unlimited < limits.MaxJobs {
		t.Errorf("Unlimited = %d, want at least %d and what fits 32 bits", jobs.Unlimited, limits.MaxJobs)
	}
}
