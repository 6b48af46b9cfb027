package mixed

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

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

func (x *exchange) reset() {
	_ = x.conn.(*net.TCPConn).SetLinger(0)
	_ = x.conn.Close()
}

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
