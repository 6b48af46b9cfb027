package daemon

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestRead(t *testing.T) {
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, tt := range []struct {
		name string
		info *debug.BuildInfo
		want [3]string
	}{
		{"nothing is known", nil, [3]string{"unknown", "unknown", "unknown"}},
		{"no version control", &debug.BuildInfo{GoVersion: "go1.26"}, [3]string{"unknown", "unknown", "go1.26"}},
		{"a commit", &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
			setting("vcs.revision", "abc"), setting("vcs.modified", "false")}}, [3]string{"v1.2.3", "abc", "go1.26"}},
		{"a commit with changes", &debug.BuildInfo{Settings: []debug.BuildSetting{
			setting("vcs.modified", "true"), setting("vcs.revision", "abc")}}, [3]string{"unknown", "abc-dirty", "unknown"}},
		{"changes of nothing", &debug.BuildInfo{Settings: []debug.BuildSetting{setting("vcs.modified", "true")}},
			[3]string{"unknown", "unknown", "unknown"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got [3]string
			got[0], got[1], got[2] = readBuildInfo(tt.info, tt.info != nil)
			if got != tt.want {
				t.Errorf("read(%+v) = %q, want %q", tt.info, got, tt.want)
			}
		})
	}
}

func TestRegister(t *testing.T) {
	RegisterBuildInfo(nil, "spoa") // nowhere
	reg := prometheus.NewPedanticRegistry()
	RegisterBuildInfo(reg, "polygen")
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != 1 {
		t.Fatalf("Gather() = %v, %v, want one metric", families, err)
	}
	got := map[string]string{}
	for _, l := range families[0].Metric[0].Label {
		got[l.GetName()] = l.GetValue()
	}
	if got["component"] != "polygen" || got["goversion"] != runtime.Version() || families[0].Metric[0].Gauge.GetValue() != 1 {
		t.Errorf("sluice_build_info has %v, want component polygen and Go's version, value 1", got)
	}
}
