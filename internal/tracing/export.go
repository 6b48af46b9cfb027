package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-qos/sluice/internal/loglimit"
)

// Metrics tell what becomes of spans.
type Metrics struct {
	exported, failed, dropped prometheus.Counter
}

// NewMetrics registers the metrics; with nil nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	spans := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_trace_spans_total",
		Help: "Spans of traces by what became of them: exported, failed (the receiver did not take them) or dropped (too many were waiting for it).",
	}, []string{"result"})
	return &Metrics{
		exported: spans.WithLabelValues("exported"),
		failed:   spans.WithLabelValues("failed"),
		dropped:  spans.WithLabelValues("dropped"),
	}
}

// exporter counts what the SDK's exporter does, keeps its errors from being told too
// often, and can be made to give up.
type exporter struct {
	sdk.SpanExporter
	metrics *Metrics
	log     *slog.Logger
	waiting atomic.Int64 // spans that have ended and not been exported

	over    context.Context // ends when nothing is waited for any more
	abandon context.CancelFunc

	failureLog loglimit.Limit
}

func newExporter(m *Metrics, log *slog.Logger) *exporter {
	e := &exporter{metrics: m, log: log}
	e.over, e.abandon = context.WithCancel(context.Background())
	return e
}

// ExportSpans never fails: it has told of the error already.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer e.waiting.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.over, cancel)()
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.metrics.failed.Add(float64(len(spans)))
		e.logFailure(err)
		return nil
	}
	e.metrics.exported.Add(float64(len(spans)))
	return nil
}

// logFailure logs an error, unless it has logged one lately.
func (e *exporter) logFailure(err error) {
	if skipped, ok := e.failureLog.Allow(); ok {
		// A receiver's answer may be long.
		e.log.Warn("traces not exported", slog.String("error", fmt.Sprintf("%.500s", err)), slog.Int("failures", skipped+1))
	}
}

// bounded drops, and counts, spans that the processor behind it would drop silently. Those that
// are being exported wait too, so its queue never fills up.
type bounded struct {
	sdk.SpanProcessor
	exporter *exporter
	most     int64 // spans that may wait
}

// OnEnd never waits.
func (b *bounded) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if b.exporter.waiting.Add(1) > b.most {
		b.exporter.waiting.Add(-1)
		b.exporter.metrics.dropped.Inc()
		return
	}
	b.SpanProcessor.OnEnd(s)
}
