package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// prepareToServe joins the cluster and waits for its limits, so that nothing is
// decided without either. It registers anew with every attempt: while it waits
// it neither lapses nor overlooks another agent that waits beside it.
func (a *Agent) prepareToServe(ctx context.Context) (net.Listener, error) {
	log := a.options.Logger
	instances, err := retry(ctx, log, "redis and the published limits", func() (int, error) {
		if _, err := a.heartbeat(ctx); err != nil {
			return 0, err
		}
		if err := a.firstLimits(ctx); err != nil {
			return 0, err
		}
		// To read the limits may take many seconds, in which others may have come: alone it would not lease.
		return a.heartbeat(ctx)
	})
	if err != nil {
		return nil, err
	}
	// Another agent may believe that it is alone until its next heartbeat.
	for waited := time.Duration(0); instances > 1 && waited <= beatEvery; waited += beatEvery / 2 {
		if !daemon.Sleep(ctx, beatEvery/2) {
			return nil, ctx.Err()
		}
		// What matters is the wait: the next heartbeat repeats one that fails.
		if _, err := a.heartbeat(ctx); err != nil {
			log.Warn("heartbeat failed", slog.Any("error", err))
		}
	}
	// Only now can HAProxy connect. Until then it goes on as without an agent.
	l, err := spop.Listen(a.options.SPOE)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if a.options.MaxConns < daemon.EnoughSPOE {
		log.Warn("few file descriptors: HAProxy gets no more connections than this, and requests beyond pass unasked; raise ulimit -n (LimitNOFILE= of systemd)",
			slog.Int("connections", a.options.MaxConns), slog.Int("descriptors", daemon.Descriptors()))
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
		// A Redis that is divided otherwise never becomes right by waiting.
		if err == nil || errors.Is(err, redisbus.ErrShards) {
			return v, err
		}
		if time.Now().After(next) {
			next = time.Now().Add(10 * time.Second)
			log.Warn("waiting", slog.String("for", what), slog.Any("error", err))
		}
		if !daemon.Sleep(ctx, beatEvery) {
			return v, ctx.Err()
		}
	}
}

// part leaves the cluster when ctx ends, ahead of the rest, and then has the rest end: with a second, so that
// what its HAProxy admits by itself from then on is what the others have left to it from that second on.
func (a *Agent) part(ctx, working context.Context, end context.CancelFunc) error {
	defer end()
	select {
	case <-ctx.Done():
	case <-working.Done():
		return nil
	}
	instances := int(a.limiter.inForce.instances.Load())
	if instances <= 1 {
		return nil
	}
	a.leave(working)
	var rest time.Duration
	a.limiter.update(func(now time.Time) {
		away := &a.membership.away
		away.leaveTo(hostOf(a.options.Instance), ratelimit.Away{Of: instances, Through: now.Unix() + awaySpan, Counted: now.Unix()}) // to itself it is there
		for _, s := range a.limiter.allCores() {
			s.tokens.Away(away.list(now.Unix()))
		}
		rest = now.Add(heardWithin).Truncate(time.Second).Add(time.Second).Sub(now)
	})
	daemon.Sleep(working, rest)
	return nil
}

// heardWithin is within what time the others hear that an agent has left. They ask for tokens of a second a little before it
// begins, and must know by then.
const heardWithin = 300 * time.Millisecond

// leave takes the agent out of the registry, if it is in it.
func (a *Agent) leave(ctx context.Context) {
	m := &a.membership
	m.saying.Lock()
	defer m.saying.Unlock()
	// There is nothing to leave, and a Redis that never answered would only delay the end.
	if m.left || !m.registered.Load() {
		return
	}
	m.left = true
	// A second at most: the others notice by themselves after little more.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := a.options.Bus.Leave(last, a.options.Instance); err != nil {
		a.options.Logger.Warn("could not leave the cluster: the others will notice when its heartbeats are missing", slog.Any("error", err))
	}
}
