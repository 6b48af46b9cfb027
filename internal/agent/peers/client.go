package peers

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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

	mu   sync.Mutex
	live *unendedEntries
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
	// HAProxy would cut such a key, or take it for that of another user, and silently ignores a table that it
	// does not have: none of it may be sent, and the caller can do nothing about it.
	i, ok := c.byName[table]
	if !ok || key == "" || uint64(len(key)) >= c.tables[i].keyLen || strings.IndexByte(key, 0) >= 0 {
		c.metrics.bad.Inc()
		return
	}
	if ttl <= 0 {
		// Taught all the same it would live as long as the table lets it.
		c.countLate(i)
		return
	}
	encoded := make([]byte, 0, 8)
	// Encoded now rather than when it is sent, under no lock: a session may be writing many.
	for t := range c.tables[i].eachType {
		encoded = appendVarint(encoded, values[t])
	}
	now := time.Now()

	c.mu.Lock()
	// Here, so that what has ended makes room for what comes, and no goroutine is needed for it.
	c.live.expire(now, c.countLate)
	ok = c.live.setEntry(i, key, encoded, now.Add(min(ttl, c.tables[i].expire)))
	c.mu.Unlock()

	if !ok {
		c.metrics.full[i].Inc()
		return
	}
	c.wakeWriter()
}

func (c *Client) countLate(table int) { c.metrics.late[table].Inc() }

func (c *Client) wakeWriter() {
	select {
	// One token is enough: whoever wakes up looks at everything there is.
	case c.wake <- struct{}{}:
	default:
	}
}
