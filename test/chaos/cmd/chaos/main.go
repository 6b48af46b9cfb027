// Command chaos runs a cluster of real processes under load while faults happen to it, and says in its last line, and by its exit
// status, whether what it did was as it should be.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/test/chaos"
	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/chaos/judge"
	"github.com/sluice-qos/sluice/test/chaos/schedule"
)

type options struct {
	Duration time.Duration `default:"20m" help:"How long it takes, all stores together."`
	Seed     uint64        `help:"What the choices are drawn from. 0: another one each time."`
	Store    string        `default:"all" enum:"single,sentinel,cluster,all" help:"Kind of Redis: single, sentinel, cluster or all in turn."`
	MaxWait  time.Duration `default:"60ms" help:"--max-wait of the agents: three times the shipped one, for a machine on which everything runs at once."`
	Race     bool          `help:"Build the commands with the race detector."`
	Only     []string      `help:"Of the faults of the seed, only those which this is part of, such as 'stop haproxy-1': to find out which a failure needs."`
	Users    []string      `help:"Only these users send, by the beginnings of their names, such as 'talk,cheap,dear', those with limits of costs: with less to do a machine stalls less, and a stall excuses much. Default: all."`
	Dir      string        `default:"chaos-run" help:"Where to leave the history and what the processes wrote."`
	Plan     bool          `help:"Print the faults, and do nothing."`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	kong.Parse(&o, kong.Name("chaos"), kong.Description("Break a cluster of real processes under load, and judge what it does."))
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000) + 1
	}
	if err := chaos.CheckUsers(o.Users); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: --users:", err)
		return 1
	}
	stores := []string{o.Store}
	if o.Store == "all" {
		stores = schedule.Stores
	}
	each := o.Duration / time.Duration(len(stores))
	if o.Plan {
		for _, store := range stores {
			printPlan(store, schedule.Make(o.Seed, store, each).Only(o.Only))
		}
		return 0
	}
	fmt.Printf("chaos: to repeat it: make chaos SEED=%d STORE=%s DURATION=%v\n", o.Seed, o.Store, o.Duration)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var wrong []string
	for _, store := range stores {
		fmt.Printf("chaos: %s for %v, into %s\n", store, each, filepath.Join(o.Dir, store))
		problems, err := chaos.Run(ctx, chaos.Options{
			Seed: o.Seed, Store: store, Duration: each, MaxWait: o.MaxWait, Race: o.Race, Only: o.Only, Users: o.Users, Dir: filepath.Join(o.Dir, store), Out: os.Stdout,
		})
		if ctx.Err() != nil {
			fmt.Println("chaos: FAIL: ended early")
			return 1
		}
		if err != nil {
			problems = append(problems, err.Error())
		} else if verdict := judged(filepath.Join(o.Dir, store)); verdict != "" {
			problems = append(problems, verdict)
		}
		wrong = slices.Concat(wrong, problems)
	}
	if len(wrong) > 0 {
		for _, problem := range wrong {
			fmt.Println("chaos: problem:", problem)
		}
		fmt.Printf("chaos: FAIL: %d problems, seed %d\n", len(wrong), o.Seed)
		return 1
	}
	fmt.Printf("chaos: PASS, seed %d\n", o.Seed)
	return 0
}

// judged prints the judge's report of a run beside its history, too, and returns what is wrong.
func judged(dir string) string {
	file, err := os.Open(filepath.Join(dir, chaos.HistoryFile))
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	h, err := history.Read(file)
	if err != nil {
		return err.Error()
	}
	report, err := judge.Judge(h, judge.Options{})
	if err != nil {
		return err.Error()
	}
	var text, markdown bytes.Buffer
	err = errors.Join(report.WriteText(&text), report.WriteMarkdown(&markdown), os.WriteFile(filepath.Join(dir, "report.md"), markdown.Bytes(), 0o600))
	fmt.Println(text.String())
	switch {
	case err != nil:
		return err.Error()
	case !report.Passed():
		return report.Verdict()
	}
	return ""
}

func printPlan(store string, plan schedule.Plan) {
	fmt.Println(store)
	quiets := plan.Quiets
	for _, f := range plan.Faults {
		for len(quiets) > 0 && quiets[0].Begin <= f.At {
			fmt.Printf("%6.1fs  quiet until %v\n", quiets[0].Begin.Seconds(), quiets[0].End)
			quiets = quiets[1:]
		}
		fmt.Println(f)
	}
}
