package spop

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
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

	rejectedLog, refusedLog, acceptLog, disconnectLog, panicLog, droppedLog daemon.LogLimit
}

// New returns a server that serves nothing yet.
func New(o Options) *Server {
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{opts: o, bounds: usualBounds, log: o.Logger, metrics: newMetrics(o.Registerer)}
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
	// Reloads and idle connections bring these all the time. Any other means that every question on the
	// connection went without a verdict.
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
