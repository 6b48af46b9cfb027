package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/test/longrun/history"
)

// How clients connect and what they do there.
const (
	kindKeepAlive = "keep-alive"
	kindNew       = "new connection"
	kindHTTP2     = "HTTP/2"
	kindWebsocket = "websocket"
	kindDownload  = "download"
	kindUpload    = "upload"
	kindStream    = "stream"                  // of tokens, half of the announced ones
	kindCheap     = "costs less than it says" // announces 4
	kindDear      = "costs more than it says" // announces 2
)

const (
	patience     = 15 * time.Second // of a client for an answer
	mostAtOnce   = 150              // requests in progress of a steady user's clients: beyond, they skip some
	transferSize = 1 << 20          // bytes of a download or upload
	headerID     = "X-Chaos-Id"
)

type clients struct {
	*scenario
	addresses []string
	history   *history.Writer
	client    load.Client

	next                                     atomic.Uint64 // request ID
	sent, admitted, refused, failed, skipped atomic.Int64
}

// run has all users' clients send until ctx ends, and waits for what is in progress.
func (c *clients) run(ctx context.Context) {
	var all sync.WaitGroup
	for number, u := range c.users {
		random := func(i int) *rand.Rand { return rand.New(rand.NewPCG(c.seed, uint64(number*1000+i))) }
		switch u.does {
		case steady:
			all.Go(func() { c.atRate(ctx, u, random(0), func() string { return u.name }) })
		case bursts:
			all.Go(func() { c.burst(ctx, u) })
		default:
			for i := range u.n {
				all.Go(func() { c.loop(ctx, u, i, random(i)) })
			}
		}
	}
	if c.strangers > 0 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(c.seed, uint64(time.Now().UnixNano())))
			c.atRate(ctx, user{rate: c.strangers, kinds: three, method: "GET"}, random, func() string { return fmt.Sprintf("name-%x", random.Uint64()) })
		})
	}
	all.Wait()
	c.client.Close()
}

// atRate sends a user's requests at their rate, evenly spread over the instances.
func (c *clients) atRate(ctx context.Context, u user, random *rand.Rand, name func() string) {
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, mostAtOnce)
	next := time.Now()
	for i := 0; daemon.Sleep(ctx, time.Until(next)); i++ {
		next = next.Add(time.Duration((0.5 + random.Float64()) * float64(time.Second) / u.rate))
		if time.Since(next) > time.Second {
			next = time.Now() // the machine stood still: do not catch up
		}
		select {
		case places <- struct{}{}:
		default:
			c.skipped.Add(1)
			continue
		}
		q := request{user: name(), method: u.method, kind: u.kinds[i%len(u.kinds)], instance: i % len(c.addresses), path: "/", within: u.within}
		if i%5 == 0 && u.within == 0 {
			q.path = fmt.Sprintf("/sleep/%d", random.IntN(40))
		}
		q.price()
		running.Go(func() { c.send(q); <-places })
	}
}

func (c *clients) burst(ctx context.Context, u user) {
	const every = 3
	var running sync.WaitGroup
	defer running.Wait()
	for daemon.Sleep(ctx, every*time.Second) {
		for n := range int(u.rate * every) {
			running.Go(func() {
				q := request{user: u.name, method: u.method, kind: u.kinds[0], instance: n % len(c.addresses), path: "/"}
				q.price()
				c.send(q)
			})
		}
	}
}

// longestSocket is shorter than the hard-stop-after of world.go and than the patience of the origin: neither ends a websocket.
const longestSocket = 6 * time.Second

// loop is one client that has one request at a time.
func (c *clients) loop(ctx context.Context, u user, i int, random *rand.Rand) {
	for daemon.Sleep(ctx, time.Duration(random.Int64N(int64(200*time.Millisecond)))) {
		q := request{user: u.name, method: "GET", instance: i % len(c.addresses), ctx: ctx}
		switch u.does {
		case closed:
			q.kind, q.path = u.kinds[i%len(u.kinds)], fmt.Sprintf("/sleep/%d", 50+random.IntN(250))
		case sockets:
			q.kind, q.path, q.lasts = kindWebsocket, "/upgrade", time.Second+time.Duration(random.Int64N(int64(longestSocket-time.Second)))
		case transfer:
			q.kind, q.path = u.kinds[i%len(u.kinds)], fmt.Sprintf("/bytes/%d", transferSize)
			if q.kind == kindUpload {
				q.method, q.path = "PUT", "/"
			}
		}
		if refused := c.send(q); refused {
			daemon.Sleep(ctx, 300*time.Millisecond)
		}
	}
}

type request struct {
	user, method, kind, path string
	instance                 int
	ctx                      context.Context // ends a websocket early; nil never does
	lasts                    time.Duration   // of a websocket
	estimate                 int64           // announced cost
	within                   time.Duration   // in which the answer must come
}

func (q *request) price() {
	switch q.kind {
	case kindStream:
		q.path, q.estimate = origin.ChatPath+"?ms_per_token=50", 20 // half a second for half of the tokens
	case kindCheap:
		q.path, q.estimate = "/cost/2", 4
	case kindDear:
		q.path, q.estimate = "/cost/4", 2
	}
}

func (c *clients) send(q request) (refused bool) {
	h := history.Request{
		User: q.user, Kind: q.kind, Method: q.method, Path: q.path, Instance: q.instance,
		ID: fmt.Sprint(c.next.Add(1)), Sent: time.Now(), Estimate: q.estimate, Within: q.within,
	}
	send := c.exchange
	if q.kind == kindWebsocket {
		send = c.websocket
	}
	err := send(q, &h)
	h.Done = time.Now()
	if err != nil {
		h.Error = err.Error()[:min(200, len(err.Error()))]
	}
	c.note(h.Status, err == nil || h.GivenUp)
	c.history.Write(h)
	return h.Status == http.StatusTooManyRequests || err != nil
}

func (c *clients) note(status int, answered bool) {
	c.sent.Add(1)
	switch {
	case status == http.StatusTooManyRequests:
		c.refused.Add(1)
	case !answered, status >= 500:
		c.failed.Add(1)
	default:
		c.admitted.Add(1)
	}
}

func (c *clients) exchange(q request, h *history.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	meter := &meter{history: c.history, user: q.user, id: h.ID}
	call := load.Call{
		Address: c.addresses[q.instance], User: q.user, Method: q.method, Path: q.path,
		Header: http.Header{headerID: {h.ID}}, Received: meter.down,
	}
	switch {
	case q.kind == kindNew:
		call.Connection = load.Fresh
	case q.kind == kindHTTP2:
		call.Connection = load.HTTP2
	case q.kind == kindStream:
		call.Body = strings.NewReader(fmt.Sprintf(`{"messages": [{"role": "user", "content": ""}], "max_tokens": %d, "stream": true}`, q.estimate))
	case q.kind == kindUpload:
		call.Length = transferSize
	case q.method == "PUT":
		call.Length = 100
	}
	var up atomic.Int64 // the transport may go on reading after the answer
	if call.Length > 0 {
		call.Body = &counted{io.LimitReader(zeros{}, call.Length), &up}
	}
	if q.estimate > 0 {
		call.Header["X-Chaos-Estimate"] = []string{fmt.Sprint(q.estimate)}
	}
	a, err := c.client.Do(ctx, call)
	h.Status, h.Reason, h.Up, h.Down = a.Status, a.Reason, up.Load(), a.Bytes
	if err == nil {
		meter.end()
	}
	// The kernel may leave a new connection to a flooded HAProxy for longer than the client waits.
	h.GivenUp = q.kind == kindNew && q.within > 0 && h.Status == 0 && ctx.Err() != nil
	return err
}

// websocket has something echoed twice a second until the websocket has lasted.
func (c *clients) websocket(q request, h *history.Request) error {
	conn, err := net.DialTimeout("tcp", c.addresses[q.instance], patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: chaos\r\nX-User: %s\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", q.path, q.user, headerID, h.ID)
	if err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	h.Status, h.Reason = res.StatusCode, res.Header.Get("Sluice-Reason")
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil
	}
	for end := time.Now().Add(q.lasts); time.Now().Before(end) && daemon.Sleep(q.ctx, 500*time.Millisecond); {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(conn, "echo"); err != nil {
			return err
		}
		h.Up += 4
		if _, err := io.ReadFull(in, make([]byte, 4)); err != nil {
			return err
		}
		h.Down += 4
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// meter writes down each 100 ms what a transfer has received.
type meter struct {
	history  *history.Writer
	user, id string
	last     time.Time
	moved    history.Transfer
	long     bool // something was written down
}

func (m *meter) down(n int) { m.add(&m.moved.Down, n) }

func (m *meter) up(n int) { m.add(&m.moved.Up, n) }

func (m *meter) add(to *int64, n int) {
	now := time.Now()
	if m.last.IsZero() {
		m.last = now
	}
	*to += int64(n)
	if now.Sub(m.last) >= 100*time.Millisecond {
		m.write(now)
	}
}

func (m *meter) end() {
	if m.long {
		m.write(time.Now())
	}
}

func (m *meter) write(now time.Time) {
	if m.moved.Down+m.moved.Up > 0 {
		m.moved.User, m.moved.ID, m.moved.At = m.user, m.id, now
		m.history.Write(m.moved)
	}
	m.last, m.moved, m.long = now, history.Transfer{}, true
}
