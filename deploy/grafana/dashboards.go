// Package grafana makes the dashboards of this folder, which Grafana imports as they
// are: go generate ./deploy/grafana writes them.
package grafana

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

//go:generate go test -run ^TestDashboardsAreCurrent$ -update .

// Dashboards returns the files of this folder: their names and contents.
func Dashboards() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, d := range []struct {
		name string
		make func() *dashboard.DashboardBuilder
	}{{"overview", overview}, {"user", user}, {"health", health}} {
		made, err := d.make().Build()
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", d.name, err)
		}
		number(&made)
		text, err := json.MarshalIndent(made, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", d.name, err)
		}
		files[d.name+".json"] = append(text, '\n')
	}
	return files, nil
}

// begin begins a dashboard with what all of them have: the choice of a data source and
// of instances, and links to each other.
func begin(name, title, description string) *dashboard.DashboardBuilder {
	return dashboard.NewDashboardBuilder("Sluice: "+title).
		Uid("sluice-"+name).
		Description(description).
		Tags([]string{"sluice"}).
		Time("now-1h", "now").
		Refresh("10s").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Link(dashboard.NewDashboardLinkBuilder("Sluice").Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{"sluice"}).IncludeVars(true).KeepTime(true)).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")).
		WithVariable(variable("instance", "Instance", "label_values(sluice_requests_total, instance)"))
}

// variable is a choice of any number of a label's values.
func variable(name, label, query string) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).Label(label).
		Query(text(query)).Datasource(source()).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).
		Multi(true).IncludeAll(true).AllValue(".*")
}

func text(s string) dashboard.StringOrMap { return dashboard.StringOrMap{String: &s} }

func source() common.DataSourceRef {
	kind, uid := "prometheus", "${datasource}"
	return common.DataSourceRef{Type: &kind, Uid: &uid}
}

// overview is who is limited, and by what.
func overview() *dashboard.DashboardBuilder {
	return begin("overview", "overview", "Who is limited, and by what.").
		WithRow(dashboard.NewRowBuilder("Now")).
		WithPanel(figure("Requests asked about", units.RequestsPerSecond,
			`sum(rate(sluice_requests_total{instance=~"$instance"}[$__rate_interval]))`)).
		WithPanel(figure("Refused by agents", units.RequestsPerSecond,
			`sum(rate(sluice_requests_total{verdict="refused", instance=~"$instance"}[$__rate_interval]))`)).
		WithPanel(figure("Throttled users", units.Short, `max(sluice_throttled_users)`)).
		WithPanel(figure("Blocked users", units.Short, `max(sluice_blocked_users)`)).
		WithPanel(figure("Requests in progress", units.Short, `sum(sluice_requests_in_progress{instance=~"$instance"})`)).
		WithPanel(figure("Waiting in line", units.Short, `sum(sluice_line_requests{instance=~"$instance"})`)).
		WithRow(dashboard.NewRowBuilder("Requests")).
		WithPanel(graph("Requests by verdict", "Natively refused ones never reach an agent, and are not in here.", units.RequestsPerSecond,
			line{`sum by (verdict) (rate(sluice_requests_total{instance=~"$instance"}[$__rate_interval]))`, "{{verdict}}"})).
		WithPanel(graph("Started, by verb and operation", "Limited or not: what to look at before setting a limit. Refused requests do not start.", units.RequestsPerSecond,
			line{`sum by (verb, operation) (rate(sluice_requests_started_total{instance=~"$instance"}[$__rate_interval]))`, "{{verb}} {{operation}}"})).
		WithPanel(graph("Started, by tier", "Limited or not. Refused requests do not start.", units.RequestsPerSecond,
			line{`sum by (tier) (rate(sluice_requests_started_total{instance=~"$instance"}[$__rate_interval]))`, "{{tier}}"})).
		WithPanel(graph("Refused, by limit", "What refused them: concurrent, or the class of a request rate.", units.RequestsPerSecond,
			line{`sum by (limit) (rate(sluice_requests_total{verdict="refused", instance=~"$instance"}[$__rate_interval]))`, "{{limit}}"})).
		WithPanel(graph("Requests by tier", "", units.RequestsPerSecond,
			line{`sum by (tier) (rate(sluice_tier_requests_total{instance=~"$instance"}[$__rate_interval]))`, "{{tier}}"})).
		WithPanel(graph("Refused, by tier", "", units.RequestsPerSecond,
			line{`sum by (tier) (rate(sluice_tier_requests_total{verdict="refused", instance=~"$instance"}[$__rate_interval]))`, "{{tier}}"})).
		WithPanel(graph("Started and ended, by tier", "Of all instances, as Redis' buckets of seconds have it. Where more start than end, requests in progress grow.", units.RequestsPerSecond,
			line{`sum by (tier) (rate(sluice_cluster_requests_started_total{class=~"GET|HEAD|PUT|POST|DELETE|PATCH|OPTIONS|OTHER"}[$__rate_interval]))`, "{{tier}} started"},
			line{`sum by (tier) (rate(sluice_cluster_requests_ended_total[$__rate_interval]))`, "{{tier}} ended"})).
		WithPanel(graph("Requests by instance", "", units.RequestsPerSecond,
			line{`sum by (instance) (rate(sluice_requests_total{instance=~"$instance"}[$__rate_interval]))`, "{{instance}}"})).
		WithPanel(graph("Would be refused (dry run)", "Limits in mode dry-run: nobody is refused for them.", units.RequestsPerSecond,
			line{`sum by (limit) (rate(sluice_dry_run_refused_total{instance=~"$instance"}[$__rate_interval]))`, "{{limit}}"})).
		WithRow(dashboard.NewRowBuilder("Users")).
		WithPanel(graph("Limited now", "As polygen sees it: at a request rate in the last second, or at the limit of requests in progress.", units.Short,
			line{`max(sluice_throttled_users)`, "throttled"}, line{`max(sluice_blocked_users)`, "blocked"})).
		WithPanel(graph("Active", "Users with a request of late, of each kind of limit.", units.Short,
			line{`sum(sluice_users{instance=~"$instance"})`, "request rate"},
			line{`sum(sluice_concurrent_users{instance=~"$instance"})`, "in progress"},
			line{`sum(sluice_bandwidth_users{instance=~"$instance"})`, "bandwidth"},
			line{`sum(sluice_unknown_users)`, "not in the limit file"})).
		WithRow(dashboard.NewRowBuilder("In progress and bandwidth")).
		WithPanel(graph("In progress", "", units.Short,
			line{`sum by (instance) (sluice_requests_in_progress{instance=~"$instance"})`, "{{instance}}"},
			line{`sum(sluice_line_requests{instance=~"$instance"})`, "waiting in line"})).
		WithPanel(graph("Bytes moved", "", units.BytesPerSecondIEC,
			line{`sum by (direction) (rate(sluice_bytes_total{instance=~"$instance"}[$__rate_interval]))`, "{{direction}}"})).
		WithRow(dashboard.NewRowBuilder("What requests cost")).
		WithPanel(graph("Charged, and corrected, by tier", "The estimates of requests that started, what came back of them, and what they cost beyond them.", units.Short,
			line{`sum by (tier, unit) (rate(sluice_cost_charged_total{instance=~"$instance"}[$__rate_interval]))`, "{{tier}}: {{unit}} charged per second"},
			line{`sum by (tier, unit) (rate(sluice_cost_refunded_total{instance=~"$instance"}[$__rate_interval]))`, "{{tier}}: {{unit}} given back"},
			line{`sum by (tier, unit) (rate(sluice_cost_overrun_total{instance=~"$instance"}[$__rate_interval]))`, "{{tier}}: {{unit}} beyond the estimate"})).
		WithPanel(graph("Users near their day", "With 80 % or more used of what their requests may cost in a day. sluice top --cost UNIT lists them.", units.Short,
			line{`sum by (tier, unit) (sluice_users_near_budget)`, "{{tier}}: {{unit}}"})).
		WithRow(dashboard.NewRowBuilder("Background jobs")).
		WithPanel(graph("Jobs by queue", "Held back are those that wait for their own user's jobs: parked and gated.", units.Short,
			line{`max by (queue, state) (sluice_jobs_depth)`, "{{queue}}: {{state}}"})).
		WithPanel(waits("priority")).
		WithPanel(waits("default")).
		WithPanel(waits("scheduled")).
		WithPanel(graph("Running and refused a slot, by tier", "", units.Short,
			line{`sum by (tier) (sluice_jobs_running)`, "{{tier}}: running"},
			line{`sum by (tier, reason) (rate(sluice_jobs_refused_total[$__rate_interval]))`, "{{tier}}: refused per second, {{reason}}"},
			line{`sum by (tier) (rate(sluice_jobs_snoozes_total[$__rate_interval]))`, "{{tier}}: snoozed per second"},
			line{`sum by (tier) (rate(sluice_jobs_delayed_total[$__rate_interval]))`, "{{tier}}: delayed per second"}))
}

// waits is how long jobs of a class of queues waited. Which users' they are, the page says.
func waits(class string) *timeseries.PanelBuilder {
	of := func(q string) line {
		return line{fmt.Sprintf(`histogram_quantile(%s, sum by (tier, le) (rate(sluice_jobs_wait_seconds_bucket{class="%s"}[$__rate_interval])))`, q, class), q + " {{tier}}"}
	}
	return graph("Wait of a "+class+" job, by tier", "From when it could have started to when it did, of jobs that started.", units.Seconds, of("0.5"), of("0.95"))
}

// user is what can be said of one user: the user's own series if polygen was told to have
// any (--user-metrics, --user-metrics-top), else the tier's, and where to ask.
func user() *dashboard.DashboardBuilder {
	const (
		ofUser = `{user="$user"`
		ofTier = `{tier=~"$tier", instance=~"$instance"`
	)
	return begin("user", "one user", "What a user uses of their limits, what the other users of the tier do, and where to ask about a user.").
		WithVariable(dashboard.NewQueryVariableBuilder("user").Label("User").
			Query(text("label_values(sluice_user_requests_per_second, user)")).Datasource(source()).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)).
		WithVariable(variable("tier", "Tier", `label_values(sluice_user_requests_per_second{user="$user"}, tier)`)).
		WithVariable(dashboard.NewTextBoxVariableBuilder("polygen").Label("polygen").DefaultValue(text("http://127.0.0.1:9090"))).
		WithRow(dashboard.NewRowBuilder("$user")).
		WithPanel(graph("Requests", "Those admitted each second, limited or not, or on average over the last minute or hour where that is more.", units.RequestsPerSecond,
			line{`max(sluice_user_requests_per_second` + ofUser + `})`, "requests"})).
		WithPanel(graph("Used, of each limit", "1 is all of it. Of seconds the last full one, of longer windows the present one.", units.PercentUnit,
			line{`max by (limit) (sluice_user_used` + ofUser + `}) / max by (limit) (sluice_user_limit` + ofUser + `})`, "{{limit}}"})).
		WithPanel(graph("Limited", "1 if requests were refused in the last second, as polygen sees it.", units.Short,
			line{`max by (reason) (sluice_user_limited` + ofUser + `})`, "{{reason}}"})).
		WithPanel(graph("In progress", "Known of users who are near the limit, or have one of bandwidth.", units.Short,
			line{`max(sluice_user_requests_in_progress` + ofUser + `})`, "in progress"},
			line{`max(sluice_user_limit` + ofUser + `, limit="concurrent"})`, "limit"})).
		WithPanel(graph("Bytes moved", "Under a limit of bandwidth.", units.BytesPerSecondIEC,
			line{`max by (direction) (sluice_user_bytes_per_second` + ofUser + `})`, "{{direction}}"},
			line{`max by (limit) (sluice_user_limit` + ofUser + `, limit=~"bandwidth.*"})`, "{{limit}}"})).
		WithPanel(note("About $user", "Users have series of their own if polygen runs with `--user-metrics NAME,...`, or `--user-metrics-top K` for those with most requests. "+
			"polygen tells the limits, use, shares, state and reasons of every user at\n\n[$polygen/api/v1/users/$user]($polygen/api/v1/users/$user)\n\n"+
			"and so does `sluice explain $user`. Below are all users of the tier.")).
		WithRow(dashboard.NewRowBuilder("The tier: $tier")).
		WithPanel(graph("Requests, by verdict", "", units.RequestsPerSecond,
			line{`sum by (verdict) (rate(sluice_tier_requests_total` + ofTier + `}[$__rate_interval]))`, "{{verdict}}"})).
		WithPanel(graph("Refused requests, by limit", "", units.RequestsPerSecond,
			line{`sum by (limit) (rate(sluice_tier_requests_total` + ofTier + `, verdict="refused"}[$__rate_interval]))`, "{{limit}}"})).
		WithPanel(graph("Part of the requests that is refused", "", units.PercentUnit,
			line{`sum by (tier) (rate(sluice_tier_requests_total` + ofTier + `, verdict="refused"}[$__rate_interval])) / sum by (tier) (rate(sluice_tier_requests_total` +
				ofTier + `}[$__rate_interval]))`, "{{tier}}"})).
		WithPanel(graph("Requests, by instance", "", units.RequestsPerSecond,
			line{`sum by (instance) (rate(sluice_tier_requests_total` + ofTier + `}[$__rate_interval]))`, "{{instance}}"}))
}

// health is whether Sluice itself works.
func health() *dashboard.DashboardBuilder {
	return begin("health", "health", "Whether Sluice itself works, and how fast.").
		WithRow(dashboard.NewRowBuilder("Now")).
		WithPanel(alarm("Leading polygens", units.Short, `sum(sluice_polygen_leading)`, below(1))).
		WithPanel(alarm("HAProxys connected", units.PercentUnit, `avg(sluice_peers_connected{instance=~"$instance"})`, below(1))).
		WithPanel(alarm("Agents without Redis", units.Short, `sum(sluice_redis_lost{instance=~"$instance"})`, from(1))).
		WithPanel(alarm("Shards lost, at most", units.Short, `max(sluice_redis_lost_shards{instance=~"$instance"})`, from(1))).
		WithPanel(alarm("Limit file good", units.Short, `min(sluice_limits_valid)`, below(1))).
		WithPanel(alarm("Instances on old limits", units.Short, `max(sluice_instances_behind and on (job, instance) sluice_polygen_leading == 1)`, from(1))).
		WithPanel(alarm("Fullest table", units.PercentUnit,
			`max(sluice_peers_entries{instance=~"$instance"} / on (job, instance) group_left sluice_peers_entries_max{instance=~"$instance"})`, from(0.8))).
		WithRow(dashboard.NewRowBuilder("Requests' way")).
		WithPanel(graph("Time of a verdict", "From HAProxy's question to the agent's answer, in the agent.", units.Seconds,
			quantile("0.5", "sluice_spop_handler_seconds", "instance"), quantile("0.99", "sluice_spop_handler_seconds", "instance"))).
		WithPanel(graph("Time of waiting for the cluster", "Most requests never wait, and are not in here.", units.Seconds,
			quantile("0.5", "sluice_verdict_wait_seconds", "instance"), quantile("0.99", "sluice_verdict_wait_seconds", "instance"))).
		WithPanel(graph("Decided without the cluster, or not counted", "", units.RequestsPerSecond,
			line{`sum by (instance) (rate(sluice_verdict_timeouts_total{instance=~"$instance"}[$__rate_interval]))`, "{{instance}}: waited too long"},
			line{`sum by (instance) (rate(sluice_requests_uncounted_total{instance=~"$instance"}[$__rate_interval]))`, "{{instance}}: too many users"},
			line{`sum by (instance) (rate(sluice_requests_sharing_total{instance=~"$instance"}[$__rate_interval]))`, "{{instance}}: users beyond the quota, by shared limits"},
			line{`sum by (instance) (rate(sluice_requests_malformed_total{instance=~"$instance"}[$__rate_interval]))`, "{{instance}}: no user"})).
		WithPanel(graph("SPOE", "Connections, and how often some were rejected.", units.Short,
			line{`sum by (instance) (sluice_spop_connections{instance=~"$instance"})`, "{{instance}}: open"},
			line{`sum by (instance, reason) (rate(sluice_spop_rejected_total{instance=~"$instance"}[$__rate_interval])) > 0`, "{{instance}}: {{reason}} per second"},
			line{`sum by (instance) (rate(sluice_spop_panics_total{instance=~"$instance"}[$__rate_interval])) > 0`, "{{instance}}: panics per second"})).
		WithRow(dashboard.NewRowBuilder("From crossing a limit to refusing natively")).
		WithPanel(graph("The agent gathers a report", "", units.Seconds, quantile("0.99", "sluice_flush_seconds", "lane"))).
		WithPanel(graph("polygen decides and publishes", "", units.Seconds, line{
			`histogram_quantile(0.99, sum by (le) (rate(sluice_polygen_loop_seconds_bucket[$__rate_interval])))`, "0.99"})).
		WithPanel(graph("A policy reaches the agent", "", units.Seconds,
			quantile("0.5", "sluice_policy_delay_seconds", "instance"), quantile("0.99", "sluice_policy_delay_seconds", "instance"))).
		WithPanel(graph("Policies", "", units.Short,
			line{`sum by (kind) (rate(sluice_policies_sent_total[$__rate_interval]))`, "sent: {{kind}}"},
			line{`sum by (kind) (rate(sluice_policies_received_total{instance=~"$instance"}[$__rate_interval]))`, "received: {{kind}}"},
			line{`sum(rate(sluice_policies_dropped_total[$__rate_interval])) > 0`, "dropped"})).
		WithPanel(graph("Entries of HAProxy's tables", "", units.Short,
			line{`sum by (instance, table) (sluice_peers_entries{instance=~"$instance"})`, "{{instance}}: {{table}}"},
			line{`sum by (table, reason) (rate(sluice_peers_dropped_total{instance=~"$instance"}[$__rate_interval])) > 0`, "dropped per second: {{table}}, {{reason}}"})).
		WithRow(dashboard.NewRowBuilder("Redis and the cluster")).
		WithPanel(graph("Time of calls to Redis", "", units.Seconds, line{
			`histogram_quantile(0.99, sum by (op, le) (rate(sluice_bus_seconds_bucket[$__rate_interval])))`, "0.99 {{op}}"})).
		WithPanel(graph("Calls to Redis", "", units.RequestsPerSecond,
			line{`sum by (op) (rate(sluice_bus_requests_total[$__rate_interval]))`, "{{op}}"},
			line{`sum by (result) (rate(sluice_bus_requests_total{result!="ok"}[$__rate_interval])) > 0`, "failed: {{result}}"})).
		WithPanel(graph("Time since Redis' last answer", "", units.Seconds,
			line{`time() - sluice_bus_last_success_timestamp_seconds`, "{{instance}}"})).
		WithPanel(graph("Clock offset", "Of the machine from the cluster's time, either way; HAProxy ends throttles by the machine's.", units.Seconds,
			line{`abs(sluice_clock_offset_seconds{instance=~"$instance"})`, "{{instance}}"})).
		WithPanel(graph("Instances", "As each part sees it.", units.Short,
			line{`sluice_instances{instance=~"$instance"}`, "{{instance}}"}, line{`sluice_polygen_instances`, "{{instance}}"})).
		WithPanel(list("Versions of the limits", `max by (agent, version) (sluice_instance_limits_version)`)).
		WithPanel(list("Builds", `max by (instance, component, version, revision, goversion) (sluice_build_info)`)).
		WithPanel(graph("CPU", "", units.Short, line{`sum by (instance) (rate(process_cpu_seconds_total{job=~"sluice.*"}[$__rate_interval]))`, "{{instance}}"}))
}
