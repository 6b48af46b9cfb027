package main

import (
	"runtime/debug"
	"testing"
)

func TestVersion(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}
	for _, tt := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"nothing is known", debug.BuildInfo{}, "development"},
		{"a release", debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3, go1.26.0"},
		{"a checkout", debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{commit, {Key: "vcs.modified", Value: "false"}}},
			"development, commit 0123456789ab, go1.26.0"},
		{"a checkout with changes", debug.BuildInfo{Settings: []debug.BuildSetting{commit, {Key: "vcs.modified", Value: "true"}}},
			"development, commit 0123456789ab with changes"},
		{"a short name of a commit", debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "42"}}}, "development, commit 42"},
	} {
		if got := version(&tt.info); got != tt.want {
			t.Errorf("%s: version(%+v) = %q, want %q", tt.name, tt.info, got, tt.want)
		}
	}
}
