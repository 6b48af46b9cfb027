package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// A Factory makes metrics and registers them. Those with a label that is the same for all of their
// series are promauto's.
type Factory struct{ promauto.Factory }

// Metrics registers metrics with a registry; nil registers nothing.
func Metrics(reg prometheus.Registerer) Factory { return Factory{promauto.With(reg)} }

// Counter makes a counter.
func (f Factory) Counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Counters makes a counter for each value of some labels.
func (f Factory) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge makes a gauge.
func (f Factory) Gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// Gauges makes a gauge for each value of some labels.
func (f Factory) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Histogram makes a histogram with these upper bounds of its buckets.
func (f Factory) Histogram(name, help string, buckets ...float64) prometheus.Histogram {
	return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

// Histograms makes a histogram for each value of a label.
func (f Factory) Histograms(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
}
