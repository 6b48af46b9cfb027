package polygen

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	pollInterval = 500 * time.Millisecond
	// settle is how long a file that has changed is left alone, so that it is not read
	// while somebody writes it.
	settle = 100 * time.Millisecond
)

// LimitWatcher keeps the limit file loaded: it looks at it twice a second, loads it again when its content changes, and
// keeps the last good set when it is broken, empty or gone. Its methods are safe for concurrent use;
// Run runs once at a time.
type LimitWatcher struct {
	*limitfile.Loader
	path    string
	log     *slog.Logger
	wake    chan struct{} // Reload has a new set for Run to announce
	metrics limitMetrics

	poll      time.Duration // pollInterval, but in tests
	announced *limits.Set   // the set that the caller knows; Run's own
}

type limitMetrics struct {
	reloads *prometheus.CounterVec
	valid   prometheus.Gauge
}

// WatchLimits loads the file. A file that cannot be loaded is an error: there is no good
// set yet to go on with. Nothing is watched before Run.
func WatchLimits(path string, log *slog.Logger, reg prometheus.Registerer) (*LimitWatcher, error) {
	factory := daemon.Metrics(reg)
	w := &LimitWatcher{
		Loader: limitfile.NewLoader(path),
		path:   path,
		log:    log,
		wake:   make(chan struct{}, 1),
		poll:   pollInterval,
		metrics: limitMetrics{
			reloads: factory.Counters("sluice_limits_reloads_total",
				"Loads of the limit file, the first one included, by result: changed, unchanged or failed.", "result"),
			valid: factory.Gauge("sluice_limits_valid",
				"1 if the limit file was good when it was last looked at, 0 if it is broken or gone and older limits are in use."),
		},
	}
	// From the start, so that the first failure is a change from 0 to 1 and an alert sees it.
	for _, result := range []limitfile.Outcome{limitfile.Changed, limitfile.Unchanged, limitfile.Failed} {
		w.metrics.reloads.WithLabelValues(string(result))
	}
	if err := w.Reload(); err != nil {
		return nil, err
	}
	<-w.wake // the caller asks Set for the first one
	w.announced = w.Set()
	return w, nil
}

// Reload loads the file at once and returns what is wrong with it, counted but
// not logged. A new set is in use when Reload returns; Run then announces it.
func (w *LimitWatcher) Reload() error {
	_, err := w.loadFiles(true)
	return err
}

// Run watches the file until ctx ends, and then returns nil. It calls changed,
// on its own goroutine, with each new set that it or Reload has loaded; when
// sets follow each other while changed runs, with the last of them.
func (w *LimitWatcher) Run(ctx context.Context, changed func(*limits.Set)) error {
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	var settled <-chan time.Time // nil unless a file has changed

	w.loadChanged() // what changed between New and now
	for {
		// By address: a set that was loaded while changed ran is announced once, whoever loaded it.
		if set := w.Set(); set != w.announced {
			w.announced = set
			changed(set)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-poll.C:
			// A file that goes on changing is read all the same, settle after its first change.
			if settled == nil && w.Touched() {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			w.loadChanged()
		}
	}
}

// loadChanged loads the file if its content has changed, and logs what came of it.
func (w *LimitWatcher) loadChanged() {
	before := w.Set().Version()
	result, err := w.loadFiles(false)
	// After the load, so that the log has the version that is in use from here on.
	set := w.Set()
	switch result {
	case limitfile.Changed:
		w.log.Info("limit file loaded", "path", w.path, "version", set.Version(), "version_before", before,
			"tiers", len(set.TierNames()), "users", set.UserCount())
	case limitfile.Unchanged:
		w.log.Info("limit file is good again", "path", w.path, "version", set.Version())
	case limitfile.Failed:
		w.log.Error("limit file refused, the last good one stays", "path", w.path, "version", set.Version(), "error", err)
	}
}

// loadFiles loads the files, and counts what came of it.
func (w *LimitWatcher) loadFiles(asked bool) (limitfile.Outcome, error) {
	result, err := w.Load(asked)
	switch result {
	// Twice a second, nearly always: not counted.
	case limitfile.Same:
		return result, nil
	case limitfile.Failed:
		w.metrics.valid.Set(0)
	case limitfile.Changed:
		select {
		// Without waiting: Run may be in changed, which may take its time.
		case w.wake <- struct{}{}:
		default: // Run will see this set as well
		}
		fallthrough
	case limitfile.Unchanged:
		w.metrics.valid.Set(1)
	}
	w.metrics.reloads.WithLabelValues(string(result)).Inc()
	return result, err
}
