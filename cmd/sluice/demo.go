package main

import (
	"fmt"
	"io"
	"os"
	"time"

	drawing "github.com/sluice-qos/sluice/cmd/sluice/internal/demo"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type demoCommand struct {
	Duration time.Duration `help:"How long it takes, half of it with limits; at least 4s." default:"1m" placeholder:"TIME"`
	Listen   string        `help:"Where the first HAProxy listens; the second one on the next port." default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	Admin    string        `help:"Where the admin API listens, and the page." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`
	HAProxy  string        `name:"haproxy" predictor:"file" help:"The HAProxy to run, 2.6 or later." default:"haproxy" placeholder:"PATH"`
}

// Help tells what there is to see.
func (*demoCommand) Help() string {
	return `Starts two HAProxies with their agents, polygen, a Redis and a server on this machine, and sends the server the requests of two users: noisy, who asks 400 times a second, and quiet, who asks 20 times. The server can do 200 a second: 4 at a time, each in 20 ms. Up to 100 more wait for it, and those beyond are answered 503.

In the first half there are no limits: the queue is full all the time, so that quiet's requests take half a second, or fail, like noisy's. Then a limit is written into the limit file, the same for every user: 100 GETs a second, and three in progress. It is in force about a second later. noisy is refused what is beyond it, and quiet, who never comes near it, is served as if alone.

Of each user it draws the requests answered per second, and below these the time within which 99 % of them were answered. A terminal of less than 72 columns or 24 rows, and whatever is no terminal, gets lines of text. NO_COLOR in the environment takes the colors away. At the end, also of Ctrl-C, everything is stopped, and the last lines say in numbers what has changed.

It needs HAProxy, and nothing else.`
}

// Validate is called by the parser.
func (d *demoCommand) Validate() error {
	if d.Duration < 4*time.Second {
		return fmt.Errorf("--duration=%v: want 4s or more", d.Duration)
	}
	return nil
}

func (d *demoCommand) execute(stdout, stderr io.Writer) int {
	ctx, stop := untilSignal()
	defer stop()
	return flags.Exit(stderr, "sluice demo", drawing.Run(ctx, drawing.Options{Listen: d.Listen, Admin: d.Admin, HAProxy: d.HAProxy, Duration: d.Duration, Command: os.Args[0], Stdout: stdout}))
}
