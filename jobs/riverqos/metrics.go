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
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		Running: gauge("sluice_jobs_running", "Jobs that run in a slot in this process, by tier.", "tier"),
		Refused: counter("sluice_jobs_refused_total", "Attempts at jobs that got no slot, by tier and by what was full: the user's total, the queue, the line before it; or the slots were unreachable.", "tier", "reason"),
		Waits: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_jobs_wait_seconds", Help: "Time from when a job could have started to when it did, of first attempts, by tier.",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"tier"}),
		Snoozes:  counter("sluice_jobs_snoozes_total", "Jobs that got no slot and try again by themselves, by tier.", "tier"),
		Reserved: counter("sluice_jobs_handed_total", "Slots that were reserved for parked jobs.").WithLabelValues(),
		Wakes:    counter("sluice_jobs_wakes_total", "Wake-ups by result: done, awake (it was already), early (tried again), gone (the slot goes to the next), error.", "result"),
		Promoted: counter("sluice_jobs_promoted_total", "Jobs that the gate let through after it had held them back.").WithLabelValues(),
		Regated:  counter("sluice_jobs_regated_total", "Available jobs that the sweep put behind the gate.").WithLabelValues(),
		Lost:     counter("sluice_jobs_lease_lost_total", "Running jobs whose slot was lost.").WithLabelValues(),
		Depth:    gauge("sluice_jobs_depth", "Unfinished jobs by queue and state, those that are held back as parked or gated. Of the process that sweeps.", "queue", "state"),
		Sweeps:   counter("sluice_jobs_sweeps_total", "Sweeps of this process by result.", "result"),
		Errors:   counter("sluice_jobs_errors_total", "Failed operations, all of which are tried again, by operation.", "operation"),
	}
}
