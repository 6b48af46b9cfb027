package main

import (
	"io"

	"github.com/sluice-qos/sluice/config"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type schema struct{}

// Help tells how an editor finds it.
func (*schema) Help() string {
	return `Prints the JSON Schema (draft 2020-12) of the limit file, as editors use it. Save it beside the limit file as limits.schema.json and begin the file with the line

# yaml-language-server: $schema=limits.schema.json`
}

func (*schema) execute(stdout, stderr io.Writer) int {
	_, err := stdout.Write(config.Schema)
	return flags.Exit(stderr, "sluice schema", err)
}
