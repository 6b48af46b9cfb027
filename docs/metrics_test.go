package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metricMade is the name and the begin of the help of a metric, where the code makes it.
var metricMade = regexp.MustCompile(`"(sluice_[a-z0-9_]+)",\s*(?:Help:\s*)?"`)

// Each metric of the code has a row, and each row a metric.
func TestMetricsAreDocumented(t *testing.T) {
	made, documented := map[string]bool{}, map[string]bool{}
	for file, text := range files(t, ".go") {
		for _, m := range metricMade.FindAllStringSubmatch(text, -1) {
			// HAProxy's names of backends look the same.
			if !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "haproxy/") {
				made[m[1]] = true
			}
		}
	}
	for _, row := range metricRow.FindAllStringSubmatch(metrics, -1) {
		documented[row[1]] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("docs/metrics.md does not list the metrics of the code (-code +document):\n%s", diff)
	}
}
