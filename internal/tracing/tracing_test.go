package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// TestMain takes away what the environment of the tests says.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// receiver takes traces as OpenTelemetry's collector does.
type receiver struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request) // nil takes all

	mu     sync.Mutex
	spans  []*otlp.Span
	about  map[string]string // attributes of the last resource
	header http.Header       // of the last request
}

func newReceiver(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *receiver {
	r := &receiver{answer: answer, about: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	if r.answer != nil {
		r.answer(w, req)
		return
	}
	var export collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &export); err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "not traces", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = req.Header
	for _, rs := range export.ResourceSpans {
		for _, a := range rs.Resource.Attributes {
			r.about[a.Key] = a.Value.GetStringValue()
		}
		for _, s := range rs.ScopeSpans {
			r.spans = append(r.spans, s.Spans...)
		}
	}
}

// tracer starts one that sends to the endpoint.
func tracer(t *testing.T, endpoint string, log io.Writer) (*Tracer, *prometheus.Registry) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	registry := prometheus.NewPedanticRegistry()
	tr, err := Start(t.Context(), Options{Service: "sluice-test", Instance: "one", Logger: slog.New(slog.NewTextHandler(log, nil)), Registerer: registry})
	if err != nil || tr == nil {
		t.Fatalf("Start = %v, %v, want a tracer", tr, err)
	}
	return tr, registry
}

func checkSpans(t *testing.T, r prometheus.Gatherer, exported, failed, dropped int) {
	t.Helper()
	want := fmt.Sprintf(`# HELP sluice_trace_spans_total Spans of traces by what became of them: exported, failed (the receiver did not take them) or dropped (too many were waiting for it).
# TYPE sluice_trace_spans_total counter
sluice_trace_spans_total{result="dropped"} %d
sluice_trace_spans_total{result="exported"} %d
sluice_trace_spans_total{result="failed"} %d
`, dropped, exported, failed)
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestSpansReachTheReceiver(t *testing.T) {
	r := newReceiver(t, nil)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=two")
	tr, registry := tracer(t, r.URL, io.Discard)

	began := time.Now().Add(-time.Second).Truncate(time.Microsecond)
	ctx, parent := tr.With(String("sluice.a", "all")).Begin(t.Context(), "parent", began)
	parent.Set(Int("sluice.n", 7), Bool("sluice.b", true))
	tr.Record(Under(context.Background(), parent.Parent()), "elsewhere", time.Now(), errors.New("it failed"))
	_, child := tr.Begin(ctx, "child", time.Time{})
	child.End(nil)
	parent.End(nil)
	Stop(tr)

	checkSpans(t, registry, 3, 0, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	byName := map[string]*otlp.Span{}
	for _, s := range r.spans {
		byName[s.Name] = s
		attrs := []string{}
		for _, a := range s.Attributes {
			attrs = append(attrs, fmt.Sprintf("%s=%v", a.Key, strings.TrimSpace(fmt.Sprint(a.Value.GetStringValue(), a.Value.GetIntValue(), a.Value.GetBoolValue()))))
		}
		got = append(got, fmt.Sprintf("%s %v %s", s.Name, attrs, s.Status.GetMessage()))
	}
	slices.Sort(got)
	want := []string{"child [] ", "elsewhere [] it failed", "parent [sluice.a=all0 false sluice.n=7 false sluice.b=0 true] "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	for _, name := range []string{"child", "elsewhere"} {
		if s, p := byName[name], byName["parent"]; !bytes.Equal(s.GetParentSpanId(), p.GetSpanId()) || !bytes.Equal(s.GetTraceId(), p.GetTraceId()) {
			t.Errorf("%s is not a child of parent: %v", name, s)
		}
	}
	if at := byName["parent"].GetStartTimeUnixNano(); at != uint64(began.UnixNano()) {
		t.Errorf("parent began at %d, want %d", at, began.UnixNano())
	}
	about := map[string]string{}
	for _, k := range []string{"service.name", "service.instance.id", "deployment.environment.name", "telemetry.sdk.language"} {
		about[k] = r.about[k]
	}
	if diff := cmp.Diff(map[string]string{"service.name": "sluice-test", "service.instance.id": "two",
		"deployment.environment.name": "test", "telemetry.sdk.language": "go"}, about); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
	if got := r.header.Get("Authorization"); got != "Bearer x" {
		t.Errorf("Authorization = %q, want that of OTEL_EXPORTER_OTLP_HEADERS", got)
	}
}

func TestServiceNameOfTheEnvironmentCounts(t *testing.T) {
	r := newReceiver(t, nil)
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	tr, _ := tracer(t, r.URL, io.Discard)
	tr.Record(t.Context(), "x", time.Now(), nil)
	Stop(tr)
	if r.mu.Lock(); r.about["service.name"] != "mine" {
		t.Errorf("service.name = %q, want mine", r.about["service.name"])
	}
	r.mu.Unlock()
}

func TestStartTracesOnlyWhenAsked(t *testing.T) {
	for _, env := range [][2]string{{"OTEL_SERVICE_NAME", "x"}, {"OTEL_TRACES_EXPORTER", "none"}, {"OTEL_SDK_DISABLED", "true"}} {
		t.Run(env[0], func(t *testing.T) {
			t.Setenv(env[0], env[1])
			if tr, err := Start(t.Context(), Options{Service: "x"}); tr != nil || err != nil {
				t.Errorf("Start = %v, %v, want none", tr, err)
			}
		})
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "prometheus")
	if tr, err := Start(t.Context(), Options{}); tr != nil || err == nil || err.Error() != `traces: OTEL_TRACES_EXPORTER "prometheus": want otlp, console or none` {
		t.Errorf("Start = %v, %v, want an error that names the variable", tr, err)
	}
}

func TestConsolePrintsALineASpan(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	var out bytes.Buffer
	tr, err := Start(t.Context(), Options{Service: "x", Console: &out})
	if err != nil {
		t.Fatal(err)
	}
	tr.Record(t.Context(), "one", time.Now(), nil)
	tr.Record(t.Context(), "two", time.Now(), nil)
	Stop(tr)
	var names []string
	for line := range strings.Lines(out.String()) {
		var span struct{ Name string }
		if err := json.Unmarshal([]byte(line), &span); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		names = append(names, span.Name)
	}
	if diff := cmp.Diff([]string{"one", "two"}, names); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

func TestASampledOutSpanIsNotSentButNamed(t *testing.T) {
	r := newReceiver(t, nil)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	tr, registry := tracer(t, r.URL, io.Discard)
	_, span := tr.Begin(t.Context(), "x", time.Time{})
	if p := span.Parent(); len(p) != 55 || !strings.HasSuffix(p, "-00") {
		t.Errorf("Parent = %q, want one that is not sampled", p)
	}
	span.End(nil)
	Stop(tr)
	checkSpans(t, registry, 0, 0, 0)
}

func TestAReceiverThatRefusesIsToldOfOnce(t *testing.T) {
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("no ", 1000), http.StatusBadRequest)
	})
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	var log bytes.Buffer
	tr, registry := tracer(t, r.URL, &log)
	for range 5 {
		tr.Record(t.Context(), "x", time.Now(), nil)
	}
	Stop(tr)
	checkSpans(t, registry, 0, 5, 0)
	if n := strings.Count(log.String(), "traces not exported"); n != 1 || log.Len() > 1200 {
		t.Errorf("logged %d times, %d bytes, want once and short:\n%s", n, log.Len(), &log)
	}
}

func TestAReceiverThatHangsHoldsUpNobody(t *testing.T) {
	asked := make(chan struct{}, 100)
	r := newReceiver(t, func(_ http.ResponseWriter, r *http.Request) { asked <- struct{}{}; <-r.Context().Done() })
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	tr, registry := tracer(t, r.URL, io.Discard)
	tr.Record(t.Context(), "x", time.Now(), nil)
	select {
	case <-asked:
	case <-time.After(proctest.Patience):
		t.Fatal("nothing was sent")
	}
	for range 100 { // 9 more wait
		tr.Record(t.Context(), "x", time.Now(), nil)
	}
	checkSpans(t, registry, 0, 0, 91)
	done := make(chan struct{})
	go func() { Stop(tr, nil); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second): // the SDK's own bounds are 10 and 30 s
		t.Fatal("Stop waits for a receiver that hangs")
	}
	proctest.Eventually(t, "the rest has failed", func() error {
		if n := testutil.ToFloat64(tr.exporter.metrics.failed); n != 10 {
			return fmt.Errorf("%v spans failed, want 10", n)
		}
		return nil
	})
}

func TestANilTracerDoesNothingAtNoCost(t *testing.T) {
	var tr *Tracer
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		own, span := tr.With(String("a", "b")).Begin(ctx, "x", time.Time{})
		span.Set(Int("n", 1))
		span.End(nil)
		tr.Record(own, "y", time.Time{}, nil, String("a", "b"))
		Stop(tr)
	}); n > 1 { // Stop's
		t.Errorf("%v allocations, want none", n)
	}
}

func TestUnderTakesOnlyATraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := newReceiver(t, nil)
	tr, _ := tracer(t, r.URL, io.Discard)
	defer Stop(tr)
	trace := func(parent string) string {
		_, span := tr.Begin(Under(t.Context(), parent), "x", time.Time{})
		return span.Parent()[3:35]
	}
	if got := trace(good); got != good[3:35] {
		t.Errorf("under %s the trace is %s", good, got)
	}
	for _, bad := range []string{"", good + "0", good[1:], "01" + good[2:], strings.Replace(good, "-", "_", 1), strings.ToUpper(good),
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", good[:36] + "0000000000000000-01", good[:53] + "xx"} {
		if got := trace(bad); got == good[3:35] || got == strings.Repeat("0", 32) {
			t.Errorf("under %q the trace is %s, want one of its own", bad, got)
		}
	}
}

func TestMetricsSuitPrometheus(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	NewMetrics(registry)
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint = %v, %v", problems, err)
	}
}
