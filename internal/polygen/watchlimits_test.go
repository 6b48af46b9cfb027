package polygen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// limitsOf is a limit file by which tests tell sets apart.
func limitsOf(concurrent int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: %d}}\n", concurrent)
}

const broken = "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 0}}\n"

// harness runs a Watcher and records what it announces and logs.
type harness struct {
	*LimitWatcher
	t    testing.TB
	path string
	reg  *prometheus.Registry
	log  testkit.Buffer

	mu        sync.Mutex
	announced []int
}

func (h *harness) changed(set *limits.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.announced = append(h.announced, set.User("anyone").Concurrent)
}

// start makes a Watcher for a path and, after the preparations, runs it until
// the test ends.
func start(t testing.TB, path string, prepare ...func(*LimitWatcher)) *harness {
	t.Helper()
	h := &harness{t: t, path: path, reg: prometheus.NewRegistry()}
	w, err := WatchLimits(path, slog.New(slog.NewTextHandler(&h.log, nil)), h.reg)
	testkit.Must(t, err)
	h.LimitWatcher = w
	for _, p := range prepare {
		p(w)
	}
	h.run()
	return h
}

// run runs the Watcher until the test ends.
func (h *harness) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- h.Run(ctx, h.changed) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("Run = %v, want nil after its context has ended", err)
		}
	})
}

// fastPoll sees a change at once, slowPoll sees none.
func fastPoll(w *LimitWatcher) { w.poll = 5 * time.Millisecond }
func slowPoll(w *LimitWatcher) { w.poll = time.Hour }

// want waits until the announced sets are exactly these.
func (h *harness) want(announced ...int) {
	h.t.Helper()
	testkit.Eventually(h.t, "announced sets", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.Equal(h.announced, announced) {
			return fmt.Errorf("got %v, want %v", h.announced, announced)
		}
		return nil
	})
	if got := h.Set().User("anyone").Concurrent; len(announced) > 0 && got != announced[len(announced)-1] {
		h.t.Errorf("Set() has concurrent %d, want %d", got, announced[len(announced)-1])
	}
}

// wantValid waits until the metric is 1 or 0.
func (h *harness) wantValid(valid float64) {
	h.t.Helper()
	testkit.Eventually(h.t, "sluice_limits_valid", func() error {
		if got := testutil.ToFloat64(h.metrics.valid); got != valid {
			return fmt.Errorf("got %v, want %v", got, valid)
		}
		return nil
	})
}

func (h *harness) wantLogged(text string) {
	h.t.Helper()
	testkit.Eventually(h.t, "log", func() error {
		if !strings.Contains(h.log.String(), text) {
			return fmt.Errorf("got\n%s\nwant a line with %s", &h.log, text)
		}
		return nil
	})
}

func write(t testing.TB, path, content string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, fastPoll)
	write(t, path, limitsOf(2))
	h.want(2)
	write(t, path, limitsOf(3)) // of the same size
	h.want(2, 3)
}

func TestRenamedOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, fastPoll)
	for i := 2; i <= 3; i++ {
		write(t, filepath.Join(dir, ".limits.yaml.swp"), limitsOf(i))
		testkit.Must(t, os.Rename(filepath.Join(dir, ".limits.yaml.swp"), path))
		h.want([]int{2, 3}[:i-1]...)
	}
}

// TestKubernetesSwap does what the kubelet does to a mounted ConfigMap.
func TestKubernetesSwap(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	publish := func(i int) {
		version := fmt.Sprintf("..2024_%d", i)
		testkit.Must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		write(t, filepath.Join(dir, version, "limits.yaml"), limitsOf(i))
		testkit.Must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		testkit.Must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish(1)
	testkit.Must(t, os.Symlink("..data/limits.yaml", path))
	h := start(t, path, fastPoll)
	publish(2)
	h.want(2)
	testkit.Must(t, os.RemoveAll(filepath.Join(dir, "..2024_1")))
	publish(3)
	h.want(2, 3)
}

func TestBrokenThenFixed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, fastPoll)
	write(t, path, broken)
	h.wantValid(0)
	h.wantLogged(path + `:3:28: tier \"free\": concurrent must be 1 or more`)
	if got := h.Set().User("anyone").Concurrent; got != 1 {
		t.Errorf("Set() after a broken file has concurrent %d, want 1", got)
	}
	write(t, path, "")
	h.wantLogged("the file is empty")
	h.wantValid(0)
	write(t, path, limitsOf(1)) // nothing new, but good
	h.wantValid(1)
	h.wantLogged("limit file is good again")
	write(t, path, limitsOf(2))
	h.want(2) // and neither 1 nor 0 before
}

func TestDeletedThenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, fastPoll)
	testkit.Must(t, os.Remove(path))
	h.wantValid(0)
	h.wantLogged("no such file")
	if got := h.Set().User("anyone").Concurrent; got != 1 {
		t.Errorf("Set() without a file has concurrent %d, want 1", got)
	}
	write(t, path, limitsOf(2))
	h.want(2)
	h.wantValid(1)
}

func TestDirectoryDeletedThenBack(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before bool // deleted before Run begins to watch
	}{
		{"deleted before Run", true},
		{"deleted while it is watched", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etc")
			path := filepath.Join(dir, "limits.yaml")
			testkit.Must(t, os.Mkdir(dir, 0o700))
			write(t, path, limitsOf(1))
			h := start(t, path, fastPoll, func(*LimitWatcher) {
				if tt.before {
					testkit.Must(t, os.RemoveAll(dir))
				}
			})
			if !tt.before {
				testkit.Must(t, os.RemoveAll(dir))
			}
			h.wantValid(0)
			testkit.Must(t, os.Mkdir(dir, 0o700))
			write(t, path, limitsOf(2))
			h.want(2)
		})
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, slowPoll)
	if err := h.Reload(); err != nil {
		t.Errorf("Reload of the same file = %v, want nil", err)
	}
	write(t, path, broken)
	for range 2 { // every time, not only the first
		want := path + `:3:28: tier "free": concurrent must be 1 or more, got 0; write requests: 0 to refuse every request, or unlimited to lift the limit`
		var errs limitfile.Errors
		if err := h.Reload(); !errors.As(err, &errs) || err.Error() != want {
			t.Errorf("Reload of a broken file = %v, want %s", err, want)
		}
	}
	h.wantValid(0)
	write(t, path, limitsOf(2))
	if err := h.Reload(); err != nil {
		t.Errorf("Reload of a new file = %v, want nil", err)
	}
	if got := h.Set().User("anyone").Concurrent; got != 2 {
		t.Errorf("Set() after Reload has concurrent %d, want 2", got)
	}
	h.want(2)
	testkit.Must(t, os.Remove(path))
	if err := h.Reload(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reload without a file = %v, want fs.ErrNotExist", err)
	}
}

func TestReloadBeforeRunIsAnnounced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, slowPoll, func(w *LimitWatcher) {
		write(t, path, limitsOf(2))
		testkit.Must(t, w.Reload())
	})
	h.want(2)
}

func TestChangeBeforeRunIsSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	h := start(t, path, slowPoll, func(*LimitWatcher) { write(t, path, limitsOf(2)) })
	h.want(2)
}

func TestNewFails(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "broken.yaml"), broken)
	for name, want := range map[string]string{
		"none.yaml":   "read limit file: ",
		"broken.yaml": filepath.Join(dir, "broken.yaml") + ":3:28: ",
	} {
		w, err := WatchLimits(filepath.Join(dir, name), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if w != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("New(%s) = %v, %v, want an error that begins with %s", name, w, err, want)
		}
	}
}

func TestTouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	old := time.Now().Add(-time.Hour)
	testkit.Must(t, os.Chtimes(path, old, old))
	w, err := WatchLimits(path, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	testkit.Must(t, err)
	for _, tt := range []struct {
		name   string
		change func()
		want   bool
	}{
		{"nothing changed", func() {}, false},
		{"modified an hour ago to the second", func() { testkit.Must(t, os.Chtimes(path, old, old.Add(time.Second))) }, true},
		{"time put back", func() { testkit.Must(t, os.Chtimes(path, old, old)) }, false},
		{"other size at the same time", func() { write(t, path, limitsOf(10)); testkit.Must(t, os.Chtimes(path, old, old)) }, true},
		{"other file of the same size and time", func() {
			write(t, path+"2", limitsOf(1))
			testkit.Must(t, os.Chtimes(path+"2", old, old))
			testkit.Must(t, os.Rename(path+"2", path))
		}, true},
		{"modified just now", func() {
			testkit.Must(t, os.Chtimes(path, time.Now(), time.Now()))
			testkit.Must(t, w.Reload())
		}, true},
		{"gone", func() { testkit.Must(t, os.Remove(path)) }, true},
	} {
		tt.change()
		if got := w.Touched(); got != tt.want {
			t.Errorf("%s: Touched() = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestLimitMetrics(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, path, limitsOf(1))
	reg := prometheus.NewRegistry()
	w, err := WatchLimits(path, slog.New(slog.DiscardHandler), reg)
	testkit.Must(t, err)
	testkit.Must(t, w.Reload()) // unchanged
	write(t, path, limitsOf(2))
	testkit.Must(t, w.Reload())
	write(t, path, broken)
	if err := w.Reload(); err == nil {
		t.Fatal("Reload of a broken file = nil, want an error")
	}
	w.loadChanged() // the same broken file is no reload of its own
	const want = `
# HELP sluice_limits_reloads_total Loads of the limit file, the first one included, by result: changed, unchanged or failed.
# TYPE sluice_limits_reloads_total counter
sluice_limits_reloads_total{result="changed"} 2
sluice_limits_reloads_total{result="failed"} 1
sluice_limits_reloads_total{result="unchanged"} 1
# HELP sluice_limits_valid 1 if the limit file was good when it was last looked at, 0 if it is broken or gone and older limits are in use.
# TYPE sluice_limits_valid gauge
sluice_limits_valid 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "sluice_limits_reloads_total", "sluice_limits_valid"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint = %v, %v, want no problems", problems, err)
	}
}
