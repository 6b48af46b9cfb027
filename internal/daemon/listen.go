// Package daemon is what every daemon and command has in common: its listeners and who reaches them, the loops that run
// side by side, metrics, logs that a failure does not fill, secrets in files, the cluster's time, and what systemd hears.
package daemon

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// A Listener bounds the connections that are open at a time. When one more comes, it
// closes the one that has been idle for longest or, if all are in use, the new one. A
// connection is in use while a handler of HTTP runs for it.
type Listener struct {
	net.Listener
	limit  int
	closed func(net.Conn)

	mu   sync.Mutex // guards what follows, and that of each conn
	open int
	idle list.List // of *conn: the one that has been idle for longest is the first
}

// BoundConnections bounds a listener to so many connections, at least one. It calls closed, if there
// is one, with each connection that it has closed. The http.Server that serves the
// listener must have been given to Track.
func BoundConnections(l net.Listener, limit int, closed func(net.Conn)) *Listener {
	if closed == nil {
		closed = func(net.Conn) {}
	}
	return &Listener{Listener: l, limit: max(1, limit), closed: closed}
}

// Connections is the number of connections.
func (l *Listener) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Accept waits for a connection, and makes room for it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, listener: l}
		surplus := l.makeRoom(c)
		if surplus == nil {
			return c, nil
		}
		_ = surplus.Conn.Close()
		l.closed(surplus)
		if surplus != c {
			return c, nil
		}
	}
}

// makeRoom counts a connection. It returns the one that is to be closed, if there is no
// room for all: one that is idle, which is not counted any more, or the new one.
func (l *Listener) makeRoom(c *conn) (surplus *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == l.limit {
		longest := l.idle.Front()
		if longest == nil {
			return c
		}
		surplus = longest.Value.(*conn)
		surplus.removeLocked()
	}
	l.open++
	c.counted = true
	c.at = l.idle.PushBack(c)
	return surplus
}

type conn struct {
	net.Conn
	listener *Listener

	counted  bool          // as open
	requests int           // handlers that run for it
	at       *list.Element // in the listener's idle ones; nil if it is in use or not counted
}

func (c *conn) removeLocked() {
	if !c.counted {
		return
	}
	c.counted = false
	c.listener.open--
	if c.at != nil {
		c.listener.idle.Remove(c.at)
		c.at = nil
	}
}

// Close closes the connection, and makes room for another.
func (c *conn) Close() error {
	err := c.Conn.Close() // first: until then its descriptor is in use
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.removeLocked()
	return err
}

// request says that a handler begins (1) or ends (-1).
func (c *conn) request(n int) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.requests += n
	switch {
	case !c.counted:
	case c.requests > 0 && c.at != nil:
		l.idle.Remove(c.at)
		c.at = nil
	case c.requests == 0:
		c.at = l.idle.PushBack(c)
	}
}

type connKey struct{}

// TrackRequests has a server say which of a Listener's connections are in use, also below TLS.
// It is called once, after the server has its handler and before it serves.
func TrackRequests(s *http.Server) {
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if t, ok := nc.(*tls.Conn); ok {
			nc = t.NetConn()
		}
		return context.WithValue(ctx, connKey{}, nc)
	}
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.request(1)
			defer c.request(-1)
		}
		handler.ServeHTTP(w, r)
	})
}
