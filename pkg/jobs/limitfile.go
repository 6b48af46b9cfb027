package jobs

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// LimitFile keeps a limit file, with those of its users_from, loaded in a worker. It
// reads it every now and then, and keeps the last good content while it is broken or
// gone. Overrides that are set by hand at a polygen are not in the file,
// so it does not know them.
type LimitFile struct {
	path string
	set  atomic.Pointer[limits.Set]

	// Of Run alone.
	content [sha256.Size]byte // of what counts
	problem string            // of the last time
}

// OpenLimitFile loads a file. The error is that of limitfile.Load.
func OpenLimitFile(path string) (*LimitFile, error) {
	f := &LimitFile{path: path}
	if _, err := f.reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Set is the last good content. It may be called at any time.
func (f *LimitFile) Set() *limits.Set { return f.set.Load() }

// Run reads the file every so often (10 s is usual) until the context ends, which it
// returns as nil. It calls changed (if not nil) with nil when another content counts, or
// a problem is over, and with the error of each new problem. It runs once at a time.
func (f *LimitFile) Run(ctx context.Context, every time.Duration, changed func(err error)) error {
	if every <= 0 {
		return fmt.Errorf("watch limit file: the interval is %v, want a positive duration", every)
	}
	if changed == nil {
		changed = func(error) {}
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		is, err := f.reload()
		switch {
		case err == nil && (is || f.problem != ""):
			changed(nil)
		case err != nil && err.Error() != f.problem:
			changed(err)
		}
		f.problem = ""
		if err != nil {
			f.problem = err.Error()
		}
	}
}

// reload reads the files again if they may have changed, and reports whether what they
// say did.
func (f *LimitFile) reload() (changed bool, err error) {
	files, err := limitfile.ReadFiles(f.path)
	if err != nil {
		return false, err
	}
	// By content: a file that replaces another may have any modification time.
	sum := sha256.Sum256(files.Data)
	if sum == f.content {
		return false, nil
	}
	set, err := limitfile.Parse(f.path, files.Data)
	if err != nil {
		return false, err
	}
	f.content = sum
	f.set.Store(set)
	return true, nil
}
