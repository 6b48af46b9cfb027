package riverqos

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those that only River's jobs have; a jobs.Runner has the others. They are of
// one process, except the depth.
type metrics struct {
	Promoted prometheus.Counter
	Regated  prometheus.Counter
	Depth    *prometheus.GaugeVec // by queue, state
}

// newMetrics registers the metrics; nil registers none.
func newMetrics(registry prometheus.Registerer) *metrics {
	factory := promauto.With(registry)
	return &metrics{
		Promoted: factory.NewCounter(prometheus.CounterOpts{Name: "sluice_jobs_promoted_total", Help: "Jobs that the gate let through after it had held them back."}),
		Regated:  factory.NewCounter(prometheus.CounterOpts{Name: "sluice_jobs_regated_total", Help: "Available jobs that the sweep put behind the gate."}),
		Depth: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_jobs_depth", Help: "Unfinished jobs by queue and state, those that are held back as parked or gated. Of the process that sweeps.",
		}, []string{"queue", "state"}),
	}
}
