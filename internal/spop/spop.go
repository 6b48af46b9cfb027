package spop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/negasus/haproxy-spoe-go/worker"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/loglimit"
)

// A Handler decides one message of HAProxy. It runs in a goroutine of its
// NOTIFY's own, may block, but must return within a bounded time: shutting down
// waits for it. The messages of one NOTIFY are handled one after the other. A
// panic is recovered and counted, and HAProxy gets an answer without variables.
type Handler func(*Request)

// Options of a Server. The zero value of every field but Handler is usable.
type Options struct {
	// MaxConns is the number of connections open at a time; 0 means 1024.
	// Further ones are closed at once. HAProxy opens a connection per thread
	// and 20 questions under way (max-waiting-frames), and one per health check.
	MaxConns int

	// OnCheck is called with the connection of each of HAProxy's health checks, before
	// it is answered; nil means that nobody wants to know. It must neither block, nor
	// read, write or keep the connection.
	OnCheck func(net.Conn)

	Handler    Handler               // required
	Logger     *slog.Logger          // nil means no log
	Registerer prometheus.Registerer // nil means that metrics are kept to oneself
}

// bounds keep a HAProxy, or whoever has connected in its place, from taking all of the agent.
type bounds struct {
	frame    uint32 // largest frame in bytes, its length left out, in either direction; a HAProxy that offers more is told to keep to this
	inFlight int    // NOTIFYs of one connection handled at a time; no more are read until one is answered

	helloTimeout time.Duration // of a HELLO, or a frame once begun, to arrive
	idleTimeout  time.Duration // of a connection that is silent
	writeTimeout time.Duration // of HAProxy to read answers
	drainTimeout time.Duration // of what has been asked to be answered, when the context of Serve ends
}

var usualBounds = bounds{
	frame:        16380, // HAProxy's own for its usual buffer of 16 KiB
	inFlight:     256,
	helloTimeout: 5 * time.Second,
	// More than HAProxy's "timeout idle" and "timeout server": the end that closes first should be the one that asks.
	idleTimeout:  5 * time.Minute,
	writeTimeout: time.Second,
	drainTimeout: time.Second,
}

// A Server answers HAProxy's questions. Its limits hold over all listeners that
// it serves.
type Server struct {
	opts    Options
	bounds  bounds
	log     *slog.Logger
	metrics *metrics
	active  atomic.Int64

	rejectedLog, refusedLog, acceptLog, disconnectLog, panicLog, droppedLog loglimit.Limit
}

// New returns a server that serves nothing yet.
func New(o Options) *Server {
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{opts: o, bounds: usualBounds, log: o.Logger, metrics: newMetrics(o.Registerer)}
}

// Serve answers connections from l until ctx ends or l fails for good. Then it
// closes l, lets what has been asked be answered for a second, closes all
// connections and returns when their goroutines have ended. The error is nil if
// ctx ended it. A server may serve several listeners, each in a Serve of its own.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	open := newConns()
	err := s.accept(ctx, l, open)
	if stop() {
		_ = l.Close()
	}
	open.drainAll(s.bounds.drainTimeout)
	return err
}

// Pauses after a failure to accept double from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

func (s *Server) accept(ctx context.Context, l net.Listener, open *conns) error {
	pause := firstPause
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			s.startConn(nc, open)
		case ctx.Err() != nil:
			return nil
		case !temporary(err):
			return fmt.Errorf("accept SPOE connection: %w", err)
		default:
			s.metrics.acceptErrors.Inc()
			if n, ok := s.acceptLog.Allow(); ok {
				s.log.Warn("SPOE connection not accepted, trying again", "err", err, "suppressed", n)
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// temporary reports whether accepting can succeed later: the peer had gone
// again, or descriptors or memory are short.
func temporary(err error) bool {
	for _, e := range []error{
		syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR, syscall.EPROTO,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) startConn(nc net.Conn, open *conns) {
	if s.active.Add(1) > int64(s.opts.MaxConns) {
		s.active.Add(-1)
		s.metrics.refused.Inc()
		if n, ok := s.refusedLog.Allow(); ok {
			s.log.Warn("SPOE connection refused, too many are open", "limit", s.opts.MaxConns, "remote", nc.RemoteAddr(), "suppressed", n)
		}
		_ = nc.Close()
		return
	}
	s.metrics.connections.Inc()
	c := newConn(s, nc)
	open.runTracked(c, func() {
		defer func() {
			s.active.Add(-1)
			s.metrics.connections.Dec()
		}()
		s.runConn(c)
	})
}

// runConn runs the library's read loop on a connection.
func (s *Server) runConn(c *conn) {
	defer c.closeNow()
	defer func() {
		// The guard lets nothing through that makes the loop panic, as far as
		// fuzzing can tell. Should it happen, one connection ends and not the agent.
		if p := recover(); p != nil {
			s.recovered(p)
		}
	}()
	worker.Handle(c, c.handle, libraryLog{s.log})
}

func (s *Server) reject(c *conn, r rejection) {
	s.metrics.rejected.WithLabelValues(string(r)).Inc()
	if n, ok := s.rejectedLog.Allow(); ok {
		s.log.Warn("SPOE connection rejected", "reason", string(r), "remote", c.RemoteAddr(), "suppressed", n)
	}
}

func (s *Server) recovered(p any) {
	s.metrics.panics.Inc()
	if n, ok := s.panicLog.Allow(); ok {
		s.log.Error("panic recovered in the SPOE server", "panic", p, "stack", string(debug.Stack()), "suppressed", n)
	}
}

func (s *Server) droppedVariable(name string) {
	s.metrics.dropped.Inc()
	if n, ok := s.droppedLog.Allow(); ok {
		s.log.Warn("SPOE answer too large, variable left out", "variable", name, "suppressed", n)
	}
}

// disconnected logs why HAProxy disconnects. Of its status codes (SPOE.txt,
// section 3.5) 0 to 2 are everyday: normal, I/O error, timeout. The others say
// that the two do not understand each other.
func (s *Server) disconnected(c *conn, f frame) {
	if f.status <= 2 {
		s.log.Debug("HAProxy disconnects", "remote", c.RemoteAddr(), "status", f.status, "message", f.message)
	} else if n, ok := s.disconnectLog.Allow(); ok {
		s.log.Warn("HAProxy disconnects with an error", "remote", c.RemoteAddr(), "status", f.status, "message", f.message, "suppressed", n)
	}
}

// libraryLog takes what the library logs as errors: connections that are reset
// or closed while it reads or writes, which is how HAProxy reloads.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Errorf(format string, args ...any) {
	l.log.Debug("SPOE connection ended", "err", fmt.Sprintf(format, args...))
}

// conns are the open connections of one listener.
type conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
	wg   sync.WaitGroup
}

func newConns() *conns { return &conns{open: map[*conn]struct{}{}} }

func (cs *conns) runTracked(c *conn, serve func()) {
	cs.mu.Lock()
	cs.open[c] = struct{}{}
	cs.mu.Unlock()
	cs.wg.Go(func() {
		defer func() {
			cs.mu.Lock()
			delete(cs.open, c)
			cs.mu.Unlock()
		}()
		serve()
	})
}

// drainAll lets all connections answer what they have read, closes those that are
// left after the limit, and returns when every connection has ended.
func (cs *conns) drainAll(limit time.Duration) {
	cs.forEach((*conn).finishReading)
	timer := time.AfterFunc(limit, func() { cs.forEach((*conn).closeNow) })
	defer timer.Stop()
	cs.wg.Wait()
}

func (cs *conns) forEach(f func(*conn)) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		f(c)
	}
}
