package main

import (
	"io"
	"time"

	"github.com/sluice-qos/sluice/internal/cli"
	following "github.com/sluice-qos/sluice/internal/watch"
)

type watch struct {
	User     string        `arg:"" help:"The user, named as in the limit file, or ~HASH as sluice top shows them."`
	Endpoint string        `help:"Follow the user at this endpoint, where users are counted separately." placeholder:"NAME"`
	Admin    string        `help:"Where the admin API of polygen, or of sluice up, listens: host:port, or https://host:port." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`
	Interval time.Duration `help:"Interval between lines while nothing changes, at least 100ms." default:"1s" placeholder:"TIME"`
	JSON     bool          `name:"json" help:"Print one JSON object a line."`

	Access `embed:""`
}

// Help tells what the command prints.
func (*watch) Help() string {
	return `Prints a line about the user at once, at every --interval, and when the state, its reasons or the limits change, until Ctrl-C:

2026-11-20T12:30:00.250Z throttled: GET until 12:30:01.000; GET 12/10 (last 10), concurrent 3/5, down 1.5 MiB/s of 10 MiB/s; instance-1 3 of 4 slots, down 1.5 MiB/s of 10.0 MiB/s

That is the cluster's time and the user's state with the limits that are reached; how much is used of each limit in the present window (and in the last full one), or now; and for each instance the requests in progress there and how many it may have without asking, and the bytes per second and its share of the limit.

Each decision about the user has a line of its own:

2026-11-20T12:30:00.250Z decision: throttle GET (request-rate, throttle-table)

throttle: a request limit is reached, so that requests are refused until its window ends; block and unblock: the requests in progress reached their limit, and fell below it; refused N: instances refused that many requests for it. In brackets are the reason and, if HAProxy refuses by itself then, the cause that its access log has. Counts of several lines add up. Earlier decisions are not printed: see sluice explain. Agents refuse by themselves as well, so that not every refused request of a throttle is a decision.

With --json a line is the answer of /api/v1/users/{user}, or an object with time, user, endpoint and decision:

sluice watch bob --json | jq -c 'select(.decision)'

If polygen goes away, standard error says so once, and once when it is back.`
}

// Validate is called by the parser.
func (w *watch) Validate() error { return validInterval(w.Interval) }

func (w *watch) execute(stdout, stderr io.Writer) int {
	ctx, stop := untilSignal()
	defer stop()
	a, err := w.client(w.Admin)
	if err != nil {
		return cli.Exit(stderr, "sluice watch", err)
	}
	defer a.Close()
	o := following.Options{User: w.User, Endpoint: w.Endpoint, Interval: w.Interval, JSON: w.JSON}
	return cli.Exit(stderr, "sluice watch", following.Run(ctx, a, o, stdout, stderr))
}
