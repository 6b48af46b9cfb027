package metricsdoc

import (
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/buildinfo"
	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/internal/jobmetrics"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

const document = "../../docs/metrics.md"

func TestDocumentIsCurrent(t *testing.T) {
	got, err := Document()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(document, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is not current; run go generate ./internal/metricsdoc (-file +code):\n%s", diff)
	}
}

// What the registries of a spoa and of a polygen serve, as the commands make them,
// suits Prometheus.
func TestPromtoolAcceptsTheMetrics(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	for _, tt := range []struct {
		name     string
		register func(prometheus.Registerer) error
	}{{"spoa", registerAgent}, {"polygen", registerGenerator}, {"worker", func(reg prometheus.Registerer) error {
		buildinfo.Register(reg, "worker")
		jobmetrics.New(reg)
		return nil
	}}} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{Registry: cli.NewRegistry()}
			if err := tt.register(r); err != nil {
				t.Fatal(err)
			}
			for _, c := range r.collectors {
				giveValue(c)
			}
			served := httptest.NewRecorder()
			admin.Handler(admin.Options{Gatherer: r}).ServeHTTP(served, httptest.NewRequest("GET", "http://localhost/metrics", nil))
			text := served.Body.String()
			if served.Code != 200 || !strings.Contains(text, "sluice_build_info{") {
				t.Fatalf("GET /metrics = %d, want sluice_build_info:\n%s", served.Code, text)
			}
			check := exec.Command(promtool, "check", "metrics")
			check.Stdin = strings.NewReader(text)
			if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("promtool check metrics: %v\n%s", err, out)
			}
		})
	}
}

// giveValue gives a metric with labels a value, without which it is not served.
func giveValue(c prometheus.Collector) {
	labels := func() []string {
		descs := make(chan *prometheus.Desc, 1)
		c.Describe(descs)
		m, err := parse((<-descs).String())
		if err != nil {
			panic(err)
		}
		return m.Labels
	}
	switch c := c.(type) {
	case *prometheus.CounterVec:
		c.WithLabelValues(labels()...)
	case *prometheus.GaugeVec:
		c.WithLabelValues(labels()...)
	case *prometheus.HistogramVec:
		c.WithLabelValues(labels()...)
	}
}

func TestParse(t *testing.T) {
	const name, help = "sluice_x_total", `Says "so", {or} not, help: \.`
	for _, tt := range []struct {
		name string
		desc *prometheus.Desc
		want []string // labels
	}{
		{"no labels", prometheus.NewDesc(name, help, nil, nil), nil},
		{"labels", prometheus.NewDesc(name, help, []string{"b", "a"}, nil), []string{"a", "b"}},
		{"a label with one value", prometheus.NewDesc(name, help, []string{"b"}, prometheus.Labels{"a": `{"}`}), []string{"a", "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.desc.String())
			if want := (Metric{Name: name, Help: help, Labels: tt.want}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("parse(%s) = %+v, %v, want %+v", tt.desc, got, err, want)
			}
		})
	}
	if m, err := parse("Desc{something else}"); err == nil {
		t.Errorf("parse(something else) = %+v, want an error", m)
	}
}

func TestTypeOf(t *testing.T) {
	var opts prometheus.Opts
	opts.Name = "x"
	for want, collectors := range map[string][]prometheus.Collector{
		"counter": {prometheus.NewCounter(prometheus.CounterOpts(opts)), prometheus.NewCounterVec(prometheus.CounterOpts(opts), nil)},
		"gauge": {prometheus.NewGauge(prometheus.GaugeOpts(opts)), prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), nil),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts), func() float64 { return 1 })},
		"histogram": {prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"}), prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "x"}, nil)},
		"summary":   {prometheus.NewSummary(prometheus.SummaryOpts{Name: "x"})},
		"":          {prometheus.NewRegistry()},
	} {
		for _, c := range collectors {
			got, err := typeOf(c)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("typeOf(%T) = %q, %v, want %q", c, got, err, want)
			}
		}
	}
}

func TestSeries(t *testing.T) {
	for _, tt := range []struct {
		metric Metric
		want   []string
	}{
		{Metric{Name: "x_total", Type: "counter"}, []string{"x_total"}},
		{Metric{Name: "x_seconds", Type: "histogram"}, []string{"x_seconds_bucket", "x_seconds_sum", "x_seconds_count"}},
	} {
		if got := tt.metric.Series(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("Series() of %+v = %q, want %q", tt.metric, got, tt.want)
		}
	}
}
