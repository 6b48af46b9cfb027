package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// LimitFile keeps a limit file loaded in a worker. It
// reads it every now and then, and keeps the last good content while it is broken or
// gone. Overrides that operators set at a polygen are not in the file, so it does not
// know them: see redislimits.
type LimitFile struct{ loader *limitfile.Loader }

// OpenLimitFile loads a file. The error is that of limitfile.Load.
func OpenLimitFile(path string) (*LimitFile, error) {
	f := &LimitFile{limitfile.NewLoader(path)}
	// The first one has to be good: there is no last good content yet to go by.
	if _, err := f.loader.Load(true); err != nil {
		return nil, err
	}
	return f, nil
}

// Set is the last good content. It may be called at any time.
func (f *LimitFile) Set() *limits.Set { return f.loader.Set() }

// Run reads the file every so often (10 s is usual) until the context ends, which it
// returns as nil. It calls changed (if not nil) with nil when another content counts, or
// a problem is over, and with the error of each new problem. It runs once at a time.
func (f *LimitFile) Run(ctx context.Context, every time.Duration, changed func(err error)) error {
	// A ticker would panic.
	if every <= 0 {
		return fmt.Errorf("watch limit file: the interval is %v, want a positive duration", every)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// Read anew and not watched: editors and Kubernetes replace files in ways that watchers miss.
		if outcome, err := f.loader.Load(false); outcome != limitfile.Same && changed != nil {
			changed(err)
		}
	}
}
