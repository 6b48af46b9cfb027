package chaos

import (
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/mixed"
)

// origin is behind the HAProxies. It does as mixed.Origin does, has /socket besides, and writes down what came.
type origin struct {
	history *history.Writer
	mixed   http.Handler
}

func (o *origin) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	a := history.Arrival{ID: q.Header.Get(headerID), User: q.Header.Get("X-User"), Method: q.Method, At: time.Now()}
	if a.ID == "" { // a health check
		o.mixed.ServeHTTP(w, q)
		return
	}
	meter := &meter{history: o.history, user: a.User, id: a.ID}
	q.Body = &received{q.Body, &a, meter}
	out := &sent{w, &a}
	defer func() {
		a.Ended = time.Now()
		meter.end()
		history.Write(o.history, a)
	}()
	if q.URL.Path == "/socket" {
		socket(out, &a)
		return
	}
	o.mixed.ServeHTTP(out, q)
}

// received counts what comes up.
type received struct {
	io.ReadCloser
	arrival *history.Arrival
	meter   *meter
}

func (r *received) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.arrival.Up += int64(n)
	r.meter.add(&r.meter.up, n)
	return n, err
}

// sent counts what goes down.
type sent struct {
	http.ResponseWriter
	arrival *history.Arrival
}

func (s *sent) Write(b []byte) (int, error) {
	n, err := s.ResponseWriter.Write(b)
	s.arrival.Down += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (s *sent) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// socket echoes until the client is silent or gone.
func socket(w http.ResponseWriter, a *history.Arrival) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	b := make([]byte, 512)
	for {
		_ = conn.SetDeadline(time.Now().Add(2 * patience))
		n, err := buffered.Read(b)
		a.Up += int64(n)
		if err != nil {
			return
		}
		n, err = conn.Write(b[:n])
		a.Down += int64(n)
		if err != nil {
			return
		}
	}
}

// serve serves until the scene is closed.
func (o *origin) serve(t *Scene) (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	o.mixed = mixed.Origin()
	server := &http.Server{Handler: o, ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return listener.Addr().String(), nil
}
