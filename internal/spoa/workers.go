package spoa

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// workers remembers the HAProxy processes that have connected to the agent's
// unix socket, so that it knows when one that was replaced has ended. Over TCP,
// and where HAProxy's processes cannot be seen, as from another container, it
// knows of none. The zero workers is ready.
type workers struct {
	mu    sync.Mutex
	seen  map[int]time.Time // process id → when it last connected
	old   map[int]struct{}  // those that may have been replaced
	since time.Time         // when that was
}

const (
	// maxWorkers bounds the processes that are remembered; there are a few.
	maxWorkers = 64
	// A HAProxy connects every 200 ms, to check the agent, until it is replaced. So
	// whoever connected within recentSpan before that may be the old one; it is, if
	// it has not connected later than lastSpan after it. That is not asked before
	// settleSpan is over.
	recentSpan = 2 * time.Second
	lastSpan   = 300 * time.Millisecond
	settleSpan = time.Second
)

// watch returns a listener that remembers who connects.
func (w *workers) watch(l net.Listener) net.Listener { return watched{l, w} }

type watched struct {
	net.Listener
	workers *workers
}

func (l watched) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		if pid := processOf(conn); pid > 0 {
			l.workers.note(pid)
		}
	}
	return conn, err
}

func (w *workers) note(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = make(map[int]time.Time)
	}
	if _, known := w.seen[pid]; !known && len(w.seen) >= maxWorkers {
		if w.forgetEnded(); len(w.seen) >= maxWorkers {
			return
		}
	}
	w.seen[pid] = time.Now()
}

// replaced notes that one process has taken over from another.
func (w *workers) replaced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetEnded()
	w.since = time.Now()
	w.old = make(map[int]struct{})
	for pid, last := range w.seen {
		if w.since.Sub(last) < recentSpan {
			w.old[pid] = struct{}{}
		}
	}
}

// oldEnded reports whether every process that was replaced has ended, as far as
// can be told.
func (w *workers) oldEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetEnded()
	if len(w.old) == 0 || time.Since(w.since) < settleSpan {
		return false // none could be seen, or it is too early to tell old from new
	}
	for pid := range w.old {
		if last, there := w.seen[pid]; there && last.Before(w.since.Add(lastSpan)) {
			return false
		}
	}
	return true
}

func (w *workers) forgetEnded() {
	for pid := range w.seen {
		// Signal 0 only asks; a process of another user exists too.
		if err := syscall.Kill(pid, 0); err == syscall.ESRCH {
			delete(w.seen, pid)
		}
	}
}
