package limitfile

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// young is the age below which a modification time says nothing: a second change within
// the clock's grain would leave it as it is. It covers that of every file system (FAT:
// 2 s) and small differences between clocks.
const young = 10 * time.Second

// Loader keeps a limit file and the files of its users_from loaded: it reads them again when
// it is asked to, and keeps the last good set when one is broken, empty or gone. Nothing
// happens by itself, so that network file systems and links, which send no events, are as
// good as others. Its methods are safe for concurrent use.
type Loader struct {
	path string
	set  atomic.Pointer[limits.Set]

	mu    sync.Mutex             // one load at a time; guards what follows
	seen  string                 // digest of what was loaded last, or the error of reading it
	good  string                 // digest of set's source
	paths []string               // files that were read last, and folders of users_from, in which a change may mean another file
	stats map[string]os.FileInfo // of paths, from before they were read last
}

// Outcome is what came of a load.
type Outcome string

// The outcomes.
const (
	Same      Outcome = ""          // it was there the last time
	Changed   Outcome = "changed"   // a new set
	Unchanged Outcome = "unchanged" // good, and as the set that is in use
	Failed    Outcome = "failed"    // unreadable or not valid: the set in use stays
)

// NewLoader returns a Loader without a set: the first Load makes it.
func NewLoader(path string) *Loader { return &Loader{path: path} }

// Set returns the last good set, nil before the first one.
func (l *Loader) Set() *limits.Set { return l.set.Load() }

// Touched reports whether a file may have changed since it was read, or another one may have
// come. It does not read them.
func (l *Loader) Touched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// By looking, and not by events, of which network file systems send none.
	return slices.ContainsFunc(l.paths, func(path string) bool {
		was := l.stats[path]
		now, err := os.Stat(path)
		// Not the content: a file of 64 MiB would be read twice a second.
		return err != nil || was == nil || !os.SameFile(now, was) || now.Size() != was.Size() ||
			!now.ModTime().Equal(was.ModTime()) || time.Since(now.ModTime()) <= young
	})
}

// Load reads the files and puts a new set in use. Unless it was asked for, content
// (or an error of reading) that was there the last time is Same.
func (l *Loader) Load(asked bool) (Outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := l.readFiles()
	// By content: a file that replaces another may have any modification time.
	seen := fmt.Sprintf("%x", sha256.Sum256(data))
	if err != nil {
		seen = "error: " + err.Error()
	}
	// Of an error, too: it is told once, not twice a second.
	if seen == l.seen && !asked {
		return Same, nil
	}
	l.seen = seen
	if err != nil {
		return Failed, err
	}
	// A broken file that was put right again: the set is in use already.
	if seen == l.good {
		return Unchanged, nil
	}
	set, err := Parse(l.path, data)
	if err != nil {
		return Failed, err
	}
	l.good = seen
	l.set.Store(set)
	return Changed, nil
}

// readFiles reads the files, and notes how they were before, so that a later change
// shows. What was read the last time is the guess of what is read now: a file that
// is new to it is looked at again.
func (l *Loader) readFiles() ([]byte, error) {
	stats := map[string]os.FileInfo{}
	// Before they are read: a change meanwhile shows as one after it, and is read again.
	for _, path := range append([]string{l.path}, l.paths...) {
		if info, err := os.Stat(path); err == nil {
			stats[path] = info
		}
	}
	files, err := ReadFiles(l.path)
	// Also after an error, so that the file that is missing is looked for.
	l.paths, l.stats = slices.Concat(files.Paths, files.Folders), stats
	return files.Data, err
}
