package riverqos

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are of one process, except the depth.
type metrics struct {
	Running  *prometheus.GaugeVec     // by tier
	Refused  *prometheus.CounterVec   // by tier, reason
	Waits    *prometheus.HistogramVec // by tier
	Snoozes  *prometheus.CounterVec   // by tier
	Reserved prometheus.Counter
	Wakes    *prometheus.CounterVec // by result
	Promoted prometheus.Counter
	Regated  prometheus.Counter
	Lost     prometheus.Counter
	Depth    *prometheus.GaugeVec   // by queue, state
	Sweeps   *prometheus.CounterVec // by result
	Errors   *prometheus.CounterVec // by operation
}

// newMetrics registers the metrics; nil registers none.
func newMetrics(registry prometheus.Registerer) *metrics {
	factory := promauto.With(registry)
	return &metrics{
		Running: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_jobs_running",
			Help: "Jobs that run in a slot in this process, by tier.",
		}, []string{"tier"}),
		Refused: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_jobs_refused_total",
			Help: "Attempts at jobs that got no slot, by tier and by what was full: the user's total, the queue, the line before it; or the slots were unreachable.",
		}, []string{"tier", "reason"}),
		Waits: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_jobs_wait_seconds",
			Help:    "Time from when a job could have started to when it did, of first attempts, by tier.",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"tier"}),
		Snoozes: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_jobs_snoozes_total",
			Help: "Jobs that got no slot and try again by themselves, by tier.",
		}, []string{"tier"}),
		Reserved: factory.NewCounter(prometheus.CounterOpts{
			Name: "sluice_jobs_handed_total",
			Help: "Slots that were reserved for parked jobs.",
		}),
		Wakes: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_jobs_wakes_total",
			Help: "Wake-ups by result: done, awake (it was already), early (tried again), gone (the slot goes to the next), error.",
		}, []string{"result"}),
		Promoted: factory.NewCounter(prometheus.CounterOpts{
			Name: "sluice_jobs_promoted_total",
			Help: "Jobs that the gate let through after it had held them back.",
		}),
		Regated: factory.NewCounter(prometheus.CounterOpts{
			Name: "sluice_jobs_regated_total",
			Help: "Available jobs that the sweep put behind the gate.",
		}),
		Lost: factory.NewCounter(prometheus.CounterOpts{
			Name: "sluice_jobs_lease_lost_total",
			Help: "Running jobs whose slot was lost.",
		}),
		Depth: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_jobs_depth",
			Help: "Unfinished jobs by queue and state, those that are held back as parked or gated. Of the process that sweeps.",
		}, []string{"queue", "state"}),
		Sweeps: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_jobs_sweeps_total",
			Help: "Sweeps of this process by result.",
		}, []string{"result"}),
		Errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_jobs_errors_total",
			Help: "Failed operations, all of which are tried again, by operation.",
		}, []string{"operation"}),
	}
}
