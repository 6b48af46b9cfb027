package main

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/mixed"
)

// server is the origin behind the HAProxies. It writes down what arrived: each request of clients, and counts of a flood's requests.
type server struct {
	history *history.Writer
	origin  http.Handler

	mu    sync.Mutex
	crowd map[history.Crowd]int // requests by the other fields
}

// headerSent is when a request of a flood was sent, in nanoseconds since 1970.
const headerSent = "X-Sent"

// readLate is by how much HAProxy's clock may be late in a flood: it reads the time before it reads requests.
const readLate = 100 * time.Millisecond

func (o *server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	a := history.Arrival{ID: q.Header.Get(headerID), User: q.Header.Get("X-User"), Method: q.Method, At: time.Now()}
	if ns, err := strconv.ParseInt(q.Header.Get(headerSent), 10, 64); err == nil {
		_, _ = io.WriteString(w, "ok\n")
		o.count(history.Crowd{User: a.User, Method: a.Method, Sent: time.Unix(0, ns).Add(-readLate).Unix(), At: a.At.Unix()})
		return
	}
	if a.ID == "" { // a health check, or of steady load
		o.origin.ServeHTTP(w, q)
		return
	}
	meter := &meter{history: o.history, user: a.User, id: a.ID}
	q.Body = &received{q.Body, &a, meter}
	out := &sent{w, &a}
	defer func() {
		a.Ended = time.Now()
		meter.end()
		o.history.Write(a)
	}()
	o.origin.ServeHTTP(out, q)
}

func (o *server) count(c history.Crowd) {
	if strings.HasPrefix(c.User, newName) {
		return // each sends once
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.crowd[c]++
}

func (o *server) writeCrowd() {
	o.mu.Lock()
	crowd := o.crowd
	o.crowd = map[history.Crowd]int{}
	o.mu.Unlock()
	for c, n := range crowd {
		c.Requests = n
		o.history.Write(c)
	}
}

type received struct {
	io.ReadCloser
	arrival *history.Arrival
	meter   *meter
}

func (r *received) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.arrival.Up += int64(n)
	r.meter.up(n)
	return n, err
}

// sent counts the bytes of an answer's body, and notes the cost that the answer reports once it does.
type sent struct {
	http.ResponseWriter
	arrival *history.Arrival
}

func (s *sent) WriteHeader(status int) {
	s.note()
	s.ResponseWriter.WriteHeader(status)
}

func (s *sent) Write(b []byte) (int, error) {
	s.note()
	if s.arrival.Method == http.MethodPost { // a chat
		if said := totalTokens.FindSubmatch(b); said != nil {
			s.arrival.Cost, _ = strconv.ParseInt(string(said[1]), 10, 64)
		}
	}
	n, err := s.ResponseWriter.Write(b)
	s.arrival.Down += int64(n)
	return n, err
}

func (s *sent) note() {
	if text := s.Header().Get(origin.CostHeader); text != "" {
		s.arrival.Cost, _ = strconv.ParseInt(text, 10, 64)
	}
}

// Unwrap is for http.ResponseController.
func (s *sent) Unwrap() http.ResponseWriter { return s.ResponseWriter }

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// serve serves until the scene is closed.
func (o *server) serve(t *Scene) (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	o.origin, o.crowd = mixed.Origin(), map[history.Crowd]int{}
	server := &http.Server{Handler: o, ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return listener.Addr().String(), nil
}
