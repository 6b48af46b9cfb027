package daemon

import (
	"cmp"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Version and Revision are what a release is built with (scripts/package); "" takes what Go knows of the
// build: a package is built from the same source to the same bytes, in a checkout or not.
var Version, Revision string

// BuildInfo returns what is known of this build; what is not is "unknown".
func BuildInfo() (version, revision, goVersion string) {
	version, revision, goVersion = readBuildInfo(debug.ReadBuildInfo())
	return cmp.Or(Version, version), cmp.Or(Revision, revision), goVersion
}

// RegisterBuildInfo adds sluice_build_info to the registry; nil adds it nowhere.
func RegisterBuildInfo(reg prometheus.Registerer, component string) {
	version, revision, goVersion := BuildInfo()
	promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
		Name: "sluice_build_info",
		Help: "The build that runs, value 1: the component (spoa, polygen), the module's version, the commit (-dirty: with changes), and Go's version.",
	}, []string{"component", "version", "revision", "goversion"}).WithLabelValues(component, version, revision, goVersion).Set(1)
}

// readBuildInfo returns what is known of a build; what is not is "unknown".
func readBuildInfo(info *debug.BuildInfo, ok bool) (version, revision, goVersion string) {
	if !ok {
		return "unknown", "unknown", "unknown"
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "-dirty"
		}
	}
	if revision != "" {
		revision += changed
	}
	return cmp.Or(info.Main.Version, "unknown"), cmp.Or(revision, "unknown"), cmp.Or(info.GoVersion, "unknown")
}
