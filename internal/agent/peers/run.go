package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Run keeps a session with HAProxy until the context is done, and then returns
// nil. It fails only when the Client is running already.
func (c *Client) Run(ctx context.Context) error {
	// HAProxy keeps one session for each name: two of them would end each other in turn.
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("peers: the client is running already")
	}
	defer c.running.Store(false)
	var (
		begun   = time.Now()
		gone    = true // nothing is known to be there
		short   int    // attempts since the last session that lasted
		retry   = retryMin
		log     = c.opts.Logger.With(slog.String("peer", c.opts.Remote), slog.String("address", c.opts.Address))
		warning daemon.LogLimit
	)
	for id := uint64(1); ; {
		// A session that was never established has no id: those who count what is in progress by it have heard
		// nothing of it.
		established, err := c.session(ctx, id, log)
		if ctx.Err() != nil {
			return nil
		}
		if established > 0 {
			gone = false
		} else if !gone && nobodyListens(err) {
			// Told once. Only now its requests in progress are certain to be gone: a HAProxy that is merely
			// slow, or is being reloaded, still has them.
			gone = true
			c.tellSession(Session{ID: id - 1, State: Gone})
		}
		reason := reasonOf(err)
		c.metrics.errors.WithLabelValues(reason).Inc()
		if reason == "dial" && id == 1 && time.Since(begun) < startGrace {
			// HAProxy starts after its agent: that it is not there yet is no failure.
		} else if skipped, ok := warning.Allow(); ok {
			log.Warn("peers session failed", slog.String("reason", reason), slog.Any("error", err), slog.Int("not_logged", skipped))
		}
		if established > 0 {
			id++
		}
		// One that ends as soon as it begins, such as for a wrong name, is not to be tried a hundred times a
		// second.
		if established > retryMax {
			retry, short = retryMin, 0
		}
		if short++; established > 0 && short == 1 {
			continue // at once, to see whether HAProxy still listens before a new HAProxy does
		}
		if !daemon.Sleep(ctx, retry) {
			return nil
		}
		// Short at first: what HAProxy is to refuse by itself it learns only when the session is back.
		retry = min(2*retry, retryMax)
	}
}

// session dials, and holds one session until it fails or ctx is done. It
// returns how long the session was established, 0 when it never was.
func (c *Client) session(ctx context.Context, id uint64, log *slog.Logger) (time.Duration, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := c.dial(dialing)
	if err != nil {
		return 0, dialError{err}
	}
	defer conn.Close()
	// The end of ctx is noticed within a read or a write, which have deadlines of seconds.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	s := newSession(c, id, conn)
	deadline, _ := dialing.Deadline()
	if err := s.handshake(deadline); err != nil {
		return 0, fmt.Errorf("handshake: %w", err)
	}
	start := time.Now()
	// Before anybody is told: who hears of the session may ask at once whether there is one.
	c.connected.Store(true)
	c.metrics.connected.Set(1)
	c.metrics.sessions.Inc()
	log.Info("peers session established", slog.Uint64("session", id))
	c.tellSession(Session{ID: id, State: Up})

	err = s.exchange(ctx)

	c.connected.Store(false)
	c.metrics.connected.Set(0)
	// HAProxy also closes a session in which it hears nothing. Of that nothing follows about its process, if
	// it is this side that was silent.
	c.tellSession(Session{ID: id, State: Down, Closed: reasonOf(err) == "closed" && s.silence() < maxOwnSilence})
	lasted := max(time.Since(start), 1)
	log.Info("peers session ended", slog.Uint64("session", id), slog.Duration("lasted", lasted))
	return lasted, err
}

// maxOwnSilence is how long this side may have been silent, because the process was
// stopped or the machine too busy, so that HAProxy still keeps the session. HAProxy gives
// it up after 5 s.
const maxOwnSilence = 3 * time.Second

// nobodyListens reports whether HAProxy's socket is closed, or not even there.
// While another HAProxy takes over, as in a reload, it is always open.
func nobodyListens(err error) bool {
	var dial dialError
	// Any other failure, such as a time-out, may be of a HAProxy that lives.
	return errors.As(err, &dial) && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT))
}

func (c *Client) tellSession(s Session) {
	if c.opts.OnSession != nil {
		c.opts.OnSession(s)
	}
}

type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

func reasonOf(err error) string {
	var (
		dial     dialError
		refused  statusError
		protocol protocolError
	)
	switch {
	// Before the others: a dial that times out is a failure to reach HAProxy, not one of a session.
	case errors.As(err, &dial):
		return "dial"
	case errors.As(err, &refused):
		return "refused"
	case errors.As(err, &protocol):
		return "protocol"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "closed"
	}
	return "other"
}
