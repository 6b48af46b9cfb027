package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// A stand is a real HAProxy with testdata/haproxy.cfg, an origin whose answers
// are held back while hold is locked, and what a client of this package learns.
type stand struct {
	t     *testing.T
	dir   string
	env   []string
	front string // host:port of HAProxy's frontend
	opts  Options
	proc  *testkit.Process
	hold  sync.RWMutex

	mu     sync.Mutex
	seen   map[string]Update // the last one of each table and key, as "/active bob"
	states []Session
}

// newStand starts HAProxy with its peer on a unix socket, or on loopback TCP.
func newStand(t *testing.T, network string) *stand {
	t.Helper()
	dir, err := os.MkdirTemp("", "peers") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &stand{t: t, dir: dir, front: testkit.FreeAddr(t), seen: make(map[string]Update)}
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.hold.RLock()
		defer s.hold.RUnlock()
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(origin.Close)

	address, bind := filepath.Join(dir, "peers.sock"), "unix@"+filepath.Join(dir, "peers.sock")
	if network == "tcp" {
		address = testkit.FreeAddr(t)
		bind = address
	}
	s.env = []string{
		"PEERS_BIND=" + bind, "PEERS_AGENT=unix@" + filepath.Join(dir, "agent.sock"),
		"STATS=" + filepath.Join(dir, "stats.sock"), "HTTP_BIND=" + s.front,
		"ORIGIN=" + strings.TrimPrefix(origin.URL, "http://"),
	}
	s.opts = Options{
		Network: network, Address: address, Local: "agent", Remote: "haproxy",
		Teach: []Table{throttle, {Name: "/block", KeyLen: 128, Expire: time.Minute, Data: []DataType{GPT0}}},
		Learn: func(u Update) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen[u.Table+" "+u.Key] = u
		},
		OnSession: func(change Session) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.states = append(s.states, change)
		},
	}
	s.haproxy()
	return s
}

func (s *stand) haproxy() {
	s.t.Helper()
	s.proc = testkit.HAProxy(s.t, "testdata/haproxy.cfg", s.front, s.env...)
}

// start runs a client until the returned function is called, or the test ends,
// and waits until it has a session.
func (s *stand) start() (c *Client, stop func()) {
	s.t.Helper()
	c = New(s.opts)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	testkit.Eventually(s.t, "session with HAProxy", func() error {
		if !c.Connected() {
			return fmt.Errorf("not connected")
		}
		return nil
	})
	return c, stop
}

// command asks HAProxy's stats socket.
func (s *stand) command(line string) string {
	s.t.Helper()
	var conn net.Conn
	testkit.Eventually(s.t, "stats socket", func() (err error) { // a new HAProxy binds it at its own time
		conn, err = net.Dial("unix", filepath.Join(s.dir, "stats.sock"))
		return err
	})
	defer conn.Close()
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

// used is the number of entries of a table of HAProxy's.
func (s *stand) used(table string) int {
	s.t.Helper()
	out := s.command("show table") // "# table: sluice/block, type: string, size:102400, used:0"
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, "# table: sluice"+table+","); ok {
			var n int
			_, count, _ := strings.Cut(rest, "used:")
			if _, err := fmt.Sscan(count, &n); err != nil {
				s.t.Fatalf("show table: %q: %v", line, err)
			}
			return n
		}
	}
	s.t.Fatalf("show table has no %s:\n%s", table, out)
	return 0
}

// expiry is the time that the only entry of a table of HAProxy's has left.
func (s *stand) expiry(table string) time.Duration {
	s.t.Helper()
	out := s.command("show table sluice" + table) // "0x55d8: key=bob use=0 exp=59991 shard=0 gpt0=1"
	_, rest, _ := strings.Cut(out, " exp=")
	var ms int
	if _, err := fmt.Sscan(rest, &ms); err != nil {
		s.t.Fatalf("show table: %q: %v", out, err)
	}
	return time.Duration(ms) * time.Millisecond
}

func (s *stand) learned(table, key string) Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[table+" "+key]
}

// A visitor sends requests over one connection, as plainly as possible so that
// the time HAProxy takes is what is measured.
type visitor struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (s *stand) visitor() *visitor {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.front)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * testkit.Patience))
	return &visitor{s.t, conn, bufio.NewReader(conn)}
}

func (v *visitor) send(path, header string) {
	v.t.Helper()
	if _, err := fmt.Fprintf(v.conn, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", path, header); err != nil {
		v.t.Fatal(err)
	}
}

func (v *visitor) receive() *http.Response {
	v.t.Helper()
	resp, err := http.ReadResponse(v.in, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		v.t.Fatal(err)
	}
	return resp
}

// status of a request with the throttle key.
func (v *visitor) status(key string) int {
	v.t.Helper()
	v.send("/", "x-key: "+key)
	return v.receive().StatusCode
}

// gpt0 is what HAProxy has for the key in the throttle table, "0" for no entry.
func (v *visitor) gpt0(key string) string {
	v.t.Helper()
	v.send("/lookup", "x-key: "+key)
	return v.receive().Header.Get("x-gpt0")
}

func eventuallyEqual[T comparable](t *testing.T, what string, want T, get func() T) {
	t.Helper()
	testkit.Eventually(t, what, func() error {
		if got := get(); got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// Tests of one HAProxy, whose tables are empty before each. The last one kills it.
func TestHAProxy(t *testing.T) {
	s := newStand(t, "unix")
	options := s.opts
	for _, test := range []struct {
		name string
		run  func(*testing.T, *stand)
	}{
		{"is taught", testHAProxyIsTaught},
		{"forgets after the ttl", testHAProxyForgetsAfterTTL},
		{"keeps keys intact", testHAProxyKeepsKeysIntact},
		{"takes many entries", testHAProxyTakesManyEntries},
		{"tells requests in progress", testHAProxyTellsRequestsInProgress},
		{"teaches a client that restarts", testClientRestarts},
		{"refuses an unknown peer", testHAProxyRefusesUnknownPeer},
		{"is taught again when it restarts", testHAProxyRestarts},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t, s.opts = t, options
			for _, table := range []string{"active", "throttle", "block", "brief"} {
				s.command("clear table sluice/" + table)
			}
			s.mu.Lock()
			clear(s.seen)
			s.states = nil
			s.mu.Unlock()
			test.run(t, s)
		})
	}
}

func testHAProxyIsTaught(t *testing.T, s *stand) {
	c, _ := s.start()
	v := s.visitor()
	if got := v.status("GET|bob"); got != http.StatusOK {
		t.Errorf("status before = %d, want 200", got)
	}
	teach := func(value uint64) int { // again and again, because it ends
		c.Teach("/throttle", "GET|bob", Values{GPT0: value}, 5*time.Second)
		return v.status("GET|bob")
	}
	eventuallyEqual(t, "throttled", http.StatusTooManyRequests, func() int { return teach(1) })
	if got := v.status("GET|eve"); got != http.StatusOK {
		t.Errorf("status of another key = %d, want 200", got)
	}
	eventuallyEqual(t, "lifted", http.StatusOK, func() int { return teach(0) })
}

// An entry has the ttl it was taught with, and ends by itself, not before it.
// HAProxy 2.6 and 3.0 look at a new entry for the first time after the table's
// expire, so there it may outlast a shorter ttl by as much: whatever depends on
// the end has to be in the entry's values.
func testHAProxyForgetsAfterTTL(t *testing.T, s *stand) {
	s.opts.Teach = append(s.opts.Teach, Table{Name: "/brief", KeyLen: 32, Expire: time.Second, Data: []DataType{GPT0}})
	c, _ := s.start()

	c.Teach("/block", "ttl", Values{GPT0: 1}, 40*time.Second)
	eventuallyEqual(t, "entries", 1, func() int { return s.used("/block") })
	if left := s.expiry("/block"); left > 40*time.Second || left == 0 {
		t.Errorf("HAProxy gives an entry taught for 40s %v", left)
	}

	const ttl = 300 * time.Millisecond
	var taught time.Time
	testkit.Eventually(t, "an entry is seen before its end", func() error { // a slow machine may look too late
		eventuallyEqual(t, "entries before", 0, func() int { return s.used("/brief") })
		taught = time.Now()
		c.Teach("/brief", "ttl", Values{GPT0: 1}, ttl)
		return testkit.Poll(time.Second, func() error {
			if s.used("/brief") != 1 {
				return errors.New("it is not there")
			}
			return nil
		})
	})
	eventuallyEqual(t, "entries after the ttl", 0, func() int { return s.used("/brief") })
	lasted := time.Since(taught)
	if lasted < ttl-10*time.Millisecond { // HAProxy's clock ticks in milliseconds
		t.Errorf("an entry taught for %v lasted %v", ttl, lasted)
	}
}

func testHAProxyKeepsKeysIntact(t *testing.T, s *stand) {
	c, _ := s.start()
	v := s.visitor()
	keys := []string{
		"GET|with blanks  inside",
		"GET|a;b|c:d%20e,f=g&h\"i\\j'k#l",
		"GET|; set table sluice/block key x data.gpt0 1",
		"GET|Jürgen Müller 田中 🙂",
		"GET|ctrl\x01\x7f",
		strings.Repeat("ü", 79) + "x",    // 159 bytes
		strings.Repeat("0123456789", 16), // 160, all that fits
	}
	teach := func() { // again and again, for they end
		for i, key := range keys {
			c.Teach("/throttle", key, Values{GPT0: uint64(i) + 1, GPC0: 1<<32 - 1}, 5*time.Second)
		}
	}
	for i, key := range keys {
		if strings.ContainsAny(key, "\x01\x7f") {
			continue // no header may carry it
		}
		eventuallyEqual(t, fmt.Sprintf("gpt0 of %q", key), fmt.Sprint(i+1), func() string { teach(); return v.gpt0(key) })
	}
	if got := v.gpt0(strings.Repeat("0123456789", 16)[:159]); got != "0" {
		t.Errorf("gpt0 of a key's first 159 bytes = %s, want no entry", got)
	}
	eventuallyEqual(t, "entries", len(keys), func() int { teach(); return s.used("/throttle") })
	if got := s.used("/block"); got != 0 {
		t.Errorf("a key's text reached table block: %d entries, want 0", got)
	}
	eventuallyEqual(t, "show table has a gpc0 of 2^32-1", true, func() bool {
		teach()
		return strings.Contains(s.command("show table sluice/throttle"), "gpc0=4294967295")
	})
}

func testHAProxyTakesManyEntries(t *testing.T, s *stand) {
	const n = 20_000
	c, _ := s.start()
	for i := range n {
		c.Teach("/block", fmt.Sprintf("user %d", i), Values{GPT0: 1}, time.Minute)
	}
	eventuallyEqual(t, "entries of HAProxy", n, func() int { return s.used("/block") })
}

// Requests in progress are known as they begin and end, over one connection
// that is kept alive.
func testHAProxyTellsRequestsInProgress(t *testing.T, s *stand) {
	s.start()
	v := s.visitor()
	for i := range uint64(3) {
		s.hold.Lock()
		v.send("/", "x-user: bob")
		eventuallyEqual(t, "in progress", 1, func() uint64 { return s.learned("/active", "bob").Values[ConnCur] })
		s.hold.Unlock()
		v.receive()
		eventuallyEqual(t, "in progress", 0, func() uint64 { return s.learned("/active", "bob").Values[ConnCur] })
		eventuallyEqual(t, "requests", i+1, func() uint64 { return s.learned("/active", "bob").Values[HTTPReqCnt] })
	}
	eventuallyEqual(t, "bytes out", true, func() bool { return s.learned("/active", "bob").Values[BytesOutCnt] > 0 })
	u := s.learned("/active", "bob")
	if u.Session != 1 || u.Expire <= 9*time.Minute || u.Expire > 10*time.Minute {
		t.Errorf("update of session %d expires in %v, want session 1 and 10m", u.Session, u.Expire)
	}
}

// A new client is taught by HAProxy, and HAProxy by it, at once.
func testClientRestarts(t *testing.T, s *stand) {
	_, stop := s.start()
	s.hold.Lock()
	v := s.visitor()
	v.send("/", "x-user: bob")
	eventuallyEqual(t, "in progress", 1, func() uint64 { return s.learned("/active", "bob").Values[ConnCur] })
	stop()
	s.mu.Lock()
	clear(s.seen)
	s.states = nil
	s.mu.Unlock()

	s.start()
	eventuallyEqual(t, "in progress, learned again", 1, func() uint64 { return s.learned("/active", "bob").Values[ConnCur] })
	eventuallyEqual(t, "synced", true, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.states, Session{ID: 1, State: Synced})
	})
	s.hold.Unlock()
	v.receive()
}

// A new HAProxy is taught what still holds, with the time that is left.
func testHAProxyRestarts(t *testing.T, s *stand) {
	c, _ := s.start()
	taught := time.Now()
	c.Teach("/block", "bob", Values{GPT0: 1}, time.Minute)
	c.Teach("/throttle", "gone", Values{GPT0: 1}, time.Millisecond)
	eventuallyEqual(t, "entries before", 1, func() int { return s.used("/block") })

	s.proc.Kill()
	eventuallyEqual(t, "found gone, before another one listens", true, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.states, Session{ID: 1, State: Gone})
	})
	s.haproxy()
	start := time.Now()
	eventuallyEqual(t, "entries after", 1, func() int { return s.used("/block") })
	if got := s.used("/throttle"); got != 0 {
		t.Errorf("an entry that had ended was taught again")
	}
	if left, most := s.expiry("/block"), time.Minute-start.Sub(taught); left > most+time.Millisecond {
		t.Errorf("taught again for %v, want at most %v", left, most)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []string
	for _, change := range s.states {
		if change.State != Synced { // a killed HAProxy may not have come to it
			states = append(states, fmt.Sprint(change.ID, " ", change.State))
		}
	}
	if want := []string{"1 up", "1 down", "1 gone", "2 up"}; !slices.Equal(states, want) {
		t.Errorf("sessions were %q, want %q", states, want)
	}
}

// A reloaded HAProxy has a new worker, which the client finds and teaches, and
// learns from, while requests of the old worker go on.
func TestHAProxyReloads(t *testing.T) {
	s := newStand(t, "unix")
	s.proc.Stop()
	s.proc = testkit.Start(t, s.env, testkit.HAProxyPath(t), "-W", "-db", "-f", "testdata/haproxy.cfg")
	c, _ := s.start()
	c.Teach("/block", "bob", Values{GPT0: 1}, time.Minute)
	eventuallyEqual(t, "entries before", 1, func() int { return s.used("/block") })
	s.hold.Lock()
	release := sync.OnceFunc(s.hold.Unlock)
	t.Cleanup(release) // or the origin would never end
	old := s.visitor()
	old.send("/", "x-user: bob")
	eventuallyEqual(t, "in progress", 1, func() uint64 { return s.learned("/active", "bob").Values[ConnCur] })

	testkit.Eventually(t, "HAProxy reloads", func() error { // its master overlooks signals at first, even if the worker serves already
		if err := s.proc.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		return testkit.Poll(5*time.Second, func() error {
			if out := s.proc.Output(); strings.Count(strings.ToLower(out), "new worker (") < 2 {
				return errors.New(out)
			}
			return nil
		})
	})
	testkit.Eventually(t, "a second session", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Contains(s.states, Session{ID: 2, State: Synced}) {
			return fmt.Errorf("sessions were %v; %s", s.states, s.proc.Output())
		}
		return nil
	})
	s.mu.Lock()
	if !slices.Contains(s.states, Session{ID: 1, State: Down, Closed: true}) || slices.ContainsFunc(s.states, func(c Session) bool { return c.State == Gone }) {
		t.Errorf("sessions were %v, want the first one closed by HAProxy, and nobody gone", s.states)
	}
	s.mu.Unlock()
	eventuallyEqual(t, "entries after", 1, func() int { return s.used("/block") })
	release()
	if got := old.receive().StatusCode; got != http.StatusOK {
		t.Errorf("the old worker's request ended with %d, want 200", got)
	}
	eventuallyEqual(t, "throttled by the new worker", http.StatusTooManyRequests, func() int {
		c.Teach("/throttle", "GET|bob", Values{GPT0: 1}, 5*time.Second)
		return s.visitor().status("GET|bob")
	})
}

// A wrong peer name is refused, counted, and tried again.
func testHAProxyRefusesUnknownPeer(t *testing.T, s *stand) {
	s.opts.Local = "stranger"
	c := New(s.opts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	eventuallyEqual(t, "refused twice", true, func() bool {
		return testutil.ToFloat64(c.metrics.errors.WithLabelValues("refused")) >= 2
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	s.opts.Local = "agent"
	s.start()
}
