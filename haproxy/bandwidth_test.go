package haproxy

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// transfers is the rig of tests that run in parallel, each with users of its own. HAProxy admits those of them who have credit.
func transfers(t *testing.T, s setup) *rig {
	t.Helper()
	t.Parallel()
	r := joined(t, s.with(moving.ServeHTTP))
	r.teachRow(t, generation, 0, 0)
	return r
}

// lent is credit without limits of requests that brings these shares, in bytes per second.
func lent(down, up int) vars {
	v := credit(unlimited, nil)
	for name, n := range share(down, up) {
		v["lent_"+name], v[name] = n, n
	}
	return v
}

// debtor is someone with credit that brings these shares. Some of their requests may be asked about, for instance those in a second that cannot be opened
// yet: the agent answers with the same shares.
func (r *rig) debtor(t testing.TB, down, up int) someone {
	t.Helper()
	s := r.someone(nil)
	r.lend(t, s.name, lent(down, up))
	s.answer(share(down, up))
	r.native(t, httpGET("/1", s.header()))
	return s
}

func TestBandwidth(t *testing.T) {
	for _, k := range []kind{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(k.String(), func(t *testing.T) {
			r := transfers(t, usual)
			alice, bob := r.someone(share(k.shares(8*mib))), r.someone(share(k.shares(2*mib)))
			began := time.Now()
			eight, one := alice.flow(t, k, 8), bob.flow(t, k, 1)
			jain := 0.9                          // 0.99 on a quiet machine
			if k == (kind{Up: true, H2: true}) { // uploads over one HTTP/2 connection block one another
				jain = 0
			}
			eight.runsFairly(t, 8*mib, jain)
			one.runsAt(t, 2*mib)
			eight.neverOver(t, began, 8*mib)
			one.neverOver(t, began, 2*mib)
			if asked := len(r.toldOf(t, alice.name)) + len(r.toldOf(t, bob.name)); asked != 9 {
				t.Errorf("asked about %d of 9 requests", asked)
			}
		})
	}
}

// A user without a share is not held, and one direction may be limited alone. What is held has an entry in the table of clocks.
func TestUnlimitedTransfers(t *testing.T) {
	for _, k := range []kind{{}, {Up: true}} {
		t.Run(k.String(), func(t *testing.T) {
			r := transfers(t, usual)
			down, up := kind{Up: !k.Up}.shares(mib)
			if k.Up {
				up = 0
			} else {
				down = 0
			}
			for name, s := range map[string]someone{"without a share": r.someone(nil), "limited in the other direction": r.someone(share(down, up))} {
				f := s.flow(t, k, 1)
				f.await(t, snapshot{moved: []int64{0}}, 20*mib)
				f.stop()
				if r.clocked(t, s.name) {
					t.Errorf("%s: there is a clock", name)
				}
			}
		})
	}
}

func TestTaughtShares(t *testing.T) {
	for _, k := range []kind{{false, false}, {true, true}} {
		t.Run(k.String(), func(t *testing.T) {
			r := transfers(t, usual)
			alice := r.someone(share(2*mib, 2*mib))
			f := alice.flow(t, k, 4)
			f.runsAt(t, 2*mib)

			// How long 4 MiB take from a change on tells when it took effect. At a slow
			// moment they take longer, but not each time.
			testkit.Eventually(t, "4 MiB at 16 instead of 1 MiB/s", func() error {
				before := f.now()
				alice.teachShare(t, 16*mib, 16*mib, time.Minute)
				took := f.await(t, before, 4*mib)
				f.runsAt(t, 16*mib)
				alice.teachShare(t, mib, mib, time.Minute)
				f.runsAt(t, mib)
				if took > 600*time.Millisecond {
					return fmt.Errorf("they took %v, want 250 ms and a moment", took)
				}
				return nil
			})
			alice.teachShare(t, 0, 0, time.Minute)
			f.runsAt(t, 2*mib)
			testkit.Eventually(t, "the rate for a moment", func() error {
				alice.teachShare(t, 8*mib, 8*mib, 1500*time.Millisecond)
				return f.runs(8*mib, 0)
			})
			f.runsAt(t, 2*mib) // once the entry has expired
		})
	}
}

// The newest request's share holds for all transfers when none is taught.
func TestNewestShareHolds(t *testing.T) {
	r := transfers(t, usual)
	alice := r.someone(share(2*mib, 0))
	f := alice.flow(t, kind{}, 2)
	f.runsAt(t, 2*mib)
	alice.answer(share(8*mib, 0))
	f.join(alice.flow(t, kind{}, 8)) // as many as it takes for both of HAProxy's threads to hear of it
	f.runsAt(t, 8*mib)
}

// Transfers that do not use their part, or end, leave it to the user's other transfers.
func TestUnusedPartsOfAShare(t *testing.T) {
	for _, k := range []kind{{false, false}, {true, false}, {false, true}} {
		t.Run("ended "+k.String(), func(t *testing.T) {
			alice := transfers(t, usual).someone(share(16*mib, 16*mib))
			stays, aborts := alice.flow(t, k, 2), alice.flow(t, k, 6)
			aborts.awaitEach(t)
			aborts.stop()
			stays.runsAt(t, 16*mib)
		})
	}
	t.Run("of stalled clients", func(t *testing.T) {
		r := transfers(t, usual)
		alice := r.someone(share(16*mib, 0))
		for range 2 {
			stalled := r.begin(t, "")
			_ = stalled.Conn.(*net.TCPConn).SetReadBuffer(4096)
			stalled.write(httpGET(fmt.Sprintf("/%d", int64(forever)), alice.header()))
		}
		alice.flow(t, kind{}, 6).runsFairly(t, 16*mib, 0.9) // 0.99 on a quiet machine
	})
}

// Small requests of a user whose share others use up are served in between.
func TestSmallRequestsPassLargeTransfers(t *testing.T) {
	r := transfers(t, usual)
	alice := r.someone(share(mib, mib))
	f := alice.flow(t, kind{}, 32)
	f.runsAt(t, mib)
	testkit.Eventually(t, "1 KiB behind 32 transfers", func() error {
		var took []time.Duration
		for range 15 {
			start := time.Now()
			if got := r.send(t, httpGET("/1024", alice.header()))[0]; len(got.Body) != 1024 {
				t.Fatalf("%d bytes, want 1024", len(got.Body))
			}
			took = append(took, time.Since(start))
		}
		if slices.Sort(took); took[7] > 250*time.Millisecond {
			return fmt.Errorf("it took %v (median), want less than the 512 ms of a turn of 32 transfers", took[7])
		}
		return nil
	})
	f.runsAt(t, mib)
}

// Small bodies are within the total too. Nor are they less than it: what one ticket has more than a body needs serves
// the next ones, whose own tickets then serve others. With credit the limits are of no more than 512 requests per second, so
// that a machine that has much else to do reaches them.
func TestSmallBodies(t *testing.T) {
	for _, tt := range []struct {
		up, credit         bool
		limit, size, loops int
	}{
		{false, false, mib, 4096, 16}, {true, false, mib, 4096, 16}, {false, false, mib / 2, 512, 64}, {false, false, 4 * mib, 4096, 64},
		{false, true, mib / 4, 512, 16}, {false, true, mib, 4096, 16}, {true, true, mib / 4, 512, 16},
	} {
		t.Run(fmt.Sprintf("%v %d, %d times, credit %t", kind{Up: tt.up}, tt.size, tt.loops, tt.credit), func(t *testing.T) {
			r := transfers(t, usual)
			down, up := tt.limit, 0
			if tt.up {
				down, up = 0, tt.limit
			}
			began := time.Now()
			alice := r.someone(share(down, up))
			if tt.credit {
				alice = r.debtor(t, down, up)
				// The first sixteenth of a share passes before the clock counts: see haproxy/README.md.
				began = time.Now().Add(-time.Second / 16)
			}
			f := alice.loops(t, tt.loops, tt.up, tt.size)
			f.runsAt(t, float64(tt.limit))
			f.neverOver(t, began, float64(tt.limit))
		})
	}
}

func TestBodiesOfAllSorts(t *testing.T) {
	r := transfers(t, usual)
	alice := r.someone(share(100*mib, 100*mib))
	put := func(header, body string) string { return httpRequest("PUT", "/7", alice.header(), header) + body }
	for _, row := range []struct {
		name, raw string
		want      int
	}{
		{"none", httpGET("/0", alice.header()), 0},
		{"small", httpGET("/1000", alice.header()), 1000},
		{"large", httpGET("/3000000", alice.header()), 3000000},
		{"of unknown size", httpGET("/3000000?chunked", alice.header()), 3000000},
		{"none of unknown size", httpGET("/0?chunked", alice.header()), 0},
		{"HEAD", httpRequest("HEAD", "/3000000", alice.header()), 0},
		{"PUT of nothing", put("Content-Length: 0", ""), 7},
		{"PUT", put("Content-Length: 5", "hello"), 7},
		{"large PUT", put("Content-Length: 3000000", strings.Repeat("x", 3000000)), 7},
		{"chunked PUT", put("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"), 7},
	} {
		for range 3 {
			if got := r.send(t, row.raw)[0]; got.Status != 200 || len(got.Body) != row.want {
				t.Fatalf("%s: status %d with %d bytes, want 200 with %d", row.name, got.Status, len(got.Body), row.want)
			}
		}
	}
}

// No transfer times out because a share makes it slow.
func TestLeastShare(t *testing.T) {
	t.Parallel()
	alice := newRig(t, setup{serve: moving.ServeHTTP, edit: func(cfg string) string {
		return strings.NewReplacer("timeout client 60s", "timeout client 1s", "timeout server 60s", "timeout server 1s").Replace(cfg)
	}}).someone(share(unit, unit))
	began := time.Now()
	down, up := alice.flow(t, kind{}, 1), alice.flow(t, kind{Up: true}, 1)
	for _, f := range []*flow{down, up} {
		f.await(t, snapshot{moved: []int64{0}}, 2*unit)
		f.neverOver(t, began, 1.3*unit)
	}
}

// Both directions of one stream wait at the same time.
func TestBothDirectionsAtOnce(t *testing.T) {
	r := transfers(t, usual)
	alice := r.someone(share(2*mib, mib))
	const size = 2 * mib
	began := time.Now()
	e := r.begin(t, httpRequest("POST", "/echo", alice.header(), fmt.Sprintf("Content-Length: %d", size)))
	go e.Write(bytes.Repeat([]byte("x"), size))
	if got := e.answer(); len(got.Body) != size {
		t.Errorf("%d bytes came back, want %d", len(got.Body), size)
	}
	if took := time.Since(began); took < 1800*time.Millisecond {
		t.Errorf("2 MiB up at 1 MiB/s took %v, want 2 s", took)
	}
}

// After 101 the bytes of both directions are limited as bodies are, for requests that were asked about and those by credit.
func TestTunnels(t *testing.T) {
	for _, byCredit := range []bool{false, true} {
		t.Run(fmt.Sprintf("by credit %t", byCredit), func(t *testing.T) {
			r := transfers(t, usual)
			alice := r.someone(share(2*mib, 4*mib))
			if byCredit {
				alice = r.debtor(t, 2*mib, 4*mib)
			}
			id := "tunnel of " + alice.name
			tunnel := r.begin(t, httpGET("/", alice.header(), "X-Stream: "+id, "Upgrade: echo", "Connection: upgrade"))
			if got := tunnel.response(); got.StatusCode != 101 {
				t.Fatalf("status = %d, want 101", got.StatusCode)
			}
			down := new(atomic.Int64)
			go fill(tunnel)
			go drain(tunnel, down)
			(&flow{moved: []*atomic.Int64{down}}).runsAt(t, 2*mib)
			(&flow{moved: []*atomic.Int64{moving.upload(id)}}).runsAt(t, 4*mib)
		})
	}
}

// The bytes of a long transfer reach the agent while they move.
func TestBytesAreToldWhileTheyMove(t *testing.T) {
	alice := transfers(t, usual).someone(share(4*mib, 4*mib))
	alice.peer(t)
	for _, k := range []kind{{}, {Up: true}} {
		f := alice.flow(t, k, 2)
		f.runsAt(t, 4*mib)
		testkit.Eventually(t, "the peer", func() error {
			// What waits in HAProxy's buffers is told already.
			moved := f.now().total()
			n, down := alice.bytes(t)
			if !k.Up {
				n = down
			}
			if d := int64(n) - moved; d < -mib/2 || d > mib {
				return fmt.Errorf("%v: told %d, moved %d", k, n, moved)
			}
			return nil
		})
		f.stop()
	}
}

// The bytes of a body that arrive while the agent is asked are reported, too. Those of a request that is refused are not.
func TestBytesBeforeTheVerdictAreTold(t *testing.T) {
	const uploads, size = 20, 20_000
	for name, s := range map[string]setup{"credit": usual, "no credit": creditOff} {
		for limited, answer := range map[string]vars{"not limited": nil, "limited": share(0, 100*mib)} {
			t.Run(name+", "+limited, func(t *testing.T) {
				t.Parallel()
				r := joined(t, s.with(moving.ServeHTTP))
				alice := r.someone(nil)
				r.peer(t)
				var refused atomic.Bool
				r.answerFor(alice.name, func(q told) vars {
					time.Sleep(5 * time.Millisecond) // the body is here by then
					if refused.Load() {
						return spentOrLate(q)
					}
					return answer
				})
				send := func(n, status int) {
					t.Helper()
					for range n {
						if got := r.send(t, httpRequest("PUT", "/1", alice.header(), fmt.Sprint("Content-Length: ", size))+strings.Repeat("x", size))[0]; got.Status != status {
							t.Fatalf("status = %d, want %d", got.Status, status)
						}
					}
				}
				enough := func() error {
					// What arrives together with the verdict may be counted twice.
					if up, _ := alice.bytes(t); up < uploads*size || up > 2*uploads*size {
						return fmt.Errorf("%d bytes up, want some more than %d", up, uploads*size)
					}
					return nil
				}
				send(uploads, 200)
				testkit.Eventually(t, "the peer", enough)
				refused.Store(true)
				send(3*uploads, 429)
				refused.Store(false)
				send(1, 200)
				testkit.Eventually(t, "the peer again", enough)
			})
		}
	}
}

// After a reload transfers in flight go on, held to the share that their requests were told, and the new worker knows
// the shares that were taught.
func TestReload(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{serve: moving.ServeHTTP, master: true})
	alice, bob := r.someone(share(8*mib, 0)), r.someone(share(8*mib, 0))
	alice.teachShare(t, mib, 0, 15*time.Second)
	bob.teachShare(t, 2*mib, 0, time.Minute)
	f := alice.flow(t, kind{}, 2)
	f.runsAt(t, mib)
	pid := func() string {
		_, after, _ := strings.Cut(r.cli(t, "show info"), "\nPid: ")
		return strings.Fields(after)[0]
	}
	first := pid()
	testkit.Eventually(t, "the new worker", func() error { // the master overlooks signals at first, even if its worker serves already
		if err := r.proc.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		return testkit.Poll(5*time.Second, func() error {
			if pid() == first {
				return fmt.Errorf("still the old one")
			}
			return nil
		})
	})
	began := time.Now()
	g := bob.flow(t, kind{}, 1)
	g.runsAt(t, 2*mib)
	g.neverOver(t, began, 2*mib)
	// Before HAProxy 3.4 the old worker clears its tables within about a second. Later ones keep an entry until it expires.
	f.runsAt(t, 8*mib)
}

// The clock's own tests, run by the Lua that is in HAProxy.
func TestClock(t *testing.T) {
	t.Parallel()
	if err := runLua(t.TempDir(), testkit.HAProxyPath(t), "bandwidth_clock_test.lua", "clock: all passed"); err != nil {
		t.Error(err)
	}
}

// runLua has a HAProxy run a script's tests, with the modules of a folder besides, and looks for what they say if they pass.
func runLua(dir, program, script, passed string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	cfg := fmt.Sprintf("global\n lua-prepend-path %s/lua/?.lua\n lua-prepend-path %s/?.lua\n lua-load %s/lua/%s\n"+
		"listen l\n mode http\n bind unix@%s/s\n timeout client 1s\n timeout server 1s\n timeout connect 1s\n", here, dir, here, script, dir)
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		return err
	}
	out, err := exec.Command(program, "-c", "-f", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), passed) {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// heldInProgress waits until want requests of a user are held, by credit or asked about.
func (s someone) heldInProgress(t testing.TB, want int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprint(want, " requests that are held"), func() error {
		if sum := s.inProgress(t, "sluice/held") + s.inProgress(t, "sluice/active"); sum != want {
			return fmt.Errorf("%d", sum)
		}
		return nil
	})
}

// inProgress is how many requests of the user a table has in progress.
func (s someone) inProgress(t testing.TB, table string) (n int) {
	t.Helper()
	_, entry, _ := strings.Cut(s.cli(t, "show table "+table), "key="+s.name+" ")
	_, count, _ := strings.Cut(entry, "conn_cur=")
	_, _ = fmt.Sscan(count, &n)
	return n
}

// transferByCredit starts one that nobody was asked about.
func (s someone) transferByCredit(t testing.TB, k kind) (f *flow) {
	t.Helper()
	testkit.Eventually(t, "a transfer by credit", func() error {
		s.toldOf(t, s.name)
		f = s.flow(t, k, 1)
		f.awaitEach(t)
		if asked := s.toldOf(t, s.name); len(asked) > 0 {
			f.stop()
			return fmt.Errorf("asked %+v", asked)
		}
		return nil
	})
	return f
}

// clocked is whether bytes of a user were held: then there is a clock of theirs.
func (r *rig) clocked(t testing.TB, user string) bool {
	t.Helper()
	e := r.entry(t, user)
	return e["gpt4"]+e["gpt5"] > 0
}

// A user is held to the share that came with their credit, and to the one that is taught.
func TestBandwidthByCredit(t *testing.T) {
	for _, row := range []struct {
		name  string
		setup setup
		k     kind
	}{
		{"down", usual, kind{}}, {"down, HTTP/2", usual, kind{H2: true}}, {"up", usual, kind{Up: true}}, {"beside", usualBeside, kind{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			down, up := row.k.shares(8 * mib)
			alice := transfers(t, row.setup).debtor(t, down, up)
			began := time.Now()
			f := alice.transferByCredit(t, row.k)
			f.join(alice.flow(t, row.k, 7))
			f.runsFairly(t, 8*mib, 0.9)
			f.neverOver(t, began, 8*mib)
			alice.heldInProgress(t, 8)
			alice.teachShare(t, 2*mib, 2*mib, time.Minute)
			f.runsAt(t, 2*mib)
			alice.teachShare(t, 1000*mib, 1000*mib, time.Minute) // the kernel has megabytes that came up before the end
			f.stop()
			alice.heldInProgress(t, 0)
			testkit.Eventually(t, "the end of what credit has admitted", func() error {
				if n := alice.inProgress(t, "sluice_credit"); n != 0 {
					return fmt.Errorf("%d in progress", n)
				}
				return nil
			})
		})
	}
}

// Requests that were asked about without credit and with some, those that nobody was heard
// about, and those admitted by credit have one clock.
func TestBandwidthByCreditAndAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{serve: moving.ServeHTTP, Config: Config{Env: []string{"SLUICE_THREADS=2", "SLUICE_VERDICT_TIMEOUT=2s"}}})
	r.teachRow(t, generation, 0, 0)
	alice := r.someone(share(4*mib, 0))
	began := time.Now()
	f := alice.flow(t, kind{}, 2)
	f.runsAt(t, 4*mib)
	if told := r.takeTold(t); len(told) != 2 || !told[0].Shares {
		t.Errorf("asked %+v, want twice, with shares that credit may bring", told)
	}
	r.lend(t, alice.name, lent(4*mib, 0).with("factor", uint32(4)))
	alice.answer(share(4*mib, 0))
	for range 2 {
		f.join(alice.transferByCredit(t, kind{}))
	}
	f.runsAt(t, 4*mib)

	r.teachRow(t, generation+1, 0, 0) // no second is opened
	testkit.Eventually(t, "the agent is asked", func() error {
		if r.admitted(t, httpGET("/1", alice.header())) {
			return fmt.Errorf("admitted")
		}
		return nil
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
	f.join(alice.flow(t, kind{}, 2))
	f.runsAt(t, 4*mib)
	testkit.Eventually(t, "4 requests in progress that were asked about", func() error {
		if n := alice.inProgress(t, "sluice/active"); n != 4 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})

	answer := make(chan struct{})
	defer close(answer)
	r.answerFor(alice.name, func(told) vars { <-answer; return nil })
	f.join(alice.flow(t, kind{}, 2))
	f.awaitEach(t) // also those without a verdict
	f.runsAt(t, 4*mib)
	if f.neverOver(t, began, 4*mib); len(f.moved) != 8 {
		t.Errorf("%d transfers, want 8", len(f.moved))
	}
}

// A body that takes less than a millisecond passes below a sixteenth of the share, others are
// held. What has no body has no filter.
func TestWhatPassesByCredit(t *testing.T) {
	const limit = mib
	get := func(target string) string { return httpGET(target) }
	put := func(size int) string {
		return httpRequest("PUT", "/1", fmt.Sprint("Content-Length: ", size)) + strings.Repeat("x", size)
	}
	for _, tt := range []struct {
		name     string
		down, up int
		raw      string
		backend  string
		held     bool
	}{
		{"small answer", limit, 0, get("/1024"), "held", false},
		{"larger answer", limit, 0, get("/1088"), "held", true},
		{"empty answer", limit, 0, get("/0"), "held", false},
		{"answer of unknown size", 100 * limit, 0, get("/3000?chunked"), "held", true},
		{"answer of a slow user", 100, 0, get("/1"), "held", true},
		{"to HEAD", limit, 0, httpRequest("HEAD", "/100000"), "origin", false},
		{"small upload", 0, limit, put(1024), "held", false},
		{"larger upload", 0, limit, put(1088), "held", true},
		{"no upload", 0, limit, get("/100000"), "origin", false},
		{"small ones both ways", limit, limit, put(100), "held", false},
		{"the upload alone is large", limit, limit, put(10_000), "held", true},
	} {
		for name, s := range map[string]setup{"ours": usual, "beside": usualBeside} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				r := transfers(t, s)
				alice := r.someone(nil)
				r.lend(t, alice.name, lent(tt.down, tt.up))
				backend := tt.backend
				if s.beside {
					backend = "app" // theirs, whatever is held
				}
				count := func() (n int) {
					n, _ = strconv.Atoi(r.stat(t, backend, "BACKEND", "stot"))
					return n
				}
				before := count()
				r.native(t, strings.Replace(tt.raw, "\r\n", "\r\n"+alice.header()+"\r\n", 1))
				if count() == before {
					t.Errorf("backend %s had no request", backend)
				}
				if got := r.clocked(t, alice.name); got != tt.held {
					t.Errorf("held: %v, want %v", got, tt.held)
				}
			})
		}
	}
}

// Credit without shares ends those of the one before.
func TestSharesOfCreditEnd(t *testing.T) {
	r := transfers(t, usual)
	alice := r.debtor(t, 64_000, 6400)
	if e := r.entry(t, alice.name); e["gpt15"] != 1000 || e["gpt16"] != 100 {
		t.Errorf("entry %v, want shares of 1000 and 100", e)
	}
	r.set(t, "sluice_credit", alice.name, "data.gpt 0")
	r.lend(t, alice.name, credit(unlimited, nil))
	if e := r.entry(t, alice.name); e["gpt15"] != 0 || e["gpt16"] != 0 {
		t.Errorf("entry %v, want no shares", e)
	}
}

// Where credit cannot bring shares the agent is told, and users with a share are asked about.
func TestNoSharesOfCredit(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setup{"bounded origin": bounded, "limits of an address": manyOfAnAddress, "nobody has a bandwidth": fitted} {
		t.Run(name, func(t *testing.T) {
			r := shared(t, s.with(moving.ServeHTTP))
			alice := r.someone(share(mib, 0))
			if f := alice.flow(t, kind{}, 2); !s.Fitted { // those hold nobody
				f.runsAt(t, mib)
			}
			testkit.Eventually(t, "two requests in progress", func() error {
				if n := alice.inProgress(t, "sluice/active"); n != 2 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			if told := r.takeTold(t); len(told) != 2 || told[0].Shares {
				t.Errorf("asked %+v, want twice, without shares", told)
			}
		})
	}
}

// rss is HAProxy's resident memory, in KiB.
func (r *rig) rss(t testing.TB) (kib int) {
	t.Helper()
	_, after, _ := strings.Cut(readFile(t, fmt.Sprintf("/proc/%d/status", r.proc.Pid())), "\nVmRSS:")
	if _, err := fmt.Sscanf(after, "%d", &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// Users who are gone cost nothing: many after one another need no more memory than
// the tables that hold them, and what Lua knows of the last few seconds'.
func TestManyUsers(t *testing.T) {
	t.Parallel()
	const users, most = 5_000, 40 << 10
	r := newRig(t, setup{serve: moving.ServeHTTP, Config: Config{Env: []string{"SLUICE_THREADS=2"}}})
	r.answerWith(func(heard) vars { return share(mib, mib) })
	crowd := func(prefix string) {
		for i := 0; i < users; i += 100 {
			var raw []string
			for j := range 100 {
				raw = append(raw, httpGET("/1", fmt.Sprintf("X-User: %s-%d", prefix, i+j)))
			}
			r.send(t, raw...)
		}
		r.takeHeard(t)
	}
	crowd("first")
	before := r.rss(t)
	for _, prefix := range []string{"second", "third"} {
		crowd(prefix)
	}
	if after := r.rss(t); after-before > most {
		t.Errorf("%d more users took %d KiB, want at most %d", 2*users, after-before, most)
	}
}
