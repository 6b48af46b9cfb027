package admin

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lookEvery is how often files are checked for changes, at most.
const lookEvery = time.Second

// rotated is the content of some small files. They are read again when it is used, so that
// a change needs no restart, and nothing runs while nobody asks. Files that are broken or
// gone change nothing: the last good content stays. Its methods are safe for concurrent
// use.
type rotated[T any] struct {
	what  string // what the files are, for the log
	paths []string
	parse func(files [][]byte) (*T, error)
	good  func(*T) // called with each new content
	log   *slog.Logger
	valid prometheus.Gauge
	every time.Duration // lookEvery, except in tests

	value atomic.Pointer[T]

	mu     sync.Mutex // guards what follows
	looked time.Time
	seen   string // digest of the files when last read, or the error of reading them
}

// firstRead reads the files for the first time: broken ones are an error.
func (r *rotated[T]) firstRead() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = time.Now()
	_, err := r.readFiles()
	return err
}

// current returns the content of the files, or the last good one while they are broken. It
// never waits for another caller that reads them.
func (r *rotated[T]) current() *T {
	if r.mu.TryLock() {
		defer r.mu.Unlock()
		if now := time.Now(); now.Sub(r.looked) >= r.every {
			r.looked = now
			r.readAgain()
		}
	}
	return r.value.Load()
}

// readAgain reads the files again, and tells of a change once.
func (r *rotated[T]) readAgain() {
	switch changed, err := r.readFiles(); {
	case !changed:
	case err != nil:
		r.log.Error("admin API: a file is refused, what it held before stays in use", "file", r.what, "error", err)
	default:
		r.log.Info("admin API: a file is read again", "file", r.what)
	}
}

// readFiles reads the files, and takes their content if it has changed.
func (r *rotated[T]) readFiles() (changed bool, err error) {
	files := make([][]byte, len(r.paths))
	seen := ""
	for i, path := range r.paths {
		if files[i], err = os.ReadFile(path); err != nil {
			seen = err.Error()
			break
		}
		seen += fmt.Sprintf("%x ", sha256.Sum256(files[i]))
	}
	if seen == r.seen {
		return false, nil
	}
	r.seen = seen
	var value *T
	if err == nil {
		value, err = r.parse(files)
	}
	if err != nil {
		r.valid.Set(0)
		return true, err
	}
	r.valid.Set(1)
	r.value.Store(value)
	r.good(value)
	return true, nil
}
