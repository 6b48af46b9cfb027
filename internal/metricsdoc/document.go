package metricsdoc

import (
	"fmt"
	"strings"

	"github.com/sluice-qos/sluice/internal/metriclist"
)

const intro = `# Metrics

Written by ` + "`go generate ./internal/metricsdoc`" + ` from the code; a test fails when it is not current. [Operating Sluice](operations.md) says
what to watch, [deploy/prometheus](../deploy/prometheus/alerts.yml) has alert rules, and [deploy/grafana](../deploy/grafana) dashboards.

spoa serves its metrics at ` + "`127.0.0.1:9091/metrics`" + `, polygen at ` + "`127.0.0.1:9090/metrics`" + `; ` + "`--admin`" + ` sets the address. Both also have those
of Go's runtime (` + "`go_*`" + `) and of the process (` + "`process_*`" + `). ` + "`sluice up`" + ` serves all its parts' at one address, told apart by the label
` + "`instance`" + ` (scrape it with ` + "`honor_labels: true`" + `). Workers of [background jobs](jobs.md) serve theirs where their programs do.

**How many series.** The API answers questions about one user. Only polygen's ` + "`sluice_user_*`" + ` have users among their labels, those chosen with
` + "`--user-metrics`" + ` and ` + "`--user-metrics-top`" + `: none by default, at most 400 users at endpoints, with ten series or so each. ` + "`limit`" + ` is ` + "`concurrent`" + ` or a class of
the limit file (` + "`GET`, `*`, `PUT/minute`" + `), ` + "`tier`" + ` one of its tiers, ` + "`agent`" + ` an instance (at most 1000), ` + "`version`" + ` that of a limit file, of
which each process has one at a time; ` + "`sluice_build_info`" + `'s are one set for each process; the values of the others are fixed.

**From crossing a limit to refusing natively.** HAProxy and its agent refuse exactly in any case. Three steps pass until every HAProxy refuses without
asking: agents report within 5 ms, polygen takes ` + "`sluice_polygen_loop_seconds`" + ` to decide and publish, and a policy needs ` + "`sluice_policy_delay_seconds`" + ` to reach an agent.
` + "`make bench RUN=LoadReaction`" + ` measures all of it.
`

// Document is docs/metrics.md.
func Document() (string, error) {
	var b strings.Builder
	b.WriteString(intro)
	for _, section := range []struct {
		title string
		list  func() ([]metriclist.Metric, error)
	}{{"spoa", Agent}, {"polygen", Generator}, {"Workers of background jobs", Worker}} {
		metrics, err := section.list()
		if err != nil {
			return "", err
		}
		table(&b, section.title, metrics)
	}
	return b.String(), nil
}

func table(b *strings.Builder, title string, metrics []metriclist.Metric) {
	fmt.Fprintf(b, "\n## %s\n\n| name | type | labels | meaning |\n|---|---|---|---|\n", title)
	for _, m := range metrics {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, strings.ReplaceAll(m.Help, "|", `\|`))
	}
}
