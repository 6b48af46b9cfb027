package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// A span, and the service that it is of.
type span struct {
	*otlp.Span
	service string
}

// number is the value of an attribute, 0 if it is not there.
func (s span) number(name string) int64 {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

// otelReceiver keeps the spans that it is sent by OTLP over HTTP.
type otelReceiver struct {
	mu    sync.Mutex
	spans []span
	raw   []byte // all that was sent
	bad   error
}

func (r *otelReceiver) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad = errors.Join(r.bad, err)
	r.raw = append(r.raw, body...)
	for _, rs := range export.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				r.spans = append(r.spans, span{s, service})
			}
		}
	}
}

// all returns the spans so far.
func (r *otelReceiver) all() []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// find returns a span of that name and service that fits.
func find(spans []span, service, name string, fits func(span) bool) (span, bool) {
	i := slices.IndexFunc(spans, func(s span) bool { return s.service == service && s.Name == name && fits(s) })
	if i < 0 {
		return span{}, false
	}
	return spans[i], true
}

func anyOf(span) bool { return true }

// A throttle can be followed from polygen's decision to each agent, in one trace.
func TestTraceOfAThrottle(t *testing.T) {
	receiver := &otelReceiver{}
	server := httptest.NewServer(receiver)
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(10)})
	const user = "mallory-is-secret"
	proctest.Eventually(t, "a throttle is traced", func() error {
		for range 30 {
			get(t, c.Instances[0].Address, user)
		}
		spans := receiver.all()
		decide, ok := find(spans, "sluice-polygen", "decide", func(s span) bool { return s.number("sluice.policies.throttle") > 0 })
		if !ok {
			return fmt.Errorf("no decision of a throttle among %d spans", len(spans))
		}
		publish, ok := find(spans, "sluice-polygen", "publish policies", func(s span) bool { return bytes.Equal(s.ParentSpanId, decide.SpanId) })
		if !ok {
			return errors.New("no sending of the decision")
		}
		agents := map[string]bool{}
		for _, s := range spans {
			if s.service != "sluice-spoa" || s.Name != "apply policies" || !bytes.Equal(s.ParentSpanId, publish.SpanId) {
				continue
			}
			for _, a := range s.Attributes {
				if a.Key == "sluice.instance" {
					name, _, _ := strings.Cut(a.Value.GetStringValue(), "#")
					agents[name] = true
				}
			}
			if !bytes.Equal(s.TraceId, decide.TraceId) || !bytes.Equal(publish.TraceId, decide.TraceId) {
				t.Fatalf("traces %x, %x and %x of one decision", decide.TraceId, publish.TraceId, s.TraceId)
			}
			if got, want := s.number("sluice.policies.throttle"), decide.number("sluice.policies.throttle"); got != want {
				t.Fatalf("%d throttles applied, %d decided", got, want)
			}
		}
		if len(agents) != 2 {
			return fmt.Errorf("applied by %v, want both agents", agents)
		}
		if decide.number("sluice.events") < 1 || len(decide.ParentSpanId) > 0 {
			t.Fatalf("decide = %v, want events and no parent", decide)
		}
		return nil
	})

	c.SetLimits(t, limitFile(20))
	for _, want := range []struct{ service, name string }{
		{"sluice-polygen", "take the lead"}, {"sluice-polygen", "publish limits"}, {"sluice-polygen", "reload"},
		{"sluice-spoa", "join the cluster"}, {"sluice-spoa", "read limits"},
	} {
		proctest.Eventually(t, want.name+" is traced", func() error {
			if _, ok := find(receiver.all(), want.service, want.name, anyOf); !ok {
				return errors.New("it is not")
			}
			return nil
		})
	}
	c.Redis.Kill()
	// Of a shard, whose loss is what is traced: sluice_redis_lost may be 1 for a heartbeat's sake alone, and a Redis
	// that is back within a tenth of a second is then lost to no shard.
	proctest.Eventually(t, "a shard of redis is lost", func() error {
		if c.Instances[0].Metric(t, "sluice_redis_losses_total") < 1 {
			return errors.New("it is not")
		}
		return nil
	})
	c.Redis = proctest.RedisAt(t, c.RedisAddr)
	proctest.Eventually(t, "the loss is traced", func() error {
		lost, ok := find(receiver.all(), "sluice-spoa", "redis lost", anyOf)
		if !ok {
			return errors.New("it is not")
		}
		if lost.EndTimeUnixNano <= lost.StartTimeUnixNano {
			t.Fatalf("redis lost = %v, want the time until its return", lost)
		}
		return nil
	})

	c.Stop() // sends the rest
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if receiver.bad != nil {
		t.Error(receiver.bad)
	}
	if bytes.Contains(receiver.raw, []byte("mallory")) {
		t.Error("a user's name is in the traces")
	}
	known := []string{"decide", "publish policies", "apply policies", "publish limits", "read limits", "reload", "take the lead", "join the cluster", "redis lost"}
	for _, s := range receiver.spans {
		if !slices.Contains(known, s.Name) {
			t.Errorf("span %q of %s, want one of the control loop", s.Name, s.service)
		}
	}
}

// A receiver that is dead, or that hangs, changes nothing but a count.
func TestDeadReceiverOfTracesChangesNothing(t *testing.T) {
	t.Parallel()
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	for _, tt := range []struct{ name, address string }{{"dead", proctest.FreeAddr(t)}, {"hangs", hanging.Addr().String()}} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100), Env: []string{
				"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + tt.address,
				"OTEL_EXPORTER_OTLP_TIMEOUT=500",
				"OTEL_BSP_EXPORT_TIMEOUT=500",
				"OTEL_BSP_SCHEDULE_DELAY=100",
			}})
			r := offer(t, c, "alice", "even", 1000, 2*time.Second)
			checkAnswered(t, r)
			checkLimit(t, r, 100, 0.97)
			proctest.Eventually(t, "the lost spans are counted", func() error {
				for _, admin := range []string{c.Polygens[0].Admin, c.Instances[0].Admin} {
					if cluster.Metric(t, admin, `sluice_trace_spans_total{result="failed"}`) == 0 {
						return errors.New("they are not")
					}
				}
				return nil
			})
			n := strings.Count(c.Polygens[0].Output(), "traces not exported")
			if most := 1 + int(time.Since(began)/(10*time.Second)); n < 1 || n > most {
				t.Errorf("logged %d times, want 1 to %d: once in ten seconds", n, most)
			}
			for _, p := range []*proctest.Process{c.Polygens[0].Process, c.Instances[0].Agent} {
				if err := p.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := p.Wait(); err != nil {
					t.Errorf("%s ended with %v, want nothing", p.Name, err)
				}
			}
		})
	}
}

// A bad variable ends the start and is named.
func TestBadVariableOfTraces(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Limits: limitFile(100)})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	p := c.StartPolygen(t, 1)
	if err := p.Wait(); err == nil {
		t.Error("polygen ended well, want an error")
	}
	if want := `polygen: traces: OTEL_EXPORTER_OTLP_PROTOCOL "grpc": only http/protobuf is supported`; !strings.Contains(p.Output(), want) {
		t.Errorf("polygen says %s, want %s", p.Output(), want)
	}
}
