// Package tracing makes OpenTelemetry traces of the control loop, if the standard
// environment variables (OTEL_…) ask for them: what polygen decided and sent, and what
// the agents made of it. It is the only package that knows OpenTelemetry.
//
// Traces are for people who look, so nothing depends on them: a nil *Tracer makes none
// and costs nothing, spans wait in a bounded queue, and a receiver that is slow or gone
// loses spans, which are counted, and holds up nobody. There is no span for a request of
// a user, and no name of a user in any span.
package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushFor bounds the time that Stop takes.
const flushFor = time.Second

// An Attr is an attribute of a span. Its name begins with "sluice.".
type Attr attribute.KeyValue

// Int is an attribute that is a number.
func Int(name string, n int) Attr { return Attr(attribute.Int(name, n)) }

// String is one that is a text.
func String(name, text string) Attr { return Attr(attribute.String(name, text)) }

// Bool is one that holds or does not.
func Bool(name string, holds bool) Attr { return Attr(attribute.Bool(name, holds)) }

// Options say who traces.
type Options struct {
	Service  string // service.name, unless OTEL_SERVICE_NAME is set
	Instance string // service.instance.id; "" for none

	Console    io.Writer             // for OTEL_TRACES_EXPORTER=console; nil means standard output
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil registers nothing
}

// Tracer makes spans. A nil one makes none. It is safe for concurrent use.
type Tracer struct {
	tracer   trace.Tracer
	provider *sdk.TracerProvider
	exporter *exporter
	common   []attribute.KeyValue // of each span
}

// Start returns the tracer that the environment asks for, which is nil if it asks for
// none. A destination or a protocol that it cannot speak is an error that names the variable. The caller ends the tracer with
// Stop.
func Start(ctx context.Context, o Options) (*Tracer, error) {
	m := NewMetrics(o.Registerer)
	s, err := readEnvironment()
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	if s.to == nowhere {
		return nil, nil
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Console == nil {
		o.Console = os.Stdout
	}
	e := newExporter(m, o.Logger)
	// What the SDK has to say beside our exporter's errors; by default it prints.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(e.logFailure))
	if e.SpanExporter, err = s.openExporter(ctx, o.Console); err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	own := []attribute.KeyValue{attribute.String("service.name", o.Service)}
	if o.Instance != "" {
		own = append(own, attribute.String("service.instance.id", o.Instance))
	}
	about, err := resource.New(ctx, resource.WithAttributes(own...), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) && !errors.Is(err, resource.ErrSchemaURLConflict) {
		return nil, fmt.Errorf("traces: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithResource(about),
		sdk.WithSpanProcessor(&bounded{SpanProcessor: sdk.NewBatchSpanProcessor(e), exporter: e, most: int64(s.queue)}))
	o.Logger.Info("tracing", slog.String("service", o.Service), slog.String("to", s.to.String()))
	return &Tracer{tracer: provider.Tracer("github.com/sluice-qos/sluice"), provider: provider, exporter: e}, nil
}

// openExporter makes the SDK's exporter.
func (s settings) openExporter(ctx context.Context, console io.Writer) (sdk.SpanExporter, error) {
	if s.to == toConsole {
		return stdouttrace.New(stdouttrace.WithWriter(console))
	}
	if s.endpoint {
		return otlptracehttp.New(ctx)
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL("http://localhost:4318/v1/traces")) // the SDK would speak TLS
}

// Stop sends what is left and ends the tracers, all within a second: what has not been
// taken by then is lost. Nil ones are ended already.
func Stop(tracers ...*Tracer) {
	var wg sync.WaitGroup
	for _, t := range tracers {
		if t != nil {
			wg.Go(t.shutDown)
		}
	}
	wg.Wait()
}

func (t *Tracer) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), flushFor)
	defer cancel()
	defer t.exporter.abandon()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.exporter.logFailure(fmt.Errorf("the last traces are lost: %w", err))
	}
}

// With returns a tracer whose spans have these attributes too.
func (t *Tracer) With(attrs ...Attr) *Tracer {
	if t == nil {
		return nil
	}
	more := *t
	more.common = slices.Clone(t.common)
	for _, a := range attrs {
		more.common = append(more.common, attribute.KeyValue(a))
	}
	return &more
}

// Span is something that takes time. A nil one is not recorded.
type Span struct{ span trace.Span }

// Begin begins a span, as a child of ctx's if it has one, and returns a context for what
// is part of it. The zero time means now.
func (t *Tracer) Begin(ctx context.Context, name string, at time.Time) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	var timed []trace.SpanStartOption
	if !at.IsZero() {
		timed = append(timed, trace.WithTimestamp(at))
	}
	ctx, span := t.tracer.Start(ctx, name, timed...)
	span.SetAttributes(t.common...)
	return ctx, &Span{span}
}

// Record records a span that is over.
func (t *Tracer) Record(ctx context.Context, name string, began time.Time, err error, attrs ...Attr) {
	if t == nil {
		return
	}
	_, span := t.Begin(ctx, name, began)
	span.Set(attrs...)
	span.End(err)
}

// Set adds attributes, or changes them.
func (s *Span) Set(attrs ...Attr) {
	if s == nil {
		return
	}
	for _, a := range attrs {
		s.span.SetAttributes(attribute.KeyValue(a))
	}
}

// End ends the span, as failed if there is an error. Everybody who may see traces sees
// the error's text, so it must not name a user.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// Parent is the span as other processes can name it for theirs: a traceparent of W3C's
// Trace Context, version 00.
func (s *Span) Parent() string {
	c := s.span.SpanContext()
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + (c.TraceFlags() & trace.FlagsSampled).String()
}

// Under returns a context in which spans are children of another process's span. What is
// not a traceparent is nobody's.
func Under(ctx context.Context, parent string) context.Context {
	const flags = 53 // where they begin
	if len(parent) != flags+2 || parent[:3] != "00-" || parent[35] != '-' || parent[52] != '-' {
		return ctx
	}
	id, err1 := trace.TraceIDFromHex(parent[3:35])
	span, err2 := trace.SpanIDFromHex(parent[36:52])
	f, err3 := hex.DecodeString(parent[flags:])
	if errors.Join(err1, err2, err3) != nil {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(f[0]) & trace.FlagsSampled, Remote: true,
	}))
}
