package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/loglimit"
)

// startGrace is how long HAProxy may take to start before a warning is logged.
const startGrace = 5 * time.Second

// A Client keeps a session with one HAProxy. Its methods are safe for
// concurrent use.
type Client struct {
	opts    Options
	tables  []definition   // one for each of Options.Teach, its id is the index plus 1
	byName  map[string]int // index into tables
	metrics *metrics
	dial    func(context.Context) (net.Conn, error)

	running   atomic.Bool
	connected atomic.Bool
	wake      chan struct{} // holds one token when there is something to send

	mu      sync.Mutex
	live    *unendedEntries
	samples samples
}

// New returns a Client that does nothing until Run. Entries may be taught before.
func New(opts Options) *Client {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		opts:    opts,
		byName:  make(map[string]int),
		metrics: newMetrics(opts.Registerer, opts.Teach),
		wake:    make(chan struct{}, 1),
		live:    newLive(maxEntries),
	}
	for i, t := range opts.Teach {
		c.tables = append(c.tables, t.definition(uint64(i)+1))
		c.byName[t.Name] = i
	}
	c.registerGauges(opts.Registerer)
	c.dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, opts.Network, opts.Address)
	}
	return c
}

// Connected reports whether a session with HAProxy is established.
func (c *Client) Connected() bool { return c.connected.Load() }

// Teach sets an entry of a table until ttl is over, ttl being cut to the table's
// Expire. It never blocks: the entry is sent within a millisecond, or with the
// time that it has left once HAProxy can be reached, and once more in each new
// session. A later call for the same key replaces it. A call that lifts an entry must
// not have a shorter ttl, or HAProxy may never hear of it if it cannot be reached in
// between.
//
// Some entries are not taught, only counted: those of an unknown table, those with a key
// that is empty, is longer than KeyLen or contains NUL, those without a positive ttl, and
// new keys of a table that has maxEntries already.
func (c *Client) Teach(table, key string, values Values, ttl time.Duration) {
	c.TeachThen(table, key, values, ttl, nil)
}

// TeachThen is Teach, and calls then, unless it is nil, when HAProxy has acknowledged the
// entry. It is never called if that takes more than 5 s, if HAProxy goes away meanwhile, or
// if too many entries are followed. It must not block.
func (c *Client) TeachThen(table, key string, values Values, ttl time.Duration, then func()) {
	i, ok := c.byName[table]
	if !ok || key == "" || uint64(len(key)) >= c.tables[i].keyLen || strings.IndexByte(key, 0) >= 0 {
		c.metrics.bad.Inc()
		return
	}
	if ttl <= 0 {
		c.countLate(i)
		return
	}
	encoded := make([]byte, 0, 8)
	for t := range c.tables[i].eachType {
		encoded = appendVarint(encoded, values[t])
	}
	now := time.Now()

	c.mu.Lock()
	c.live.expire(now, c.countLate)
	ok = c.live.setEntry(i, key, encoded, now.Add(min(ttl, c.tables[i].expire)))
	if ok {
		c.samples.follow(c.live.root.prev, now, then) // the last one
	}
	c.mu.Unlock()

	if !ok {
		c.metrics.full[i].Inc()
		return
	}
	c.wakeWriter()
}

// countLate counts an entry of a table that ended before it could be sent.
func (c *Client) countLate(table int) { c.metrics.late[table].Inc() }

// wakeWriter makes the session look for something to send.
func (c *Client) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run keeps a session with HAProxy until the context is done, and then returns
// nil. It fails only when the Client is running already.
func (c *Client) Run(ctx context.Context) error {
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
		warning loglimit.Limit
	)
	for id := uint64(1); ; {
		established, err := c.session(ctx, id, log)
		if ctx.Err() != nil {
			return nil
		}
		if established > 0 {
			gone = false
		} else if !gone && nobodyListens(err) {
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
		if established > retryMax {
			retry, short = retryMin, 0
		}
		if short++; established > 0 && short == 1 {
			continue // at once, to see whether HAProxy still listens before a new HAProxy does
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
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
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	s := newSession(c, id, conn)
	deadline, _ := dialing.Deadline()
	if err := s.handshake(deadline); err != nil {
		return 0, fmt.Errorf("handshake: %w", err)
	}
	start := time.Now()
	c.connected.Store(true)
	c.metrics.connected.Set(1)
	c.metrics.sessions.Inc()
	log.Info("peers session established", slog.Uint64("session", id))
	c.tellSession(Session{ID: id, State: Up})

	err = s.exchange(ctx)

	c.connected.Store(false)
	c.metrics.connected.Set(0)
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
	return errors.As(err, &dial) && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT))
}

func (c *Client) tellSession(s Session) {
	if c.opts.OnSession != nil {
		c.opts.OnSession(s)
	}
}

// A dialError is a failure to reach HAProxy at all.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// reasonOf maps an error to a label of sluice_peers_errors_total.
func reasonOf(err error) string {
	var (
		dial     dialError
		refused  statusError
		protocol protocolError
	)
	switch {
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
