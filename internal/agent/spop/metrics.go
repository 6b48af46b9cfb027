package spop

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
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
	f := daemon.Metrics(reg)
	frames := f.Counters("sluice_spop_frames_total",
		"Frames received from HAProxy and accepted; a HELLO that is a health check counts as healthcheck.", "type")
	m := &metrics{
		connections: f.Gauge("sluice_spop_connections",
			"Open SPOE connections."),
		refused: f.Counter("sluice_spop_refused_connections_total",
			"SPOE connections closed at once because too many were open."),
		acceptErrors: f.Counter("sluice_spop_accept_errors_total",
			"Failures to accept an SPOE connection that were tried again."),
		hello:       frames.WithLabelValues("hello"),
		healthcheck: frames.WithLabelValues("healthcheck"),
		notify:      frames.WithLabelValues("notify"),
		disconnect:  frames.WithLabelValues("disconnect"),
		rejected: f.Counters("sluice_spop_rejected_total",
			"SPOE connections closed for what the peer sent or did not read.", "reason"),
		handler: f.Histogram("sluice_spop_handler_seconds",
			"Time to decide the messages of one NOTIFY.",
			.00001, .0001, .001, .0025, .005, .01, .025, .1),
		panics: f.Counter("sluice_spop_panics_total",
			"Panics recovered; the requests were answered without a verdict."),
		dropped: f.Counter("sluice_spop_dropped_variables_total",
			"Variables left out of an answer that would have outgrown HAProxy's max-frame-size."),
	}
	for _, r := range rejections {
		m.rejected.WithLabelValues(string(r))
	}
	return m
}
