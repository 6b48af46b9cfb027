package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/internal/daemon"
)

type versionFlag bool

// BeforeReset is what kong calls before it misses a command.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, "sluice "+version(daemon.BuildInfo()))
	app.Exit(0)
	return nil
}

// version says what a binary was built from: its version, the commit if that is known, and Go's version.
func version(of, revision, goVersion string) string {
	if of == "unknown" || of == "(devel)" {
		of = "development"
	}
	if commit, dirty := strings.CutSuffix(revision, "-dirty"); commit != "unknown" {
		of += ", commit " + commit[:min(12, len(commit))]
		if dirty {
			of += " with changes"
		}
	}
	return of + ", " + goVersion
}
