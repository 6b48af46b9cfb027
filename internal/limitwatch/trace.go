package limitwatch

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-qos/sluice/internal/tracing"
)

// SetTracer has each load from now on recorded by the tracer; nil records none.
func (w *Watcher) SetTracer(t *tracing.Tracer) { w.tracer.Store(t) }

// errRefused stands for what is wrong with the file, whose text may name users.
var errRefused = errors.New("the limit file was refused: see the log")

// traceLoad records a load and the version in use after it.
func (w *Watcher) traceLoad(began time.Time, result string) {
	t := w.tracer.Load()
	if t == nil {
		return
	}
	var err error
	if result == resultFailed {
		err = errRefused
	}
	t.Record(context.Background(), "reload", began, err, tracing.String("sluice.limits.version", w.Set().Version()), tracing.String("sluice.result", result))
}
