package chaos

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

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/test/chaos/history"
)

// How clients connect and what they do there.
const (
	kindKeepAlive = "keep-alive"
	kindNew       = "new connection"
	kindHTTP2     = "HTTP/2"
	kindWebsocket = "websocket"
	kindDownload  = "download"
	kindUpload    = "upload"
	kindStream    = "stream"                  // of tokens, half of what was asked for
	kindCheap     = "costs less than it says" // and says 4
	kindDear      = "costs more than it says" // which is 2
)

const (
	patience   = 15 * time.Second // of a client for an answer
	mostAtOnce = 150              // requests in progress of a steady user's clients: beyond, they skip some
	transferOf = 1 << 20          // bytes of a download or upload
)

// load is all clients.
type load struct {
	addresses []string
	history   *history.Writer
	seed      uint64
	users     []string                     // see Options
	reused    map[string][]*http.Transport // by kind, of each instance
	alone     *http.Transport              // that reuses nothing

	next           atomic.Uint64 // of requests' IDs
	sent, admitted atomic.Int64
	refused        atomic.Int64
	failed         atomic.Int64
	skipped        atomic.Int64 // that were not sent because too many were in progress
}

func newLoad(addresses []string, w *history.Writer, seed uint64, users []string) *load {
	l := &load{addresses: addresses, history: w, seed: seed, users: users, reused: map[string][]*http.Transport{}}
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	for range addresses {
		// MaxIdleConnsPerHost as many as may be in progress: else connections are closed that the next request could have.
		l.reused[kindKeepAlive] = append(l.reused[kindKeepAlive], &http.Transport{MaxIdleConnsPerHost: mostAtOnce, DisableCompression: true})
		l.reused[kindHTTP2] = append(l.reused[kindHTTP2], &http.Transport{Protocols: &h2, DisableCompression: true})
	}
	l.alone = &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	return l
}

// run has all users' clients send until ctx ends, and waits for what is in progress.
func (l *load) run(ctx context.Context) {
	var clients sync.WaitGroup
	for number, u := range users {
		if !isAmong(l.users, u.name) {
			continue
		}
		random := func(i int) *rand.Rand { return rand.New(rand.NewPCG(l.seed, uint64(number*1000+i))) }
		switch u.does {
		case steady:
			clients.Go(func() { l.atRate(ctx, u.rate, random(0), func() string { return u.name }, u) })
		case bursts:
			clients.Go(func() { l.burst(ctx, u) })
		default:
			for i := range u.n {
				clients.Go(func() { l.loop(ctx, u, i, random(i)) })
			}
		}
	}
	if len(l.users) == 0 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(l.seed, uint64(time.Now().UnixNano())))
			l.atRate(ctx, randomNames, random, func() string { return fmt.Sprintf("name-%x", random.Uint64()) }, user{kinds: three, method: "GET"})
		})
	}
	clients.Wait()
	for _, transports := range l.reused {
		for _, t := range transports {
			t.CloseIdleConnections()
		}
	}
}

// atRate sends requests at a rate, evenly spread over the instances.
func (l *load) atRate(ctx context.Context, rate float64, random *rand.Rand, name func() string, u user) {
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, mostAtOnce)
	next := time.Now()
	for i := 0; clock.Sleep(ctx, time.Until(next)); i++ {
		next = next.Add(time.Duration((0.5 + random.Float64()) * float64(time.Second) / rate))
		if late := time.Since(next); late > time.Second {
			next = time.Now() // the machine stood still: what was not sent then is not sent at once now
		}
		select {
		case places <- struct{}{}:
		default:
			l.skipped.Add(1)
			continue
		}
		q := request{user: name(), method: u.method, kind: u.kinds[i%len(u.kinds)], instance: i % len(l.addresses), path: "/"}
		if i%5 == 0 {
			q.path = fmt.Sprintf("/sleep/%d", random.IntN(40))
		}
		q.price()
		running.Go(func() { l.send(q); <-places })
	}
}

func (l *load) burst(ctx context.Context, u user) {
	const every = 3
	var running sync.WaitGroup
	defer running.Wait()
	for i := 0; clock.Sleep(ctx, every*time.Second); i++ {
		for n := range int(u.rate * every) {
			running.Go(func() {
				q := request{user: u.name, method: u.method, kind: u.kinds[0], instance: n % len(l.addresses), path: "/"}
				q.price()
				l.send(q)
			})
		}
	}
}

// loop is one client that has one request at a time.
func (l *load) loop(ctx context.Context, u user, i int, random *rand.Rand) {
	for n := 0; clock.Sleep(ctx, time.Duration(random.Int64N(int64(200*time.Millisecond)))); n++ {
		q := request{user: u.name, method: "GET", instance: i % len(l.addresses)}
		switch u.does {
		case closed:
			q.kind, q.path = u.kinds[i%len(u.kinds)], fmt.Sprintf("/sleep/%d", 50+random.IntN(250))
		case sockets:
			q.kind, q.path, q.lasts = kindWebsocket, "/socket", time.Second+time.Duration(random.Int64N(int64(longestSocket-time.Second)))
		case transfer:
			q.kind, q.path = u.kinds[i%len(u.kinds)], fmt.Sprintf("/bytes/%d", transferOf)
			if q.kind == kindUpload {
				q.method, q.path = "PUT", "/"
			}
		}
		q.ctx = ctx
		if refused := l.send(q); refused {
			clock.Sleep(ctx, 300*time.Millisecond)
		}
	}
}

// eager asks as fast as it is answered.
func (l *load) eager(ctx context.Context, user string, i int) {
	for ctx.Err() == nil {
		l.send(request{user: user, method: "GET", kind: kindKeepAlive, instance: i % len(l.addresses), path: "/"})
	}
}

// request is one that is to be sent.
type request struct {
	user, method, kind, path string
	instance                 int
	ctx                      context.Context // ends a websocket early; nil never does
	lasts                    time.Duration   // of a websocket
	estimate                 int64           // what it says that it will cost
}

// price has a request of a kind that costs something say how much.
func (q *request) price() {
	switch q.kind {
	case kindStream:
		q.path, q.estimate = origin.ChatPath+"?ms_per_token=50", 20 // half a second for the half of them
	case kindCheap:
		q.path, q.estimate = "/cost/2", 4
	case kindDear:
		q.path, q.estimate = "/cost/4", 2
	}
}

// send sends a request and writes down what came of it.
func (l *load) send(q request) (refused bool) {
	h := history.Request{
		User: q.user, Kind: q.kind, Method: q.method, Path: q.path, Instance: q.instance,
		ID: fmt.Sprint(l.next.Add(1)), Sent: time.Now(), Estimate: q.estimate,
	}
	l.sent.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if q.kind == kindWebsocket {
		err = l.websocket(q, &h)
	} else {
		err = l.exchange(ctx, q, &h)
	}
	h.Done = time.Now()
	if err != nil {
		h.Error = err.Error()
		if len(h.Error) > 200 {
			h.Error = h.Error[:200]
		}
	}
	switch {
	case h.Status == http.StatusTooManyRequests:
		l.refused.Add(1)
	case err != nil && !h.GivenUp, h.Status >= 500:
		l.failed.Add(1)
	default:
		l.admitted.Add(1)
	}
	history.Write(l.history, h)
	return h.Status == http.StatusTooManyRequests || err != nil
}

func (l *load) exchange(ctx context.Context, q request, h *history.Request) error {
	var body io.Reader
	if q.kind == kindStream {
		body = strings.NewReader(fmt.Sprintf(`{"messages": [{"role": "user", "content": ""}], "max_tokens": %d, "stream": true}`, q.estimate))
	}
	meter := &meter{history: l.history, user: q.user, id: h.ID}
	if q.method == "PUT" {
		n := int64(100)
		if q.kind == kindUpload {
			n = transferOf
		}
		body = &counted{Reader: io.LimitReader(zeros{}, n), n: &h.Up}
	}
	req, err := http.NewRequestWithContext(ctx, q.method, "http://"+l.addresses[q.instance]+q.path, body)
	if err != nil {
		return err
	}
	if c, ok := body.(*counted); ok {
		req.ContentLength = c.Reader.(*io.LimitedReader).N
	}
	req.Header["X-User"] = []string{q.user}
	req.Header[headerID] = []string{h.ID}
	if q.estimate > 0 {
		req.Header["X-Chaos-Estimate"] = []string{fmt.Sprint(q.estimate)}
	}
	transport := l.alone
	if reused := l.reused[q.kind]; reused != nil {
		transport = reused[q.instance]
	} else if q.kind != kindNew {
		transport = l.reused[kindKeepAlive][q.instance]
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	h.Status, h.Reason = res.StatusCode, res.Header.Get("Sluice-Reason")
	buffer := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buffer)
		h.Down += int64(n)
		meter.add(&meter.down, n)
		if errors.Is(err, io.EOF) {
			meter.end()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// longestSocket is shorter than the hard-stop-after of cluster.go, so that no reload ends one.
const longestSocket = 8 * time.Second

// websocket is one that has something echoed twice a second until it has lasted.
func (l *load) websocket(q request, h *history.Request) error {
	conn, err := net.DialTimeout("tcp", l.addresses[q.instance], patience)
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
	for end := time.Now().Add(q.lasts); time.Now().Before(end) && clock.Sleep(q.ctx, 500*time.Millisecond); {
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
	n *int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	*c.n += int64(n)
	return n, err
}

// meter writes down what a transfer has received, each 100 ms.
type meter struct {
	history  *history.Writer
	user, id string
	last     time.Time
	down, up int64
	long     bool // something was written down
}

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

// end writes down the rest of a transfer that was long.
func (m *meter) end() {
	if m.long {
		m.write(time.Now())
	}
}

func (m *meter) write(now time.Time) {
	if m.down+m.up > 0 {
		history.Write(m.history, history.Transfer{User: m.user, ID: m.id, At: now, Down: m.down, Up: m.up})
	}
	m.last, m.down, m.up, m.long = now, 0, 0, true
}

const headerID = "X-Chaos-Id"
