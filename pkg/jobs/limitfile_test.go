package jobs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

func TestLimitFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := jobs.OpenLimitFile(path); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("OpenLimitFile = %v, want no such file", err)
	}
	const head = "version: 1\ndefault_tier: free\ntiers: {free: {jobs: "
	write(head + "2}}\n")
	f, err := jobs.OpenLimitFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tiers := jobs.FileTiers{Set: f.Set}
	total := func() int {
		got, _ := tiers.Tier(context.Background(), "zoe")
		return got.Limits.Total
	}
	ctx, cancel := context.WithCancel(context.Background())
	news, done := make(chan error), make(chan error)
	go func() { done <- f.Run(ctx, time.Millisecond, func(err error) { news <- err }) }()
	await := func(step, want string) { // "" is no error
		t.Helper()
		select {
		case err := <-news:
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Fatalf("%s: changed(%v), want %q", step, err, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: no news", step)
		}
	}
	if got := total(); got != 2 {
		t.Errorf("at first %d jobs, want 2", got)
	}
	write(head + "4}}\n")
	await("an edit", "")
	if got := total(); got != 4 {
		t.Errorf("after an edit %d jobs, want 4", got)
	}
	write(head + "none}}\n")
	await("a broken file", "3:22")
	if got := total(); got != 4 {
		t.Errorf("with a broken file %d jobs, want the last 4", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await("no file, which is another problem", "no such file")
	write(head + "4}}\n")
	await("as it was", "")
	if got := total(); got != 4 {
		t.Errorf("as it was: %d jobs, want 4", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if err := f.Run(context.Background(), 0, nil); err == nil {
		t.Error("Run without an interval = nil, want an error")
	}
}
