package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
		"down": {"", broken},
	}
	tiers := &jobs.NamedTiers{
		File: jobs.FileTiers{Set: setOf(t, tiersFile), Totals: map[string]int{"pro": 6}},
		Name: func(_ context.Context, user string) (string, error) { return names[user].tier, names[user].err },
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
	tiers := &jobs.NamedTiers{
		File: jobs.FileTiers{Set: func() *limits.Set { return set }},
		Name: func(_ context.Context, user string) (string, error) { return names[user], nil },
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
		tier        string
		want        jobs.Tier
	}{
		{"each queue as in the default tier", "enforce", oneEach, `{"jobs":{"queues":{"*":1}}}`, "pro", eachQueue(1, tier("pro", jobs.Priority, 5, csv(3)))},
		{"mode off", "enforce", oneEach, `{"mode":"off"}`, "pro", tier("pro", jobs.Priority, jobs.Unlimited, nil)},
		{"mode dry-run", "enforce", oneEach, `{"mode":"dry-run"}`, "pro", tier("pro", jobs.Priority, jobs.Unlimited, nil)},
		{"class default", "enforce", oneEach, `{"jobs":{"class":"default"}}`, "pro", eachQueue(2, tier("pro", jobs.Default, 5, csv(3)))},
		{"queues unlimited", "enforce", oneEach, `{"jobs":{"queues":"unlimited"}}`, "pro", tier("pro", jobs.Priority, 5, nil)},
		{"one queue unlimited", "enforce", oneTotal, `{"jobs":{"queues":{"csv":"unlimited"}}}`, "pro", eachQueue(2, tier("pro", jobs.Priority, 5, csv(jobs.Unlimited)))},
		{"total unlimited", "enforce", oneEach, `{"jobs":{"total":"unlimited"}}`, "pro", eachQueue(2, tier("pro", jobs.Priority, jobs.Unlimited, csv(3)))},
		{"one queue, of an unknown user", "enforce", oneEach, `{"jobs":{"queues":{"csv":2}}}`, "", eachQueue(1, tier("free", jobs.Default, jobs.Unlimited, csv(2)))},
		{"mode off, of an unknown user", "enforce", oneEach, `{"mode":"off"}`, "", tier("free", jobs.Default, jobs.Unlimited, nil)},
		{"mode enforce, over a dry run", "enforce", oneEach, `{"mode":"enforce"}`, "quiet", tier("quiet", jobs.Default, 5, nil)},
		{"mode enforce, over a tier that is off", "enforce", oneEach, `{"mode":"enforce"}`, "stopped", tier("stopped", jobs.Default, 5, csv(3))},
		{"a number, over a tier that is off", "enforce", oneEach, `{"jobs":2}`, "stopped", tier("stopped", jobs.Default, jobs.Unlimited, nil)},
		{"a number, over a dry run", "enforce", oneEach, `{"jobs":2}`, "quiet", tier("quiet", jobs.Default, jobs.Unlimited, nil)},
		{"mode enforce, in a file that is off", "off", oneEach, `{"mode":"enforce","jobs":2}`, "pro", tier("pro", jobs.Priority, jobs.Unlimited, nil)},
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
			tiers := &jobs.NamedTiers{
				File: jobs.FileTiers{Set: func() *limits.Set { return set }},
				Name: func(context.Context, string) (string, error) { return tt.tier, nil },
			}
			got, err := tiers.Tier(t.Context(), "u")
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("Tier = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// source answers as a test wants, and counts.
type source struct {
	tier  string
	err   error
	takes time.Duration
	deaf  bool // does not heed the context
	asked int
}

func (s *source) name(ctx context.Context, _ string) (string, error) {
	s.asked++
	ended := ctx.Done()
	if s.deaf {
		ended = nil
	}
	tier, err := s.tier, s.err
	select {
	case <-time.After(s.takes):
		return tier, err
	case <-ended:
		return "", ctx.Err()
	}
}

var errDown = errors.New("down")

// TestNamesAreRemembered is a history: what is asked when, what the source would say then, and the answer.
func TestNamesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		tiers := &jobs.NamedTiers{Name: s.name}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for i, step := range []struct {
			name  string
			after time.Duration
			ctx   context.Context
			says  source
			want  string
			err   error
			took  time.Duration
			asked int // so far
		}{
			{"a caller who cannot wait", 0, over, source{tier: "pro"}, "free", context.Canceled, 0, 0},
			{"the first time it asks", 0, t.Context(), source{tier: "pro"}, "pro", nil, 0, 1},
			{"then it knows", time.Minute - 1, over, source{}, "pro", nil, 0, 1},
			{"what is old is all that such a caller gets", 1, over, source{}, "pro", context.Canceled, 0, 1},
			{"until the time is over", 0, t.Context(), source{tier: "enterprise"}, "enterprise", nil, 0, 2},
			{"when it fails, the last counts", time.Minute, t.Context(), source{err: errDown}, "enterprise", errDown, 0, 3},
			{"and is not asked for again at once", 5*time.Second - 1, t.Context(), source{tier: "pro"}, "enterprise", nil, 0, 3},
			{"but soon", 1, t.Context(), source{err: errDown}, "enterprise", errDown, 0, 4},
			{"until it works", 5 * time.Second, t.Context(), source{tier: "pro"}, "pro", nil, 0, 5},
			{"a user who is gone is unknown", time.Minute, t.Context(), source{}, "free", nil, 0, 6},
			{"which is remembered", 10*time.Second - 1, t.Context(), source{tier: "pro"}, "free", nil, 0, 6},
			{"for a shorter time", 1, t.Context(), source{tier: "pro"}, "pro", nil, 0, 7},
			{"a question times out", time.Minute, t.Context(), source{takes: time.Hour}, "pro", context.DeadlineExceeded, 2 * time.Second, 8},
			{"also of a function that does not heed it", 5 * time.Second, t.Context(), source{tier: "enterprise", takes: time.Hour, deaf: true}, "pro", context.DeadlineExceeded, 2 * time.Second, 9},
			{"for which later callers do not wait", time.Minute, t.Context(), source{}, "pro", context.DeadlineExceeded, 0, 9},
			{"and whose answer counts when it comes", time.Hour - time.Minute - 2*time.Second, t.Context(), source{}, "enterprise", nil, 0, 9},
		} {
			time.Sleep(step.after)
			synctest.Wait()
			step.says.asked = s.asked
			*s = step.says
			began := time.Now()
			got, err := tiers.Tier(step.ctx, "paul")
			took := time.Since(began)
			synctest.Wait()
			if got.Name != step.want || !errors.Is(err, step.err) || (err == nil) != (step.err == nil) || s.asked != step.asked || took != step.took {
				t.Fatalf("step %d, %s: Tier = %s, %v after %v, asked %d times, want %s, %v after %v, %d", i, step.name, got.Name, err, took, s.asked, step.want, step.err, step.took, step.asked)
			}
		}
	})
}

func TestOneQuestionAboutAUserAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{tier: "pro", takes: time.Second}
		tiers := &jobs.NamedTiers{Name: s.name}
		hurried, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { // the first caller, which gives up: the others must still get their answer
			if got, err := tiers.Tier(hurried, "paul"); got.Name != "free" || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("in a hurry: Tier = %+v, %v, want free and an error", got, err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if got, err := tiers.Tier(context.Background(), "paul"); got.Name != "pro" || err != nil {
					t.Errorf("Tier = %+v, %v, want pro", got, err)
				}
			})
		}
		wg.Wait()
		if s.asked != 1 {
			t.Errorf("asked %d times, want once", s.asked)
		}
	})
}

func TestAQuestionThatPanicsIsAnError(t *testing.T) {
	tiers := &jobs.NamedTiers{Name: func(context.Context, string) (string, error) { panic("oh") }}
	if got, err := tiers.Tier(context.Background(), "paul"); got.Name != "free" || fmt.Sprint(err) != "find tier: panic: oh" {
		t.Errorf("Tier = %+v, %v, want free and panic: oh", got, err)
	}
}

func TestTheNamesOfBusyUsersAreRemembered(t *testing.T) {
	asked := map[string]int{}
	tiers := &jobs.NamedTiers{Name: func(_ context.Context, user string) (string, error) { asked[user]++; return "pro", nil }}
	for i := range jobs.MaxNames * 2 {
		for _, user := range []string{"busy", fmt.Sprint("user-", i)} {
			if got, err := tiers.Tier(context.Background(), user); got.Name != "pro" || err != nil {
				t.Fatalf("Tier(%s) = %+v, %v, want pro", user, got, err)
			}
		}
	}
	if asked["busy"] != 1 || tiers.Remembered() > jobs.MaxNames {
		t.Errorf("the busy user was asked for %d times, and %d names are remembered, want once and at most %d", asked["busy"], tiers.Remembered(), jobs.MaxNames)
	}
}

// row is what *sql.Row and pgx.Row are.
type row struct {
	value any
	err   error
}

func (r row) Scan(columns ...any) error {
	if r.err != nil {
		return r.err
	}
	return columns[0].(sql.Scanner).Scan(r.value)
}

func TestQuery(t *testing.T) {
	rows := map[string]row{"paul": {value: "pro"}, "null": {}, "none": {err: pgx.ErrNoRows}, "gone": {err: sql.ErrNoRows}, "down": {err: errDown}}
	query := jobs.Query(func(_ context.Context, query string, args ...any) row {
		if query != "SELECT" || len(args) != 1 {
			t.Errorf("asked %q with %v", query, args)
		}
		return rows[args[0].(string)]
	}, "SELECT")
	for user, want := range map[string]string{"paul": "pro", "null": "", "none": "", "gone": "", "~DEADBEEF": ""} {
		if got, err := query(t.Context(), user); got != want || err != nil {
			t.Errorf("Query(%s) = %q, %v, want %q", user, got, err, want)
		}
	}
	if got, err := query(t.Context(), "down"); got != "" || !errors.Is(err, errDown) {
		t.Errorf("Query(down) = %q, %v, want the error", got, err)
	}
}

// Both of the ways to ask fit.
var (
	_ = func(pool *pgxpool.Pool) jobs.NameFunc { return jobs.Query(pool.QueryRow, "") }
	_ = func(db *sql.DB) jobs.NameFunc { return jobs.Query(db.QueryRowContext, "") }

	_ jobs.Tiers = jobs.FileTiers{}
	_ jobs.Tiers = &jobs.NamedTiers{}
)
