package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// A Connection is what a Client's request is sent on.
type Connection int

// A kept connection serves one request after another, and a fresh one a single request. HTTP/2 streams share one connection.
const (
	Kept Connection = iota
	Fresh
	HTTP2
)

// A Call is one request of a Client.
type Call struct {
	Address, User string // the user in the header X-User; empty means none
	Method, Path  string // Method empty means GET
	Connection    Connection
	Group         int // calls of different groups share no connection
	Header        http.Header
	Body          io.Reader
	Length        int64     // of Body; 0 is unknown
	Received      func(int) // told of each piece of the answer's body; may be nil
}

// An Answer is what became of a Call. Status is 0 if there was none.
type Answer struct {
	Status int
	Reason string // the header Sluice-Reason
	Bytes  int64  // of the body, as far as it came
}

// A Client sends single requests through net/http: with large bodies, by HTTP/2, or on connections of their own. Beyond some hundreds
// a second use Run, which costs a third of the processor time. The zero value is ready. Several goroutines may use it.
type Client struct {
	mu         sync.Mutex
	transports map[string]*http.Transport
}

// maxIdle is how many kept connections to one address and group may wait for their next request.
const maxIdle = 256

// Do sends a call and reads its answer to the end. The Answer holds what came before an error.
func (c *Client) Do(ctx context.Context, call Call) (a Answer, err error) {
	q, err := http.NewRequestWithContext(ctx, call.Method, "http://"+call.Address+call.Path, call.Body)
	if err != nil {
		return a, err
	}
	if call.Length > 0 {
		q.ContentLength = call.Length
	}
	if call.Header != nil {
		q.Header = call.Header.Clone()
	}
	if call.User != "" {
		q.Header["X-User"] = []string{call.User}
	}
	res, err := c.transport(call).RoundTrip(q)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	a.Status, a.Reason = res.StatusCode, res.Header.Get("Sluice-Reason")
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)
	for {
		n, err := res.Body.Read(buffer[:])
		a.Bytes += int64(n)
		if n > 0 && call.Received != nil {
			call.Received(n)
		}
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
	}
}

var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func (c *Client) transport(call Call) *http.Transport {
	key := fmt.Sprint(call.Connection, call.Group, call.Address)
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.transports[key]
	if t == nil {
		t = &http.Transport{
			DisableCompression: true, DisableKeepAlives: call.Connection == Fresh, MaxIdleConnsPerHost: maxIdle,
			WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
		}
		if call.Connection == HTTP2 {
			t.Protocols = new(http.Protocols)
			t.Protocols.SetUnencryptedHTTP2(true)
		}
		if c.transports == nil {
			c.transports = map[string]*http.Transport{}
		}
		c.transports[key] = t
	}
	return t
}

// Close closes the connections that no request uses.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}
