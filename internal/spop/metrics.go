package spop

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connections  prometheus.Gauge
	refused      prometheus.Counter
	acceptErrors prometheus.Counter
	hello        prometheus.Counter
	healthcheck  prometheus.Counter
	notify       prometheus.Counter
	disconnect   prometheus.Counter
	rejected     *prometheus.CounterVec
	handler      prometheus.Histogram
	panics       prometheus.Counter
	dropped      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	frames := f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_spop_frames_total",
		Help: "Frames received from HAProxy and accepted; a HELLO that is a health check counts as healthcheck.",
	}, []string{"type"})
	m := &metrics{
		connections: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_spop_connections",
			Help: "Open SPOE connections.",
		}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_spop_refused_connections_total",
			Help: "SPOE connections closed at once because too many were open.",
		}),
		acceptErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_spop_accept_errors_total",
			Help: "Failures to accept an SPOE connection that were tried again.",
		}),
		hello:       frames.WithLabelValues("hello"),
		healthcheck: frames.WithLabelValues("healthcheck"),
		notify:      frames.WithLabelValues("notify"),
		disconnect:  frames.WithLabelValues("disconnect"),
		rejected: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_spop_rejected_total",
			Help: "SPOE connections closed for what the peer sent or did not read.",
		}, []string{"reason"}),
		handler: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_spop_handler_seconds",
			Help:    "Time to decide the messages of one NOTIFY.",
			Buckets: []float64{.00001, .0001, .001, .0025, .005, .01, .025, .1},
		}),
		panics: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_spop_panics_total",
			Help: "Panics recovered; the requests were answered without a verdict.",
		}),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_spop_dropped_variables_total",
			Help: "Variables left out of an answer that would have outgrown HAProxy's max-frame-size.",
		}),
	}
	for _, r := range rejections {
		m.rejected.WithLabelValues(string(r))
	}
	return m
}
