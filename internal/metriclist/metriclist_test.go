package metriclist

import (
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

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
