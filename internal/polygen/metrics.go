package polygen

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	usage, progress  prometheus.Counter
	throttles, hints prometheus.Counter
	blocks, unblocks prometheus.Counter
	sharings, shares prometheus.Counter
	demand           prometheus.Counter
	dropped          prometheus.Counter
	keys, leading    prometheus.Gauge
	users            prometheus.Gauge
	blockedUsers     prometheus.Gauge
	lost             prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	policies := f.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_policies_sent_total",
		Help: "Policies sent to the agents, by kind.",
	}, []string{"kind"})
	return &metrics{
		usage: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_usage_entries_total",
			Help: "Changes of the cluster's counts that polygen was told of.",
		}),
		progress: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_progress_entries_total",
			Help: "Reports of users with requests in progress near their limits.",
		}),
		blocks:   policies.WithLabelValues("block"),
		unblocks: policies.WithLabelValues("unblock"),
		sharings: policies.WithLabelValues("slots"),
		shares:   policies.WithLabelValues("share"),
		demand: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_demand_entries_total",
			Help: "Reports of users with bandwidth limits.",
		}),
		users: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_watched_users",
			Help: "Users whose requests in progress are near their limits.",
		}),
		blockedUsers: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_blocked_users",
			Help: "Users who are blocked because their requests in progress reached the limit.",
		}),
		throttles: policies.WithLabelValues("throttle"),
		hints:     policies.WithLabelValues("hot"),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "sluice_policies_dropped_total",
			Help: "Policies that could not be sent because Redis could not be reached.",
		}),
		keys: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_watched_keys",
			Help: "Users and classes with limited requests in the last 3 s.",
		}),
		leading: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_polygen_leading",
			Help: "1 if this polygen decides, 0 if another one does.",
		}),
		lost: f.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_polygen_redis_lost",
			Help: "1 while polygen cannot reach Redis.",
		}),
	}
}
