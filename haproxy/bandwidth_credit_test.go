package haproxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// lent is credit without limits of requests that brings these shares, in bytes per second.
func lent(down, up int) vars {
	v := credit(unlimited, nil)
	for name, n := range share(down, up) {
		v["lent_"+name], v[name] = n, n
	}
	return v
}

// newLentMover is a rig whose origin and clients move bytes by credit, alice having a share.
func newLentMover(t testing.TB, s setup, down, up int) (*rig, *mover) {
	t.Helper()
	r, m := newMover(t, s, nil)
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", lent(down, up))
	r.native(t, httpGET("/1", "X-User: alice"))
	r.answerTold(func(told) vars { return share(down, up) })
	return r, m
}

// heldInProgress waits until want requests of alice are held, by credit or asked about. Which of several at once
// are asked about nobody can say: one that meets another that renews their tickets is. So the agent of these tests
// answers with the shares that are lent, as the real one does.
func (r *rig) heldInProgress(t testing.TB, want int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprint(want, " requests of alice that are held"), func() error {
		sum := 0
		for _, table := range []string{"sluice/held", "sluice/active"} {
			_, count, there := strings.Cut(r.cli(t, "show table "+table+" key alice"), "conn_cur=")
			if !there {
				continue
			}
			n, err := strconv.Atoi(strings.Fields(count)[0])
			if err != nil {
				return err
			}
			sum += n
		}
		if sum != want {
			return fmt.Errorf("%d", sum)
		}
		return nil
	})
}

// transferByCredit starts one of alice that nobody was asked about.
func (r *rig) transferByCredit(t testing.TB, m *mover, k kind) (f *flow) {
	t.Helper()
	proctest.Eventually(t, "a transfer by credit", func() error {
		r.takeTold(t)
		f = r.flow(t, m, "alice", k, 1)
		proctest.Eventually(t, "it moves", func() error {
			if f.moved[0].Load() == 0 {
				return fmt.Errorf("no byte")
			}
			return nil
		})
		if asked := r.takeTold(t); len(asked) > 0 {
			f.stop()
			return fmt.Errorf("asked %+v", asked)
		}
		return nil
	})
	return f
}

// clocked is whether bytes of alice were held: then there is a clock of alice.
func (r *rig) clocked(t testing.TB) bool {
	t.Helper()
	return strings.Contains(r.cli(t, "show table sluice_clock"), "key=alice ")
}

// besideOrNot runs a test on our configuration, and on one of somebody's own.
func besideOrNot(t *testing.T, test func(t *testing.T, beside bool)) {
	t.Helper()
	for _, beside := range []bool{false, true} {
		t.Run(fmt.Sprint("beside=", beside), func(t *testing.T) { test(t, beside) })
	}
}

// A user is held to the share that came with their credit, and to the one that is taught.
func TestBandwidthByCredit(t *testing.T) {
	t.Parallel()
	besideOrNot(t, testBandwidthByCredit)
}

func testBandwidthByCredit(t *testing.T, beside bool) {
	for _, k := range []kind{{false, false}, {false, true}, {true, false}} {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			limits := [2]int{8 * mib, 1000} // the other direction is far too small
			if k.Up {
				limits = [2]int{1000, 8 * mib}
			}
			r, m := newLentMover(t, setup{beside: beside}, limits[0], limits[1])
			teach := r.teacher(t)
			began := time.Now()
			alice := r.transferByCredit(t, m, k)
			alice.join(r.flow(t, m, "alice", k, 7))
			alice.runsFairly(t, 8*mib, 0.9)
			alice.neverOver(t, began, 8*mib)
			r.heldInProgress(t, 8)
			teach("alice", 2*mib, 2*mib, time.Minute)
			alice.runsAt(t, 2*mib)
			alice.stop()
			proctest.Eventually(t, "nothing in progress", func() error {
				if text := r.cli(t, "show table sluice_credit key alice"); !strings.Contains(text, "conn_cur=0") {
					return fmt.Errorf("table sluice_credit has %s", text)
				}
				return nil
			})
			r.heldInProgress(t, 0)
		})
	}
}

// Requests that were asked about without credit and with some, those that nobody was heard
// about, and those admitted by credit have one clock.
func TestBandwidthByCreditAndAsked(t *testing.T) {
	t.Parallel()
	besideOrNot(t, testBandwidthByCreditAndAsked)
}

func testBandwidthByCreditAndAsked(t *testing.T, beside bool) {
	t.Parallel()
	r, m := newMover(t, setup{beside: beside, Config: Config{VerdictTimeout: 2 * time.Second}}, map[string]vars{"alice": share(4*mib, 0)})
	began := time.Now()
	f := r.flow(t, m, "alice", kind{}, 2)
	f.runsAt(t, 4*mib)
	if told := r.takeTold(t); len(told) != 2 || !told[0].Shares {
		t.Errorf("asked %+v, want twice, with shares that credit may bring", told)
	}
	r.teachRow(t, generation, 0, 0)
	r.lend(t, "alice", lent(4*mib, 0).with("factor", uint32(4)))
	r.native(t, httpGET("/1", "X-User: alice"))
	r.answerTold(func(told) vars { return share(4*mib, 0) })
	for range 2 {
		f.join(r.transferByCredit(t, m, kind{}))
	}
	f.runsAt(t, 4*mib)

	r.teachRow(t, generation+1, 0, 0) // no credit is renewed
	proctest.Eventually(t, "the agent is asked", func() error {
		if r.admitted(t, httpGET("/1", "X-User: alice")) {
			return fmt.Errorf("admitted")
		}
		return nil
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond)))
	f.join(r.flow(t, m, "alice", kind{}, 2))
	f.runsAt(t, 4*mib)
	proctest.Eventually(t, "4 requests in progress that were asked about", func() error {
		if text := r.cli(t, "show table sluice/active key alice"); !strings.Contains(text, "conn_cur=4") {
			return fmt.Errorf("table active has %s", text)
		}
		return nil
	})

	answer := make(chan struct{})
	defer close(answer)
	r.answerTold(func(told) vars { <-answer; return nil })
	f.join(r.flow(t, m, "alice", kind{}, 2))
	proctest.Eventually(t, "all transfers move, also those without a verdict", func() error {
		for i, a := range f.now().moved {
			if a == 0 {
				return fmt.Errorf("transfer %d has moved nothing", i)
			}
		}
		return nil
	})
	f.runsAt(t, 4*mib)
	if f.neverOver(t, began, 4*mib); len(f.moved) != 8 {
		t.Errorf("%d transfers, want 8", len(f.moved))
	}
}

// Small bodies are within the total, and have all of it. The limits are of no more than 512 requests per second, so
// that a machine that has much else to do reaches them.
func TestSmallBodiesByCredit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		up          bool
		limit, size int
	}{{false, mib / 4, 512}, {false, mib, 4096}, {true, mib / 4, 512}} {
		t.Run(fmt.Sprint(kind{Up: tt.up}, " ", tt.size), func(t *testing.T) {
			t.Parallel()
			limits := [2]int{tt.limit, 0}
			if tt.up {
				limits = [2]int{0, tt.limit}
			}
			r, _ := newLentMover(t, setup{}, limits[0], limits[1])
			// The first sixteenth of a share passes before the clock counts: see haproxy/README.md.
			began := time.Now().Add(-time.Second / 16)
			f := &flow{}
			for range 16 {
				f.moved = append(f.moved, r.loop(t, tt.up, tt.size))
			}
			f.runsAt(t, float64(tt.limit))
			f.neverOver(t, began, float64(tt.limit))
		})
	}
}

// A body that takes less than a millisecond passes below a sixteenth of the share, others are
// held. What has no body has no filter.
func TestWhatPassesByCredit(t *testing.T) { besideOrNot(t, testWhatPassesByCredit) }

func testWhatPassesByCredit(t *testing.T, beside bool) {
	const limit = mib
	get := func(size int) string { return httpGET(fmt.Sprint("/", size), "X-User: alice") }
	put := func(size int) string {
		return httpRequest("PUT", "/1", "X-User: alice", fmt.Sprint("Content-Length: ", size)) + strings.Repeat("x", size)
	}
	for _, tt := range []struct {
		name     string
		down, up int
		raw      string
		backend  string
		held     bool
	}{
		{"small answer", limit, 0, get(limit / 1024), "held", false},
		{"larger answer", limit, 0, get(limit/1024 + 64), "held", true},
		{"empty answer", limit, 0, get(0), "held", false},
		{"answer of unknown size", 100 * limit, 0, httpGET("/3000?chunked", "X-User: alice"), "held", true},
		{"answer of a slow user", 100, 0, get(1), "held", true},
		{"to HEAD", limit, 0, httpRequest("HEAD", "/100000", "X-User: alice"), "origin", false},
		{"small upload", 0, limit, put(limit / 1024), "held", false},
		{"larger upload", 0, limit, put(limit/1024 + 64), "held", true},
		{"no upload", 0, limit, get(100_000), "origin", false},
		{"small ones both ways", limit, limit, put(100), "held", false},
		{"the upload alone is large", limit, limit, put(10_000), "held", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, _ := newLentMover(t, setup{beside: beside}, tt.down, tt.up)
			r.cli(t, "clear table sluice_clock")
			if beside {
				tt.backend = "app" // theirs, whatever is held
			}
			count := func() string { return r.stat(t, tt.backend, "BACKEND", "stot") }
			before := count()
			proctest.Eventually(t, "a request by credit", func() error {
				r.takeTold(t)
				if method, _, _ := strings.Cut(tt.raw, " "); method == "HEAD" {
					q, err := http.NewRequest(method, "http://"+r.addr+"/100000", nil)
					if err != nil {
						return err
					}
					q.Header.Set("X-User", "alice")
					resp, err := http.DefaultClient.Do(q)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					_, _ = io.Copy(io.Discard, resp.Body)
				} else {
					r.send(t, tt.raw)
				}
				if asked := r.takeTold(t); len(asked) > 0 {
					return fmt.Errorf("asked")
				}
				return nil
			})
			if after := count(); after == before {
				t.Errorf("backend %s had no request", tt.backend)
			}
			if got := r.clocked(t); got != tt.held {
				t.Errorf("held: %v, want %v", got, tt.held)
			}
		})
	}
}

// Credit without shares ends those of the one before.
func TestSharesOfCreditEnd(t *testing.T) {
	t.Parallel()
	r, _ := newLentMover(t, setup{}, 64_000, 6400)
	if e := r.entry(t, "alice"); e["gpt24"] != 1000 || e["gpt25"] != 100 {
		t.Errorf("entry %v, want shares of 1000 and 100", e)
	}
	r.teachRow(t, generation+1, 0, 0)
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(2100 * time.Millisecond)))
	r.lend(t, "alice", credit(unlimited, nil).with("credit", uint32(generation+1)))
	if e := r.entry(t, "alice"); e["gpt24"] != 0 || e["gpt25"] != 0 {
		t.Errorf("entry %v, want no shares", e)
	}
}

// Where credit cannot bring shares the agent is told, and who has a share is asked about.
func TestNoSharesOfCredit(t *testing.T) {
	for name, c := range map[string]Config{
		"bounded origin":         {Env: []string{"SLUICE_ORIGIN_MAXCONN=10"}},
		"limits of an address":   {Addresses: limits.AddressLimits{Requests: 1000}},
		"nobody has a bandwidth": {Fitted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, m := newMover(t, setup{Config: c}, map[string]vars{"alice": share(mib, 0)})
			if f := r.flow(t, m, "alice", kind{}, 2); !c.Fitted { // those hold nobody
				f.runsAt(t, mib)
			}
			proctest.Eventually(t, "two requests in progress", func() error {
				if text := r.cli(t, "show table sluice/active key alice"); !strings.Contains(text, "conn_cur=2") {
					return fmt.Errorf("table active has %s", text)
				}
				return nil
			})
			if told := r.takeTold(t); len(told) != 2 || told[0].Shares {
				t.Errorf("asked %+v, want twice, without shares", told)
			}
		})
	}
}

// What holds bodies is written down twice.
func TestBandwidthIsTheSameByCredit(t *testing.T) {
	cfg, err := Render(Config{})
	if err != nil {
		t.Fatal(err)
	}
	part := marked(t, cfg, "bandwidth")
	if n := strings.Count(cfg, part); part == "" || n != 2 {
		t.Errorf("the rules between the marks of bandwidth are there %d times, want twice", n)
	}
	text, err := Files.ReadFile("haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), part) != 2 {
		t.Error("so they are not in haproxy.cfg")
	}
}
