package agent

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// workers remembers the HAProxy processes that have checked the agent over its
// unix socket, so that it knows when one that was replaced has ended. Over TCP,
// and where HAProxy's processes cannot be seen, as from another container, it
// knows of none. Behind a proxy it knows that one alone, which never ends. The zero
// workers is ready.
type workers struct {
	mu    sync.Mutex
	seen  map[int]time.Time // process id → when it last checked the agent
	ended time.Time         // when one that has ended since last checked the agent
	old   map[int]struct{}  // those that may have been replaced
	since time.Time         // when that was
}

const (
	// maxWorkers bounds the processes that are remembered; there are a few.
	maxWorkers = 64
	// A HAProxy checks the agent every 200 ms, until it is replaced. So one that did
	// within recentSpan before that may be the old one; it is, if it has not later
	// than lastSpan after it. That is not asked before settleSpan is over.
	recentSpan = 2 * time.Second
	lastSpan   = 300 * time.Millisecond
	settleSpan = time.Second
)

// checked notes the process at the other end of a health check. One that only
// connects is no HAProxy: it may want to know whether the agent listens. Were it
// taken for one just before a reload, it would seem to be the old one, and what that
// had in progress would count for as long as it lives.
func (w *workers) checked(conn net.Conn) {
	if pid := processOf(conn); pid > 0 {
		w.noteCheck(pid)
	}
}

func (w *workers) noteCheck(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = make(map[int]time.Time)
	}
	// Who cannot be remembered can be no old process either: draining ends by its time then, as over TCP.
	if _, known := w.seen[pid]; !known && len(w.seen) >= maxWorkers {
		if w.forgetEnded(); len(w.seen) >= maxWorkers {
			return
		}
	}
	w.seen[pid] = time.Now()
}

func (w *workers) replaced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetEnded()
	w.since = time.Now()
	w.old = make(map[int]struct{})
	for pid, last := range w.seen {
		// One that has not checked for longer was replaced before, or has hung: nobody waits for its end.
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
	// None was seen to end, or it is too early to tell old from new: to end the count too soon would admit above the limit. Who
	// checks before and after, and never ends, is no HAProxy but connects for it.
	if w.since.IsZero() || w.since.Sub(w.ended) >= recentSpan || time.Since(w.since) < settleSpan {
		return false
	}
	for pid := range w.old {
		// Alive, and it has not checked since: a new process would have.
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
			if last := w.seen[pid]; last.After(w.ended) {
				w.ended = last
			}
			delete(w.seen, pid)
		}
	}
}
