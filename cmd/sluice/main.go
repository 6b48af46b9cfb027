// Command sluice is what people type: up runs everything on one machine, top shows a
// cluster at work, and the others are about the limit file.
package main

import (
	"io"
	"os"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type commands struct {
	Up         upCommand                 `cmd:"" help:"Run everything on one machine: HAProxy, agents, polygen, and, unless given, an origin and a Redis."`
	Demo       demoCommand               `cmd:"" help:"Show in a minute what limits change: a noisy user and a quiet one, before and after."`
	Check      checkCommand              `cmd:"" help:"Validate limit files and show the limits that they set."`
	Diff       diffCommand               `cmd:"" help:"Show how the limits of two limit files differ."`
	Explain    explainCommand            `cmd:"" help:"Show a user's limits and where each comes from."`
	Top        topCommand                `cmd:"" help:"List the most active users, live: what they use, and the limit that each is nearest to."`
	Override   override                  `cmd:"" help:"Set limits of one user for a time, list what was set, or end it."`
	Unblock    unblock                   `cmd:"" help:"Unblock a user who is blocked by their requests in progress."`
	HAProxy    forHAProxy                `cmd:"" name:"haproxy" help:"Write HAProxy's configuration, with the classes and exemptions of a limit file."`
	Schema     schema                    `cmd:"" help:"Print the JSON Schema of the limit file."`
	Completion kongcompletion.Completion `cmd:"" help:"Print a script that completes commands in a shell."`
	Version    versionFlag               `help:"Print the version and exit."`
}

func main() {
	// It answers a shell that completes a command line, and ends the process then.
	kongcompletion.Register(kong.Must(new(commands), kong.Name("sluice")), kongcompletion.WithPredictor("file", complete.PredictFiles("*")))
	os.Exit(runCommand(os.Args[1:], os.Stdout, os.Stderr))
}

func runCommand(args []string, stdout, stderr io.Writer) int {
	var c commands
	line, code := flags.Parse(&c, args, stdout, stderr, "sluice",
		"Sluice gives each user of an HTTP service a fair, bounded part of it, over a whole cluster of stock HAProxy.")
	if line == nil {
		return code
	}
	command, ok := line.Selected().Target.Addr().Interface().(runner)
	if !ok { // completion, which is the library's
		return flags.Exit(stderr, "sluice", line.Run())
	}
	return command.execute(stdout, stderr)
}

// A runner is a command; its result is the process's exit code.
type runner interface {
	execute(stdout, stderr io.Writer) int
}
