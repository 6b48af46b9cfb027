package main

import (
	"fmt"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// versionFlag prints the version and exits.
type versionFlag bool

// BeforeReset is what kong calls before it misses a command.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	fmt.Fprintln(app.Stdout, "sluice "+version(info))
	app.Exit(0)
	return nil
}

// version says what a binary was built from: the module's version, the commit if
// it was built in a checkout, and the Go version.
func version(info *debug.BuildInfo) string {
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "development"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if commit := settings["vcs.revision"]; commit != "" {
		v += ", commit " + commit[:min(12, len(commit))]
		if settings["vcs.modified"] == "true" {
			v += " with changes"
		}
	}
	if info.GoVersion != "" {
		v += ", " + info.GoVersion
	}
	return v
}
