package spoa

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluice-qos/sluice/pkg/cause"
)

// newRefusals makes a counter for each cause for which the agent refuses requests. All of them are there from
// the start, so that a cause that never occurred reads 0.
func newRefusals(f promauto.Factory) *prometheus.CounterVec {
	refusals := f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_refusals_total",
		Help: "Requests that the agent refused, by cause: which part of the system counted, and found that nothing of the limit was left. docs/limits.md explains each word; the access log has it too.",
	}, []string{"cause"})
	for _, c := range cause.Agent() {
		refusals.WithLabelValues(string(c))
	}
	return refusals
}
