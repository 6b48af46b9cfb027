package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// workerVariable makes this test binary a process that plays a HAProxy worker. Its
// value is where it connects to.
const workerVariable = "SPOA_TEST_WORKER"

// healthCheck is the HELLO of a health check, which is one frame.
const healthCheck = "\x00\x00\x00\x26" + "\x01\x00\x00\x00\x01\x00\x00" +
	"\x0emax-frame-size\x03\xf0\x31" + "\x0bhealthcheck\x11" // 1024, true

// check does what HAProxy does to check its agent, until that has closed the connection.
func check(network, address string) error {
	conn, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, healthCheck); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = errors.New("the agent does not answer")
	}
	return err
}

// knock only connects, as whoever wants to know whether the agent listens, and
// returns when the agent has let go of the connection.
func knock(t *testing.T, network, address string) {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn)
}

// beWorker checks the agent again and again, as HAProxy does, until it gets SIGUSR1,
// and then lives on until the process is ended.
func beWorker(address string) {
	network, address := splitAddress(address)
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, syscall.SIGUSR1)
	checks := time.NewTicker(20 * time.Millisecond)
	for {
		select {
		case <-replaced:
			checks.Stop()
			fmt.Println("replaced")
		case <-checks.C:
			_ = check(network, address) // whether the agent is well is not its business
		}
	}
}

// retire has a worker know that it is replaced. It has checked the agent just before, as
// HAProxy does all the time, however slow the machine is.
func retire(t *testing.T, w *workers, p *testkit.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the worker knows", func() error {
		if !strings.Contains(p.Output(), "replaced") {
			return errors.New("it does not")
		}
		return nil
	})
	w.noteCheck(p.Pid())
}

// startWorker starts a process that checks the agent at an address.
func startWorker(t *testing.T, address string) *testkit.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Start(t, []string{workerVariable + "=" + address}, self)
}

// watch serves SPOE for workers alone, and returns the address.
func watch(t *testing.T, w *workers, network string) string {
	t.Helper()
	s := spop.New(spop.Options{Handler: func(*spop.Request) {}, OnCheck: w.checked})
	return serveSPOE(t, s, network)
}

// serveSPOE serves until the test ends, and returns the address.
func serveSPOE(t *testing.T, s *spop.Server, network string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spoa") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := map[string]string{"unix": filepath.Join(dir, "spoa.sock"), "tcp": "127.0.0.1:0"}[network]
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx, l); err != nil {
			t.Errorf("Serve() = %v", err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	if network == "tcp" {
		return l.Addr().String()
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
	testkit.Eventually(t, fmt.Sprintf("%d processes have checked", want), func() error {
		if got := w.known(); got != want {
			return fmt.Errorf("%d have", got)
		}
		return nil
	})
}

// awaitOldEnded waits until the old processes are known to have ended.
func awaitOldEnded(t *testing.T, w *workers) {
	t.Helper()
	testkit.Eventually(t, "the old process has ended", func() error {
		if !w.oldEnded() {
			return errors.New("not yet")
		}
		return nil
	})
}

// settled waits until old and new can be told apart, and the new one, if there is
// any, has checked the agent since.
func (w *workers) settled(t *testing.T, young ...*testkit.Process) {
	t.Helper()
	testkit.Eventually(t, "old and new can be told apart", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Since(w.since) <= settleSpan {
			return errors.New("too early")
		}
		for _, p := range young {
			if w.seen[p.Pid()].Before(w.since.Add(lastSpan)) {
				return errors.New("the new one has not checked since")
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
	address := watch(t, &w, "unix")
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
		last time.Duration // when this process last checked, before the replacement
	}{
		{"nobody was there", 0},
		{"it had not checked for long", recentSpan + time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := workers{seen: map[int]time.Time{}}
			if tt.last > 0 {
				w.seen[os.Getpid()] = time.Now().Add(-tt.last)
			}
			w.replaced()
			w.since = w.since.Add(-2 * settleSpan)
			w.noteCheck(os.Getpid())
			if w.oldEnded() {
				t.Error("oldEnded() = true, want that it cannot be told")
			}
		})
	}
}

func TestWorkersOverTCPAreNotKnown(t *testing.T) {
	t.Parallel()
	var w workers
	if err := check("tcp", watch(t, &w, "tcp")); err != nil {
		t.Fatal(err)
	}
	if got := w.known(); got != 0 {
		t.Errorf("processes remembered = %d, want none", got)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	w := workers{seen: map[int]time.Time{}}
	for range maxWorkers {
		w.seen[-1_000_000_000-len(w.seen)] = time.Time{} // process groups that are not there
	}
	w.noteCheck(os.Getpid())
	w.noteCheck(os.Getpid())
	if got := w.known(); got != 1 {
		t.Errorf("processes remembered = %d, want this one", got)
	}
}

// Who only connects is no HAProxy; who checks the agent is one.
func TestWorkersCheck(t *testing.T) {
	t.Parallel()
	var w workers
	network, address := splitAddress(watch(t, &w, "unix"))
	knock(t, network, address)
	if got := w.known(); got != 0 {
		t.Errorf("processes remembered after one has connected = %d, want none", got)
	}
	if err := check(network, address); err != nil {
		t.Fatal(err)
	}
	if got := w.known(); got != 1 {
		t.Errorf("processes remembered after one has checked = %d, want 1", got)
	}
}

// What a replaced HAProxy had in progress counts until its process has ended, whoever
// else has connected just before.
func TestDrainFollowsTheProcesses(t *testing.T) {
	t.Parallel()
	r := newSlotRig(t, nil)
	address := serveSPOE(t, r.spop, "unix")
	before := startWorker(t, address)
	awaitKnown(t, &r.workers, 1)
	r.followSession(peers.Session{State: peers.Up})
	r.progress("wide", 9, 3)

	after := startWorker(t, address)
	awaitKnown(t, &r.workers, 2)
	retire(t, &r.workers, before)
	knock(t, "unix", strings.TrimPrefix(address, "unix:")) // as this process, which lives on
	r.followSession(peers.Session{State: peers.Down, Closed: true})
	r.followSession(peers.Session{State: peers.Up})
	r.progress("wide", 2, 2)
	want := func(what string, inProgress int, draining float64) error {
		if got, gauge := r.inProgress("wide"), testutil.ToFloat64(r.metrics.draining); got != inProgress || gauge != draining {
			return fmt.Errorf("%s: in progress = %d (draining %v), want %d (%v)", what, got, gauge, inProgress, draining)
		}
		return nil
	}
	r.workers.settled(t, after)
	r.endDraining()
	if err := want("both are there", 5, 1); err != nil {
		t.Error(err)
	}
	before.Kill()
	testkit.Eventually(t, "the old one has ended", func() error {
		r.endDraining()
		return want("the old one has ended", 2, 0)
	})
	r.endDraining()
	if err := want("later", 2, 0); err != nil {
		t.Error(err)
	}
}

// An old process with nothing in progress may have ended before the new one checks for the first time.
func TestOldOneEndedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gone = -1_000_000_000 // a process group that is not there
		w := workers{seen: map[int]time.Time{gone: time.Now()}}
		w.replaced()
		time.Sleep(settleSpan)
		if !w.oldEnded() {
			t.Error("oldEnded() = false, want true: nobody else had checked")
		}
	})
}

// Who checked when tells old from new: this process stands for one that is there, beside one that has ended.
func TestOldOrNew(t *testing.T) {
	for _, tt := range []struct {
		name    string
		since   time.Duration // after the replacement, now
		checked time.Duration // after the replacement, last
		ended   time.Duration // after the replacement, when the other one checked last
		want    bool
	}{
		{"not since", 2 * settleSpan, -time.Millisecond, 0, false},
		{"once more, as it was being replaced", 2 * settleSpan, lastSpan - time.Millisecond, 0, false},
		{"later: it is the new one", 2 * settleSpan, lastSpan, 0, true},
		{"later, but it is too early to ask", settleSpan / 2, lastSpan, 0, false},
		{"later, and the other one had just checked", 2 * settleSpan, lastSpan, time.Millisecond - recentSpan, true},
		{"later, but nobody has ended since: it is a proxy of both", 2 * settleSpan, lastSpan, -recentSpan, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				since := time.Now().Add(-tt.since)
				w := workers{
					seen: map[int]time.Time{os.Getpid(): since.Add(tt.checked)}, old: map[int]struct{}{os.Getpid(): {}}, since: since,
					ended: since.Add(tt.ended),
				}
				if got := w.oldEnded(); got != tt.want {
					t.Errorf("oldEnded() = %v, want %v", got, tt.want)
				}
			})
		})
	}
}
