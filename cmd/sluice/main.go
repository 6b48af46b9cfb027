// Command sluice is what people type: up runs everything on one machine, check
// validates limit files.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/internal/cli"
)

type commands struct {
	Up    up    `cmd:"" help:"Run everything on one machine: HAProxy, agents, polygen, and unless named an origin and a Redis."`
	Check check `cmd:"" help:"Validate limit files and show the limits that they set."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	exit := -1
	var c commands
	parser, err := kong.New(&c,
		kong.Name("sluice"),
		kong.Description("Sluice gives each user of an HTTP service a fair, bounded part of it, over a whole cluster of stock HAProxy."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
		kong.UsageOnError(),
	)
	if err != nil {
		return cli.Exit(stderr, "sluice", err)
	}
	ctx, err := parser.Parse(args)
	if exit >= 0 { // --help
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "sluice: %v\nSee 'sluice --help'.\n", err)
		return 2
	}
	return ctx.Selected().Target.Addr().Interface().(runner).run(stdout, stderr)
}

// A runner is a command; its result is the process's exit code.
type runner interface {
	run(stdout, stderr io.Writer) int
}
