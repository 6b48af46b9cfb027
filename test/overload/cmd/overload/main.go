// Command overload floods a cluster of real processes, and says in its last line, and by its exit status, whether what that did was as
// it should be.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/test/overload"
)

type options struct {
	Run     runOptions `cmd:"" default:"withargs" help:"Flood a cluster."`
	Origin  struct{}   `cmd:"" hidden:""`
	Clients struct {
		Flood string `arg:""`
	} `cmd:"" hidden:""`
}

type runOptions struct {
	Duration    time.Duration `default:"5m" help:"How long the flood lasts."`
	Times       float64       `default:"10" help:"How many times what the cluster can serve is offered."`
	Connections int           `default:"20000" help:"How many connections are opened at once."`
	Seed        uint64        `help:"What the requests are drawn from. 0: another one each time."`
	Dir         string        `default:"overload-run" help:"Where to leave the report."`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	command := kong.Parse(&o, kong.Name("overload"), kong.Description("Flood a cluster of real processes, and judge what it does.")).Command()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch command {
	case "origin":
		err = overload.ServeOrigin()
	case "clients <flood>":
		err = overload.SendFlood(ctx, o.Clients.Flood, os.Stdout)
	default:
		return o.Run.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		return 1
	}
	return 0
}

func (o *runOptions) run(ctx context.Context) int {
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000) + 1
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		fmt.Println("overload: FAIL:", err)
		return 1
	}
	report, err := overload.Run(ctx, overload.Options{Seed: o.Seed, Duration: o.Duration, Times: o.Times, Connections: o.Connections, Dir: o.Dir, Out: os.Stdout})
	if err == nil {
		err = o.leave(report)
	}
	if err != nil {
		fmt.Println("overload: FAIL:", err)
		return 1
	}
	line, passed := report.Verdict()
	fmt.Println("overload:", line)
	if !passed {
		return 1
	}
	return 0
}

// leave prints the report, and leaves it for people and programs.
func (o *runOptions) leave(report *overload.Report) error {
	var text strings.Builder
	if err := report.WriteMarkdown(&text); err != nil {
		return err
	}
	fmt.Print(text.String())
	all, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "report.json"), all, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.Dir, "report.md"), []byte(text.String()), 0o600)
}
