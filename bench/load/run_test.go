package load

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunSendsTheSchedule(t *testing.T) {
	o := origin.New()
	o.MaxUsers = 10
	a, b := httptest.NewServer(o), httptest.NewServer(o)
	defer a.Close()
	defer b.Close()
	targets, err := Spread("90/10", addr(a), addr(b))
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, Spec{Targets: targets, Rate: 1000, Duration: 300 * ms, Requests: Users("", "", "alice", "bob", "carol"), Arrivals: burst(20 * ms), Timeout: testkit.Patience})

	if r.Planned != 300 || len(r.Results) != 300 || r.Statuses()[200] != 300 || len(r.Failures()) != 0 {
		t.Errorf("planned %d, results %d, statuses %v, failures %v; want 300 times 200", r.Planned, len(r.Results), r.Statuses(), r.Failures())
	}
	for _, user := range []string{"alice", "bob", "carol"} {
		if sent, served := len(r.User(user).Results), o.UserCounts(user).Served; sent != 100 || served != 100 {
			t.Errorf("%s: %d results, %d served; want 100", user, sent, served)
		}
	}
	if first, second := len(r.Target(0).Results), len(r.Target(1).Results); first <= second || second == 0 {
		t.Errorf("90/10 sent %d and %d", first, second)
	}
	for i, res := range r.Results {
		due := r.Start.UnixNano() + int64(i/20*20)*int64(ms)
		if res.Scheduled != due || res.Sent < due || res.Answered < res.Sent || res.Received < res.Answered {
			t.Fatalf("result %d = %+v, want scheduled at %d and what follows in order", i, res, due)
		}
	}
	if r.CPU <= 0 {
		t.Errorf("CPU = %v", r.CPU)
	}
}

func TestRunAlignsToTheSecond(t *testing.T) {
	s := httptest.NewServer(origin.New())
	defer s.Close()
	r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 10, Duration: 100 * ms, Align: true, Timeout: testkit.Patience})
	if r.Start.Nanosecond() != 0 || r.Results[0].Scheduled != r.Start.UnixNano() || r.Results[0].Sent < r.Start.UnixNano() {
		t.Errorf("Start = %v, first result %+v; want a whole second", r.Start, r.Results[0])
	}
}

// A sender that waited for answers would never get the server to answer.
func TestRunIsOpenLoop(t *testing.T) {
	const n = 60
	var arrived atomic.Int64
	all := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 1000, Duration: n * ms, Ahead: 1, Timeout: testkit.Patience})
	if got := r.Statuses()[200]; got != n {
		t.Errorf("%d of %d answered; failures %v", got, n, r.Failures())
	}
}

func TestRunOneStalledServerDoesNotHoldUpTheOther(t *testing.T) {
	stalled := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	s := httptest.NewServer(origin.New())
	defer s.Close()
	r := run(t, Spec{Targets: []Target{{Address: stalled}, {Address: addr(s)}}, Rate: 1000, Duration: 200 * ms, Conns: 64, Timeout: testkit.Patience, Seed: 3},
		func(r Result) bool { return r.Target == 1 })
	if got, want := r.Target(1).Statuses()[200], len(r.Target(1).Results); got != want || want == 0 {
		t.Errorf("%d of %d answered by the other server", got, want)
	}
	if got := r.Target(0).Failures(); got[Answered] != 0 || got[Unfinished] != len(r.Target(0).Results) {
		t.Errorf("failures of the stalled server = %v, want all unfinished", got)
	}
}

func TestRunBoundsConnections(t *testing.T) {
	stalled := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	r := run(t, Spec{Targets: []Target{{Address: stalled}}, Rate: 1000, Duration: 50 * ms, Conns: 4, Timeout: 200 * ms})
	f := r.Failures()
	if f[TimedOut] < 4 || f[Dropped] == 0 || f[TimedOut]+f[Dropped] != 50 {
		t.Errorf("failures = %v, want at least 4 timed out and the rest of 50 dropped", f)
	}
	sent := r.Only(func(res Result) bool { return res.Sent != 0 }).Results
	if len(sent) != f[TimedOut] {
		t.Errorf("%d sent, %d timed out", len(sent), f[TimedOut])
	}
	for _, res := range sent {
		if res.Received-res.Sent < int64(200*ms) {
			t.Errorf("%+v was given up after less than the timeout", res)
		}
		others := 0
		for _, other := range sent {
			if other.Sent <= res.Sent && res.Sent < other.Received {
				others++
			}
		}
		if others > 4 {
			t.Errorf("%d in progress at once, want at most 4", others)
		}
	}
}

func TestRunReusesConnections(t *testing.T) {
	tests := []struct {
		name    string
		ahead   int
		handler http.HandlerFunc
		want    func(conns int64) bool
	}{
		{"keep-alive", 3, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }, func(n int64) bool { return n < 50 }},
		{"chunks", 3, func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				_, _ = io.WriteString(w, strings.Repeat("x", 9000))
				w.(http.Flusher).Flush()
			}
		}, func(n int64) bool { return n < 50 }},
		{"close", 1, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }, func(n int64) bool { return n >= 50 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var conns atomic.Int64
			s := httptest.NewUnstartedServer(tt.handler)
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			s.Start()
			defer s.Close()
			// All are due at once, so that most wait for one of three connections.
			r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 500, Duration: 100 * ms, Arrivals: burst(time.Second), Ahead: tt.ahead, Conns: 3, Timeout: testkit.Patience})
			if got := r.Statuses()[200]; got != 50 || len(r.Failures()) != 0 {
				t.Errorf("%d of 50 answered; failures %v", got, r.Failures())
			}
			if n := conns.Load(); !tt.want(n) {
				t.Errorf("%d connections for 50 requests", n)
			}
		})
	}
}

// The sender sleeps for 50 ms at a time, and yet knows when an answer came
// 2 ms after its request.
func TestRunTellsWhenAnswersArrived(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(2 * ms) }))
	defer s.Close()
	testkit.Eventually(t, "one answer within half a tick", func() error {
		r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 100, Duration: 100 * ms, Tick: 50 * ms, Timeout: testkit.Patience})
		least := r.Service().Quantile(0)
		if least < 2*ms {
			t.Errorf("an answer after %v, want at least 2ms", least)
		}
		if least >= 25*ms {
			return fmt.Errorf("the first after %v", least)
		}
		return nil
	})
}

// Each request is told of once, as it is in the report.
func TestRunTellsWhatBecameOfRequests(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-User") == "ann" {
			panic(http.ErrAbortHandler) // closes the connection
		}
	}))
	defer s.Close()
	told := map[string][]Result{}
	r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 1000, Duration: 20 * ms, Requests: Users("GET", "/", "ann", "bob"), Timeout: testkit.Patience,
		Settled: func(user, _ string, r Result) { told[user] = append(told[user], r) }})
	for _, user := range []string{"ann", "bob"} {
		want := r.User(user).Results
		slices.SortFunc(told[user], func(a, b Result) int { return int(a.Scheduled - b.Scheduled) })
		if !slices.Equal(told[user], want) || len(want) != 10 {
			t.Errorf("%s: told %v, want %v", user, told[user], want)
		}
	}
}

func TestRunUploads(t *testing.T) {
	var mu sync.Mutex
	got := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[fmt.Sprintf("%s %s %d %s %v", r.Method, r.RequestURI, len(body), r.Header.Get("X-A"), err)]++
	}))
	defer s.Close()
	requests := []Request{
		{Method: "PUT", Path: "/large?x=1", Body: make([]byte, 9<<20), Headers: []byte("X-A: b\r\n")},
		{Method: "PUT", Path: "/small", Body: []byte("12345")},
		{Method: "POST"},
		{Method: "HEAD", Path: "/head"},
	}
	r := run(t, Spec{Targets: []Target{{Address: addr(s)}}, Rate: 100, Duration: 40 * ms, Timeout: testkit.Patience,
		Requests: func(i int) Request { return requests[i] }})
	want := map[string]int{"PUT /large?x=1 9437184 b <nil>": 1, "PUT /small 5  <nil>": 1, "POST / 0  <nil>": 1, "HEAD /head 0  <nil>": 1}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" || r.Statuses()[200] != 4 {
		t.Errorf("statuses %v; the server got (-want +got):\n%s", r.Statuses(), diff)
	}
}

func TestRunAnswersThatGoWrong(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\n"
	tests := []struct {
		name, answer string
		failure      Failure
		status       uint16
	}{
		{"not HTTP", "hello\r\n\r\n", Malformed, 0},
		{"closed before the answer", "", Closed, 0},
		{"closed within the body", head + "Content-Length: 5\r\n\r\nx", Closed, 200},
		{"closed within a chunk", head + "Transfer-Encoding: chunked\r\n\r\n5\r\nx", Closed, 200},
		{"closed after a body without length", head + "\r\nx", Answered, 200},
		{"more than one answer", head + "Content-Length: 0\r\n\r\n" + head + "Content-Length: 0\r\n\r\n", Answered, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := serve(t, func(conn net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, tt.answer)
				}
			})
			r := run(t, Spec{Targets: []Target{{Address: a}}, Rate: 200, Duration: 50 * ms, Timeout: testkit.Patience})
			for _, res := range r.Results {
				if res.Failure != tt.failure || res.Status != tt.status {
					t.Errorf("%v with status %d, want %v with %d", res.Failure, res.Status, tt.failure, tt.status)
				}
			}
			if len(r.Results) != 10 {
				t.Errorf("%d results, want 10", len(r.Results))
			}
		})
	}
}

func TestSpecErrors(t *testing.T) {
	good := Spec{Targets: []Target{{Address: "127.0.0.1:1"}}, Rate: 1, Duration: time.Second, Requests: Users("", "")}
	tests := []struct {
		name   string
		change func(*Spec)
		want   string
	}{
		{"no target", func(s *Spec) { s.Targets = nil }, "load: 0 targets: want 1 to 256"},
		{"no rate", func(s *Spec) { s.Rate = 0 }, "load: rate 0: want more than 0 and at most 1000000 requests per second"},
		{"too high a rate", func(s *Spec) { s.Rate = 2e6 }, "load: rate 2e+06: want more than 0 and at most 1000000 requests per second"},
		{"no duration", func(s *Spec) { s.Duration = 0 }, "load: duration 0s: want more than 0"},
		{"too many requests", func(s *Spec) { s.Rate, s.Duration = 1e5, 51*time.Second }, "load: rate 100000 for 51s: want at most 5000000 requests"},
		{"a negative timeout", func(s *Spec) { s.Timeout = -1 }, "load: timeout -1ns: want more than 0"},
		{"too many connections", func(s *Spec) { s.Conns = 16_385 }, "load: 16385 connections: want 1 to 16384"},
		{"more ahead than allowed", func(s *Spec) { s.Conns, s.Ahead = 2, 3 }, "load: 3 connections ahead: want 0 to 2"},
		{"too many sources", func(s *Spec) { s.Sources = 255 }, "load: 255 sources: want 0 to 254"},
		{"too long a tick", func(s *Spec) { s.Tick = time.Second }, "load: tick 1s: want at most 100ms"},
		{"no requests", func(s *Spec) { s.Requests = nil }, "load: no requests to send"},
		{"no port", func(s *Spec) { s.Targets[0].Address = "127.0.0.1" }, `load: target "127.0.0.1": address 127.0.0.1: missing port in address`},
		{"another machine", func(s *Spec) { s.Targets[0].Address = "192.0.2.1:80" }, `load: target "192.0.2.1:80": ` + ErrNotLoopback.Error()},
		{"any address", func(s *Spec) { s.Targets[0].Address = ":80" }, `load: target ":80": ` + ErrNotLoopback.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := good
			s.Targets = slices.Clone(good.Targets)
			tt.change(&s)
			if r, err := Run(t.Context(), s); r != nil || err == nil || err.Error() != tt.want {
				t.Errorf("Run = %v, %v; want %s", r, err, tt.want)
			}
		})
	}
}

// run runs a Spec, with plain requests unless it names others. If only is
// given, the run is ended once each result that it is true of is settled.
func run(t *testing.T, s Spec, only ...func(Result) bool) *Report {
	t.Helper()
	if s.Requests == nil {
		s.Requests = Users("GET", "/")
	}
	addrs, err := s.validate()
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLoop(s, addrs)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if len(only) > 0 {
		ctx = &settledContext{Context: ctx, results: l.results, only: only[0]}
	}
	r, err := l.run(ctx)
	if err != nil && len(only) == 0 {
		t.Fatalf("Run = %v", err)
	}
	return r
}

// A settledContext ends once certain results are settled. The loop asks it
// from its own goroutine.
type settledContext struct {
	context.Context
	results []Result
	only    func(Result) bool
}

func (c *settledContext) Err() error {
	for _, r := range c.results {
		if c.only(r) && r.Received == 0 {
			return nil
		}
	}
	return context.Canceled
}

// serve accepts connections, each of which is closed when handle returns, until
// the test ends.
func serve(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func addr(s *httptest.Server) string { return s.Listener.Addr().String() }
