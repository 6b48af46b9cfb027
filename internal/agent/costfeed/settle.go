package costfeed

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Options of a Listener. The zero value of every field but Apply is usable.
type Options struct {
	// MaxConns is the number of connections open at a time; 0 means 256. Further ones are closed at once. Each thread of
	// HAProxy has one while it settles, and after a reload those of two processes do.
	MaxConns int

	// Apply is called with what has arrived together, never empty, in the order in which one connection sent it. Several
	// connections call it at the same time. It must not keep the slice. While it runs, nothing more is
	// read of its connection: HAProxy's queue holds the rest, and drops the oldest.
	Apply func([]Correction) // required

	// Unheard is called with each question whose verdict HAProxy did not hear in time, as Apply is.
	Unheard func(Question) // required

	Logger     *slog.Logger          // nil means no log
	Registerer prometheus.Registerer // nil means that metrics are kept to oneself
}

// maxBatch is how many corrections Apply gets at a time at most.
const maxBatch = 256

// idleTimeout ends a connection that is silent. HAProxy closes one after half a second without a correction; a line that has begun is
// not waited for any longer either.
const idleTimeout = 30 * time.Second

// A Listener hears corrections.
type Listener struct {
	options Options
	log     *slog.Logger
	metrics *metrics
	open    chan struct{} // as many as there are connections

	badLog, refusedLog, acceptLog daemon.LogLimit
}

// New returns a listener that hears nothing yet.
func New(o Options) *Listener {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Listener{options: o, log: o.Logger, metrics: newMetrics(o.Registerer), open: make(chan struct{}, cmp.Or(o.MaxConns, 256))}
}

// Run hears what connections of l say until ctx ends, or l fails for good. Then it closes l and all
// connections, and returns when their goroutines have ended. The error is nil if ctx ended it.
func (s *Listener) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Nothing else ends a pending Accept.
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		if stop() {
			_ = l.Close()
		}
	}()
	var conns sync.WaitGroup
	err := s.accept(ctx, l, &conns)
	cancel()
	conns.Wait()
	return err
}

// Pauses after a failure to accept double from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

func (s *Listener) accept(ctx context.Context, l net.Listener, conns *sync.WaitGroup) error {
	pause := firstPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = firstPause
			s.start(ctx, conn, conns)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connection of costs: %w", err)
		default:
			// Descriptors or memory are short. The estimates stay charged meanwhile, so the agent goes on.
			s.metrics.acceptErrors.Inc()
			if n, ok := s.acceptLog.Allow(); ok {
				s.log.Warn("connection of costs not accepted, trying again", "err", err, "suppressed", n)
			}
			daemon.Sleep(ctx, pause)
			pause = min(2*pause, lastPause)
		}
	}
}

func (s *Listener) start(ctx context.Context, conn net.Conn, conns *sync.WaitGroup) {
	select {
	case s.open <- struct{}{}:
	default:
		s.metrics.refused.Inc()
		if n, ok := s.refusedLog.Allow(); ok {
			s.log.Warn("connection of costs refused, too many are open", "limit", cap(s.open), "suppressed", n)
		}
		_ = conn.Close()
		return
	}
	s.metrics.connections.Inc()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	conns.Go(func() {
		defer func() { <-s.open }()
		defer s.metrics.connections.Dec()
		defer conn.Close()
		defer stop()
		s.hear(conn)
	})
}

// hear reads lines until the connection ends or sends something else.
func (s *Listener) hear(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 16<<10) // HAProxy's buffer: it sends no more at a time
	var batch []Correction
	apply := func() {
		if len(batch) > 0 {
			s.metrics.corrections.Add(float64(len(batch)))
			s.options.Apply(batch)
			batch = batch[:0]
		}
	}
	// What came whole before something went wrong holds.
	defer apply()
	for {
		if in.Buffered() == 0 || len(batch) == maxBatch {
			apply()
		}
		if err := conn.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
			return
		}
		text, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull), err == nil && len(text) > maxLine+1:
			s.bad(errLong)
			return
		case err != nil:
			// Half a line of a process that ended is not one that nobody understands.
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
				s.log.Debug("connection of costs ended", "err", err)
			}
			return
		}
		said, err := parse(text[:len(text)-1])
		switch {
		case err != nil:
			s.bad(err)
			return
		case said.dropped > 0:
			s.metrics.dropped.Add(float64(said.dropped))
		case said.unreadable > 0:
			s.metrics.unreadable.Add(float64(said.unreadable))
		case said.unheard.User != "":
			s.options.Unheard(said.unheard)
		case said.correction.Change != 0:
			batch = append(batch, said.correction)
		}
	}
}

var errLong = errors.New("too long")

func (s *Listener) bad(err error) {
	s.metrics.bad.Inc()
	if n, ok := s.badLog.Allow(); ok {
		s.log.Warn("connection of costs closed: a line cannot be read", "err", err, "suppressed", n)
	}
}
