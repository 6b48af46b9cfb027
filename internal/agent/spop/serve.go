package spop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/negasus/haproxy-spoe-go/worker"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Serve answers connections from l until ctx ends or l fails for good. Then it
// closes l, lets what has been asked be answered for a second, closes all
// connections and returns when their goroutines have ended. The error is nil if
// ctx ended it. A server may serve several listeners, each in a Serve of its own.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	// Nothing else ends a pending Accept.
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	open := newConns()
	err := s.accept(ctx, l, open)
	if stop() {
		_ = l.Close()
	}
	// Requests that have been asked about are waiting for a verdict in HAProxy. They get it, as long as that
	// is quick.
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
		// The listener is gone for good. An agent that cannot be asked must end, so that its service manager
		// starts it again.
		case !temporary(err):
			return fmt.Errorf("accept SPOE connection: %w", err)
		default:
			// Without descriptors the same fails again at once, so each try waits for longer than the one
			// before.
			s.metrics.acceptErrors.Inc()
			if n, ok := s.acceptLog.Allow(); ok {
				s.log.Warn("SPOE connection not accepted, trying again", "err", err, "suppressed", n)
			}
			daemon.Sleep(ctx, pause)
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
	// Counted before it is compared: two listeners may accept at the same time.
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
	open.runTracked(c, func() { s.runConn(c) }, func() {
		s.active.Add(-1)
		s.metrics.connections.Dec()
	})
}

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

type conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
	wg   sync.WaitGroup
}

func newConns() *conns { return &conns{open: map[*conn]struct{}{}} }

// runTracked serves a connection, and says when it has ended and is none of the open ones any more.
func (cs *conns) runTracked(c *conn, serve, ended func()) {
	cs.mu.Lock()
	// Before its goroutine runs: drainAll must not miss one that has just come.
	cs.open[c] = struct{}{}
	cs.mu.Unlock()
	cs.wg.Go(func() {
		defer ended()
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
	// Each ends by itself when what it has read is answered. The timer is for handlers that hang.
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
