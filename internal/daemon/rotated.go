package daemon

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

// rereadEvery is how often files are checked for changes, at most.
const rereadEvery = time.Second

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
	every time.Duration // rereadEvery, except in tests

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
	// Reading a file may hang, such as on a network file system. The requests meanwhile go by what is known.
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
	// All of them, for a certificate and its key belong together.
	files := make([][]byte, len(r.paths))
	seen := ""
	for i, path := range r.paths {
		if files[i], err = os.ReadFile(path); err != nil {
			seen = err.Error()
			break
		}
		seen += fmt.Sprintf("%x ", sha256.Sum256(files[i]))
	}
	// By content: editors and Kubernetes replace files in ways that leave times and names as they were.
	if seen == r.seen {
		return false, nil
	}
	// Also of content that is broken, so that it is told once and not with every request.
	r.seen = seen
	var value *T
	if err == nil {
		value, err = r.parse(files)
	}
	// What is broken changes nothing: to let nobody in any more, or everybody, would be worse than the former
	// tokens.
	if err != nil {
		r.valid.Set(0)
		return true, err
	}
	r.valid.Set(1)
	// Before anybody is told of it, and in one step: nobody sees half of it.
	r.value.Store(value)
	r.good(value)
	return true, nil
}
