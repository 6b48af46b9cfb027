// Package spoa is the agent beside one HAProxy: it answers each request start
// with a verdict, exchanges leases and usage with the other agents through
// Redis, and writes the policies of polygen into HAProxy's tables.
//
// The decisions are pkg/ratelimit's, pkg/concurrency's and pkg/bandwidth's; this
// package owns the clock, the lock and the connections. When in doubt it fails open:
// a request that cannot be decided is admitted, and counted.
package spoa

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/group"
	"github.com/sluice-qos/sluice/internal/listen"
	"github.com/sluice-qos/sluice/internal/loglimit"
	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
	"github.com/sluice-qos/sluice/internal/spop"
	"github.com/sluice-qos/sluice/internal/tracing"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Options are an agent's. Fields without a stated default are required.
type Options struct {
	Instance string   // the name of this HAProxy and its agent, unique in the cluster
	Bus      *bus.Bus // the caller closes it

	// Neither protocol has authentication: an address that other machines can reach is an
	// error.
	SPOE  string // where HAProxy asks: "unix:/path" or "host:port"
	Peers string // where HAProxy's local peer listens: "unix:/path" or "host:port"

	// Runtime is the path of the socket of HAProxy's runtime API, by which credit is taken
	// back. Without it HAProxy gets no credit and asks about every request.
	Runtime string

	// MaxConns is the number of connections that HAProxy may have at a time. 0 means as
	// many as listen.ForSPOE gives the only agent of a process.
	MaxConns int

	// MaxWait bounds the time that a request waits for its verdict. It must be
	// shorter than HAProxy's "timeout processing", or HAProxy lets the request
	// pass meanwhile. 0 means 20 ms.
	MaxWait time.Duration

	// DrainFor is how long requests of a HAProxy that was replaced may go on: its
	// hard-stop-after. 0 means 10 minutes.
	DrainFor time.Duration

	// UnknownUsers is how many users whom the limit file does not name exactly are
	// counted each for themselves at a time. Those beyond it share the limits of one;
	// see pkg/quota. 0 means 100 000.
	UnknownUsers int

	OnLoss  OnLoss        // while Redis is lost; "" means Hold
	HoldFor time.Duration // Hold turns into Open after this long; 0 means never

	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil registers nothing
	Tracer     *tracing.Tracer       // nil traces nothing
}

// fromHAProxy is an address in HAProxy's spelling in ours: the agent reads the variables that HAProxy reads.
func fromHAProxy(address string) string {
	for _, family := range []string{"ipv4@", "ipv6@"} {
		if hostPort, ok := strings.CutPrefix(address, family); ok {
			return hostPort
		}
	}
	path, isUnix := strings.CutPrefix(address, "unix@")
	if isUnix || strings.HasPrefix(address, "/") {
		return "unix:" + path
	}
	return address
}

func (o *Options) prepare() error {
	if o.Instance == "" || len(o.Instance) > 200 {
		return fmt.Errorf("instance name %q: want 1 to 200 bytes", o.Instance)
	}
	if o.Bus == nil {
		return errors.New("no bus")
	}
	for _, address := range []*string{&o.SPOE, &o.Peers, &o.Runtime} {
		*address = fromHAProxy(*address)
	}
	for _, a := range []struct{ what, address string }{{"SPOE", o.SPOE}, {"peers", o.Peers}} {
		if err := listen.Local(a.what, a.address); err != nil {
			return err
		}
	}
	o.Runtime = strings.TrimPrefix(o.Runtime, "unix:")
	if o.MaxConns == 0 {
		o.MaxConns = listen.ForSPOE(listen.Descriptors(), 1, false)
	}
	if o.MaxWait == 0 {
		o.MaxWait = 20 * time.Millisecond
	}
	if o.MaxWait < minWait {
		return fmt.Errorf("longest wait %v: want at least %v", o.MaxWait, minWait)
	}
	switch o.OnLoss {
	case "":
		o.OnLoss = Hold
	case Hold, Open:
	default:
		return fmt.Errorf("on loss of Redis %q: want %q or %q", o.OnLoss, Hold, Open)
	}
	switch {
	case o.UnknownUsers == 0:
		o.UnknownUsers = 100_000
	case o.UnknownUsers < 0:
		return fmt.Errorf("quota of %d unknown users: want 0 or more", o.UnknownUsers)
	}
	if o.DrainFor < 0 {
		return fmt.Errorf("drain for %v: want 0 or more", o.DrainFor)
	}
	if o.HoldFor < 0 {
		return fmt.Errorf("hold for %v: want 0 or more", o.HoldFor)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Tracer = o.Tracer.With(tracing.String("sluice.instance", o.Instance))
	return nil
}

// Agent is one instance's agent.
type Agent struct {
	options  Options
	metrics  *metrics
	clock    *clock.Clock
	limiter  *limiter
	names    *names
	exchange *exchange
	starts   *starts
	tallies  *tallies // nil: HAProxy admits nothing by itself
	peers    *peers.Client
	runtime  runtimeAPI  // nil: HAProxy gets no credit
	tables   tableWriter // nil: it gives none by itself
	spop     *spop.Server
	serving  atomic.Bool

	membership    membership
	limitReading  limitReading
	session       haproxySession
	confirmations confirmations

	// Into HAProxy's tables: peers.TeachThen.
	teachThen func(table, key string, values peers.Values, ttl time.Duration, then func())
	workers   workers // the HAProxies that have asked

	undeclaredLog, unheldLog loglimit.Limit // of requests that HAProxy's files do not fit
}

// New checks the options and returns an agent that does nothing until Run.
func New(o Options) (*Agent, error) {
	if err := o.prepare(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{options: o, metrics: newMetrics(o.Registerer), clock: &clock.Clock{}, starts: newStarts(),
		limitReading: limitReading{wanted: make(chan struct{}, 1)}, confirmations: newConfirmations()}
	a.membership.live.Store(&[]string{})
	a.limiter = newLimiter(a.clock, a.metrics, concurrency.Config{Instance: o.Instance, DrainFor: o.DrainFor})
	a.limiter.redis.wait.Store(int64(o.waitFor(0)))
	a.names = newNames(o.UnknownUsers, a.metrics)
	a.limiter.tables.throttle, a.limiter.tables.block, a.limiter.tables.share = a.teachThrottle, a.teachBlock, a.teachShare
	a.exchange = &exchange{
		loss: loss{limiter: a.limiter, metrics: a.metrics, options: &a.options},
		take: o.Bus.Take, hold: o.Bus.Slots, demand: o.Bus.Demand,
		live: func() []string { return *a.membership.live.Load() },
	}

	network, address := split(o.Peers)
	a.peers = peers.New(peers.Options{
		Network: network, Address: address,
		Local: "agent", Remote: "haproxy",
		Teach: []peers.Table{throttleTable, blockTable, shareTable, creditTable},
		Learn: a.learn, OnSession: a.followSession,
		Logger: o.Logger, Registerer: o.Registerer,
	})
	a.teachThen = a.peers.TeachThen
	if o.Runtime != "" {
		client := runtimeapi.New(o.Runtime)
		a.runtime, a.tables = client, client
		a.tallies = newTallies(client, a.limiter.inForce.of, a.starts, a.metrics, o.Logger)
		a.tallies.hearers = tallyHearers{natives: a.natives, inherited: a.inherited, present: a.presentByCredit, absent: a.forgetPlaces}
	}
	a.spop = spop.New(spop.Options{
		Handler:  a.start,
		OnCheck:  a.workers.checked,
		MaxConns: o.MaxConns,
		Logger:   o.Logger, Registerer: o.Registerer,
	})
	return a, nil
}

// Run works until ctx ends; then it answers what has been asked, reports what
// it admitted, and leaves the cluster.
func (a *Agent) Run(ctx context.Context) error {
	defer a.leave(ctx)
	joining, span := a.options.Tracer.Begin(ctx, "join the cluster", time.Time{})
	listener, err := a.prepareToServe(joining)
	span.End(err)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// The exchange outlives the serving, so that the last reports are complete.
	exchanging, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	loops := []func(context.Context) error{
		func(context.Context) error { return a.exchange.run(exchanging) },
		func(ctx context.Context) error {
			defer stop()
			// Who waits in line would hold up the end for as long as they may wait.
			defer context.AfterFunc(ctx, func() { close(a.limiter.over) })()
			a.serving.Store(true)
			defer a.serving.Store(false)
			return a.spop.Serve(ctx, listener)
		},
		a.peers.Run,
		a.follow,
		a.sayConfirmed,
		a.heartbeats,
		a.reportStarts,
		a.readLimits,
	}
	if a.runtime != nil { // credit that could not be taken back would be given for good
		loops = append(loops, a.withdraws, a.tallies.run, a.offersCredit)
	}
	return group.Run(ctx, loops...)
}

// Serving reports whether HAProxy gets verdicts.
func (a *Agent) Serving() bool { return a.serving.Load() }

// Ready reports why the agent does not fully work yet, or nil.
func (a *Agent) Ready() error {
	switch {
	case a.limiter.inForce.set.Load() == nil:
		return errors.New("no limits yet: is polygen running?")
	case !a.Serving():
		return errors.New("not serving yet")
	case !a.peers.Connected():
		return errors.New("no peers session with HAProxy")
	}
	return nil
}

// prepareToServe joins the cluster and waits for its limits, so that nothing is
// decided without either. It registers anew with every attempt: while it waits
// it neither lapses nor overlooks another agent that waits beside it.
func (a *Agent) prepareToServe(ctx context.Context) (net.Listener, error) {
	log := a.options.Logger
	instances, err := retry(ctx, log, "redis and the published limits", func() (int, error) {
		if _, err := a.beat(ctx); err != nil {
			return 0, err
		}
		if err := a.firstLimits(ctx); err != nil {
			return 0, err
		}
		return a.beat(ctx) // others may have come meanwhile
	})
	if err != nil {
		return nil, err
	}
	// Another agent may believe that it is alone until its next heartbeat.
	for waited := time.Duration(0); instances > 1 && waited <= beatEvery; waited += beatEvery / 2 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(beatEvery / 2):
		}
		if _, err := a.beat(ctx); err != nil {
			log.Warn("heartbeat failed", slog.Any("error", err))
		}
	}
	l, err := spop.Listen(a.options.SPOE)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if a.options.MaxConns < listen.EnoughSPOE {
		log.Warn("few file descriptors: HAProxy gets no more connections than this, and requests beyond pass unasked; raise ulimit -n (LimitNOFILE= of systemd)",
			slog.Int("connections", a.options.MaxConns), slog.Int("descriptors", listen.Descriptors()))
	}
	log.Info("agent ready", slog.String("spoe", a.options.SPOE), slog.String("peers", a.options.Peers))
	return l, nil
}

// retry calls f until it succeeds or ctx ends. It logs a failure after two
// seconds, for others may be starting too, and then one every ten.
func retry[T any](ctx context.Context, log *slog.Logger, what string, f func() (T, error)) (T, error) {
	next := time.Now().Add(2 * time.Second)
	for {
		v, err := f()
		if err == nil || errors.Is(err, bus.ErrShards) {
			return v, err
		}
		if time.Now().After(next) {
			next = time.Now().Add(10 * time.Second)
			log.Warn("waiting", slog.String("for", what), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(beatEvery):
		}
	}
}

// leave takes the agent out of the registry, if it was ever in it.
func (a *Agent) leave(ctx context.Context) {
	if !a.membership.registered.Load() {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := a.options.Bus.Leave(last, a.options.Instance); err != nil {
		a.options.Logger.Warn("could not leave the cluster: the others will notice in 2 s", slog.Any("error", err))
	}
}

// lineMessage is spoe.cfg's message about a request that was told to wait.
const lineMessage = "wait-message"

// Names of what refuses, as the variable sluice.reason has them.
const (
	rateReason = "request-rate"
	slotReason = "concurrent-requests"
)

// start answers one request start. HAProxy gets variables only if the request is
// refused or has to wait, has a priority of its own or a share of bandwidth, or counts
// for another key than the user's own.
func (a *Agent) start(r *spop.Request) {
	q := question{inLine: r.Message() == lineMessage}
	q.user, _ = r.Arg("user")
	q.verb, _ = r.Arg("class")
	q.op, _ = r.Arg("op")
	_, q.log = r.Arg("log")
	q.seen = concurrency.Count{Tracked: count(r, "tracked", 32), Active: count(r, "active", 32), Process: count(r, "process", 63)}
	q.credit.classes, _ = r.Arg("classes")
	_, q.credit.shares = r.Arg("shares")
	q.credit.spent, q.credit.drawn = count(r, "spent", 1) == 1, count(r, "drawn", 1) == 1
	q.credit.lapsed = uint32(count(r, "lapsed", 31))
	if places, lent := r.Arg("places"); lent {
		n, _ := strconv.Atoi(places)
		q.credit.places = concurrency.Places{Lent: true, Here: int(count(r, "here", 31)), Places: n}
	}
	if a.undeclared(&q) {
		r.SetString("key", q.user)
	}
	v := a.verdict(q)
	switch {
	case v.allowed:
		if v.share != [2]int64{} && count(r, "unheld", 1) == 1 {
			a.unheld(q.user)
		}
		if v.others != "" {
			r.SetString("others", v.others)
		}
		if v.priority != 0 {
			r.SetString("priority", strconv.Itoa(v.priority))
		}
		for _, d := range bandwidth.Directions {
			if v.share[d] > 0 {
				r.SetUint(d.String(), shareUnits(v.share[d]))
			}
		}
		if v.spare != nil {
			v.spare.answer(r)
		}
		if v.credit != nil {
			v.credit.answer(r)
		}
	case v.wait > 0:
		if v.others != "" {
			r.SetString("others", v.others)
		}
		r.SetUint("wait", uint32(v.wait.Milliseconds()))
		r.SetUint("limit", uint32(v.limit))
	case v.limit > 0:
		r.SetString("reason", slotReason)
		r.SetString("cause", string(v.cause))
		r.SetUint("limit", uint32(v.limit))
	default:
		r.SetString("reason", rateReason)
		r.SetString("cause", string(v.cause))
		r.SetString("class", rateName(v.rate, v.together))
		r.SetUint("limit", uint32(v.rate.Max))
		r.SetUint("retry", uint32(max(1, math.Ceil(v.retry.Seconds()))))
		if v.rate.Window != limits.Second {
			r.SetUint("window", uint32(v.rate.Window.Seconds()))
		}
	}
}

// undeclared has a request at an endpoint that the limits in force do not declare count
// as one of everywhere. It reports whether it is one: HAProxy must then use the user's
// own key from here on, too, so that its tables count the request where this agent does.
func (a *Agent) undeclared(q *question) bool {
	set := a.limiter.inForce.set.Load()
	if set == nil || !validUser(q.user) {
		return false
	}
	endpoint, key, ok := set.Undeclared(q.user)
	if !ok {
		return false
	}
	q.user = key
	q.seen = concurrency.Count{Process: q.seen.Process} // HAProxy looked the other key up
	q.credit = haproxyCredit{}
	a.metrics.undeclared.Inc()
	if skipped, now := a.undeclaredLog.Allow(); now {
		a.options.Logger.Warn("a request at an endpoint that the limit file does not declare counts as one of everywhere: declare it under endpoints, or correct SLUICE_ENDPOINT or the rule that sets txn.sluice_endpoint",
			slog.String("endpoint", endpoint), slog.Int("skipped", skipped))
	}
	return true
}

// unheld counts a request of a user whose bandwidth is limited, at a HAProxy whose files were written for
// limits without bandwidth.
func (a *Agent) unheld(user string) {
	a.metrics.unheld.Inc()
	if skipped, now := a.unheldLog.Allow(); now {
		a.options.Logger.Warn("a user's bandwidth is not limited here: haproxy's files were written for limits without bandwidth; write them again (sluice haproxy), and reload haproxy",
			slog.String("user", user), slog.Int("skipped", skipped))
	}
}

// count reads a number of so many bits; none, and one that is not valid, is 0.
func count(r *spop.Request, name string, bits int) int64 {
	text, _ := r.Arg(name)
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0
	}
	return int64(n)
}

// verdict decides one request start, and counts what came of it.
func (a *Agent) verdict(q question) verdict {
	if !validUser(q.user) {
		a.metrics.malformed.Inc()
		return verdict{allowed: true}
	}
	set := a.limiter.inForce.set.Load()
	of := set.User(q.user)
	all := togetherOf(set, q.user)
	shares := (!of.Unlimited() || all.of != nil) && set.MadeUp(q.user) && !a.names.own(a.clock.Now(), q.user)
	if shares {
		q.user = set.Others(q.user)
		all = togetherOf(set, q.user)
		// The table was asked about the name, and knows nothing of the others. Nor can they
		// have credit, which is by name.
		q.seen.Tracked, q.seen.Active = 0, 0
		q.credit = haproxyCredit{}
	}
	v := a.limiter.decideOf(set, q, of, all)
	if shares {
		v.others = q.user
	}
	if v.allowed {
		a.starts.start(q.user, q.verb, q.op)
		a.metrics.started.count(series{of.Tier, q.verb, q.op})
	}
	came := outcome(of.Tier, "allowed", "")
	switch {
	case v.allowed && of.Tier == limits.ExemptTier:
		came = outcome(of.Tier, "exempt", "")
		a.metrics.exempt.Inc()
	case v.allowed:
		a.metrics.allowed.Inc()
	case v.wait > 0:
		came = outcome(of.Tier, "wait", "concurrent")
		a.metrics.lined.Inc()
	default:
		limit := "concurrent"
		if v.limit == 0 {
			limit = rateName(v.rate, v.together)
		}
		came = outcome(of.Tier, "refused", limit)
		a.metrics.refused.WithLabelValues(limit).Inc()
		a.metrics.refusals.WithLabelValues(string(v.cause)).Inc()
	}
	if q.credit.spent || !v.allowed {
		a.starts.nearLimit(q.user)
	}
	a.metrics.byTier.count(came)
	if _, user := limits.SplitEndpoint(q.user); user == limits.UnreadableKey {
		a.metrics.unreadable.Inc()
	}
	return v
}

// maxUser is the longest key that haproxy.cfg sends, in bytes: "@", an endpoint of
// 24, "/" and a name of 100.
const maxUser = 126

// validUser reports whether the key is one that haproxy.cfg can have sent: not too
// long, no control bytes.
func validUser(name string) bool {
	if name == "" || len(name) > maxUser {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}
