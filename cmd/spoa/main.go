// Command spoa is Sluice's agent beside one HAProxy.
package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/sluice-qos/sluice/internal/agent"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
)

type options struct {
	Instance  string `help:"Name of this HAProxy and its agent in logs. Default: the host's name." placeholder:"NAME" env:"SLUICE_INSTANCE"`
	SPOE      string `name:"spoe" help:"Where HAProxy asks: unix:/path, or host:port of loopback. It has no authentication: other addresses are refused." default:"unix:/run/sluice/spoa.sock" placeholder:"ADDR" env:"SLUICE_SPOE"`
	Peers     string `help:"Where HAProxy's local peer listens: unix:/path, or host:port of loopback. It has no authentication: other addresses are refused." default:"unix:/run/sluice/peers.sock" placeholder:"ADDR" env:"SLUICE_PEER"`
	LocalPeer string `help:"What HAProxy is called among its peers: its localpeer." default:"haproxy" placeholder:"NAME" env:"SLUICE_LOCAL_PEER"`
	Runtime   string `help:"Path of the socket of HAProxy's runtime API, by which credit is taken back. Without it HAProxy asks about every request." default:"/run/sluice/runtime.sock" placeholder:"PATH" env:"SLUICE_RUNTIME"`
	Costs     string `name:"costs-socket" help:"Where HAProxy says what requests cost: unix:/path, or host:port of loopback. It has no authentication: other addresses are refused. Default: costs.sock beside the socket of --spoe." placeholder:"ADDR" env:"SLUICE_COSTS"`

	MaxWait     time.Duration `help:"Maximum time that a request waits for its verdict; Redis counts as lost after five times as long. Keep it below HAProxy's 'timeout processing'." default:"20ms" placeholder:"TIME" env:"SLUICE_MAX_WAIT"`
	OnRedisLoss string        `help:"While Redis is lost: hold (enforce this instance's part of each limit) or open (admit everything)." enum:"hold,open" default:"hold" placeholder:"WHAT" env:"SLUICE_ON_REDIS_LOSS"`
	HoldFor     time.Duration `help:"Switch from hold to open after Redis has been lost for this long; 0 means never." default:"0" placeholder:"TIME" env:"SLUICE_HOLD_FOR"`

	UnknownUsers int `help:"Maximum number of users counted individually, among those that the limit file does not name exactly. Users beyond it share the limits of one user." default:"100000" placeholder:"N" env:"SLUICE_UNKNOWN_USERS"`

	Drain time.Duration `help:"How long requests of a reloaded HAProxy may continue: its hard-stop-after. They are counted until then, or until the old process has exited." default:"10m" placeholder:"TIME" env:"SLUICE_DRAIN"`

	flags.Admin `embed:"" set:"serves=/metrics, /-/healthy and /-/ready" set:"address=127.0.0.1:9091"` //nolint:staticcheck // SA5008: kong takes several set
	flags.Redis `embed:""`
	flags.Log   `embed:""`
	flags.Probe `embed:""`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	line, code := flags.Parse(&o, os.Args[1:], os.Stdout, os.Stderr, "spoa", "Sluice's agent beside one HAProxy: answers each request start with a verdict, "+
		"exchanges leases with the other agents through Redis, and writes policies into HAProxy's tables.\n\n"+
		"Every flag can also be set by the environment variable in brackets.")
	if line == nil {
		return code
	}
	if o.Given() {
		return flags.Exit(os.Stderr, "spoa", o.Ask(context.Background(), o.Admin, flags.ProbeTimeout))
	}
	economize()
	ctx, _, stop := flags.Signals()
	defer stop()
	return flags.Exit(os.Stderr, "spoa", serve(ctx, o))
}

func serve(ctx context.Context, o options) error {
	if o.Instance == "" {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		o.Instance = name
	}
	if err := o.Check(); err != nil {
		return err
	}
	log := o.Logger(os.Stderr).With(slog.String("instance", o.Instance))
	registry := flags.NewRegistry()
	b, err := o.Open(log, registry, agent.CallTimeout(o.MaxWait))
	if err != nil {
		return err
	}
	defer b.Close()
	agent, err := agent.New(agent.Options{
		// Two agents that were given one name by mistake are two all the same.
		Instance: o.Instance + "#" + rand.Text()[:8], Bus: b, SPOE: o.SPOE, Peers: o.Peers, LocalPeer: o.LocalPeer, Runtime: o.Runtime, Costs: o.Costs,
		MaxWait: o.MaxWait, DrainFor: o.Drain, UnknownUsers: o.UnknownUsers, OnLoss: agent.OnLoss(o.OnRedisLoss), HoldFor: o.HoldFor,
		Logger: log, Registerer: registry,
	})
	if err != nil {
		return err
	}
	l, gate, err := o.Listen(log, registry)
	if err != nil {
		return err
	}
	service := daemon.Service{Started: agent.Started, Ready: agent.Ready, Probe: func() { agent.Lost() }}
	return daemon.Run(ctx, agent.Run, service.Run, func(ctx context.Context) error {
		return daemon.ServeAdmin(ctx, l, daemon.AdminHandler(daemon.AdminOptions{Gatherer: registry, Ready: agent.Ready, Lost: agent.Lost, Gate: gate}), log)
	})
}

// economize sets what the Go runtime may use, unless the environment does. One
// processor answers far more than 100 000 starts a second (make bench
// RUN=Serve), and a second one costs more in waking each other than it helps:
// the median answer comes 20 µs later with two (make bench RUN=Cost). The heap is
// small and short-lived, and collected less often for some MB more.
func economize() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/8))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
