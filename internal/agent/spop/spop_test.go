package spop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A running is a server under test.
type running struct {
	*Server
	addr net.Addr
	stop func() // ends Serve and waits for it
}

// serve runs a server on l until the test ends.
func serve(t testing.TB, l net.Listener, o Options, change ...func(*bounds)) running {
	t.Helper()
	if o.Handler == nil {
		o.Handler = echo
	}
	s := New(o)
	for _, set := range change {
		set(&s.bounds)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(ctx, l); err != nil {
			t.Errorf("Serve() = %v", err)
		}
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return running{s, l.Addr(), stop}
}

func serveUnix(t testing.TB, o Options, change ...func(*bounds)) running {
	t.Helper()
	l, err := Listen("unix:" + socketPath(t))
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, l, o, change...)
}

// socketPath is short: the kernel takes 107 bytes, and test names are long.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// echo answers with the user it was asked about.
func echo(r *Request) {
	user, _ := r.Arg("user")
	r.SetString("user", user)
}

// A pipeListener hands out pipes and errors, so that tests need no kernel and
// run on a fake clock.
type pipeListener struct {
	accept chan any // net.Conn or error
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{accept: make(chan any), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case v := <-l.accept:
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v.(net.Conn), nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Net: "pipe"} }

func (l *pipeListener) dial(t testing.TB) client {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	l.accept <- theirs
	return client{ours, t}
}

func counter(t testing.TB, c prometheus.Collector, want float64) {
	t.Helper()
	testkit.Eventually(t, "counter", func() error {
		if got := testutil.ToFloat64(c); got != want {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func TestHandlerSeesWhatHAProxySent(t *testing.T) {
	type arg struct {
		Value string
		OK    bool
	}
	long := strings.Repeat("é\x00", 2000)
	names := []string{"null", "bool", "no", "int32", "uint32", "int64", "uint64", "v4", "v6", "string", "long", "binary", "twice", "absent"}
	want := map[string]arg{
		"null": {}, "bool": {"1", true}, "no": {"0", true}, "int32": {"-3", true}, "uint32": {"4294967295", true},
		"int64": {"-9223372036854775808", true}, "uint64": {"18446744073709551615", true}, "v4": {"192.0.2.1", true},
		"v6": {"2001:db8::1", true}, "string": {"", true}, "long": {long, true}, "binary": {"\x00\xff", true},
		"twice": {"first", true}, "absent": {},
	}
	var message1 string
	got := map[string]arg{}
	s := serveUnix(t, Options{Handler: func(r *Request) {
		message1 = r.Message()
		for _, name := range names {
			v, ok := r.Arg(name)
			got[name] = arg{v, ok}
		}
		r.SetString("text", "a\x00b")
		r.SetUint("small", 1)
		r.SetUint("large", 1<<32-1)
		r.SetString("long", long)
	}})
	vars := dial(t, s.addr).greet().ask(300, item("null", nil), item("bool", true), item("no", false), item("int32", int32(-3)),
		item("uint32", uint32(1<<32-1)), item("int64", int64(-1<<63)), item("uint64", uint64(1<<64-1)), item("v4", net.IPv4(192, 0, 2, 1)),
		item("v6", net.ParseIP("2001:db8::1")), item("string", ""), item("long", long), item("binary", []byte("\x00\xff")),
		item("twice", "first"), item("twice", "second"))
	if message1 != "start" {
		t.Errorf("Message() = %q, want start", message1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Arg (-want +got):\n%s", diff)
	}
	wantVars := map[string]any{"text": "a\x00b", "small": uint32(1), "large": uint32(1<<32 - 1), "long": long}
	if diff := cmp.Diff(wantVars, vars); diff != "" {
		t.Errorf("variables set (-want +got):\n%s", diff)
	}
}

func TestMessagesOfOneNotifyShareTheAnswer(t *testing.T) {
	s := serveUnix(t, Options{Handler: func(r *Request) { r.SetUint(r.Message(), 1) }})
	c := dial(t, s.addr).greet()
	for _, tt := range []struct {
		name     string
		messages [][]byte
		want     map[string]any
	}{
		{"two", [][]byte{message("a"), message("b")}, map[string]any{"a": uint32(1), "b": uint32(1)}},
		{"none", nil, map[string]any{}},
	} {
		c.send(notify(1, tt.messages...))
		if diff := cmp.Diff(tt.want, c.receive(frameAck).vars); diff != "" {
			t.Errorf("%s: variables set (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestHelloIsAnsweredWithTheSmallerFrameSize(t *testing.T) {
	s := serveUnix(t, Options{}, func(b *bounds) { b.frame = 1000 })
	c := dial(t, s.addr)
	c.send(hello(item("engine-id", "e1")))
	want := map[string]any{"version": "2.0", "max-frame-size": uint32(1000), "capabilities": "pipelining,async"}
	if diff := cmp.Diff(want, c.receive(101).vars); diff != "" {
		t.Errorf("AGENT-HELLO (-want +got):\n%s", diff)
	}
	counter(t, s.metrics.hello, 1)
	counter(t, s.metrics.healthcheck, 0)
}

func TestHealthCheckIsAnsweredAndClosed(t *testing.T) {
	s := serveUnix(t, Options{})
	c := dial(t, s.addr)
	c.send(hello(item("healthcheck", true)))
	c.receive(101)
	c.wantClosed()
	counter(t, s.metrics.healthcheck, 1)
	counter(t, s.metrics.hello, 0)
}

func TestOnCheckIsCalledForHealthChecksAlone(t *testing.T) {
	var checks atomic.Int32
	s := serveUnix(t, Options{OnCheck: func(net.Conn) { checks.Add(1) }})
	dial(t, s.addr).greet() // no check
	half := dial(t, s.addr)
	half.send(hello(item("healthcheck", true))[:20])
	for want := range int32(3) {
		if got := checks.Load(); got != want {
			t.Fatalf("OnCheck was called %d times, want %d", got, want)
		}
		c := dial(t, s.addr)
		c.send(hello(item("healthcheck", true)))
		c.receive(101) // it is called before
	}
}

func TestDisconnectIsAnsweredAndClosed(t *testing.T) {
	var logged bytes.Buffer
	s := serveUnix(t, Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	for _, status := range []uint32{0, 9} {
		c := dial(t, s.addr).greet()
		c.send(disconnect(status))
		c.receive(102)
		c.wantClosed()
	}
	// Right behind a question.
	c := dial(t, s.addr).greet()
	c.send(notify(1), disconnect(0))
	c.wantKinds(frameAck, 102)
	c.wantClosed()
	s.stop()
	counter(t, s.metrics.disconnect, 3)
	counter(t, s.metrics.notify, 1)
	if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `status=9 message="as told"`) {
		t.Errorf("logged %q, want one line about status 9", got)
	}
}

func TestBadFrameEndsItsConnectionAndNoOther(t *testing.T) {
	s := serveUnix(t, Options{})
	good := dial(t, s.addr).greet()
	stream := uint64(0)
	checkGood := func() {
		t.Helper()
		stream++
		if vars := good.ask(stream, item("user", "alice")); vars["user"] != "alice" {
			t.Fatalf("the good connection was answered %v", vars)
		}
	}
	rejected := map[string]float64{}
	behindGood := false
	bad := func(name string, want rejection, greet bool, raw []byte) {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.addr)
			if greet {
				c.greet()
			}
			c.t = t
			c.send(raw)
			if behindGood {
				// None, some or all of the good ones are answered before: that depends on who runs first.
				_, _ = io.Copy(io.Discard, c)
			}
			c.wantClosed()
			rejected[string(want)]++
			counter(t, s.metrics.rejected.WithLabelValues(string(want)), rejected[string(want)])
			checkGood()
		})
	}
	for _, tt := range frames {
		if tt.want != nil {
			// Of a bad frame the parser's reason counts, before that of the order.
			bad(tt.name, tt.want.(rejection), len(tt.body) > 0 && tt.body[0] != frameHello, sized(tt.body))
		}
	}
	bad("a length of 1 GiB", rejectOversized, true, []byte{0x40, 0, 0, 0, frameNotify})
	bad("a length of 4 GiB", rejectOversized, false, []byte{0xff, 0xff, 0xff, 0xff, frameHello})
	bad("a length of 0", rejectShort, true, []byte{0, 0, 0, 0})
	bad("HTTP", rejectOversized, false, []byte("GET / HTTP/1.1\r\n\r\n"))
	bad("NOTIFY before HELLO", rejectOrder, false, notify(1))
	bad("DISCONNECT before HELLO", rejectOrder, false, disconnect(0))
	bad("a second HELLO", rejectOrder, true, hello())
	behindGood = true
	bad("a bad frame behind good ones", rejectOrder, true, join(notify(1), notify(2), hello()))
	s.stop()
	if n := testutil.ToFloat64(s.metrics.panics); n != 0 {
		t.Errorf("%v panics", n)
	}
}

// The read buffer must follow the bytes that came, not those that were claimed.
func TestLengthIsBoundedBeforeAllocating(t *testing.T) {
	s := New(Options{Handler: echo})
	s.bounds.frame = 20000
	for _, tt := range []struct {
		name string
		sent []byte
		want int
	}{
		{"1 GiB", []byte{0x40, 0, 0, 0}, firstBuffer},
		{"one byte too long", []byte{0, 0, 0x4e, 0x21}, firstBuffer},
		{"as long as may be", []byte{0, 0, 0x4e, 0x20}, 20004},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newConn(s, &memoryConn{in: tt.sent, chunk: 4096})
			_, _ = c.Read(make([]byte, 1))
			if len(c.buf) != tt.want {
				t.Errorf("the buffer has %d bytes, want %d", len(c.buf), tt.want)
			}
		})
	}
}

func TestSilence(t *testing.T) {
	o := func(b *bounds) { b.helloTimeout = time.Second; b.idleTimeout = 10 * time.Second }
	ask := notify(1, message("start", item("user", "alice")))
	patient := func(b *bounds) { b.helloTimeout = 10 * time.Second; b.idleTimeout = time.Second }
	for _, tt := range []struct {
		name   string
		o      func(*bounds)
		do     func(c client)
		after  time.Duration // from the last byte to the end of the connection
		reason rejection     // "" when it is nobody's fault
	}{
		{"no HELLO", o, func(client) {}, time.Second, rejectTimeout},
		{"half a length", o, func(c client) { c.send(hello()[:2]) }, time.Second, rejectTimeout},
		{"half a HELLO", o, func(c client) { c.send(hello()[:20]) }, time.Second, rejectTimeout},
		{"a HELLO that drips", o, func(c client) {
			for _, b := range hello()[:9] {
				c.send([]byte{b})
				time.Sleep(100 * time.Millisecond)
			}
		}, 100 * time.Millisecond, rejectTimeout},
		{"nothing after HELLO", o, func(c client) { c.greet() }, 10 * time.Second, ""},
		{"nothing after a question", o, func(c client) { c.greet().ask(1) }, 10 * time.Second, ""},
		{"half a question", o, func(c client) { c.greet().send(ask[:9]) }, time.Second, rejectTimeout},
		{"half a question behind a whole one", o, func(c client) {
			c.greet().send(ask, ask[:9])
			c.receive(frameAck)
		}, time.Second, rejectTimeout},
		{"half a question when the connection was nearly idle for too long", o, func(c client) {
			c.greet()
			time.Sleep(9900 * time.Millisecond)
			c.send(ask[:9])
		}, time.Second, rejectTimeout},
		{"nothing after HELLO, for which there is more time", patient, func(c client) { c.greet() }, time.Second, ""},
		{"questions now and then keep it open", o, func(c client) {
			c.greet()
			for range 20 {
				time.Sleep(8 * time.Second)
				c.ask(1)
			}
		}, 10 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipeListener()
				s := serve(t, l, Options{}, tt.o)
				c := l.dial(t)
				tt.do(c)
				last := time.Now()
				c.wantClosed()
				// The idle deadline may be up to an eighth early.
				if got := time.Since(last); got > tt.after || got < tt.after*7/8 {
					t.Errorf("closed after %v, want %v", got, tt.after)
				}
				synctest.Wait()
				for _, r := range rejections {
					want := 0.0
					if r == tt.reason {
						want = 1
					}
					if got := testutil.ToFloat64(s.metrics.rejected.WithLabelValues(string(r))); got != want {
						t.Errorf("rejected for %s: %v, want %v", r, got, want)
					}
				}
			})
		})
	}
}

func TestConnectionsBeyondTheLimitAreRefused(t *testing.T) {
	s := serveUnix(t, Options{MaxConns: 2})
	a, b := dial(t, s.addr).greet(), dial(t, s.addr).greet()
	dial(t, s.addr).wantClosed()
	counter(t, s.metrics.refused, 1)
	counter(t, s.metrics.connections, 2)
	a.ask(1)
	b.ask(1)
	_ = a.Close()
	counter(t, s.metrics.connections, 1)
	dial(t, s.addr).greet().ask(1)
}

func TestNoMoreThanMaxInFlightAreHandled(t *testing.T) {
	const limit, asked = 3, 10
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		release := make(chan struct{})
		l := newPipeListener()
		s := serve(t, l, Options{Handler: func(*Request) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-release
			mu.Lock()
			now--
			mu.Unlock()
		}}, func(b *bounds) { b.inFlight = limit; b.idleTimeout = time.Second })
		c := l.dial(t).greet()
		var asks []byte // which all arrive with one read
		for i := range asked {
			asks = append(asks, notify(uint64(i), message("start"))...)
		}
		c.send(asks)
		synctest.Wait()
		if now != limit {
			t.Errorf("%d questions are being handled, want %d", now, limit)
		}
		// A connection that waits for its own answers is not idle.
		time.Sleep(time.Minute)
		seen := map[uint64]bool{}
		for range asked {
			release <- struct{}{}
			seen[c.receive(frameAck).stream] = true
			synctest.Wait()
		}
		if len(seen) != asked || most != limit {
			t.Errorf("%d of %d streams answered, at most %d at a time, want %d", len(seen), asked, most, limit)
		}
		s.stop()
	})
}

func TestPanicIsAnsweredWithoutVariables(t *testing.T) {
	var logged bytes.Buffer
	s := serveUnix(t, Options{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Handler: func(r *Request) {
		r.SetUint("before", 1)
		if user, _ := r.Arg("user"); user == "mallory" {
			panic("as asked")
		}
	}})
	c := dial(t, s.addr).greet()
	if vars := c.ask(1, item("user", "mallory")); len(vars) != 0 {
		t.Errorf("after a panic the answer has %v, want nothing", vars)
	}
	if vars := c.ask(2, item("user", "alice")); vars["before"] != uint32(1) {
		t.Errorf("after another's panic the answer has %v, want before=1", vars)
	}
	s.stop()
	counter(t, s.metrics.panics, 1)
	if !strings.Contains(logged.String(), "as asked") {
		t.Errorf("logged %q, want the panic", logged.String())
	}
}

func TestAnswerKeepsToHAProxysFrameSize(t *testing.T) {
	const size = 300
	for _, tt := range []struct {
		name string
		set  func(*Request)
		want []string
	}{
		{"room for both", func(r *Request) {
			r.SetString("a", strings.Repeat("x", 200))
			r.SetUint("b", 1)
		}, []string{"a", "b"}},
		{"no room for the first", func(r *Request) {
			r.SetString("a", strings.Repeat("x", size))
			r.SetUint("b", 1)
		}, []string{"b"}},
		{"no room for the second", func(r *Request) {
			r.SetString("a", strings.Repeat("x", 250))
			r.SetString("b", "yyyyyyyyyyyyyyyy")
		}, []string{"a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serveUnix(t, Options{Handler: tt.set}, func(b *bounds) { b.frame = size })
			vars := dial(t, s.addr).greet().ask(1 << 60)
			var got []string
			for _, name := range []string{"a", "b"} {
				if _, ok := vars[name]; ok {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("variables set (-want +got):\n%s", diff)
			}
			counter(t, s.metrics.dropped, float64(2-len(tt.want)))
		})
	}
}

func TestServeDrains(t *testing.T) {
	t.Run("what was asked is answered", func(t *testing.T) {
		s, asked, release := blocking(t, time.Minute)
		c, idle, half := dial(t, s.addr).greet(), dial(t, s.addr).greet(), dial(t, s.addr).greet()
		half.send(notify(1)[:9])
		c.send(notify(1, message("start", item("user", "alice"))))
		<-asked
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.stop()
		}()
		idle.wantClosed()
		half.wantClosed()
		// Those two are gone from the open ones, so all of these have been told to read no more.
		counter(t, s.metrics.connections, 1)
		counter(t, s.metrics.rejected.WithLabelValues(string(rejectTimeout)), 0)
		if _, err := net.Dial(s.addr.Network(), s.addr.String()); err == nil {
			t.Error("still accepting after the context ended")
		}
		// What nobody reads any more must not cost HAProxy the answer.
		c.send(notify(2, message("start")))
		close(release)
		if vars := c.receive(frameAck).vars; vars["user"] != "alice" {
			t.Errorf("answered %v, want alice", vars)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after the answer Read() = %v, want EOF", err)
		}
		_ = c.Close()
		<-stopped
	})
	t.Run("but not for longer than DrainTimeout", func(t *testing.T) {
		s, asked, release := blocking(t, time.Millisecond)
		c := dial(t, s.addr).greet()
		c.send(notify(1, message("start")))
		<-asked
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.stop()
		}()
		c.wantClosed()
		select {
		case <-stopped:
			t.Error("Serve returned while a handler ran")
		default:
		}
		close(release)
		<-stopped
	})
}

// blocking runs a server whose handler says when it was asked, and then waits to be released.
func blocking(t *testing.T, drain time.Duration) (s running, asked, release chan struct{}) {
	asked, release = make(chan struct{}, 2), make(chan struct{}) // room for one that should not be read
	return serveUnix(t, Options{Handler: func(r *Request) {
		asked <- struct{}{}
		<-release
		echo(r)
	}}, func(b *bounds) { b.drainTimeout = drain }), asked, release
}

// The end of reading and a new deadline for it may meet.
func TestDrainIsNotOverruledByADeadline(t *testing.T) {
	s := New(Options{Handler: echo})
	c := newConn(s, &memoryConn{in: hello(), chunk: 100}) // it knows no deadlines
	c.finishReading()
	if n, err := c.Read(make([]byte, 100)); n != 0 || err != io.EOF {
		t.Errorf("Read() after drain() = %d, %v, want EOF", n, err)
	}
}

func TestAcceptIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := serve(t, l, Options{})
		start := time.Now()
		emfile := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		for range 12 {
			l.accept <- emfile
		}
		l.dial(t).greet().ask(1)
		// 5 + 10 + … + 640 ms, and then a second each.
		if got, want := time.Since(start), 1275*time.Millisecond+4*time.Second; got != want {
			t.Errorf("12 failures took %v, want %v", got, want)
		}
		l.accept <- emfile
		last := time.Now()
		l.dial(t).greet().ask(1)
		if got := time.Since(last); got != firstPause {
			t.Errorf("a failure after a success took %v, want %v", got, firstPause)
		}
		counter(t, s.metrics.acceptErrors, 13)
		last = time.Now()
		l.accept <- emfile
		synctest.Wait()
		s.stop()
		if got := time.Since(last); got != 0 {
			t.Errorf("Serve waited %v for its pause to end, want 0", got)
		}
	})
}

func TestServeReturnsWhenTheListenerFails(t *testing.T) {
	s := New(Options{Handler: echo})
	l := newPipeListener()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(t.Context(), l) }()
	c := l.dial(t).greet()
	broken := errors.New("broken")
	l.accept <- broken
	if err := <-ended; !errors.Is(err, broken) {
		t.Errorf("Serve() = %v, want %v", err, broken)
	}
	c.wantClosed()
}

// A memoryConn reads a fixed input in chunks and keeps what is written.
type memoryConn struct {
	net.Conn // nil: nothing else may be called
	in       []byte
	chunk    int

	mu     sync.Mutex
	writes [][]byte
}

func (c *memoryConn) Read(p []byte) (int, error) {
	if len(c.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.in[:min(c.chunk, len(c.in))])
	c.in = c.in[n:]
	return n, nil
}

func (c *memoryConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, bytes.Clone(p))
	return len(p), nil
}

func (c *memoryConn) Close() error                     { return nil }
func (c *memoryConn) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (c *memoryConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }
