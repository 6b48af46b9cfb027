package check

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

func TestReport(t *testing.T) {
	dir := t.TempDir()
	file := apitest.WriteFile(t, dir, "limits.yaml", `version: 1
default_tier: free
mode: dry-run
tiers:
  free: {requests: {GET: 10}, jobs: {total: 2}}
  pro: {concurrent: 50}
exempt: {users: [health]}
queues: {csv: [3, 2, 1]}
workers: {pro: {priority: 10}, users: {alice: {priority: 2, scheduled: 1}}}
users:
  alice: pro
  bob: {tier: pro, concurrent: 60, until: 2026-12-01}
  carol: {tier: pro, until: 2026-11-01, then: free}
`)
	var out strings.Builder
	r, err := New(&out, file, time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	testkit.Must(t, err)
	r.WriteSummary()
	r.WriteUsers()
	want := strings.NewReplacer("FILE", file, "VERSION", r.set.Version()).Replace(`FILE: ok, version VERSION, 2 tier(s), 3 user(s) named
  DRY RUN: mode is dry-run for the whole file, so that nobody is refused
  queues of csv: 3 priority, 2 default, 1 scheduled
  workers for user alice alone: 2 priority, 1 scheduled in the queues of each service
  workers for tier pro alone: 10 priority in the queues of each service
  exempt users: 1: health
  free (default): GET 10/s (dry-run), jobs 2 (dry-run)
  pro: 50 in progress (dry-run), jobs 3 (dry-run, priority)
  user bob ends 2026-12-01T00:00:00Z, then like everybody in tier pro
  1 user(s) ended, the first carol at 2026-11-01T00:00:00Z: --users lists them; take them out, or give them another end
  user alice, tier pro: 50 in progress (dry-run), jobs 3 (dry-run, priority)
  user bob, tier pro until 2026-12-01T00:00:00Z, then like everybody in tier pro: 60 in progress (dry-run), jobs 3 (dry-run, priority)
  user carol, tier free since 2026-11-01T00:00:00Z, when their own ended: GET 10/s (dry-run), jobs 2 (dry-run)
`)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}

	if _, err := New(&out, apitest.WriteFile(t, dir, "bad.yaml", "version: 2\n"), time.Now()); err == nil || !strings.HasPrefix(err.Error(), dir+"/bad.yaml:1:") {
		t.Errorf("New() = %v, want file, line and column", err)
	}
}

// Without hosts, the classes of S3 are wrong for requests whose bucket is in the host's name.
func TestReportWarnsOfS3WithoutHosts(t *testing.T) {
	for classes, want := range map[string]bool{"s3": true, "{s3: {hosts: [s3.local]}}": false, "{A: {methods: [GET]}}": false} {
		file := apitest.WriteFile(t, t.TempDir(), "limits.yaml", "version: 1\ndefault_tier: free\ntiers: {free: {}}\nclasses: "+classes+"\n")
		var out strings.Builder
		r, err := New(&out, file, time.Now())
		testkit.Must(t, err)
		r.WriteSummary()
		if got := strings.Contains(out.String(), "warning: the classes of s3"); got != want {
			t.Errorf("classes: %s: warned %v, want %v", classes, got, want)
		}
	}
}
