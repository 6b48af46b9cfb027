package costfeed

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
)

type metrics struct {
	connections  prometheus.Gauge
	refused      prometheus.Counter
	acceptErrors prometheus.Counter
	corrections  prometheus.Counter
	bad          prometheus.Counter
	dropped      prometheus.Counter
	unreadable   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := daemon.Metrics(reg)
	return &metrics{
		connections: f.Gauge("sluice_settle_connections",
			"Open connections by which HAProxy says what requests cost."),
		refused: f.Counter("sluice_settle_refused_connections_total",
			"Such connections closed at once because too many were open."),
		acceptErrors: f.Counter("sluice_settle_accept_errors_total",
			"Failures to accept such a connection that were tried again."),
		corrections: f.Counter("sluice_settle_corrections_total",
			"Corrections of what requests were charged that HAProxy has sent."),
		bad: f.Counter("sluice_settle_bad_lines_total",
			"Lines that could not be read; their connections were closed."),
		dropped: f.Counter("sluice_settle_dropped_corrections_total",
			"Corrections that HAProxy dropped because its queue was full or a connection broke; the estimates stay charged."),
		unreadable: f.Counter("sluice_settle_unreadable_answers_total",
			"Answers whose cost HAProxy could not read because they are compressed; the estimates stay charged."),
	}
}
