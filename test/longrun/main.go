// Command longrun runs a cluster of real processes for long, and judges what clients and the origin saw: under faults (chaos), under
// steady load (soak), or with more load than the cluster serves (overload). The last line and the exit status are the verdict.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/judge"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

type options struct {
	Seed uint64 `help:"What choices are drawn from. 0: another one each time."`
	Dir  string `default:"longrun" help:"Where to leave the history, the report and the output of processes."`
	Race bool   `help:"Build the commands with the race detector."`

	Chaos    chaosOptions    `cmd:"" help:"Break the cluster under load."`
	Soak     soakOptions     `cmd:"" help:"Look whether anything grows under steady load."`
	Overload overloadOptions `cmd:"" help:"Flood the cluster."`
	Judge    judgeOptions    `cmd:"" help:"Judge histories of earlier runs again."`
}

type chaosOptions struct {
	Duration time.Duration `default:"20m" help:"How long it takes, all stores together."`
	Store    string        `default:"all" enum:"single,sentinel,cluster,all" help:"Kind of Redis: single, sentinel, cluster or all in turn."`
	Only     []string      `help:"Of the faults of the seed, only those that contain one of these, such as 'stop haproxy-1': to find out which faults a failure needs."`
	Plan     bool          `help:"Print the faults, and do nothing."`
}

type soakOptions struct {
	Duration time.Duration `default:"1h" help:"How long it takes."`
	Settle   time.Duration `default:"10m" help:"Time at first that does not count; a third of the duration at most."`
	Rate     float64       `default:"2000" help:"Requests a second."`
}

type overloadOptions struct {
	Duration    time.Duration `default:"5m" help:"How long the flood lasts."`
	Connections int           `default:"9000" help:"Connections that are opened at once afterwards."`
}

type judgeOptions struct {
	Files []string `arg:"" help:"Histories."`
}

// The words of reports that have said what is wrong.
var (
	errFailed  = errors.New("FAIL")
	errUnclear = errors.New("UNCLEAR")
)

func main() {
	var o options
	command := kong.Parse(&o, kong.Name("longrun"), kong.Description("Run a cluster of real processes for long, and judge it."))
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000) + 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command.BindTo(ctx, (*context.Context)(nil))
	err := command.Run(&o)
	stop()
	word, status := "PASS", 0
	switch {
	case err == nil:
	case errors.Is(err, errFailed):
		word, status = "FAIL", 1
	case errors.Is(err, errUnclear):
		word, status = "UNCLEAR", 2
	default:
		word, status = "FAIL: "+err.Error(), 1
	}
	fmt.Printf("%s: %s, seed %d\n", command.Command(), word, o.Seed)
	os.Exit(status)
}

// Run is the command.
func (c *chaosOptions) Run(ctx context.Context, o *options) error {
	stores := []string{c.Store}
	if c.Store == "all" {
		stores = schedule.Stores
	}
	fmt.Printf("to repeat it: make chaos SEED=%d STORE=%s DURATION=%v\n", o.Seed, c.Store, c.Duration)
	var err error
	for _, store := range stores {
		s := chaosScenario(o.Seed, store, c.Duration/time.Duration(len(stores)))
		s.plan = s.plan.Only(c.Only)
		if c.Plan {
			s.plan.Print(os.Stdout)
			continue
		}
		err = errors.Join(err, o.carryOut(ctx, s))
	}
	return err
}

// Run is the command.
func (c *soakOptions) Run(ctx context.Context, o *options) error {
	return o.carryOut(ctx, soakScenario(o.Seed, c.Duration, min(c.Settle, c.Duration/3), c.Rate))
}

// Run is the command.
func (c *overloadOptions) Run(ctx context.Context, o *options) error {
	s, err := overloadScenario(o.Seed, c.Duration, c.Connections)
	if err != nil {
		return err
	}
	return o.carryOut(ctx, s)
}

// Run is the command.
func (c *judgeOptions) Run() error {
	var err error
	for _, file := range c.Files {
		err = errors.Join(err, judged(file, os.Stdout))
	}
	return err
}

// carryOut carries out a scenario, and judges it.
func (o *options) carryOut(ctx context.Context, s *scenario) error {
	s.race = o.Race
	dir := filepath.Join(o.Dir, s.kind+"-"+s.store)
	fmt.Printf("%s: seed %d, %s, into %s\n", s.kind, s.seed, s.store, dir)
	if err := carryOut(ctx, s, dir, os.Stdout); err != nil {
		return err
	}
	report, err := os.Create(filepath.Join(dir, "report.txt"))
	if err != nil {
		return err
	}
	defer report.Close()
	fmt.Println()
	return judged(filepath.Join(dir, historyFile), io.MultiWriter(os.Stdout, report))
}

func judged(name string, out io.Writer) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	h, err := history.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	report, err := judge.Judge(h)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := report.WriteText(out); err != nil {
		return err
	}
	return map[string]error{"FAIL": errFailed, "UNCLEAR": errUnclear}[report.Word()]
}
