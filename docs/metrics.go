// Package docs reads what the documents say, and its tests compare that with the repository.
package docs

import (
	_ "embed"
	"regexp"
)

//go:embed metrics.md
var metrics string

// metricRow is a row of the tables of metrics: the name and the type.
var metricRow = regexp.MustCompile("(?m)^\\| `(sluice_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\|")

// Series returns the names under which Prometheus stores the documented metrics.
func Series() []string {
	var names []string
	for _, row := range metricRow.FindAllStringSubmatch(metrics, -1) {
		if row[2] == "histogram" {
			names = append(names, row[1]+"_bucket", row[1]+"_sum", row[1]+"_count")
			continue
		}
		names = append(names, row[1])
	}
	return names
}
