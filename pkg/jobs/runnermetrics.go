package jobs

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type runnerMetrics struct {
	Workers  *prometheus.GaugeVec     // by queue
	Running  *prometheus.GaugeVec     // by tier, queue
	Refused  *prometheus.CounterVec   // by tier, reason
	Delayed  *prometheus.CounterVec   // by tier, class
	Waits    *prometheus.HistogramVec // by tier, class
	Snoozes  *prometheus.CounterVec   // by tier
	Reserved prometheus.Counter
	Wakes    *prometheus.CounterVec // by result
	Lost     prometheus.Counter
	Sweeps   *prometheus.CounterVec // by result
	Errors   *prometheus.CounterVec // by operation
}

// newRunnerMetrics registers the metrics; nil registers none.
func newRunnerMetrics(registry prometheus.Registerer) *runnerMetrics {
	factory := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &runnerMetrics{
		Workers: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_jobs_workers", Help: "Jobs of a queue that this process works at a time.",
		}, []string{"queue"}),
		Running: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_jobs_running", Help: "Jobs that run in a slot in this process, by their user's tier and by queue.",
		}, []string{"tier", "queue"}),
		Refused: counter("sluice_jobs_refused_total", "Attempts at jobs that got no slot, by tier and by what was full: the user's total, the queue, the line before it; or the slots were unreachable.", "tier", "reason"),
		Delayed: counter("sluice_jobs_delayed_total", "Jobs that had to wait because their user's slots were taken, by tier and by class of queue: priority, default, scheduled or other. Each is counted once, when it is first held back at its insert or refused a slot.", "tier", "class"),
		Waits: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_jobs_wait_seconds", Help: "Time from when a job could have started to when it did, of first attempts, by tier and by class of queue.",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"tier", "class"}),
		Snoozes:  counter("sluice_jobs_snoozes_total", "Attempts at jobs that got no slot after which the job tries again by itself, by tier.", "tier"),
		Reserved: counter("sluice_jobs_handed_total", "Slots that were reserved for parked jobs.").WithLabelValues(),
		Wakes:    counter("sluice_jobs_wakes_total", "Wake-ups by result: done, awake (it was already), early (tried again), gone (the slot goes to the next), error.", "result"),
		Lost:     counter("sluice_jobs_lease_lost_total", "Running jobs whose slot was lost.").WithLabelValues(),
		Sweeps:   counter("sluice_jobs_sweeps_total", "Sweeps of this process by result.", "result"),
		Errors:   counter("sluice_jobs_errors_total", "Failed operations, all of which are tried again, by operation.", "operation"),
	}
}
