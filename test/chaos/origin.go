package chaos

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/mixed"
)

// server is behind the HAProxies. It does as mixed.Origin does, and as the demo origin where answers say what they cost; it has /socket
// besides, and writes down what came.
type server struct {
	history *history.Writer
	mixed   http.Handler
	priced  http.Handler
}

func (o *server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
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
	if q.URL.Path == origin.ChatPath || strings.HasPrefix(q.URL.Path, "/cost/") {
		o.priced.ServeHTTP(&priced{out, &a}, q)
		return
	}
	o.mixed.ServeHTTP(out, q)
}

// priced notes what an answer says that it costs, when it says it.
type priced struct {
	http.ResponseWriter
	arrival *history.Arrival
}

func (p *priced) WriteHeader(status int) {
	p.note()
	p.ResponseWriter.WriteHeader(status)
}

func (p *priced) Write(b []byte) (int, error) {
	p.note()
	if said := totalTokens.FindSubmatch(b); said != nil {
		p.arrival.Cost, _ = strconv.ParseInt(string(said[1]), 10, 64)
	}
	return p.ResponseWriter.Write(b)
}

func (p *priced) note() {
	if text := p.Header().Get(origin.CostHeader); text != "" {
		p.arrival.Cost, _ = strconv.ParseInt(text, 10, 64)
	}
}

// Unwrap is for http.ResponseController.
func (p *priced) Unwrap() http.ResponseWriter { return p.ResponseWriter }

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

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
func (o *server) serve(t *Scene) (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	o.mixed, o.priced = mixed.Origin(), origin.New()
	server := &http.Server{Handler: o, ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return listener.Addr().String(), nil
}
