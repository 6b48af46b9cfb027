// Package mixed makes HTTP requests of every kind that can end in a way of its
// own: answered, pipelined, refused, timed out, upgraded, cut off by the client
// before and after headers, in an upload or in a download, over HTTP/1.1 and
// HTTP/2. Every count of requests in progress must be back at 0 soon after the last of
// them.
//
// It checks nothing by itself: most of its requests are meant to fail, and what
// is left behind is the caller's question.
package mixed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// clients is how many exchanges go on at once.
const clients = 64

// patience bounds one exchange; a peer that makes it longer is given up.
const patience = 10 * time.Second

// Tally says what happened: exchanges by kind, and answers by status as far as
// the client waited for one.
type Tally struct {
	Kinds    map[string]int
	Statuses map[int]int
}

// Run makes n exchanges, of all kinds in turn and for a random one of the users
// each, with the HTTP server at addr ("host:port"), which must speak HTTP/1.1 and
// HTTP/2 without TLS and forward to Origin or the like. A user is named in the
// header X-User. It returns when the client's side of all is over. The error is
// the context's, or that of a connection that was not accepted.
func Run(ctx context.Context, addr string, users []string, n int) (Tally, error) {
	r := run{addr: addr, tally: Tally{Kinds: map[string]int{}, Statuses: map[int]int{}}}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				kind := kinds[i%len(kinds)]
				r.exchange(ctx, kind, users[rand.IntN(len(users))])
			}
		})
	}
	wg.Wait()
	return r.tally, errors.Join(ctx.Err(), r.err)
}

// Kinds are the names of all kinds, in the order of their turns.
func Kinds() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// kind is one way for requests to begin and end.
type kind struct {
	name string
	run  func(*exchange)
}

var kinds = []kind{
	{"get", func(x *exchange) { x.write(x.get("/bytes/100")); x.read(1) }},
	{"head", func(x *exchange) { x.write(x.request("HEAD", "/bytes/100")); x.readHead() }},
	{"keep-alive", func(x *exchange) {
		for range 3 {
			x.write(x.get("/bytes/20000"))
			x.read(1)
		}
	}},
	{"pipelined", func(x *exchange) { x.write(strings.Repeat(x.get("/bytes/10"), 4)); x.read(4) }},
	{"pipelined and closed after one answer", func(x *exchange) { x.write(strings.Repeat(x.get("/sleep/5"), 4)); x.read(1) }},
	{"slow", func(x *exchange) { x.write(x.get("/sleep/30")); x.read(1) }},
	{"upload", func(x *exchange) { x.write(x.request("PUT", "/", "Content-Length: 50000"), filler(50000)); x.read(1) }},
	{"upload cut off", func(x *exchange) { x.write(x.request("PUT", "/", "Content-Length: 50000"), filler(20000)) }},
	{"upload reset", func(x *exchange) { x.write(x.request("PUT", "/", "Content-Length: 50000"), filler(20000)); x.reset() }},
	{"chunked upload cut off", func(x *exchange) {
		x.write(x.request("POST", "/", "Transfer-Encoding: chunked"), "a\r\n0123456789\r\n")
	}},
	{"closed within headers", func(x *exchange) { x.write("GET / HTTP/1.1\r\nX-User: " + x.user + "\r\nHo") }},
	{"closed before the answer", func(x *exchange) { x.write(x.get("/sleep/20")) }},
	{"reset before the answer", func(x *exchange) { x.write(x.get("/sleep/20")); x.reset() }},
	{"half-closed", func(x *exchange) {
		x.write(x.get("/sleep/5"))
		_ = x.conn.(*net.TCPConn).CloseWrite()
		x.read(1)
	}},
	{"closed within the body", func(x *exchange) { x.write(x.get("/bytes/5000000")); x.readHead() }},
	{"reset within the body", func(x *exchange) { x.write(x.get("/bytes/5000000")); x.readHead(); x.reset() }},
	{"origin dead", func(x *exchange) { x.write(x.get("/dead")); x.read(1) }},
	{"origin hangs up", func(x *exchange) { x.write(x.get("/hangup")); x.read(1) }},
	{"origin hangs up within the body", func(x *exchange) { x.write(x.get("/cut")); x.read(1) }},
	{"origin too slow", func(x *exchange) {
		_ = x.conn.SetDeadline(time.Now().Add(time.Second))
		x.write(x.get("/hang"))
		x.read(1)
	}},
	{"not HTTP", func(x *exchange) { x.write("GET / \x00\r\nX-User: " + x.user + "\r\n\r\n"); x.read(1) }},
	{"websocket", func(x *exchange) { x.upgrade() }},
	{"websocket reset", func(x *exchange) { x.upgrade(); x.reset() }},
	{"HTTP/2", func(x *exchange) { x.http2("/bytes/20000", whole) }},
	{"HTTP/2 cancelled before the answer", func(x *exchange) { x.http2("/sleep/20", early) }},
	{"HTTP/2 cancelled within the body", func(x *exchange) { x.http2("/bytes/5000000", late) }},
	{"HTTP/2 connection reset", func(x *exchange) { x.http2("/sleep/20", broken) }},
}

type run struct {
	addr string

	mu    sync.Mutex
	tally Tally
	err   error // the first connection that was not accepted
}

// exchange is one connection of a user.
type exchange struct {
	*run
	ctx  context.Context
	user string
	conn net.Conn
	in   *bufio.Reader
}

func (r *run) exchange(ctx context.Context, k kind, user string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
	r.mu.Lock()
	r.tally.Kinds[k.name]++
	if err != nil && r.err == nil {
		r.err = err
	}
	r.mu.Unlock()
	if err != nil {
		return
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	k.run(&exchange{r, ctx, user, conn, bufio.NewReader(conn)})
}

// answered notes an answer's status.
func (r *run) answered(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.Statuses[status]++
}

func (x *exchange) get(target string) string { return x.request("GET", target) }

func (x *exchange) request(method, target string, header ...string) string {
	header = append(header, "Host: mixed", "X-User: "+x.user)
	return method + " " + target + " HTTP/1.1\r\n" + strings.Join(header, "\r\n") + "\r\n\r\n"
}

func filler(n int) string { return strings.Repeat("u", n) }

// write sends; that the other side has closed already is one of the ways to end.
func (x *exchange) write(parts ...string) { _, _ = io.WriteString(x.conn, strings.Join(parts, "")) }

// read reads n whole answers, or what there is of them.
func (x *exchange) read(n int) {
	for range n {
		resp := x.readHead()
		if resp == nil {
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// readHead reads an answer up to its body; nil when there is none.
func (x *exchange) readHead() *http.Response {
	resp, err := http.ReadResponse(x.in, nil)
	if err != nil {
		return nil
	}
	x.answered(resp.StatusCode)
	return resp
}

// reset makes the connection end with a TCP reset.
func (x *exchange) reset() {
	_ = x.conn.(*net.TCPConn).SetLinger(0)
	_ = x.conn.Close()
}

// upgrade becomes a websocket and has one message echoed.
func (x *exchange) upgrade() {
	x.write(x.request("GET", "/upgrade", "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
	if resp := x.readHead(); resp == nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return
	}
	x.write("echo")
	_, _ = io.ReadFull(x.in, make([]byte, 4))
}

// How the streams of an HTTP/2 connection end.
type end int

const (
	whole  end = iota // answered
	early             // cancelled before the answer
	late              // cancelled within the body
	broken            // with the connection
)

// http2 makes four requests at once over the connection.
func (x *exchange) http2(target string, how end) {
	var only http.Protocols
	only.SetUnencryptedHTTP2(true)
	t := &http.Transport{Protocols: &only, DialContext: func(context.Context, string, string) (net.Conn, error) { return x.conn, nil }}
	defer t.CloseIdleConnections()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(x.ctx)
			defer cancel()
			if how == early || how == broken {
				// Some before the request is sent, some after: the answer takes 20 ms.
				wait := time.AfterFunc(rand.N(10*time.Millisecond), func() {
					if how == broken {
						x.reset()
					}
					cancel()
				})
				defer wait.Stop()
			}
			q, err := http.NewRequestWithContext(ctx, "GET", "http://mixed"+target, nil)
			if err != nil {
				return
			}
			q.Header.Set("X-User", x.user)
			resp, err := t.RoundTrip(q)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			x.answered(resp.StatusCode)
			if how == whole {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		})
	}
	wg.Wait()
}

// Origin is a server behind the one that Run talks to. It answers
//
//	/bytes/N   with N bytes
//	/sleep/MS  after so many milliseconds
//	/dead      with 503
//	/hangup    with nothing: it closes the connection
//	/cut       with half of the body that it announced
//	/hang      after two seconds, or never when the request ends before
//	/upgrade   with 101, and what the client sends from then on
//	else       with 200 once the body has been read
func Origin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/bytes/{n}", func(w http.ResponseWriter, q *http.Request) {
		n, err := number(q, "n")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(n))
		_, _ = io.CopyN(w, zeros{}, n)
	})
	mux.HandleFunc("/sleep/{ms}", func(w http.ResponseWriter, q *http.Request) {
		ms, err := number(q, "ms")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sleep(q.Context(), time.Duration(ms)*time.Millisecond)
	})
	mux.HandleFunc("/dead", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/hangup", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "2000")
		_, _ = io.CopyN(w, zeros{}, 1000)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, q *http.Request) { sleep(q.Context(), 2*time.Second) })
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		_, _ = io.Copy(conn, buf)
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) })
	return mux
}

func number(q *http.Request, name string) (n int64, err error) {
	_, err = fmt.Sscan(q.PathValue(name), &n)
	return n, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
