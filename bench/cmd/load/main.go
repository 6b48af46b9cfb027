// Command load sends HTTP requests to HAProxies on this machine at a steady
// rate and prints what became of them.
//
//	load --target 127.0.0.1:8080 --target 127.0.0.1:8081 --rate 2000 --duration 10s --user alice --limit 1000
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-qos/sluice/bench/load"
)

const (
	maxRate     = 50_000
	maxDuration = 10 * time.Minute
)

// options are the command line.
type options struct {
	Target   []string      `required:"" sep:"none" placeholder:"HOST:PORT" help:"Where to send requests, on this machine; repeat it for several."`
	Rate     float64       `default:"100" help:"Requests per second to all targets together, at most 50000."`
	Duration time.Duration `default:"10s" help:"How long to send, at most 10m."`
	User     []string      `sep:"none" placeholder:"NAME" help:"Send as this user, by the header X-User; several take turns."`
	Method   string        `default:"GET" help:"The method of the requests."`
	Path     string        `default:"/" help:"Their path."`
	Pattern  string        `default:"even" enum:"even,90/10,jump" help:"How the targets share the load: ${enum}. jump moves all of it to the next one each second."`
	Arrivals string        `default:"uniform" enum:"uniform,poisson" help:"When requests are due: ${enum}."`
	Seed     uint64        `default:"1" help:"Seed of the arrivals and of the choice of targets."`
	Timeout  time.Duration `default:"5s" help:"How long to wait for an answer."`
	Limit    int           `placeholder:"N" help:"Requests per second that all requests together may make: compare what was admitted with it."`
	Slack    time.Duration `default:"1ms" help:"By how much the clock of the process that decides may differ."`
	JSON     bool          `help:"Print JSON."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command. It returns the exit code: 0 also when it was interrupted
// and printed what it had.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	exited := -1
	parser, err := kong.New(&o, kong.Name("load"), kong.Writers(stdout, stderr),
		kong.Description("Sends HTTP requests at a steady rate, whether or not they are answered, and prints what became of them."),
		kong.Exit(func(code int) { exited = code }))
	if err != nil {
		fmt.Fprintln(stderr, "load:", err)
		return 2
	}
	_, err = parser.Parse(args)
	if exited >= 0 {
		return exited // --help
	}
	if err == nil {
		err = o.check()
	}
	if err != nil {
		fmt.Fprintln(stderr, "load:", err)
		return 2
	}
	spec, err := o.spec()
	if err != nil {
		fmt.Fprintln(stderr, "load:", err)
		return 2
	}
	report, err := load.Run(ctx, spec)
	if report == nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, err)
	}
	s := summarize(report, o.Limit, o.Slack)
	if o.JSON {
		err = s.writeJSON(stdout)
	} else {
		err = s.writeTable(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "load:", err)
		return 1
	}
	return 0
}

// check refuses what the library would allow and a slip of the finger should not.
func (o *options) check() error {
	switch {
	case !(o.Rate > 0 && o.Rate <= maxRate):
		return fmt.Errorf("--rate %v: want more than 0 and at most %d", o.Rate, maxRate)
	case o.Duration <= 0 || o.Duration > maxDuration:
		return fmt.Errorf("--duration %v: want more than 0 and at most %v", o.Duration, maxDuration)
	case o.Limit < 0:
		return fmt.Errorf("--limit %d: want 1 or more, or 0 for no comparison", o.Limit)
	case o.Slack < 0:
		return fmt.Errorf("--slack %v: want 0 or more", o.Slack)
	}
	for _, s := range append([]string{o.Method, o.Path}, o.User...) {
		for _, c := range []byte(s) {
			if c < ' ' || c == 0x7f {
				return fmt.Errorf("%q: control characters cannot be sent", s)
			}
		}
	}
	for _, s := range []string{o.Method, o.Path} {
		for _, c := range s {
			if c == ' ' {
				return fmt.Errorf("%q: a blank ends a method or path", s)
			}
		}
	}
	return nil
}

func (o *options) spec() (load.Spec, error) {
	targets, err := load.Spread(o.Pattern, o.Target...)
	arrivals := load.Arrivals(load.Uniform)
	if o.Arrivals == "poisson" {
		arrivals = load.Poisson
	}
	return load.Spec{
		Targets:  targets,
		Rate:     o.Rate,
		Duration: o.Duration,
		Arrivals: arrivals,
		Seed:     o.Seed,
		Requests: load.Users(o.Method, o.Path, o.User...),
		Timeout:  o.Timeout,
		Align:    true,
	}, err
}
