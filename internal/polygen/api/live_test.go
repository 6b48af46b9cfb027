package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// What is read from paths and queries.
func TestLivePaths(t *testing.T) {
	hashed := limits.Key("ümit")
	checkPaths(t, []pathCase{
		{"live", "GET", "/api/v1/live", 200, `watch 50 by rate, user "", a key: false, stopped`, ""},
		{"in another order", "GET", "/api/v1/live?sort=recent&n=1000", 200, `watch 1000 by recent, user "", a key: false, stopped`, ""},
		{"with a user", "GET", "/api/v1/live?user=a%2Fb", 200, `watch 50 by rate, user "a/b", a key: false, stopped`, ""},
		{"with a user by key", "GET", "/api/v1/live?user=~AB&by=key", 200, `watch 50 by rate, user "~AB", a key: true, stopped`, ""},
		{"its headers alone", "HEAD", "/api/v1/live", 200, "", ""},
		{"no such order", "GET", "/api/v1/live?sort=active", 400, "", `unknown sort "active" (valid: rate, refused, concurrent, down, up, recent, cost:UNIT)`},
		{"too many users", "GET", "/api/v1/live?n=1001", 400, "", `n="1001": want a number from 1 to 1000`},
		{"by something else", "GET", "/api/v1/live?by=x", 400, "", `unknown by "x" (valid: name, key)`},
		{"too long a name", "GET", "/api/v1/live?user=" + strings.Repeat("x", 16<<10+1), 400, "", "a user's name of 16385 bytes: want 1 to 16384"},
		{"nothing can be sent", "POST", "/api/v1/live", 405, "", "method POST is not allowed: use GET"},
		{"policies", "GET", "/api/v1/policies", 200, `policies [] of "", stopped`, ""},
		{"of a user", "GET", "/api/v1/policies?user=" + "%C3%BCmit", 200, `policies [] of "` + hashed + `", stopped`, ""},
		{"of a key", "GET", "/api/v1/policies?by=key&user=" + hashed, 200, `policies [] of "` + hashed + `", stopped`, ""},
		{"of some kinds", "GET", "/api/v1/policies?kind=block,unblock,block", 200, `policies [block unblock] of "", stopped`, ""},
		{"of no such kind", "GET", "/api/v1/policies?kind=block,lost", 400, "", `unknown kind "lost" (valid: throttle, block, unblock, limits, override)`},
		{"of a kind and nothing", "GET", "/api/v1/policies?kind=block,", 400, "", `unknown kind "" (valid: throttle, block, unblock, limits, override)`},
		{"a history", "GET", "/api/v1/history/a%2Fb", 200, `history of "a/b"`, ""},
		{"by a key", "GET", "/api/v1/history/~AB?by=key", 200, `history of key "~AB"`, ""},
		{"events", "GET", "/api/v1/events/a%2Fb", 200, `events of "a/b"`, ""},
		{"events by a key", "GET", "/api/v1/events/~AB?by=key", 200, `events of key "~AB"`, ""},
		{"events of nobody", "GET", "/api/v1/events/", 400, "", "a user's name of 0 bytes: want 1 to 16384"},
		{"events without Redis", "GET", "/api/v1/events/nobody", 503, `events of "nobody"`, "redis does not answer: really"},
		{"of nobody", "GET", "/api/v1/history/", 400, "", "a user's name of 0 bytes: want 1 to 16384"},
	})
}

// tap is a Live whose streams have what a test sends.
type tap struct {
	*echo
	messages chan *api.Message
	stopped  chan struct{} // one for each stream
}

func newTap() *tap {
	return &tap{&echo{}, make(chan *api.Message), make(chan struct{}, 100)}
}

func (l *tap) Watch(api.Question) (<-chan *api.Message, func(), error) {
	return l.messages, func() { l.stopped <- struct{}{} }, nil
}

func (l *tap) awaitStop(t *testing.T) {
	t.Helper()
	select {
	case <-l.stopped:
	case <-time.After(testkit.Patience):
		t.Fatalf("the stream has not ended within %v", testkit.Patience)
	}
}

// serving is a server as Serve has it, until the test ends.
func serving(t *testing.T, h http.Handler) (address string, stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	stop, ended = serveUntilEnd(t, l, h)
	return l.Addr().String(), stop, ended
}

// serveUntilEnd serves until it is stopped, or the test ends.
func serveUntilEnd(t *testing.T, l net.Listener, h http.Handler) (stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- daemon.ServeAdmin(ctx, l, h, slog.New(slog.DiscardHandler))
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		for range done {
		}
	})
	return cancel, done
}

// watching asks for a stream. What comes is to be read from its body.
func watching(t *testing.T, url string) (*http.Response, *bufio.Reader) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	res, err := client.Get(url)
	testkit.Must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

// block is the next text up to an empty line, or the error at the end of the stream.
func block(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return b.String() + line, err
		}
		if line == "\n" {
			return strings.TrimSuffix(b.String(), "\n"), nil
		}
		b.WriteString(line)
	}
}

func wantBlock(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	if got, err := block(r); got != want || err != nil {
		t.Fatalf("the stream has %q, %v, want %q", got, err, want)
	}
}

// A message is there as soon as it is sent, and the server's end ends the stream as it
// should end: not torn, for which Serve would have to wait a second.
func TestStream(t *testing.T) {
	defer goleak.VerifyNone(t)
	l := newTap()
	address, stop, ended := serving(t, daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: Routes(l, l, nil)}))
	res, body := watching(t, "http://"+address+"/api/v1/live")
	for header, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
		if got := res.Header.Get(header); got != want || res.StatusCode != 200 {
			t.Errorf("%s: %s, want %s", header, got, want)
		}
	}
	wantBlock(t, body, ": the stream begins")
	for i := range 3 {
		l.messages <- &api.Message{Event: "live", Value: i}
		wantBlock(t, body, fmt.Sprintf("event: live\ndata: %d", i))
	}
	stop()
	if got, err := block(body); got != "" || !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("at the server's end: %q, %v, want an end that is meant", got, err)
	}
	l.awaitStop(t)
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v", err)
	}
}

// A reader who goes is noticed, even if nothing is sent.
func TestStreamOfOneWhoGoes(t *testing.T) {
	l := newTap()
	address, _, _ := serving(t, daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: Routes(l, l, nil)}))
	res, body := watching(t, "http://"+address+"/api/v1/live")
	wantBlock(t, body, ": the stream begins")
	res.Body.Close()
	l.awaitStop(t)
}

func TestTooManyStreams(t *testing.T) {
	w := httptest.NewRecorder()
	handler(full{}).ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/policies", nil))
	if got := errorOf(t, w); w.Code != 503 || got != "too many" {
		t.Errorf("GET /api/v1/policies = %d %s, want 503 and why", w.Code, w.Body)
	}
}

// paced serves streams at a pace, by a server that gives requests so much time, or as
// much as they take.
func paced(t *testing.T, p pace, read time.Duration, l *tap, closing <-chan struct{}) (address string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { l.stopped <- struct{}{} }()
		p.stream(w, r, l.messages)
	}))
	s.Config.ReadTimeout = read
	s.Config.BaseContext = func(net.Listener) context.Context {
		return daemon.WithClosing(context.Background(), closing)
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// The time that the server gives a request is not the stream's, and when there is
// nothing to tell it says so.
func TestStreamKeepsAlive(t *testing.T) {
	l := newTap()
	address := paced(t, pace{alive: 10 * time.Millisecond, write: time.Minute}, 20*time.Millisecond, l, nil)
	client := http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	testkit.Eventually(t, "a stream outlives the time of a request", func() error { // a slow machine may not ask in it
		res, err := client.Get("http://" + address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { res.Body.Close() })
		body, want := bufio.NewReader(res.Body), ": the stream begins"
		for range 11 { // five times ReadTimeout
			if got, err := block(body); got != want || err != nil {
				return fmt.Errorf("the stream has %q, %v, want %q", got, err, want)
			}
			want = ": nothing new"
		}
		return nil
	})
	close(l.messages)
	l.awaitStop(t)
}

// stall asks for a stream and never reads it. A few of the message that it returns are
// more than fits in between.
func stall(t *testing.T, address string) (large *api.Message) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	testkit.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	large = &api.Message{Event: "live", Value: string(bytes.Repeat([]byte("x"), 1<<20))}
	large.JSON()
	return large
}

// Who takes nothing is dropped.
func TestStalledReaderIsDropped(t *testing.T) {
	l := newTap()
	large := stall(t, paced(t, pace{alive: time.Hour, write: 100 * time.Millisecond}, 0, l, nil))
	for {
		select {
		case l.messages <- large:
		case <-l.stopped:
			return
		case <-time.After(testkit.Patience):
			t.Fatalf("the stream has not ended within %v", testkit.Patience)
		}
	}
}

// The server's end does not wait for one who takes nothing.
func TestStalledReaderAtTheEnd(t *testing.T) {
	l, closing := newTap(), make(chan struct{})
	large := stall(t, paced(t, pace{alive: time.Hour, write: time.Hour}, 0, l, closing))
	for writes := false; !writes; {
		select {
		case l.messages <- large:
		case <-l.stopped:
			t.Fatal("the stream ended before the server")
		case <-time.After(200 * time.Millisecond): // or it has not begun
			writes = true
		}
	}
	close(closing)
	l.awaitStop(t)
}

// What waits is sent together, and none of it is left out when the stream ends.
func TestStreamSendsAllThatWaits(t *testing.T) {
	l := newTap()
	l.messages = make(chan *api.Message, 1000)
	var want strings.Builder
	want.WriteString(": the stream begins\n\n")
	for i := range 1000 {
		l.messages <- &api.Message{Event: "hot", Value: i}
		fmt.Fprintf(&want, "event: hot\ndata: %d\n\n", i)
	}
	close(l.messages)
	_, body := watching(t, "http://"+paced(t, usualPace, 0, l, nil))
	if got, err := io.ReadAll(body); string(got) != want.String() || err != nil {
		t.Errorf("%d bytes, %v, want the %d of 1000 events", len(got), err, want.Len())
	}
}
