// Command soak runs a cluster of real processes for long, and says in its last line, and by its exit status, whether anything grows.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/test/soak"
	"github.com/sluice-qos/sluice/test/soak/trend"
)

type options struct {
	Duration time.Duration `default:"1h" help:"How long it takes."`
	Settle   time.Duration `default:"10m" help:"What of it does not count at first; a third of it at most."`
	Rate     float64       `default:"2000" help:"Requests a second."`
	Seed     uint64        `help:"What the requests are drawn from. 0: another one each time."`
	Race     string        `default:"auto" enum:"auto,on,off" help:"Build the commands with the race detector. auto: if the seed is odd, so in half of the runs."`
	Dir      string        `default:"soak-run" help:"Where to leave the samples, the report and the plots."`
	Judge    bool          `help:"Judge the samples that are in the folder already."`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	kong.Parse(&o, kong.Name("soak"), kong.Description("Run a cluster of real processes for long, and look whether anything grows."))
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000) + 1
	}
	o.Settle = min(o.Settle, o.Duration/3)
	report, err := o.report()
	if err != nil {
		fmt.Println("soak: FAIL:", err)
		return 1
	}
	return map[string]int{"PASS": 0, "FAIL": 1, "UNCLEAR": 2}[report.Word()]
}

// report runs a cluster, unless it was run already, and judges what was seen, also of a run that was ended early.
func (o *options) report() (*soak.Report, error) {
	var problems []string
	if !o.Judge {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		race := o.Race == "on" || o.Race == "auto" && o.Seed%2 == 1
		fmt.Printf("soak: %v at %v requests a second, seed %d, race detector %v, into %s\n", o.Duration, o.Rate, o.Seed, race, o.Dir)
		var err error
		problems, err = soak.Run(ctx, soak.Options{Seed: o.Seed, Duration: o.Duration, Settle: o.Settle, Rate: o.Rate, Race: race, Dir: o.Dir, Out: os.Stdout})
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	return o.judged(problems)
}

// judged reads the samples, prints what they say, and leaves the report and the plots beside them.
func (o *options) judged(problems []string) (*soak.Report, error) {
	file, err := os.Open(filepath.Join(o.Dir, soak.SamplesFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	samples, err := soak.ReadSamples(file)
	if err != nil {
		return nil, err
	}
	report := soak.Judge(samples, o.Settle, problems)
	for name, write := range map[string]func(io.Writer) error{
		"report.txt": report.WriteText, "report.md": report.WriteMarkdown,
		soak.PlotsFile: func(w io.Writer) error { return trend.WriteSVG(w, report.Series) },
	} {
		var text bytes.Buffer
		if err := write(&text); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(o.Dir, name), text.Bytes(), 0o644); err != nil {
			return nil, err
		}
	}
	return report, report.WriteText(os.Stdout)
}
