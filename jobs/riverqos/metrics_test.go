package riverqos

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/metriclist"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

var update = flag.Bool("update", false, "write internal/metricsdoc/worker.json")

// metricsList is what docs/metrics.md, the dashboards and the alerts are checked with.
const metricsList = "../../internal/metricsdoc/worker.json"

func TestMetricsAreListed(t *testing.T) {
	recorder := metriclist.New(prometheus.NewPedanticRegistry())
	if _, err := (Config{Slots: jobs.NewMemory(nil), Tiers: jobs.FileTiers{}, Registry: recorder}).newRunner(queue{}, nil, nil); err != nil {
		t.Fatal(err)
	}
	newMetrics(recorder)
	metrics, err := recorder.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.MarshalIndent(metrics, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	list = append(list, '\n')
	if *update {
		if err := os.WriteFile(metricsList, list, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(metricsList)
	if err != nil {
		t.Fatal(err)
	}
	if string(list) != string(want) {
		t.Errorf("%s is not current; run go test -run TestMetricsAreListed -update ., then go generate ./internal/metricsdoc in the folder above", metricsList)
	}
	if err := recorder.GiveValues(); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(recorder)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problems", problems, err)
	}
}
