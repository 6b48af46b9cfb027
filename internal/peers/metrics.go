package peers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connected       prometheus.Gauge
	sessions        prometheus.Counter
	learned, taught prometheus.Counter
	acked           prometheus.Counter
	errors          *prometheus.CounterVec
	full, bad, late prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	updates := f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_peers_updates_total",
		Help: "Stick table updates exchanged with HAProxy, by direction: learn (from HAProxy) or teach.",
	}, []string{"direction"})
	dropped := f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_peers_dropped_total",
		Help: "Entries that HAProxy was not taught, by reason: full (too many live ones), bad (table or key), late (ended before they could be sent).",
	}, []string{"reason"})
	return &metrics{
		connected: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_peers_connected",
			Help: "1 while a peers session with HAProxy is established, else 0.",
		}),
		sessions: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_peers_sessions_total",
			Help: "Peers sessions established with HAProxy.",
		}),
		acked: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_peers_acks_total",
			Help: "Acknowledgements received from HAProxy; one may stand for many updates.",
		}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_peers_errors_total",
			Help: "Peers sessions that ended or could not start, by reason: dial, refused, protocol, timeout, closed or other.",
		}, []string{"reason"}),
		learned: updates.WithLabelValues("learn"),
		taught:  updates.WithLabelValues("teach"),
		full:    dropped.WithLabelValues("full"),
		bad:     dropped.WithLabelValues("bad"),
		late:    dropped.WithLabelValues("late"),
	}
}
