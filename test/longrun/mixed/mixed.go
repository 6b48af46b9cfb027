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
	"context"
	"errors"
	"math/rand/v2"
	"net"
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
