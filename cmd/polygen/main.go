// Command polygen is Sluice's policy generator.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/polygen"
	"github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

type options struct {
	Limits string `help:"The limit file. It is read again when it changes, on SIGHUP and on POST /-/reload." default:"/etc/sluice/limits.yaml" placeholder:"FILE" env:"SLUICE_LIMITS"`
	Name   string `help:"Name of this polygen. Default: host name, process id and a random part." placeholder:"NAME" env:"SLUICE_POLYGEN_NAME"`
	Strict bool   `help:"Treat users as hot at half of their limits instead of at 80 %." env:"SLUICE_STRICT"`
	Margin int    `name:"concurrent-margin" help:"How far, in percent of the limit, a blocked user's requests in progress must fall before the user is unblocked; at least one request." default:"5" placeholder:"PERCENT" env:"SLUICE_CONCURRENT_MARGIN"`

	flags.UserMetrics `embed:""`
	lead              `embed:""`
	JobWorkers        flags.JobWorkers `embed:""`

	flags.Admin `embed:"" set:"serves=/metrics, /api/v1, /-/healthy, /-/ready and /-/reload" set:"address=127.0.0.1:9090"` //nolint:staticcheck // SA5008: kong takes several set
	flags.Redis `embed:""`
	flags.Log   `embed:""`
	flags.Probe `embed:""`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	line, code := flags.Parse(&o, os.Args[1:], os.Stdout, os.Stderr, "polygen", "Sluice's policy generator: publishes the limits, compares the cluster's use with them, "+
		"and sends policies to the agents. Run two or more: one leads, and when it ends another one takes over within three seconds.\n\n"+
		"Every flag can also be set by the environment variable in brackets.")
	if line == nil {
		return code
	}
	if o.Given() {
		return flags.Exit(os.Stderr, "polygen", o.Ask(context.Background(), o.Admin, flags.ProbeTimeout))
	}
	ctx, hangups, stop := flags.Signals()
	defer stop()
	return flags.Exit(os.Stderr, "polygen", serve(ctx, o, hangups))
}

func serve(ctx context.Context, o options, hangups <-chan os.Signal) error {
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		// In containers all may have one host name and be process 1.
		o.Name = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])
	}
	if err := o.Check(); err != nil {
		return err
	}
	if o.Margin < 1 || o.Margin > 100 {
		return fmt.Errorf("--concurrent-margin %d: want 1 to 100 per cent", o.Margin)
	}
	log := o.Logger(os.Stderr)
	registry := flags.NewRegistry()
	watcher, err := polygen.WatchLimits(o.Limits, log, registry)
	if err != nil {
		return err
	}
	b, err := o.Open(log, registry, redisbus.DefaultTimeout)
	if err != nil {
		return err
	}
	defer b.Close()
	l, gate, err := o.Listen(log, registry)
	if err != nil {
		return err
	}
	defer l.Close()
	address, err := o.address(o.Access().Scheme(), l.Addr())
	if err != nil {
		return err
	}
	p, err := polygen.New(polygen.Options{Name: o.Name, Address: address, Bus: b, Limits: watcher, Strict: o.Strict, Margin: o.Margin, UserMetrics: polygen.UserMetrics(o.UserMetrics), JobWorkers: o.JobWorkers.Addresses, JobAccess: o.JobWorkers.Access(), Logger: log, Registerer: registry})
	if err != nil {
		return err
	}
	forward, err := api.NewForwarder(api.ForwardOptions{Leader: p.Leader, CA: o.LeaderCA, Gate: gate, Logger: log})
	if err != nil {
		return err
	}
	service := daemon.Service{Started: p.Ready, Ready: p.Ready, Probe: func() { p.Instances() }}
	return daemon.Run(ctx,
		p.Run,
		service.Run,
		func(ctx context.Context) error {
			h := daemon.AdminHandler(daemon.AdminOptions{Gatherer: registry, Ready: p.Ready, Reload: p.Reload, Routes: api.Routes(p, p, p), Forward: forward.Wrap, Gate: gate})
			return daemon.ServeAdmin(ctx, l, h, log)
		},
		func(ctx context.Context) error { return p.ReloadOn(ctx, hangups) })
}
