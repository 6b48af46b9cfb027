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
	// maxConnections bounds the connections. At most one with which inserts count and one that
	// reads what is held back are in use; the others are room for dead ones, which pgx takes up to
	// 15 s to close.
	maxConnections = 8
	// maxIdle is after what time a connection is closed that nobody needs.
	maxIdle = time.Minute
	// closeTimeout bounds how long the end of Run waits for connections to close.
	closeTimeout = time.Second
)

// connections are those beside those of the program's pool. An insert counts while River's
// transaction, or the program's, has one of that pool. If it waited for a second one of
// the same pool, as many inserts at a time as the pool has connections would all wait for
// each other.
type connections struct {
	like *pgxpool.Pool

	mu   sync.Mutex
	pool *pgxpool.Pool // nil until it is needed, and after closePool
}

// openPool returns the pool, which connects to nothing before it is used.
func (c *connections) openPool() (*pgxpool.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Made late, so that a program that does not insert has no connection more.
	if c.pool == nil {
		pool, err := pgxpool.NewWithConfig(context.Background(), smallConfig(c.like.Config()))
		if err != nil {
			return nil, err
		}
		c.pool = pool
	}
	return c.pool, nil
}

// smallConfig makes a program's configuration one of few connections.
func smallConfig(config *pgxpool.Config) *pgxpool.Config {
	// None is kept for later: they are beside those that the program has planned for.
	config.MaxConns, config.MinConns, config.MinIdleConns = maxConnections, 0, 0
	config.MaxConnIdleTime, config.HealthCheckPeriod = maxIdle, maxIdle
	// pgx's default is for ever.
	config.PingTimeout = time.Second
	if timeout := config.ConnConfig.ConnectTimeout; timeout <= 0 || timeout > answerTimeout {
		// An attempt goes on in the background when nobody waits any more, and counts as one of the few.
		config.ConnConfig.ConnectTimeout = answerTimeout
	}
	// The map is shared with the program's own pool.
	params := map[string]string{}
	maps.Copy(params, config.ConnConfig.RuntimeParams)
	params["application_name"] = strings.TrimSpace(params["application_name"] + " sluice")
	config.ConnConfig.RuntimeParams = params
	return config
}

// closePool closes all connections; the next openPool begins anew. It waits for them for a moment: pgx has
// more patience with a server that is silent.
func (c *connections) closePool() {
	c.mu.Lock()
	pool := c.pool
	// Not with the lock held, for which an insert would wait as long as for the server.
	c.pool = nil
	c.mu.Unlock()
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
	case <-time.After(closeTimeout):
	}
}
