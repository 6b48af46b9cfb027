package polygen

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// metrics are those that polygen counts. What it knows of users it tells when Prometheus asks: see userCollector.
type metrics struct {
	clusterStarted *prometheus.CounterVec // tier, class
	clusterRefused *prometheus.CounterVec // tier, class
	clusterEnded   *prometheus.CounterVec // tier
	policies       *prometheus.CounterVec // kind, mode
	dropped        prometheus.Counter
	loop           prometheus.Histogram
	blockedUsers   prometheus.Gauge
	watchDropped   *prometheus.CounterVec // what
	leading        prometheus.Gauge
	lost           prometheus.Gauge
	instances      prometheus.Gauge
	behind         prometheus.Gauge
	limitsInfo     *prometheus.GaugeVec // version
	usersSeen      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	daemon.RegisterBuildInfo(reg, "polygen")
	f := daemon.Metrics(reg)
	return &metrics{
		clusterStarted: f.Counters("sluice_cluster_requests_started_total",
			"Requests that all instances have admitted, limited or not, by their users' tier, and by class: each counts for its verb, and for its operation class if it has one. Counted by the polygen that leads, from Redis' buckets of seconds; beyond 200 tiers the tier is other.", "tier", "class"),
		clusterRefused: f.Counters("sluice_cluster_requests_refused_total",
			"Requests that all instances have refused for a limit, by tier and class as sluice_cluster_requests_started_total.", "tier", "class"),
		clusterEnded: f.Counters("sluice_cluster_requests_ended_total",
			"Requests of all instances that have ended, however they ended, by their users' tier. Counted by the polygen that leads, from Redis' buckets of seconds; beyond 200 tiers the tier is other.", "tier"),
		policies: f.Counters("sluice_policies_sent_total",
			"Policies sent to the agents, by kind and mode of their limits. Agents refuse nothing for those of a dry run.", "kind", "mode"),
		dropped: f.Counter("sluice_policies_dropped_total",
			"Policies that could not be sent because Redis could not be reached."),
		loop: f.Histogram("sluice_polygen_loop_seconds",
			"Time from a report's being taken up, or a tick, until the policies that follow from it are published: up to 10 ms after the policies before them.",
			.00001, .0001, .0005, .001, .0025, .005, .01, .025, .1, .25),
		blockedUsers: f.Gauge("sluice_blocked_users",
			"Users who are blocked because their requests in progress reached the limit."),
		watchDropped: f.Counters("sluice_watch_dropped_total",
			"What polygen had no room for: keys of requests, and reports of users' concurrent and bandwidth (200000 of each), and users that the API can tell of (100000). Limits hold without it.", "what"),
		leading: f.Gauge("sluice_polygen_leading",
			"1 if this polygen leads: it publishes the limits, sends policies and answers the API; 0 if another one does."),
		lost: f.Gauge("sluice_polygen_redis_lost",
			"1 while polygen cannot reach Redis."),
		instances: f.Gauge("sluice_polygen_instances",
			"Instances in the cluster, as polygen sees it."),
		behind: f.Gauge("sluice_instances_behind",
			"Instances that enforce another version of the limits than this polygen has."),
		limitsInfo: f.Gauges("sluice_polygen_limits_info",
			"The version of the limits that polygen decides by, value 1.", "version"),
		usersSeen: f.Gauge("sluice_seen_users",
			"Users whose use polygen can tell; at most 100000."),
	}
}

// countSent counts policies that were sent to all, or divided.
func (m *metrics) countSent(set *limits.Set, all []redisbus.Message, divided []redisbus.Addressed) {
	for _, d := range divided {
		all = append(all, d.Message)
	}
	type series struct {
		kind string
		mode limits.Mode
	}
	// One look-up of the counter for each series: it hashes both labels and takes a lock.
	sent := map[series]int{}
	for _, message := range all {
		// By the mode of the limits in force now: a policy does not say it.
		switch p := message.(type) {
		case redisbus.Throttle:
			sent[series{"throttle", rateMode(set, p.Key)}]++
		case redisbus.Hot:
			sent[series{"hot", rateMode(set, p.Key)}]++
		case redisbus.Block:
			sent[series{"block", set.User(p.User).ConcurrentMode}]++
		case redisbus.Unblock:
			sent[series{"unblock", set.User(p.User).ConcurrentMode}]++
		case redisbus.Slots:
			sent[series{"slots", set.User(p.User).ConcurrentMode}]++
		case redisbus.Share:
			sent[series{"share", limits.Enforce}]++
		}
	}
	for of, n := range sent {
		m.policies.WithLabelValues(of.kind, of.mode.String()).Add(float64(n))
	}
}

func rateMode(set *limits.Set, k ratelimit.Key) limits.Mode {
	// The zero Rate of a key that is not limited any more has the zero mode, Enforce: the decision was made while
	// the limit held.
	r, _ := set.User(k.User).Rate(k.Class, k.Window)
	return r.Mode
}

func (m *metrics) limitsInForce(version string) {
	// Else the version of before would be told beside this one until the process ends.
	m.limitsInfo.Reset()
	m.limitsInfo.WithLabelValues(version).Set(1)
}
