package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

func TestNamedTiers(t *testing.T) {
	broken := errors.New("no connection")
	names := map[string]struct {
		tier string
		err  error
	}{
		"paul": {"pro", nil}, "alice": {"enterprise", nil}, "probe": {"pro", nil}, "gold": {"gold", nil},
		"down": {"", broken}, "stale": {"pro", broken}, "both": {"gold", broken},
	}
	tiers := jobs.NamedTiers{
		File:   jobs.FileTiers{Set: setOf(t, tiersFile), Totals: map[string]int{"pro": 6}},
		Record: jobs.NameFunc(func(_ context.Context, user string) (string, error) { return names[user].tier, names[user].err }).Record,
	}
	analysis := map[string]int{"analysis": 1}
	free := tier("free", jobs.Default, 1, nil)
	for _, tt := range []struct {
		name, user string
		want       jobs.Tier
		err        string
	}{
		{"what is found", "paul", tier("pro", jobs.Priority, 6, analysis), "<nil>"},
		{"a user whom nobody knows", "zoe", free, "<nil>"},
		{"a user whom the file names", "alice", tier("pro", jobs.Priority, 6, analysis), "<nil>"},
		{"a user whom a pattern names", "team-x", tier("team", jobs.Priority, 1, nil), "<nil>"},
		{"a user whom the file exempts", "probe", tier("exempt", jobs.Default, jobs.Unlimited, nil), "<nil>"},
		{"a tier that the file does not have", "gold", free, `tier "gold" is not in the limit file (valid: each, enterprise, free, guest, pro, stopped, team, trial)`},
		{"an error", "down", free, "find tier: no connection"},
		{"an error, with the last that was known", "stale", tier("pro", jobs.Priority, 6, analysis), "find tier: no connection"},
		{"an error, and the last is none any more", "both", free, "find tier: no connection\ntier \"gold\" is not in the limit file (valid: each, enterprise, free, guest, pro, stopped, team, trial)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tiers.Tier(context.Background(), tt.user)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Tier(%s) (-want +got):\n%s", tt.user, diff)
			}
			if fmt.Sprint(err) != tt.err || strings.Contains(tt.err, "connection") != errors.Is(err, broken) {
				t.Errorf("Tier(%s) = %v, want %s", tt.user, err, tt.err)
			}
		})
	}
}

// What an operator sets by hand is over the tier of the database, or in place of it if it names one.
func TestNamedTiersWithOverrides(t *testing.T) {
	analysis := map[string]int{"analysis": 1}
	override := func(user, fields string, until time.Duration) limits.Override {
		return limits.Override{User: user, Limits: []byte(fields), Reason: "launch", Since: time.Now(), Until: time.Now().Add(until)}
	}
	set, refused := limitfile.WithOverrides(setOf(t, tiersFile)(), []limits.Override{
		override("paul", `{"jobs":10}`, time.Hour), override("zoe", `{"jobs":4}`, time.Hour), override("down", `"free"`, time.Hour),
		override("trial", `{"tier":"pro"}`, time.Hour), override("over", `{"jobs":10}`, time.Nanosecond), override("alice", `{"jobs":8}`, time.Hour),
		override("quin", `{"jobs":{"queues":{"analysis":2,"specview":1}}}`, time.Hour), override("lou", `{"jobs":"unlimited"}`, time.Hour), override("kim", `{"jobs":{"queues":{"specview":1}}}`, time.Hour),
		override("other", `{"concurrent":8}`, time.Hour),
	})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	names := map[string]string{"paul": "pro", "down": "pro", "trial": "enterprise", "over": "pro", "quin": "pro", "lou": "pro", "kim": "enterprise", "alice": "enterprise", "other": "pro"}
	tiers := jobs.NamedTiers{
		File:   jobs.FileTiers{Set: func() *limits.Set { return set }},
		Record: func(_ context.Context, user string) (jobs.Record, error) { return jobs.Record{Tier: names[user]}, nil },
	}
	for user, want := range map[string]jobs.Tier{
		"paul":  tier("pro", jobs.Priority, 10, analysis),
		"quin":  tier("pro", jobs.Priority, 4, map[string]int{"analysis": 2, "specview": 1}),
		"lou":   tier("pro", jobs.Priority, jobs.Unlimited, nil),
		"kim":   tier("enterprise", jobs.Priority, jobs.Unlimited, map[string]int{"specview": 1}),
		"zoe":   tier("free", jobs.Default, 4, nil),
		"down":  tier("free", jobs.Default, 1, nil),
		"trial": tier("pro", jobs.Priority, 4, analysis),
		"over":  tier("pro", jobs.Priority, 4, analysis),
		"other": tier("pro", jobs.Priority, 4, analysis),
	} {
		got, err := tiers.Tier(t.Context(), user)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Tier(%s) = %v (-want +got):\n%s", user, err, diff)
		}
	}
	if got, _ := tiers.Tier(t.Context(), "alice"); got.Name != "pro" || got.Limits.Total != 8 {
		t.Errorf("Tier(alice) = %+v, want the file's tier pro and the 8 jobs by hand", got)
	}
}

// Each field of an override counts by itself, also where it says the same as the default tier.
func TestNamedTiersWithOverridesOfOneField(t *testing.T) {
	eachQueue := func(n int, t jobs.Tier) jobs.Tier {
		t.Limits.EachQueue = n
		return t
	}
	csv := func(n int) map[string]int { return map[string]int{"csv": n} }
	const (
		oneEach  = `{queues: {"*": 1}}`
		oneTotal = "1"
	)
	for _, tt := range []struct {
		name        string
		mode        string // of the file
		defaultTier string // its jobs
		fields      string // of the override
		record      jobs.Record
		want        jobs.Tier
	}{
		{"each queue as in the default tier", "enforce", oneEach, `{"jobs":{"queues":{"*":1}}}`, jobs.Record{Tier: "pro"}, eachQueue(1, tier("pro", jobs.Priority, 5, csv(3)))},
		{"mode off", "enforce", oneEach, `{"mode":"off"}`, jobs.Record{Tier: "pro"}, tier("pro", jobs.Priority, jobs.Unlimited, nil)},
		{"mode dry-run", "enforce", oneEach, `{"mode":"dry-run"}`, jobs.Record{Tier: "pro"}, tier("pro", jobs.Priority, jobs.Unlimited, nil)},
		{"class default", "enforce", oneEach, `{"jobs":{"class":"default"}}`, jobs.Record{Tier: "pro"}, eachQueue(2, tier("pro", jobs.Default, 5, csv(3)))},
		{"queues unlimited", "enforce", oneEach, `{"jobs":{"queues":"unlimited"}}`, jobs.Record{Tier: "pro"}, tier("pro", jobs.Priority, 5, nil)},
		{"one queue unlimited", "enforce", oneTotal, `{"jobs":{"queues":{"csv":"unlimited"}}}`, jobs.Record{Tier: "pro"}, eachQueue(2, tier("pro", jobs.Priority, 5, csv(jobs.Unlimited)))},
		{"total unlimited", "enforce", oneEach, `{"jobs":{"total":"unlimited"}}`, jobs.Record{Tier: "pro"}, eachQueue(2, tier("pro", jobs.Priority, jobs.Unlimited, csv(3)))},
		{"queues unlimited, over numbers of the record", "enforce", oneEach, `{"jobs":{"queues":"unlimited"}}`, jobs.Record{Tier: "pro", Total: 7, Queues: csv(4)}, tier("pro", jobs.Priority, 7, nil)},
		{"one queue, without a record", "enforce", oneEach, `{"jobs":{"queues":{"csv":2}}}`, jobs.Record{}, eachQueue(1, tier("free", jobs.Default, jobs.Unlimited, csv(2)))},
		{"mode off, without a record", "enforce", oneEach, `{"mode":"off"}`, jobs.Record{}, tier("free", jobs.Default, jobs.Unlimited, nil)},
		{"mode enforce, over a dry run", "enforce", oneEach, `{"mode":"enforce"}`, jobs.Record{Tier: "quiet"}, tier("quiet", jobs.Default, 5, nil)},
		{"mode enforce, over a tier that is off", "enforce", oneEach, `{"mode":"enforce"}`, jobs.Record{Tier: "stopped"}, tier("stopped", jobs.Default, 5, csv(3))},
		{"a number, over a tier that is off", "enforce", oneEach, `{"jobs":2}`, jobs.Record{Tier: "stopped"}, tier("stopped", jobs.Default, jobs.Unlimited, nil)},
		{"a number, over a dry run", "enforce", oneEach, `{"jobs":2}`, jobs.Record{Tier: "quiet"}, tier("quiet", jobs.Default, jobs.Unlimited, nil)},
		{"mode enforce, in a file that is off", "off", oneEach, `{"mode":"enforce","jobs":2}`, jobs.Record{Tier: "pro"}, tier("pro", jobs.Priority, jobs.Unlimited, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := parse(t, `version: 1
default_tier: free
mode: `+tt.mode+`
tiers:
  free: {jobs: `+tt.defaultTier+`}
  pro: {jobs: {total: 5, queues: {"*": 2, csv: 3}}}
  quiet: {jobs: 5, mode: dry-run}
  stopped: {jobs: {total: 5, queues: {csv: 3}}, mode: off}
`)
			set, refused := limitfile.WithOverrides(file, []limits.Override{{User: "u", Limits: []byte(tt.fields), Reason: "launch", Since: time.Now(), Until: time.Now().Add(time.Hour)}})
			if len(refused) > 0 {
				t.Fatal(refused)
			}
			tiers := jobs.NamedTiers{
				File:   jobs.FileTiers{Set: func() *limits.Set { return set }},
				Record: func(context.Context, string) (jobs.Record, error) { return tt.record, nil },
			}
			got, err := tiers.Tier(t.Context(), "u")
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("Tier = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestNamedTiersDoNotWaitForEver(t *testing.T) {
	for _, tt := range []struct{ timeout, want time.Duration }{{0, 2 * time.Second}, {time.Minute, time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			tiers := jobs.NamedTiers{Timeout: tt.timeout, Record: func(ctx context.Context, _ string) (jobs.Record, error) {
				<-ctx.Done()
				return jobs.Record{}, ctx.Err()
			}}
			got, err := tiers.Tier(context.Background(), "paul")
			if got.Name != "free" || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != tt.want {
				t.Errorf("Tier = %+v, %v after %v, want free and an error after %v", got, err, time.Since(began), tt.want)
			}
		})
	}
}

var (
	_ jobs.Tiers = jobs.FileTiers{}
	_ jobs.Tiers = jobs.NamedTiers{}
)
