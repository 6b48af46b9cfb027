package limitfile

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// young is the age below which a modification time proves nothing: a second change within the
// clock's grain leaves it as it is. It covers that of every file system (FAT: 2 s) and small
// differences between clocks.
const young = 10 * time.Second

// Loader keeps a limit file loaded: it reads the file again on request, and keeps the last good
// set when the file is broken, empty or gone. It looks at the file instead of waiting for events,
// which network file systems do not send. Its methods are safe for concurrent use.
type Loader struct {
	path string
	set  atomic.Pointer[limits.Set]

	mu   sync.Mutex  // one load at a time; guards what follows
	seen string      // digest of what was loaded last, or the error of reading it
	good string      // digest of set's source
	stat os.FileInfo // of the file, from before it was read last; nil for a missing one
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

// Touched reports whether the file may have changed since it was read. It does not read it.
func (l *Loader) Touched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, err := os.Stat(l.path)
	return err != nil || l.stat == nil || !os.SameFile(now, l.stat) || now.Size() != l.stat.Size() ||
		!now.ModTime().Equal(l.stat.ModTime()) || time.Since(now.ModTime()) <= young
}

// Load reads the file and puts a new set in use. Unless asked is true, content
// (or an error of reading) that was there the last time is Same.
func (l *Loader) Load(asked bool) (Outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Before the file is read: a change during the reading shows as one after it.
	l.stat, _ = os.Stat(l.path)
	data, err := readFile(l.path)
	// By content: a file that replaces another may have any modification time.
	seen := fmt.Sprintf("%x", sha256.Sum256(data))
	if err != nil {
		seen = "error: " + err.Error()
	}
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
