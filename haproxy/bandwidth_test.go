package haproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
)

const mib = 1 << 20

// newMover is a rig whose origin and clients move bytes, each user having a share. A user
// without one is not limited.
func newMover(t testing.TB, s setup, shares map[string]vars) (*rig, *mover) {
	t.Helper()
	m := &mover{}
	s.serve = m.ServeHTTP
	if s.Threads == 0 {
		s.Threads = 2
	}
	r := newRig(t, s)
	r.answerWith(func(h heard) vars { return shares[h.User] })
	return r, m
}

// runsAt waits until a flow has had a rate of want ± 5 % for 400 ms. However slow the
// machine is, there is such a time, but none when the rate is another.
func (f *flow) runsAt(t testing.TB, want float64) {
	t.Helper()
	f.runsFairly(t, want, 0)
}

// runsFairly waits until it was divided fairly, too.
func (f *flow) runsFairly(t testing.TB, want, jain float64) {
	t.Helper()
	proctest.Eventually(t, "the rate", func() error { return f.runs(want, jain) })
}

// runs is what is wrong with a flow for 400 ms: its rate is not want ± 5 %, or Jain's
// index is less than wanted.
func (f *flow) runs(want, jain float64) error {
	a := f.now()
	time.Sleep(400 * time.Millisecond)
	if got, j := rate(a, f.now()); got < 0.95*want || got > 1.05*want || j < jain {
		return fmt.Errorf("%.0f bytes/s, Jain's index %.3f, want %.0f ± 5 %% and at least %.1f", got, j, want, jain)
	}
	return nil
}

// neverOver checks that since a flow began it has not had more than its limit: 3 % for
// good, and 10 % of a second and what the kernel holds, once.
func (f *flow) neverOver(t testing.TB, began time.Time, limit float64) {
	t.Helper()
	got := float64(f.now().total())
	took := time.Since(began)
	if most := 1.03*limit*took.Seconds() + 0.1*limit; got > most {
		t.Errorf("%.0f bytes in %v, want at most %.0f", got, took, most)
	}
}

func TestBandwidth(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			// Of the direction under test; the other one is far too small.
			limits := func(n int) vars {
				if k.Up {
					return share(1000, n)
				}
				return share(n, 1000)
			}
			r, m := newMover(t, setup{}, map[string]vars{"alice": limits(8 * mib), "bob": limits(2 * mib)})
			began := time.Now()
			alice, bob := r.flow(t, m, "alice", k, 8), r.flow(t, m, "bob", k, 1)
			jain := 0.9                          // 0.99 on a quiet machine
			if k == (kind{Up: true, H2: true}) { // uploads over one HTTP/2 connection block one another
				jain = 0
			}
			alice.runsFairly(t, 8*mib, jain)
			bob.runsAt(t, 2*mib)
			alice.neverOver(t, began, 8*mib)
			bob.neverOver(t, began, 2*mib)
			if got := r.stat(t, "origin", "BACKEND", "stot"); got != "0" {
				t.Errorf("%s requests that nobody was asked about, want 0", got)
			}
		})
	}
}

// What is held has an entry in the table of clocks.
func TestUnlimitedUsersAreNotHeld(t *testing.T) {
	r, m := newMover(t, setup{}, map[string]vars{"alice": share(mib, mib)})
	alice, other := r.flow(t, m, "alice", kind{}, 1), r.flow(t, m, "other", kind{}, 1)
	alice.runsAt(t, mib)
	proctest.Eventually(t, "the unlimited user", func() error {
		if got := other.now().total(); got < 20*mib {
			return fmt.Errorf("%d bytes, want 20 MiB", got)
		}
		return nil
	})
	if clocks := r.cli(t, "show table sluice_clock"); !strings.Contains(clocks, "key=alice ") || strings.Contains(clocks, "key=other ") {
		t.Errorf("table sluice_clock has %s; want alice, and not the other", clocks)
	}
}

// One direction may be limited alone, and both at once on one stream.
func TestDirectionsAreApart(t *testing.T) {
	r, m := newMover(t, setup{}, map[string]vars{"down": share(mib, 0), "up": share(0, mib)})
	for user, k := range map[string]kind{"down": {Up: true}, "up": {}} {
		f := r.flow(t, m, user, k, 1)
		proctest.Eventually(t, user+": the other direction", func() error {
			if got := f.now().total(); got < 20*mib {
				return fmt.Errorf("%d bytes, want 20 MiB", got)
			}
			return nil
		})
		f.stop()
	}
}

func TestTaughtShares(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{{false, false}, {true, true}} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			r, m := newMover(t, setup{}, map[string]vars{"alice": share(2*mib, 2*mib)})
			teach := r.teacher(t)
			f := r.flow(t, m, "alice", k, 4)
			f.runsAt(t, 2*mib)

			// How long 4 MiB take from a change on tells when it took effect. At a slow
			// moment they take longer, but not each time.
			proctest.Eventually(t, "4 MiB at 16 instead of 1 MiB/s", func() error {
				took := f.until(t, 4*mib, func() { teach("alice", 16*mib, 16*mib, time.Minute) })
				f.runsAt(t, 16*mib)
				teach("alice", mib, mib, time.Minute)
				f.runsAt(t, mib)
				t.Logf("4 MiB at 16 instead of 1 MiB/s after %v", took)
				if took > 600*time.Millisecond {
					return fmt.Errorf("they took %v, want 250 ms and a moment", took)
				}
				return nil
			})
			teach("alice", 0, 0, time.Minute)
			f.runsAt(t, 2*mib)
			proctest.Eventually(t, "the rate for a moment", func() error {
				teach("alice", 8*mib, 8*mib, 1500*time.Millisecond)
				return f.runs(8*mib, 0)
			})
			f.runsAt(t, 2*mib) // once the entry has expired
		})
	}
}

// until does something and waits for n bytes.
func (f *flow) until(t testing.TB, n int64, do func()) time.Duration {
	t.Helper()
	before := f.now()
	do()
	proctest.Eventually(t, "bytes", func() error {
		if got := f.now().total() - before.total(); got < n {
			return fmt.Errorf("%d, want %d", got, n)
		}
		return nil
	})
	return time.Since(before.at)
}

// The newest request's share holds for all transfers when none is taught.
func TestNewestShareHolds(t *testing.T) {
	t.Parallel()
	r, m := newMover(t, setup{}, nil)
	r.answerWith(func(heard) vars { return share(2*mib, 0) })
	f := r.flow(t, m, "alice", kind{}, 2)
	f.runsAt(t, 2*mib)
	r.answerWith(func(heard) vars { return share(8*mib, 0) })
	// As many as it takes for both of HAProxy's threads to hear of it.
	for range 8 {
		g := r.flow(t, m, "alice", kind{}, 1)
		f.moved = append(f.moved, g.moved...)
	}
	f.runsAt(t, 8*mib)
}

func TestStalledClientsCostNothing(t *testing.T) {
	t.Parallel()
	r, m := newMover(t, setup{}, map[string]vars{"alice": share(16*mib, 0)})
	for range 2 {
		conn := dial(t, "tcp", r.addr)
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		fmt.Fprint(conn, httpGET(fmt.Sprintf("/%d", int64(forever)), "X-User: alice"))
	}
	f := r.flow(t, m, "alice", kind{}, 6)
	f.runsFairly(t, 16*mib, 0.9) // 0.99 on a quiet machine
}

func TestAbortedTransfersLeaveTheirShare(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{{false, false}, {true, false}, {false, true}} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			r, m := newMover(t, setup{}, map[string]vars{"alice": share(16*mib, 16*mib)})
			stays, aborts := r.flow(t, m, "alice", k, 2), r.flow(t, m, "alice", k, 6)
			proctest.Eventually(t, "all transfers move", func() error {
				for _, n := range aborts.moved {
					if n.Load() == 0 {
						return fmt.Errorf("one has not begun")
					}
				}
				return nil
			})
			aborts.stop()
			stays.runsAt(t, 16*mib)
		})
	}
}

// Small requests of a user whose share others use up are served in between.
func TestSmallRequestsPassLargeTransfers(t *testing.T) {
	t.Parallel()
	r, m := newMover(t, setup{}, map[string]vars{"alice": share(mib, mib)})
	f := r.flow(t, m, "alice", kind{}, 32)
	f.runsAt(t, mib)
	proctest.Eventually(t, "1 KiB behind 32 transfers", func() error {
		var took []time.Duration
		for range 15 {
			start := time.Now()
			if got := r.send(t, httpGET("/1024", "X-User: alice"))[0]; len(got.Body) != 1024 {
				t.Fatalf("%d bytes, want 1024", len(got.Body))
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		t.Logf("1 KiB behind 32 transfers: median %v, longest %v", took[7], took[14])
		if took[7] > 250*time.Millisecond {
			return fmt.Errorf("it took %v (median), want less than the 512 ms of a turn of 32 transfers", took[7])
		}
		return nil
	})
	f.runsAt(t, mib)
}

// Small bodies are within the total too.
func TestSmallBodiesCount(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{false, true} {
		t.Run(kind{Up: up}.String(), func(t *testing.T) {
			const limit, size = mib, 4096
			r, _ := newMover(t, setup{}, map[string]vars{"alice": share(limit, limit)})
			began := time.Now()
			f := &flow{}
			for range 16 {
				f.moved = append(f.moved, r.loop(t, up, size))
			}
			f.runsAt(t, limit)
			f.neverOver(t, began, limit)
		})
	}
}

// Nor are they less than the total: what one ticket has more than a body needs serves
// the next ones, whose own tickets then serve others.
func TestSmallBodiesHaveTheWholeShare(t *testing.T) {
	t.Parallel()
	for _, size := range []int{512, 4096} {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			limit := 1024 * size
			r, _ := newMover(t, setup{}, map[string]vars{"alice": share(limit, 0)})
			f := &flow{}
			for range 64 {
				f.moved = append(f.moved, r.loop(t, false, size))
			}
			f.runsAt(t, float64(limit))
		})
	}
}

// loop sends requests with bodies of a size, one after the other, and counts the bytes. If it ends before the
// test does, the test's log says why.
func (r *rig) loop(t testing.TB, up bool, size int) *counter {
	count := new(counter)
	conn := dial(t, "tcp", r.addr)
	raw := httpGET(fmt.Sprintf("/%d", size), "X-User: alice")
	if up {
		raw = httpRequest("PUT", "/1", "X-User: alice", fmt.Sprintf("Content-Length: %d", size)) + strings.Repeat("x", size)
	}
	ended := make(chan error, 1)
	t.Cleanup(func() {
		conn.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Log("a loop of requests ended:", err)
		}
	})
	go func() {
		in := bufio.NewReader(conn)
		for {
			if err := exchangeBody(conn, in, raw); err != nil {
				ended <- err
				return
			}
			count.Add(int64(size))
		}
	}()
	return count
}

// exchangeBody sends a request, whose answer must be a 200 with a body.
func exchangeBody(conn io.Writer, in *bufio.Reader, raw string) error {
	if _, err := io.WriteString(conn, raw); err != nil {
		return err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != 200 || n == 0) {
		err = fmt.Errorf("the answer is %s with %d bytes", resp.Status, n)
	}
	return err
}

func TestBodiesOfAllSorts(t *testing.T) {
	r, _ := newMover(t, setup{}, map[string]vars{"alice": share(100*mib, 100*mib)})
	put := func(header, body string) string { return httpRequest("PUT", "/7", "X-User: alice", header) + body }
	for _, row := range []struct {
		name, raw string
		want      int
	}{
		{"none", httpGET("/0", "X-User: alice"), 0},
		{"small", httpGET("/1000", "X-User: alice"), 1000},
		{"large", httpGET("/3000000", "X-User: alice"), 3000000},
		{"of unknown size", httpGET("/3000000?chunked", "X-User: alice"), 3000000},
		{"none of unknown size", httpGET("/0?chunked", "X-User: alice"), 0},
		{"HEAD", httpRequest("HEAD", "/3000000", "X-User: alice"), 0},
		{"PUT of nothing", put("Content-Length: 0", ""), 7},
		{"PUT", put("Content-Length: 5", "hello"), 7},
		{"large PUT", put("Content-Length: 3000000", strings.Repeat("x", 3000000)), 7},
		{"chunked PUT", put("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"), 7},
	} {
		t.Run(row.name, func(t *testing.T) {
			for range 3 {
				if got := r.send(t, row.raw)[0]; got.Status != 200 || len(got.Body) != row.want {
					t.Fatalf("status %d with %d bytes, want 200 with %d", got.Status, len(got.Body), row.want)
				}
			}
		})
	}
}

// No transfer times out because a share makes it slow.
func TestLeastShare(t *testing.T) {
	t.Parallel()
	r, m := newMover(t, setup{edit: func(cfg string) string {
		return strings.NewReplacer("timeout client 60s", "timeout client 1s", "timeout server 60s", "timeout server 1s").Replace(cfg)
	}}, map[string]vars{"alice": {"down": uint32(1), "up": uint32(1)}})
	for _, k := range []kind{{}, {Up: true}} {
		began := time.Now()
		f := r.flow(t, m, "alice", k, 1)
		proctest.Eventually(t, "bytes", func() error {
			if got := f.now().total(); got < 2*unit {
				return fmt.Errorf("%v: %d, want %d", k, got, 2*unit)
			}
			return nil
		})
		f.neverOver(t, began, 1.3*unit)
		f.stop()
	}
}

// Both directions of one stream wait at the same time.
func TestBothDirectionsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{serve: func(w http.ResponseWriter, q *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		_, _ = io.Copy(flusher{w}, q.Body)
	}})
	r.answerWith(func(heard) vars { return share(2*mib, mib) })
	conn := dial(t, "tcp", r.addr)
	defer conn.Close()
	const size = 2 * mib
	began := time.Now()
	go func() {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nX-User: alice\r\nContent-Length: %d\r\n\r\n", size)
		_, _ = conn.Write(bytes.Repeat([]byte("x"), size))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp); len(got.Body) != size {
		t.Errorf("%d bytes came back, want %d", len(got.Body), size)
	}
	if took := time.Since(began); took < 1800*time.Millisecond {
		t.Errorf("2 MiB up at 1 MiB/s took %v, want 2 s", took)
	}
}

type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// After 101 the bytes of both directions are limited as bodies are, whoever let the request through. A length that the
// origin announces besides, and that would be a small answer's, says nothing about a tunnel.
func TestTunnels(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, r *rig){
		"asked": func(_ *testing.T, r *rig) { r.answerWith(func(heard) vars { return share(2*mib, 4*mib) }) },
		"by credit": func(t *testing.T, r *rig) {
			r.teachRow(t, generation, 0, 0)
			r.lend(t, "alice", lent(2*mib, 4*mib))
			r.native(t, httpGET("/", "X-User: alice"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			up := new(counter)
			r := newRig(t, setup{serve: func(w http.ResponseWriter, q *http.Request) {
				if q.Header.Get("Upgrade") == "" {
					return
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\n")
				_ = rw.Flush()
				go fill(conn)
				drain(conn, up)
			}})
			begin(t, r)
			conn := dial(t, "tcp", r.addr)
			fmt.Fprint(conn, httpGET("/", "X-User: alice", "Upgrade: echo", "Connection: upgrade"))
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != 101 {
				t.Fatalf("answer = %+v, %v, want 101", resp, err)
			}
			down := new(counter)
			go fill(conn)
			go drain(conn, down)
			defer conn.Close()
			(&flow{moved: []*counter{down}}).runsAt(t, 2*mib)
			(&flow{moved: []*counter{up}}).runsAt(t, 4*mib)
		})
	}
}

// fill writes until the connection ends.
func fill(conn net.Conn) {
	for {
		if _, err := conn.Write(zeros); err != nil {
			return
		}
	}
}

// drain reads and counts until the connection ends, and closes it.
func drain(conn net.Conn, count *counter) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		count.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// The bytes of a long transfer reach the agent while they move.
func TestBytesAreToldWhileTheyMove(t *testing.T) {
	t.Parallel()
	r, m := newMover(t, setup{}, map[string]vars{"alice": share(4*mib, 4*mib)})
	told := r.learnBytes(t)
	for _, k := range []kind{{}, {Up: true}} {
		f := r.flow(t, m, "alice", k, 2)
		f.runsAt(t, 4*mib)
		proctest.Eventually(t, "the peer", func() error {
			// What waits in HAProxy's buffers is told already.
			moved, got := f.now().total(), told()
			n := got.Out
			if k.Up {
				n = got.In
			}
			if d := int64(n) - moved; d < -mib/2 || d > mib {
				return fmt.Errorf("%v: told %d, moved %d", k, n, moved)
			}
			return nil
		})
		f.stop()
	}
}

// What comes of a body while the agent is asked is told, too. That of a request that is refused is not.
func TestBytesBeforeTheVerdictAreTold(t *testing.T) {
	t.Parallel()
	const uploads, size = 20, 20_000
	for name, config := range map[string]Config{"credit": {}, "no credit": {Env: []string{"SLUICE_CREDIT=off"}}} {
		for limited, answer := range map[string]vars{"not limited": nil, "limited": share(0, 100*mib)} {
			t.Run(name+", "+limited, func(t *testing.T) {
				r := newRig(t, setup{Config: config})
				learned := r.learnBytes(t)
				var refused atomic.Bool
				r.answerTold(func(told) vars {
					time.Sleep(5 * time.Millisecond) // the body is here by then
					if refused.Load() {
						return vars{"reason": "request-rate", "class": "*", "limit": uint32(1), "retry": uint32(1)}
					}
					return answer
				})
				upload := httpRequest("PUT", "/", "X-User: alice", fmt.Sprint("Content-Length: ", size)) + strings.Repeat("x", size)
				for range uploads {
					if got := r.send(t, upload)[0]; got.Status != 200 {
						t.Fatalf("status = %d, want 200", got.Status)
					}
				}
				enough := func() error {
					// What arrives together with the verdict may be counted twice.
					if got := learned().In; got < uploads*size || got > 2*uploads*size {
						return fmt.Errorf("%d bytes up, want some more than %d", got, uploads*size)
					}
					return nil
				}
				proctest.Eventually(t, "the peer", enough)
				refused.Store(true)
				for range 3 * uploads {
					if got := r.send(t, upload)[0]; got.Status != 429 {
						t.Fatalf("status = %d, want 429", got.Status)
					}
				}
				refused.Store(false)
				if got := r.send(t, upload)[0]; got.Status != 200 {
					t.Fatalf("status = %d, want 200", got.Status)
				}
				proctest.Eventually(t, "the peer again", enough)
			})
		}
	}
}

// After a reload transfers in flight go on, held to the share that their requests were told, and the new worker knows
// the shares that were taught.
func TestReload(t *testing.T) {
	t.Parallel()
	m := &mover{}
	r := newRig(t, setup{serve: m.ServeHTTP})
	r.answerWith(func(heard) vars { return share(8*mib, 0) })
	r.proc.Stop()
	env := r.env
	r.proc = proctest.Start(t, env, proctest.HAProxyPath(t), "-W", "-f", filepath.Join(r.dir, "haproxy.cfg"))
	dial(t, "tcp", r.addr).Close()
	teach := r.teacher(t)
	teach("alice", mib, 0, time.Minute)
	teach("bob", 2*mib, 0, time.Minute)
	f := r.flow(t, m, "alice", kind{}, 2)
	f.runsAt(t, mib)
	first := r.cli(t, "show info")
	proctest.Eventually(t, "the new worker", func() error { // the master overlooks signals at first, even if its worker serves already
		if err := r.proc.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		return proctest.Poll(5*time.Second, func() error {
			if now := r.cli(t, "show info"); line(now, "Pid: ") == line(first, "Pid: ") {
				return fmt.Errorf("still the old one")
			}
			return nil
		})
	})
	began := time.Now()
	bob := r.flow(t, m, "bob", kind{}, 1)
	// A worker that is to end clears its tables within about a second, once its successor has them.
	f.runsAt(t, 8*mib)
	bob.runsAt(t, 2*mib)
	bob.neverOver(t, began, 2*mib)
}

func line(text, prefix string) string {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, prefix) {
			return l
		}
	}
	return ""
}

// The clock's own tests, run by the Lua that is in HAProxy.
func TestClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cfg := fmt.Sprintf("global\n lua-prepend-path %s/lua/?.lua\n lua-load %s/lua/bandwidth_clock_test.lua\nlisten l\n mode http\n bind unix@%s/s\n timeout client 1s\n timeout server 1s\n timeout connect 1s\n", here, here, dir)
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(proctest.HAProxyPath(t), "-c", "-f", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "clock: all passed") {
		t.Errorf("%v\n%s", err, out)
	}
}
