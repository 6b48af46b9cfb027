// Package limitwatch keeps the limit file and the files of its users_from loaded: it
// watches them, loads all again when the content of one changes, and keeps the last
// good set when one is broken, empty or gone.
//
// It watches their folders, because editors replace files, Kubernetes swaps the
// symbolic link ..data above them, and new files may match users_from. And it looks
// every two seconds by itself, because network file systems and links out of the
// folders send no events.
package limitwatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluice-qos/sluice/internal/secretfile"
	"github.com/sluice-qos/sluice/internal/tracing"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const (
	// settle is how long the file is left alone after the first event, so that
	// an editor's several writes are one reload.
	settle = 100 * time.Millisecond
	// pollInterval is how soon a change is seen that sends no event.
	pollInterval = 2 * time.Second
	// young is the age below which a modification time says nothing: a second
	// change within the clock's grain would leave it as it is. It covers that of
	// every file system (FAT: 2 s) and small differences between clocks.
	young = 10 * time.Second
)

// Watcher keeps a limit file loaded. Its methods are safe for concurrent use;
// Run runs once at a time.
type Watcher struct {
	path    string
	secrets string // path of the secrets that hide users' names; "" for none
	log     *slog.Logger
	set     atomic.Pointer[limits.Set]
	wake    chan struct{} // Reload has a new set for Run to announce
	metrics metrics
	tracer  atomic.Pointer[tracing.Tracer] // nil traces nothing

	poll      time.Duration // pollInterval, but in tests
	newEvents func() (*fsnotify.Watcher, error)

	announced *limits.Set // the set that the caller knows; Run's own

	mu      sync.Mutex             // one load at a time; guards what follows
	seen    string                 // digest of what was loaded last, or the error of reading it
	good    string                 // digest of set's source
	files   []string               // those that were read last, the limit file first
	folders []string               // of users_from, in which a change may mean another file
	stats   map[string]os.FileInfo // of files and folders, from before they were read last
}

type metrics struct {
	reloads     *prometheus.CounterVec
	lastSuccess prometheus.Gauge
	valid       prometheus.Gauge
}

// The results that sluice_limits_reloads_total counts.
const (
	resultChanged   = "changed"   // a new set
	resultUnchanged = "unchanged" // good, and as the set that is in use
	resultFailed    = "failed"    // unreadable or not valid: the set in use stays
)

// New loads the file. A file that cannot be loaded is an error: there is no good
// set yet to go on with. Nothing is watched before Run.
func New(path string, log *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	return NewHidden(path, "", log, reg)
}

// NewHidden is New for sets in which users' names are hidden by the secrets of a file (see
// limits.Secrets), which is watched like the limit file. "" hides none.
func NewHidden(path, secrets string, log *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	factory := promauto.With(reg)
	w := &Watcher{
		path:      path,
		secrets:   secrets,
		log:       log,
		wake:      make(chan struct{}, 1),
		poll:      pollInterval,
		newEvents: fsnotify.NewWatcher,
		metrics: metrics{
			reloads: factory.NewCounterVec(prometheus.CounterOpts{
				Name: "sluice_limits_reloads_total",
				Help: "Loads of the limit file, the first one included, by result: changed, unchanged or failed.",
			}, []string{"result"}),
			lastSuccess: factory.NewGauge(prometheus.GaugeOpts{
				Name: "sluice_limits_last_success_timestamp_seconds",
				Help: "When the limit file was last loaded without an error, in seconds since 1970.",
			}),
			valid: factory.NewGauge(prometheus.GaugeOpts{
				Name: "sluice_limits_valid",
				Help: "1 if the limit file was good when it was last looked at, 0 if it is broken or gone and older limits are in use.",
			}),
		},
	}
	for _, result := range []string{resultChanged, resultUnchanged, resultFailed} {
		w.metrics.reloads.WithLabelValues(result)
	}
	if err := w.Reload(); err != nil {
		return nil, err
	}
	<-w.wake // the caller asks Set for the first one
	w.announced = w.Set()
	return w, nil
}

// Set returns the last good set. It is never nil.
func (w *Watcher) Set() *limits.Set { return w.set.Load() }

// Reload loads the file at once and returns what is wrong with it, counted but
// not logged. A new set is in use when Reload returns; Run then announces it.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.loadFiles(true)
	return err
}

// Run watches the file until ctx ends, and then returns nil. It calls changed,
// on its own goroutine, with each new set that it or Reload has loaded; when
// sets follow each other while changed runs, with the last of them.
func (w *Watcher) Run(ctx context.Context, changed func(*limits.Set)) error {
	events := w.startEvents()
	defer events.stopEvents()
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	var settled <-chan time.Time // nil unless an event is waiting

	w.loadChanged(false) // what changed between New and now
	for {
		if events.follow(w.watched()) {
			w.loadChanged(false) // what changed before it was watched
		}
		if set := w.Set(); set != w.announced {
			w.announced = set
			changed(set)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case event, ok := <-events.changes():
			if ok && settled == nil && w.concerns(event.Name) {
				settled = time.After(settle)
			}
		case err := <-events.errors():
			// Events may be lost; polling finds the change.
			w.log.Warn("watching the limit file failed, going on by polling", "path", w.path, "error", err)
			events.stopEvents()
		case <-settled:
			settled = nil
			w.loadChanged(false)
		case <-poll.C:
			w.loadChanged(true)
		}
	}
}

// watched returns the folders to watch.
func (w *Watcher) watched() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	folders := append([]string{filepath.Dir(w.path)}, w.folders...)
	slices.Sort(folders)
	return slices.Compact(folders)
}

// concerns reports whether a change of this name may change what is loaded: the
// limit file's own name, the link ..data through which Kubernetes swaps all files at
// once, or any name in a folder of users_from.
func (w *Watcher) concerns(name string) bool {
	base := filepath.Base(name)
	if base == filepath.Base(w.path) || strings.HasPrefix(base, "..data") {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.folders, filepath.Dir(name)) || slices.Contains(w.folders, name)
}

// loadChanged loads the file if its content has changed, and logs what came of it. A
// glance reads the file only if its metadata may hide a change.
func (w *Watcher) loadChanged(glance bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if glance && w.untouched() {
		return
	}
	before := w.Set().Version()
	result, err := w.loadFiles(false)
	set := w.Set()
	switch result {
	case resultChanged:
		w.log.Info("limit file loaded", append([]any{"path", w.path, "version", set.Version(), "version_before", before,
			"tiers", len(set.TierNames()), "users", set.UserCount()}, secretsOf(set)...)...)
	case resultUnchanged:
		w.log.Info("limit file is good again", "path", w.path, "version", set.Version())
	case resultFailed:
		w.log.Error("limit file refused, the last good one stays", "path", w.path, "version", set.Version(), "error", err)
	}
}

// untouched reports whether no file can have changed since it was read, and no other
// one can have come.
func (w *Watcher) untouched() bool {
	for _, path := range slices.Concat(w.files, w.folders) {
		was := w.stats[path]
		now, err := os.Stat(path)
		if err != nil || was == nil || !os.SameFile(now, was) || now.Size() != was.Size() ||
			!now.ModTime().Equal(was.ModTime()) || time.Since(now.ModTime()) <= young {
			return false
		}
	}
	return true
}

// secretsOf says in the log which secrets hide users' names.
func secretsOf(set *limits.Set) []any {
	if set.Secrets() == nil {
		return nil
	}
	return []any{"secrets", strings.Join(set.Secrets().IDs(), ",")}
}

// readFiles reads the files, and notes how they were before, so that a later change
// shows. What was read the last time is the guess of what is read now: a file that
// is new to it is looked at again.
func (w *Watcher) readFiles() (data, secrets []byte, err error) {
	stats := map[string]os.FileInfo{}
	for _, path := range slices.Concat([]string{w.path}, w.files, w.folders) {
		if info, err := os.Stat(path); err == nil {
			stats[path] = info
		}
	}
	files, err := limitfile.ReadFiles(w.path)
	w.files, w.folders, w.stats = files.Paths, files.Folders, stats
	if w.secrets == "" {
		return files.Data, nil, err
	}
	w.files = append(w.files, w.secrets)
	if err != nil {
		return nil, nil, w.withoutNames(err)
	}
	secrets, err = os.ReadFile(w.secrets)
	if err != nil {
		return nil, nil, fmt.Errorf("read key secret file: %w", err)
	}
	return files.Data, secrets, nil
}

// parseFiles makes a set of what was read.
func (w *Watcher) parseFiles(data, secrets []byte) (*limits.Set, error) {
	set, err := limitfile.Parse(w.path, data)
	if w.secrets == "" {
		return set, err
	}
	if err != nil {
		return nil, w.withoutNames(err)
	}
	parsed, err := limits.ParseSecrets(secrets)
	if err != nil {
		return nil, fmt.Errorf("key secret file %s: %w", w.secrets, err)
	}
	secretfile.WarnOfReaders(w.log, w.secrets)
	return limitfile.Hide(set, parsed)
}

// withoutNames tells of an error where a file is wrong, and not what it says there: that
// may be a user's name, or what was meant to be one.
func (w *Watcher) withoutNames(err error) error {
	var errs limitfile.Errors
	if !errors.As(err, &errs) {
		return err
	}
	lines := make([]string, len(errs))
	for i, e := range errs {
		lines[i] = fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column)
	}
	return fmt.Errorf("not valid at %s: sluice check %s says why, which may name users and so is not in the log", strings.Join(lines, ", "), w.path)
}

// loadFiles reads the files and puts a new set in use. Unless it was asked for, content
// (or an error of reading) that was there last time has no result.
func (w *Watcher) loadFiles(asked bool) (result string, err error) {
	began := time.Now()
	data, secrets, err := w.readFiles()
	seen := ""
	if err == nil {
		seen = fmt.Sprintf("%x %x", sha256.Sum256(data), sha256.Sum256(secrets))
	} else {
		seen = "error: " + err.Error()
	}
	if seen == w.seen && !asked {
		return "", nil
	}
	w.seen = seen

	var set *limits.Set
	if err == nil && seen != w.good {
		set, err = w.parseFiles(data, secrets)
	}
	switch {
	case err != nil:
		result = resultFailed
		w.metrics.valid.Set(0)
	case set == nil:
		result = resultUnchanged
	default:
		result = resultChanged
		w.good = seen
		w.set.Store(set)
		select {
		case w.wake <- struct{}{}:
		default: // Run will see this set as well
		}
	}
	if err == nil {
		w.metrics.valid.Set(1)
		w.metrics.lastSuccess.SetToCurrentTime()
	}
	w.metrics.reloads.WithLabelValues(result).Inc()
	w.traceLoad(began, result)
	return result, err
}
