package polygen

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

type metrics struct {
	reportMetrics
	policyMetrics
	watchMetrics
	fleetMetrics
	dashboardMetrics
}

// byMode counts policies, those of limits in a dry run apart.
type byMode [2]prometheus.Counter // by limits.Mode: Enforce, DryRun

func newMetrics(reg prometheus.Registerer) *metrics {
	daemon.RegisterBuildInfo(reg, "polygen")
	f := daemon.Metrics(reg)
	return &metrics{
		reportMetrics:    newReportMetrics(f),
		policyMetrics:    newPolicyMetrics(f),
		watchMetrics:     newWatchMetrics(f),
		fleetMetrics:     newFleetMetrics(f),
		dashboardMetrics: newDashboardMetrics(f),
	}
}

// reportMetrics tell of what the agents report.
type reportMetrics struct {
	usage          prometheus.Counter
	progress       prometheus.Counter
	demand         prometheus.Counter
	starts         prometheus.Counter
	clusterStarted *prometheus.CounterVec // tier, class
	clusterEnded   *prometheus.CounterVec // tier
}

func newReportMetrics(f daemon.Factory) reportMetrics {
	return reportMetrics{
		usage: f.Counter("sluice_usage_entries_total",
			"Changes of the cluster's counts that polygen was told of: of keys with half of their limits used, of some others of longer windows, and of what requests cost."),
		progress: f.Counter("sluice_progress_entries_total",
			"Reports of users with requests in progress near their limits."),
		demand: f.Counter("sluice_demand_entries_total",
			"Reports of users with bandwidth limits."),
		starts: f.Counter("sluice_starts_entries_total",
			"Reports of users who started requests, or have some in progress, limited or not."),
		clusterStarted: f.Counters("sluice_cluster_requests_started_total",
			"Requests that all instances have admitted, limited or not, by their users' tier, and by class: each counts for its verb, and for its operation class if it has one. Counted by the polygen that leads, from Redis' buckets of seconds; beyond 200 tiers the tier is other.", "tier", "class"),
		clusterEnded: f.Counters("sluice_cluster_requests_ended_total",
			"Requests of all instances that have ended, however they ended, by their users' tier. Counted by the polygen that leads, from Redis' buckets of seconds; beyond 200 tiers the tier is other.", "tier"),
	}
}

// policyMetrics tell of what is sent to the agents.
type policyMetrics struct {
	throttles byMode
	hints     byMode
	blocks    byMode
	unblocks  byMode
	sharings  byMode
	shares    prometheus.Counter
	dropped   prometheus.Counter
	loop      prometheus.Histogram
}

func newPolicyMetrics(f daemon.Factory) policyMetrics {
	policies := f.Counters("sluice_policies_sent_total",
		"Policies sent to the agents, by kind and mode of their limits. Agents refuse nothing for those of a dry run.", "kind", "mode")
	// Looked up once, for every policy that is sent is counted: a look-up hashes both labels and takes a lock.
	kind := func(kind string) (counters byMode) {
		for mode := range counters {
			counters[mode] = policies.WithLabelValues(kind, limits.Mode(mode).String())
		}
		return counters
	}
	return policyMetrics{
		throttles: kind("throttle"),
		hints:     kind("hot"),
		blocks:    kind("block"),
		unblocks:  kind("unblock"),
		sharings:  kind("slots"),
		shares:    policies.WithLabelValues("share", limits.Enforce.String()),
		dropped: f.Counter("sluice_policies_dropped_total",
			"Policies that could not be sent because Redis could not be reached."),
		loop: f.Histogram("sluice_polygen_loop_seconds",
			"Time from a report's being taken up, or a tick, until the policies that follow from it are published: up to 10 ms after the policies before them.",
			.00001, .0001, .0005, .001, .0025, .005, .01, .025, .1, .25),
	}
}

// watchMetrics tell of what decides: the watches, and which polygen leads.
type watchMetrics struct {
	keys           prometheus.Gauge
	users          prometheus.Gauge
	blockedUsers   prometheus.Gauge
	throttledUsers prometheus.Gauge
	watchDropped   *prometheus.CounterVec // limit
	leading        prometheus.Gauge
	lost           prometheus.Gauge
}

func newWatchMetrics(f daemon.Factory) watchMetrics {
	return watchMetrics{
		keys: f.Gauge("sluice_watched_keys",
			"Users and classes with requests in the last 3 s who were near their limits."),
		users: f.Gauge("sluice_watched_users",
			"Users whose requests in progress are near their limits."),
		blockedUsers: f.Gauge("sluice_blocked_users",
			"Users who are blocked because their requests in progress reached the limit."),
		throttledUsers: f.Gauge("sluice_throttled_users",
			"Users who were over a limit of their request rate in the last second, as polygen sees it; at most 100000."),
		watchDropped: f.Counters("sluice_watch_dropped_total",
			"What polygen passed over because it watched too many at a time (200000 of each), by limit: keys of requests, and reports of users' concurrent and bandwidth. Limits hold without it.", "limit"),
		leading: f.Gauge("sluice_polygen_leading",
			"1 if this polygen leads: it publishes the limits, sends policies and answers the API; 0 if another one does."),
		lost: f.Gauge("sluice_polygen_redis_lost",
			"1 while polygen cannot reach Redis."),
	}
}

// fleetMetrics tell of the instances, and which limits they and this polygen have.
type fleetMetrics struct {
	instances  prometheus.Gauge
	behind     prometheus.Gauge
	versions   *prometheus.GaugeVec // agent, version
	limitsInfo *prometheus.GaugeVec // version
	expired    prometheus.Counter
}

func newFleetMetrics(f daemon.Factory) fleetMetrics {
	return fleetMetrics{
		instances: f.Gauge("sluice_polygen_instances",
			"Instances in the cluster, as polygen sees it."),
		behind: f.Gauge("sluice_instances_behind",
			"Instances that enforce another version of the limits than this polygen has."),
		versions: f.Gauges("sluice_instance_limits_version",
			"1 for the version of the limits that each instance enforces; the version none before it has any.", "agent", "version"),
		limitsInfo: f.Gauges("sluice_polygen_limits_info",
			"The version of the limits that polygen decides by, value 1.", "version"),
		expired: f.Counter("sluice_limits_expired_total",
			"Times at which overrides of the limit file expired."),
	}
}

// dashboardMetrics tell of what people may ask about, and how they are answered.
type dashboardMetrics struct {
	usersSeen      prometheus.Gauge
	usersDropped   prometheus.Counter
	costsDropped   prometheus.Counter
	unknownUsers   prometheus.Gauge
	unknownDropped prometheus.Counter
	streams        prometheus.Gauge
	eventsLost     prometheus.Counter
}

func newDashboardMetrics(f daemon.Factory) dashboardMetrics {
	return dashboardMetrics{
		usersSeen: f.Gauge("sluice_seen_users",
			"Users with some limit whose use polygen can tell; at most 100000."),
		usersDropped: f.Counter("sluice_seen_users_dropped_total",
			"Users whose use was forgotten because there were too many others."),
		costsDropped: f.Counter("sluice_seen_costs_dropped_total",
			"Users of whom polygen forgot what their requests cost because there were too many others: lists by cost and sluice_users_near_budget are without them, until more is charged to them."),
		unknownUsers: f.Gauge("sluice_unknown_users",
			"Users with some limit, seen in the last hour, whom the limit file does not name; at most 10000."),
		unknownDropped: f.Counter("sluice_unknown_users_dropped_total",
			"Users whom the limit file does not name, forgotten because there were too many others."),
		streams: f.Gauge("sluice_admin_streams",
			"Streams of live answers and of policies that are read, at most 64."),
		eventsLost: f.Counter("sluice_admin_events_lost_total",
			"Events that a reader of the stream of policies did not get because the reader was too slow."),
	}
}

// countSent counts policies that were sent to all, or divided.
func (m *metrics) countSent(set *limits.Set, all []redisbus.Message, divided []redisbus.Addressed) {
	for _, d := range divided {
		all = append(all, d.Message)
	}
	for _, message := range all {
		// By the mode of the limits in force now. A policy does not say it: the agents know by the same limits
		// whether they refuse for it.
		switch p := message.(type) {
		case redisbus.Throttle:
			m.throttles[rateMode(set, p.Key)].Inc()
		case redisbus.Hot:
			m.hints[rateMode(set, p.Key)].Inc()
		case redisbus.Block:
			m.blocks[set.User(p.User).ConcurrentMode].Inc()
		case redisbus.Unblock:
			m.unblocks[set.User(p.User).ConcurrentMode].Inc()
		case redisbus.Slots:
			m.sharings[set.User(p.User).ConcurrentMode].Inc()
		case redisbus.Share:
			m.shares.Inc()
		}
	}
}

// rateMode is the mode of a key's limit.
func rateMode(set *limits.Set, k ratelimit.Key) limits.Mode {
	// The zero Rate of a key that is not limited any more has the zero mode, Enforce: the decision was made while
	// the limit held.
	r, _ := set.User(k.User).Rate(k.Class, k.Window)
	return r.Mode
}

// limitsInForce tells of the version that polygen decides by.
func (m *metrics) limitsInForce(version string) {
	// Else the version of before would be told beside this one until the process ends.
	m.limitsInfo.Reset()
	m.limitsInfo.WithLabelValues(version).Set(1)
}
