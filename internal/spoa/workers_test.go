package spoa

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// workerVariable makes this test binary a process that plays a HAProxy worker. Its
// value is where it connects to.
const workerVariable = "SPOA_TEST_WORKER"

// beWorker connects again and again, as HAProxy does to check its agent, until it
// gets SIGUSR1, and then lives on until the process is ended.
func beWorker(address string) {
	network, address := split(address)
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, syscall.SIGUSR1)
	checks := time.NewTicker(20 * time.Millisecond)
	for {
		select {
		case <-replaced:
			checks.Stop()
			fmt.Println("replaced")
		case <-checks.C:
			if conn, err := net.Dial(network, address); err == nil {
				_ = conn.Close()
			}
		}
	}
}

// retire has a worker know that it is replaced. It has connected just before, as
// HAProxy does all the time, however slow the machine is.
func retire(t *testing.T, w *workers, p *proctest.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the worker knows", func() error {
		if !strings.Contains(p.Output(), "replaced") {
			return errors.New("it does not")
		}
		return nil
	})
	w.note(p.Pid())
}

// startWorker starts a process that connects to a listener.
func startWorker(t *testing.T, address string) *proctest.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return proctest.Start(t, []string{workerVariable + "=" + address}, self)
}

// accept takes whoever connects to the agent's SPOE socket, and returns its address.
func accept(t *testing.T, w *workers, network string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spoa") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := map[string]string{"unix": filepath.Join(dir, "spoa.sock"), "tcp": "127.0.0.1:0"}[network]
	inner, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	l := w.watch(inner)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = inner.Close(); <-done })
	if network == "tcp" {
		return inner.Addr().String()
	}
	return "unix:" + at
}

// known is how many processes are remembered, ended ones included.
func (w *workers) known() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func awaitKnown(t *testing.T, w *workers, want int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%d processes have connected", want), func() error {
		if got := w.known(); got != want {
			return fmt.Errorf("%d have", got)
		}
		return nil
	})
}

// awaitOldEnded waits until the old processes are known to have ended.
func awaitOldEnded(t *testing.T, w *workers) {
	t.Helper()
	proctest.Eventually(t, "the old process has ended", func() error {
		if !w.oldEnded() {
			return errors.New("not yet")
		}
		return nil
	})
}

// settled waits until old and new can be told apart, and the new one, if there is
// any, has connected since.
func (w *workers) settled(t *testing.T, young ...*proctest.Process) {
	t.Helper()
	proctest.Eventually(t, "old and new can be told apart", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Since(w.since) <= settleSpan {
			return errors.New("too early")
		}
		for _, p := range young {
			if w.seen[p.Pid()].Before(w.since.Add(lastSpan)) {
				return errors.New("the new one has not connected since")
			}
		}
		return nil
	})
}

func TestWorkersOfAReload(t *testing.T) {
	t.Parallel()
	var w workers
	if w.oldEnded() {
		t.Error("oldEnded() of nobody = true")
	}
	address := accept(t, &w, "unix")
	before := startWorker(t, address)
	awaitKnown(t, &w, 1)
	if w.oldEnded() {
		t.Error("oldEnded() before anything was replaced = true")
	}
	after := startWorker(t, address)
	awaitKnown(t, &w, 2)
	retire(t, &w, before)
	w.replaced()
	if w.oldEnded() {
		t.Error("oldEnded() while they cannot be told apart = true")
	}
	w.settled(t, after)
	if w.oldEnded() {
		t.Error("oldEnded() while both are there = true")
	}
	before.Kill()
	awaitOldEnded(t, &w)
	if got := w.known(); got != 1 {
		t.Errorf("processes remembered = %d, want 1", got)
	}

	// Once more: the new one is the old one now.
	next := startWorker(t, address)
	awaitKnown(t, &w, 2)
	retire(t, &w, after)
	w.replaced()
	w.settled(t, next)
	if w.oldEnded() {
		t.Error("oldEnded() after another reload = true")
	}
	after.Kill()
	awaitOldEnded(t, &w)
}

// Of a process that was not there when one was replaced nothing is known: the old
// one may be hidden, as in another container.
func TestWorkersThatAreHidden(t *testing.T) {
	for _, tt := range []struct {
		name string
		last time.Duration // when this process last connected, before the replacement
	}{
		{"nobody was there", 0},
		{"it had not connected for long", recentSpan + time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := workers{seen: map[int]time.Time{}}
			if tt.last > 0 {
				w.seen[os.Getpid()] = time.Now().Add(-tt.last)
			}
			w.replaced()
			w.since = w.since.Add(-2 * settleSpan)
			w.note(os.Getpid())
			if w.oldEnded() {
				t.Error("oldEnded() = true, want that it cannot be told")
			}
		})
	}
}

func TestWorkersOverTCPAreNotKnown(t *testing.T) {
	t.Parallel()
	var w workers
	address := accept(t, &w, "tcp")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Read(make([]byte, 1)) // until the other end has accepted and closed it
	if got := w.known(); got != 0 {
		t.Errorf("processes remembered = %d, want none", got)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	w := workers{seen: map[int]time.Time{}}
	for range maxWorkers {
		w.seen[-1_000_000_000-len(w.seen)] = time.Time{} // process groups that are not there
	}
	w.note(os.Getpid())
	w.note(os.Getpid())
	if got := w.known(); got != 1 {
		t.Errorf("processes remembered = %d, want this one", got)
	}
}

// What a replaced HAProxy had in progress counts until its process has ended.
func TestDrainFollowsTheProcesses(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t, nil)
	address := accept(t, &r.workers, "unix")
	before := startWorker(t, address)
	awaitKnown(t, &r.workers, 1)
	r.session(peers.Session{State: peers.Up})
	r.progress("wide", 9, 3)

	after := startWorker(t, address)
	awaitKnown(t, &r.workers, 2)
	retire(t, &r.workers, before)
	r.session(peers.Session{State: peers.Down, Closed: true})
	r.session(peers.Session{State: peers.Up})
	r.progress("wide", 2, 2)
	want := func(what string, inProgress int, draining float64) error {
		if got, gauge := r.inProgress("wide"), testutil.ToFloat64(r.metrics.draining); got != inProgress || gauge != draining {
			return fmt.Errorf("%s: in progress = %d (draining %v), want %d (%v)", what, got, gauge, inProgress, draining)
		}
		return nil
	}
	r.workers.settled(t, after)
	r.drain()
	if err := want("both are there", 5, 1); err != nil {
		t.Error(err)
	}
	before.Kill()
	proctest.Eventually(t, "the old one has ended", func() error {
		r.drain()
		return want("the old one has ended", 2, 0)
	})
	r.drain()
	if err := want("later", 2, 0); err != nil {
		t.Error(err)
	}
}

// Who connected when tells old from new: this process stands for one that is there.
func TestOldOrNew(t *testing.T) {
	for _, tt := range []struct {
		name      string
		since     time.Duration // after the replacement, now
		connected time.Duration // after the replacement, last
		want      bool
	}{
		{"not since", 2 * settleSpan, -time.Millisecond, false},
		{"once more, as it was being replaced", 2 * settleSpan, lastSpan - time.Millisecond, false},
		{"later: it is the new one", 2 * settleSpan, lastSpan, true},
		{"later, but it is too early to ask", settleSpan / 2, lastSpan, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				since := time.Now().Add(-tt.since)
				w := workers{
					seen: map[int]time.Time{os.Getpid(): since.Add(tt.connected)}, old: map[int]struct{}{os.Getpid(): {}}, since: since,
				}
				if got := w.oldEnded(); got != tt.want {
					t.Errorf("oldEnded() = %v, want %v", got, tt.want)
				}
			})
		})
	}
}
