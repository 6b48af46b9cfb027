package riverqos

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// counters is how many inserts count at a time. The others wait: it takes a millisecond.
	counters = 2
	// ownConns bounds the connections. At most the counters' and the sweep's are in use; the
	// others are room for dead ones, which pgx takes up to 15 s to close.
	ownConns = 8
	// ownIdle is after what time a connection is closed that nobody needs.
	ownIdle = time.Minute
)

// own are connections beside those of the program's pool. An insert counts while River's
// transaction, or the program's, has one of that pool. If it waited for a second one of
// the same pool, as many inserts at a time as the pool has connections would all wait for
// each other. And the transaction in which the sweep has its lock is never given back.
type own struct {
	like *pgxpool.Pool
	seat chan struct{} // of those who count, of the capacity counters

	mu   sync.Mutex
	pool *pgxpool.Pool // nil until it is needed, and after close
}

func newOwn(like *pgxpool.Pool) *own { return &own{like: like, seat: make(chan struct{}, counters)} }

// get connects to nothing yet.
func (o *own) get() (*pgxpool.Pool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pool == nil {
		pool, err := pgxpool.NewWithConfig(context.Background(), ownConfig(o.like.Config()))
		if err != nil {
			return nil, err
		}
		o.pool = pool
	}
	return o.pool, nil
}

// ownConfig is a program's, made small.
func ownConfig(c *pgxpool.Config) *pgxpool.Config {
	c.MaxConns, c.MinConns, c.MinIdleConns = ownConns, 0, 0
	c.MaxConnIdleTime, c.HealthCheckPeriod = ownIdle, ownIdle
	c.PingTimeout = time.Second // pgx's default is for ever
	if t := c.ConnConfig.ConnectTimeout; t <= 0 || t > answering {
		c.ConnConfig.ConnectTimeout = answering // an attempt goes on in the background, and counts
	}
	params := map[string]string{}
	maps.Copy(params, c.ConnConfig.RuntimeParams)
	params["application_name"] = strings.TrimSpace(params["application_name"] + " sluice")
	c.ConnConfig.RuntimeParams = params
	return c
}

// close closes all connections; get begins anew. It waits for them for a moment: pgx has
// more patience with a server that is silent.
func (o *own) close() {
	o.mu.Lock()
	pool := o.pool
	o.pool = nil
	o.mu.Unlock()
	if pool == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(parting):
	}
}
