package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
)

// metrics are the agent's, in groups by what they are about.
type metrics struct {
	verdictMetrics
	waitMetrics
	tableMetrics
	userMetrics
	clusterMetrics
	creditMetrics
	costMetrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	daemon.RegisterBuildInfo(reg, "spoa")
	f := daemon.Metrics(reg)
	return &metrics{
		verdictMetrics: newVerdictMetrics(f),
		waitMetrics:    newWaitMetrics(f),
		tableMetrics:   newTableMetrics(f),
		userMetrics:    newUserMetrics(f),
		clusterMetrics: newClusterMetrics(f),
		creditMetrics:  newCreditMetrics(f),
		costMetrics:    newCostMetrics(f),
	}
}

type verdictMetrics struct {
	allowed, credited, exempt, lined prometheus.Counter
	refused                          *prometheus.CounterVec // by limit
	refusals                         *prometheus.CounterVec // by cause
	malformed, unheld                prometheus.Counter
	unreadable, uncounted            prometheus.Counter
	byTier, started, refusedByTier   *byTier
	dryRefused                       *prometheus.CounterVec // by limit
}

// waitMetrics say how long requests wait, and how many do.
type waitMetrics struct {
	waits, inLine prometheus.Histogram
	timeouts      prometheus.Counter
	asksPostponed prometheus.Counter
	line          prometheus.Gauge
}

type tableMetrics struct {
	throttled, lifted          prometheus.Counter
	blocked, unblocked, shares prometheus.Counter
	draining                   prometheus.Gauge
}

type userMetrics struct {
	users, slotUsers, bandwidthUsers  prometheus.Gauge
	resting, inProgress, startedUsers prometheus.Gauge
	unknown, unknownMax               prometheus.Gauge
	sharing, eventsLost               prometheus.Counter
	bytes                             [2]prometheus.Counter // by direction
}

// clusterMetrics are about Redis, polygen and the other instances.
type clusterMetrics struct {
	lost, lostShards, instances, away, offset prometheus.Gauge
	losses                                    prometheus.Counter
	limitErrors                               *prometheus.CounterVec // by reason
	limitsInfo                                *prometheus.GaugeVec
	limitsSize                                prometheus.Gauge
	limitsDelay                               prometheus.Histogram
	policies                                  *prometheus.CounterVec // by kind
	policyDelay                               prometheus.Histogram
	policyAt                                  prometheus.Gauge
	flush                                     *prometheus.HistogramVec // by lane
}

type creditMetrics struct {
	granted, withdrawals                 prometheus.Counter
	withdrawalsDropped, withdrawalErrors prometheus.Counter
	creditUsers, creditReadAt            prometheus.Gauge
	creditReadErrors                     prometheus.Counter
}

type costMetrics struct {
	charged, refunded, overrun                        *byTier // and unit
	unsettled, correctionsDropped, correctionsIgnored prometheus.Counter
	unheard                                           prometheus.Counter
	costUsers                                         prometheus.Gauge
}

func newCostMetrics(f daemon.Factory) costMetrics {
	return costMetrics{
		charged: newByTier(f.Counters("sluice_cost_charged_total",
			"What allowed requests were charged when they started, their estimates, by their users' tier and by unit; beyond 1000 of these the tier is other.", "tier", "unit"), 2),
		refunded: newByTier(f.Counters("sluice_cost_refunded_total",
			"What came back because requests cost less than they were charged, by their users' tier and by unit; beyond 1000 of these the tier is other.", "tier", "unit"), 2),
		overrun: newByTier(f.Counters("sluice_cost_overrun_total",
			"What was charged afterwards because requests cost more than they were charged, by their users' tier and by unit; beyond 1000 of these the tier is other.", "tier", "unit"), 2),
		unheard: f.Counter("sluice_cost_unheard_requests_total",
			"Questions about requests that may cost something whose verdict HAProxy did not hear in time. What was charged came back. HAProxy asks once more, and then lets the request pass, which is charged what its answer says."),
		unsettled: f.Counter("sluice_cost_unsettled_requests_total",
			"Requests that were charged, and whose costs this HAProxy does not read: its files were written for limits without the unit. They cost what they were charged."),
		correctionsDropped: f.Counter("sluice_cost_corrections_dropped_total",
			"Corrections of what requests were charged that had no room while Redis did not take any. What was to go back stays charged until its window ends."),
		correctionsIgnored: f.Counter("sluice_cost_corrections_ignored_total",
			"Corrections of users whom no limit of that unit limits any more."),
		costUsers: f.Gauge("sluice_cost_users",
			"Users with a limit of costs and a request in the last 10 s; while Redis is lost, in the loss and the 10 s before."),
	}
}

func newVerdictMetrics(f daemon.Factory) verdictMetrics {
	verdicts := f.Counters("sluice_requests_total",
		"Requests by verdict: credit are those that HAProxy admitted by itself, as it tells every second; the agent was asked about all others. One that waits in line has another verdict later. Refusals by HAProxy's tables are in sluice_requests_refused_total only.", "verdict", "limit")
	return verdictMetrics{
		allowed:  verdicts.WithLabelValues("allowed", ""),
		credited: verdicts.WithLabelValues("credit", ""),
		exempt:   verdicts.WithLabelValues("exempt", ""),
		lined:    verdicts.WithLabelValues("wait", "concurrent"),
		refused:  verdicts.MustCurryWith(prometheus.Labels{"verdict": "refused"}),
		refusals: newRefusals(f),
		malformed: f.Counter("sluice_requests_malformed_total",
			"Questions without a usable user name. They are admitted."),
		unheld: f.Counter("sluice_bandwidth_unheld_requests_total",
			"Requests of users whose bandwidth is limited, but not by this HAProxy: its files were written for limits without bandwidth."),
		unreadable: f.Counter("sluice_unreadable_requests_total",
			"Requests that the agent was asked about and whose credentials HAProxy could not read, or which had more than one; they share one user's limits."),
		uncounted: f.Counter("sluice_requests_uncounted_total",
			"Requests admitted without counting because too many users were known at the time."),
		byTier: newByTier(f.Counters("sluice_tier_requests_total",
			"Requests as in sluice_requests_total, by their users' tier; beyond 1000 series the tier is other.", "tier", "verdict", "limit"), 3),
		started: newByTier(f.Counters("sluice_requests_started_total",
			"Requests that the agent let start, or HAProxy by credit, limited or not, by their users' tier, their verb (empty: admitted by credit, of an operation class with several verbs) and their operation class (empty: none, or admitted by credit where no class of the limit file has a limit); beyond 1000 series the tier is other. Not in it: who was refused, and who passed without a verdict.", "tier", "verb", "operation"), 3),
		refusedByTier: newByTier(f.Counters("sluice_requests_refused_total",
			"Requests that HAProxy has answered with a refusal, its own and the agent's, as it counts them each second, by their users' tier, their verb and their operation class, as in sluice_requests_started_total; beyond 1000 series the tier is other. Not in it: requests with unreadable credentials, and requests refused for their address before a user was known; with SLUICE_CREDIT=off nothing is in it.", "tier", "verb", "operation"), 3),
		dryRefused: f.Counters("sluice_dry_run_refused_total",
			"Requests that were allowed and that a limit in mode dry-run would have refused, by limit.", "limit"),
	}
}

func newWaitMetrics(f daemon.Factory) waitMetrics {
	return waitMetrics{
		waits: f.Histogram("sluice_verdict_wait_seconds",
			"Time that requests waited for tokens or slots of the cluster. Most requests never wait and are not in it.",
			.0001, .00025, .0005, .001, .0025, .005, .01, .02, .05),
		inLine: f.Histogram("sluice_line_wait_seconds",
			"Time that requests waited in line for a slot (over_limit: wait).",
			.01, .05, .1, .25, .5, 1, 2, 5, 10, 30),
		timeouts: f.Counter("sluice_verdict_timeouts_total",
			"Requests that waited as long as they may and were decided without the cluster."),
		asksPostponed: f.Counter("sluice_slot_asks_postponed_total",
			"Asks for slots that waited a few milliseconds because the agent had asked Redis 50 times for the same user within 100 ms."),
		line: f.Gauge("sluice_line_requests",
			"Requests that wait in line for a slot now."),
	}
}

func newTableMetrics(f daemon.Factory) tableMetrics {
	native := f.Counters("sluice_native_throttles_total",
		"Entries written into HAProxy's throttle table, and taken back because tokens were found.", "action")
	blocks := f.Counters("sluice_native_blocks_total",
		"Entries written into HAProxy's block table: users whom it is to refuse by itself, and users whom it is not.", "action")
	return tableMetrics{
		throttled: native.WithLabelValues("throttle"),
		lifted:    native.WithLabelValues("lift"),
		blocked:   blocks.WithLabelValues("block"),
		unblocked: blocks.WithLabelValues("unblock"),
		shares: f.Counter("sluice_native_shares_total",
			"Bandwidth shares written into HAProxy's table, of users with transfers in flight."),
		draining: f.Gauge("sluice_haproxy_draining",
			"1 while the requests in progress of a replaced HAProxy count."),
	}
}

func newUserMetrics(f daemon.Factory) userMetrics {
	moved := f.Counters("sluice_bytes_total",
		"Bytes that HAProxy moved for its users, by direction, as it tells them every few moments; of at most 100000 users at a time.", "direction")
	return userMetrics{
		users: f.Gauge("sluice_users",
			"Users with a limited request in the last 3 s."),
		slotUsers: f.Gauge("sluice_concurrent_users",
			"Users with a limit of requests in progress and a request in the last second."),
		bandwidthUsers: f.Gauge("sluice_bandwidth_users",
			"Users with a bandwidth limit and a request in the last 5 s, of requests by credit only those that move more than very little."),
		resting: f.Gauge("sluice_credit_places_users",
			"Users without a question in the last seconds of whom the agent remembers only that HAProxy may have requests of theirs in progress by credit. Ten minutes after HAProxy has forgotten them they are forgotten here."),
		inProgress: f.Gauge("sluice_requests_in_progress",
			"Requests in progress of users with such a limit, as the agent believes."),
		startedUsers: f.Gauge("sluice_started_users",
			"Users, limited or not, of whom the agent told polygen in its last report of each second: those with requests started or in progress, 4096 at most."),
		unknown: f.Gauge("sluice_unknown_users_counted",
			"Users whom the limit file does not name exactly that are counted each for themselves, with a request in the last 10 to 20 minutes."),
		unknownMax: f.Gauge("sluice_unknown_users_counted_max",
			"The quota of such users; those beyond it share the limits of one."),
		sharing: f.Counter("sluice_requests_sharing_total",
			"Requests of users whom the limit file does not name exactly, beyond the quota of such users: they were judged by limits that all of those share."),
		eventsLost: f.Counter("sluice_event_reports_lost_total",
			"Seconds whose starts and ends Redis did not take, or took in part: what happened in them is missing in the buckets of events."),
		bytes: [2]prometheus.Counter{
			bandwidth.Down: moved.WithLabelValues(bandwidth.Down.String()),
			bandwidth.Up:   moved.WithLabelValues(bandwidth.Up.String()),
		},
	}
}

func newClusterMetrics(f daemon.Factory) clusterMetrics {
	return clusterMetrics{
		lost: f.Gauge("sluice_redis_lost",
			"1 while the agent goes on without Redis, or without a part of it."),
		lostShards: f.Gauge("sluice_redis_lost_shards",
			"Shards of Redis that the agent goes on without."),
		instances: f.Gauge("sluice_instances",
			"Instances in the cluster, as this one sees it."),
		away: f.Gauge("sluice_instances_away",
			"Instances whose agents have left or only just come, as this one sees it: it leaves them a part of each limit, for their HAProxies admit it by themselves."),
		offset: f.Gauge("sluice_clock_offset_seconds",
			"The cluster's time minus this machine's."),
		losses: f.Counter("sluice_redis_losses_total",
			"How often a shard of Redis was lost."),
		limitErrors: newLimitErrors(f),
		limitsSize: f.Gauge("sluice_limits_bytes",
			"Size of the limits in force, with the overrides."),
		limitsDelay: f.Histogram("sluice_limits_delay_seconds",
			"Time from when the agent heard of new limits, or began to ask for the first ones, until they were in force.",
			.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120),
		limitsInfo: f.Gauges("sluice_limits_info",
			"The version of the limits in force, value 1.", "version"),
		policies: f.Counters("sluice_policies_received_total",
			"Policies received from polygen, by kind.", "kind"),
		policyDelay: f.Histogram("sluice_policy_delay_seconds",
			"Time from polygen's decision to the agent's having the policy, by the cluster's clock; of policies hot, which tell their time.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5),
		policyAt: f.Gauge("sluice_policies_last_received_timestamp_seconds",
			"When the last policy was received from polygen, in seconds since 1970; its leader sends one every second."),
		flush: f.Histograms("sluice_flush_seconds",
			"Time that the agent took to gather what it reports, every 5 ms while there is anything to do, without Redis' part, by what: requests, concurrent, costs or bandwidth.", "lane", .00001, .0001, .0005, .001, .0025, .005, .01, .025, .1),
	}
}

func newCreditMetrics(f daemon.Factory) creditMetrics {
	return creditMetrics{
		granted: f.Counter("sluice_credit_grants_total",
			"Answers that brought HAProxy credit for a user: what it admits by itself from then on."),
		withdrawals: f.Counter("sluice_credit_withdrawals_total",
			"Users near a limit whose credit HAProxy has confirmed to have withdrawn."),
		withdrawalsDropped: f.Counter("sluice_credit_withdrawals_dropped_total",
			"Users near a limit who kept their credit because 10000 others have none. The cluster admits less of their limits than it may."),
		withdrawalErrors: f.Counter("sluice_credit_withdrawal_errors_total",
			"Calls of HAProxy's runtime API to withdraw credit that failed. They are repeated; meanwhile the cluster admits less of these users' limits than it may."),
		creditUsers: f.Gauge("sluice_credit_users",
			"Users in HAProxy's table of credit when all of it was last read, once a minute: those who have credit, or had it in the last 10 minutes."),
		creditReadAt: f.Gauge("sluice_credit_last_read_timestamp_seconds",
			"When HAProxy's counters of a second were last read, in seconds since 1970: what it admitted by itself is counted up to then."),
		creditReadErrors: f.Counter("sluice_credit_read_errors_total",
			"Times that HAProxy's counters of a second could not be read: what it admitted by itself is counted later, or not at all if that lasts for some seconds."),
	}
}

func newLimitErrors(f daemon.Factory) *prometheus.CounterVec {
	errors := f.Counters("sluice_limits_read_errors_total",
		"Failures to put the published limits into force, by reason: redis (it did not answer in time, or refused), missing (none, or not all of them, are there), checksum (they are damaged) or invalid (this version of the agent does not understand them). The old ones stay in force.", "reason")
	// All of them are there from the start: an alert on an increase never sees a series that begins with its first error.
	for _, reason := range []string{redisbus.UnreachableLimits, redisbus.MissingLimits, redisbus.DamagedLimits, redisbus.InvalidLimits} {
		errors.WithLabelValues(reason)
	}
	return errors
}

// newRefusals makes a counter for each cause for which the agent refuses requests.
func newRefusals(f daemon.Factory) *prometheus.CounterVec {
	refusals := f.Counters("sluice_refusals_total",
		"Requests that the agent refused, by cause: which part of the system counted, and found that nothing of the limit was left. docs/limits.md explains each word; the access log has it too.", "cause")
	// As above: a cause that never occurred reads 0, and is not taken for one that does not exist.
	for _, c := range cause.Agent() {
		refusals.WithLabelValues(string(c))
	}
	return refusals
}

func (m *metrics) limitsInForce(version string, size int) {
	// The version before would else stay a series of 1, and two versions be in force.
	m.limitsInfo.Reset()
	m.limitsInfo.WithLabelValues(version).Set(1)
	m.limitsSize.Set(float64(size))
}
