package haproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// count is an entry of table active.
type count struct{ Cur, Reqs int }

// active is table active by user, as HAProxy shows it.
func (r *rig) active(t testing.TB) map[string]count {
	t.Helper()
	all := map[string]count{}
	for line := range strings.Lines(r.cli(t, "show table sluice/active")) {
		var key string
		var c count
		for _, f := range strings.Fields(line) {
			name, value, _ := strings.Cut(f, "=")
			switch name {
			case "key":
				key = value
			case "conn_cur":
				_, _ = fmt.Sscan(value, &c.Cur)
			case "http_req_cnt":
				_, _ = fmt.Sscan(value, &c.Reqs)
			}
		}
		if key != "" {
			all[key] = c
		}
	}
	return all
}

// becomes waits until table active is as wanted: a request ends a moment after
// its client has the answer.
func (r *rig) becomes(t testing.TB, want map[string]count) {
	t.Helper()
	testkit.Eventually(t, "table active", func() error {
		if diff := cmp.Diff(want, r.active(t)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// gate is an origin that holds each request until it is told to answer one.
type gate struct {
	mu      sync.Mutex
	running []string // users, in the order of arrival
	open    chan struct{}
}

func newGate() *gate { return &gate{open: make(chan struct{}, 1000)} }

func (g *gate) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	g.mu.Lock()
	g.running = append(g.running, q.Header.Get("X-User"))
	g.mu.Unlock()
	select {
	case <-g.open:
		fmt.Fprint(w, "origin")
	case <-time.After(testkit.Patience): // so that a failed test ends
	}
}

// arrived returns the users of all requests so far.
func (g *gate) arrived() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string{}, g.running...)
}

// await waits until n requests have arrived.
func (g *gate) await(t testing.TB, n int) {
	t.Helper()
	testkit.Eventually(t, "requests at the origin", func() error {
		if got := len(g.arrived()); got != n {
			return fmt.Errorf("%d, want %d", got, n)
		}
		return nil
	})
}

func (g *gate) let(n int) {
	for range n {
		g.open <- struct{}{}
	}
}

// start sends a GET for a user on a connection of its own. Status 0 is no answer.
func (r *rig) start(user string) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			done <- answer{}
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(2 * testkit.Patience))
		fmt.Fprint(conn, httpGET("/", "X-User: "+user))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			done <- answer{}
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		done <- answer{resp.StatusCode, resp.Header, string(body)}
	}()
	return done
}

// starts sends n of them at once and delivers the answers as they come.
func (r *rig) starts(user string, n int) <-chan answer {
	all := make(chan answer, n)
	for range n {
		done := r.start(user)
		go func() { all <- <-done }()
	}
	return all
}

// statuses takes n answers and counts them.
func statuses(all <-chan answer, n int) map[int]int {
	got := map[int]int{}
	for range n {
		got[(<-all).Status]++
	}
	return got
}

func TestInProgress(t *testing.T) {
	g := newGate()
	r := shared(t, byHeader.with(g.ServeHTTP))
	r.refuseWith(refuseBad)
	r.teach(t, "block", "blocked", time.Now().Add(time.Hour), 1)

	alice := r.starts("alice", 2)
	g.await(t, 2)
	if diff := cmp.Diff(map[string]count{"alice": {2, 2}}, r.active(t)); diff != "" {
		t.Errorf("active while two are with the origin (-want +got):\n%s", diff)
	}
	r.takeHeard(t)
	third := r.start("alice")
	g.await(t, 3)
	want := []heard{{"alice", "GET", "start-message", 2, 2, "", false}}
	if diff := cmp.Diff(want, r.takeHeard(t)); diff != "" {
		t.Errorf("the agent heard (-want +got):\n%s", diff)
	}
	g.let(3)
	if got := statuses(alice, 2); got[200] != 2 || (<-third).Status != 200 {
		t.Errorf("answers = %v, want 200 only", got)
	}

	g.let(1)
	for user, status := range map[string]int{"bad": 429, "blocked": 429} {
		if got := r.get(t, "X-User: "+user); got.Status != status {
			t.Errorf("%s: status = %d, want %d", user, got.Status, status)
		}
	}
	r.becomes(t, map[string]count{"alice": {0, 3}})
}

// A full table whose entries are all in use takes nobody in (or does all the same:
// HAProxy 3.2); when they are not, newcomers get the place of who has been away longest.
func TestFullTableFailsNoRequest(t *testing.T) {
	g := newGate()
	r := newRig(t, setup{serve: g.ServeHTTP, edit: func(cfg string) string {
		return strings.Replace(cfg, `table active type "${sluice_key-string}" len 128 size 200k`, `table active type "${sluice_key-string}" len 128 size 1`, 1)
	}})
	const users = 20
	answers := make([]<-chan answer, users)
	for i := range users {
		answers[i] = r.start(fmt.Sprint("user-", i))
		g.await(t, i+1)
	}
	g.let(users)
	for i, a := range answers {
		if got := (<-a).Status; got != 200 {
			t.Errorf("user-%d: status = %d, want 200", i, got)
		}
	}
	testkit.Eventually(t, "a newcomer takes the place of one who has nothing in progress", func() error {
		g.let(1)
		if got := r.get(t, "X-User: newcomer"); got.Status != 200 {
			return fmt.Errorf("status = %d, want 200", got.Status)
		}
		if _, ok := r.active(t)["newcomer"]; !ok {
			return fmt.Errorf("no entry, but of %v", r.active(t))
		}
		return nil
	})
}

// tell answers the first question with "wait" and the second one as told.
func tell(second func() vars) func(heard) vars {
	return func(h heard) vars {
		if h.Message == "start-message" {
			return vars{"wait": uint32(2000), "limit": uint32(10)}
		}
		return second()
	}
}

func TestWait(t *testing.T) {
	asked := []heard{{"alice", "GET", "start-message", 0, 0, "", false}, {"alice", "GET", "wait-message", 0, 0, "", false}}
	refused := vars{"reason": "concurrent-requests", "limit": uint32(11)}
	impatient := setup{Config: Config{Env: []string{"SLUICE_WAIT_TIMEOUT=1s"}}} // longer than a question takes to an agent on a busy machine
	for _, row := range []struct {
		name   string
		setup  setup
		second vars // nil: an allowed request
		end    func(r *rig, answer func())
		status int
		policy string
	}{
		{"a place becomes free", usual, nil, func(_ *rig, answer func()) { answer() }, 200, ""},
		{"no place becomes free", usual, refused, func(_ *rig, answer func()) { answer() }, 429, `"concurrent-requests";q=11;qu="concurrent-requests"`},
		{"the agent dies", usual, nil, func(r *rig, _ func()) { r.die() }, 429, `"concurrent-requests";q=10;qu="concurrent-requests"`},
		{"the agent forgets", impatient, nil, func(*rig, func()) {}, 429, `"concurrent-requests";q=10;qu="concurrent-requests"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := shared(t, row.setup)
			waiting, free := make(chan struct{}, 1), make(chan struct{})
			answer := sync.OnceFunc(func() { close(free) })
			defer answer()
			r.answerWith(tell(func() vars { waiting <- struct{}{}; <-free; return row.second }))
			done := r.start("alice")
			select {
			case <-waiting:
			case got := <-done:
				t.Fatalf("answer = %d before the agent was asked for a place", got.Status)
			}
			if seen, active := r.takeSeen(), r.active(t); len(seen) != 0 || len(active) != 0 {
				t.Errorf("while it waits: %d at the origin, active %v; want none", len(seen), active)
			}
			row.end(r, answer)
			got := <-done
			if got.Status != row.status || got.Header.Get("RateLimit-Policy") != row.policy {
				t.Errorf("answer = %d with policy %s, want %d with %s", got.Status, got.Header.Get("RateLimit-Policy"), row.status, row.policy)
			}
			if diff := cmp.Diff(asked, r.takeHeard(t)); diff != "" {
				t.Errorf("the agent heard (-want +got):\n%s", diff)
			}
			want := map[string]count{}
			if row.status == 200 {
				want["alice"] = count{0, 1}
			}
			r.becomes(t, want)
		})
	}
}

// longestWait is as long as requests can wait: HAProxy gives up on clients after a minute.
const longestWait = "59s"

func TestManyWaitAtOnce(t *testing.T) {
	const waiters = 500
	r := shared(t, usual)
	free := make(chan struct{})
	opened := sync.OnceFunc(func() { close(free) })
	defer opened()
	var mu sync.Mutex
	waiting := 0
	r.answerWith(func(h heard) vars {
		switch {
		case h.User != "waiter":
			return nil
		case h.Message == "start-message":
			return vars{"wait": uint32(2000)}
		}
		mu.Lock()
		waiting++
		mu.Unlock()
		<-free
		return nil
	})
	all := r.starts("waiter", waiters)
	testkit.Eventually(t, "all wait", func() error {
		mu.Lock()
		defer mu.Unlock()
		if waiting != waiters {
			return fmt.Errorf("%d, want %d", waiting, waiters)
		}
		return nil
	})
	for range 50 {
		if got := r.get(t, "X-User: other"); got.Status != 200 {
			t.Fatalf("another user's status = %d, want 200", got.Status)
		}
	}
	r.becomes(t, map[string]count{"other": {0, 50}})
	opened()
	if diff := cmp.Diff(map[int]int{200: waiters}, statuses(all, waiters)); diff != "" {
		t.Errorf("answers by status (-want +got):\n%s", diff)
	}
	r.becomes(t, map[string]count{"other": {0, 50}, "waiter": {0, waiters}})
}

// What HAProxy does when the client of a waiting request gives up: over HTTP/1.1
// it goes on waiting, and whether the origin still gets the request once there is
// a place depends on what HAProxy hears first. Nothing stays in progress. A client that
// half-closes is served before HAProxy 3.3, whose default aborts its request ("option abortonclose"): it gets 400, or nothing.
func TestGivesUpWaiting(t *testing.T) {
	for name, giveUp := range map[string]func(*net.TCPConn){
		"reset":       func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"closed":      func(c *net.TCPConn) { _ = c.Close() },
		"half-closed": func(c *net.TCPConn) { _ = c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			r := shared(t, usual)
			waiting, free := make(chan struct{}, 1), make(chan struct{})
			r.answerWith(tell(func() vars { waiting <- struct{}{}; <-free; return nil }))
			e := r.begin(t, httpGET("/", "X-User: alice"))
			<-waiting
			giveUp(e.Conn.(*net.TCPConn))
			close(free)
			if name == "half-closed" && !versionAtLeast(t, 3, 3) {
				if got := e.answer(); got.Status != 200 {
					t.Errorf("status = %d, want 200", got.Status)
				}
			}
			r.streamsBecome(t, 0)
			for user, c := range r.active(t) {
				if c.Cur != 0 {
					t.Errorf("%s has %d in progress, want none", user, c.Cur)
				}
			}
		})
	}
}

// With "option abortonclose" in the defaults, HAProxy asks no question for a
// client that has half-closed already. That is no way past the agent.
func TestNoWayAroundTheAgent(t *testing.T) {
	r := shared(t, chosen)
	r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 1, 0} })
	for range 20 {
		e := r.begin(t, httpGET("/", "X-User: alice"))
		_ = e.Conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, e)
	}
	r.streamsBecome(t, 0)
	if seen, active := r.takeSeen(), r.active(t); len(seen) != 0 || len(active) != 0 {
		t.Errorf("%d at the origin, active %v; want none", len(seen), active)
	}
}

// streamsBecome waits until the frontend has so many streams.
func (r *rig) streamsBecome(t testing.TB, want int) {
	t.Helper()
	testkit.Eventually(t, "streams of the frontend", func() error {
		got := strings.Count(r.cli(t, "show sess"), "fe=http ")
		if got != want {
			return fmt.Errorf("%d, want %d", got, want)
		}
		return nil
	})
}

func TestHoldsTheTaughtPartWithoutAgent(t *testing.T) {
	const requests, most = 50, 10
	for _, row := range []struct {
		name  string
		setup setup
		start func(t *testing.T, r *rig)
		most  int // taught; 0: not known
		want  int // admitted
	}{
		{"answers", usual, func(*testing.T, *rig) {}, most, requests},
		{"refuses connections", hasty, func(_ *testing.T, r *rig) { r.die() }, most, most},
		{"is down", usual, func(t *testing.T, r *rig) { r.down(t) }, most, most},
		{"is down, nothing taught", usual, func(t *testing.T, r *rig) { r.down(t) }, 0, requests},
		{"says nothing", hasty, func(t *testing.T, r *rig) { r.die(); r.hang(t) }, most, most},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := newGate()
			r := shared(t, row.setup.with(g.ServeHTTP))
			row.start(t, r)
			r.cli(t, fmt.Sprintf("set table sluice/block key bob data.gpt0 0 data.gpc0 12 data.gpc1 %d", row.most))
			all := r.starts("bob", requests)
			g.await(t, row.want)
			for range requests - row.want {
				wantRefused(t, <-all, "concurrent-requests", "concurrent-requests", `q=12;qu="concurrent-requests"`, 1, 3)
			}
			r.becomes(t, map[string]count{"bob": {row.want, requests}})
			g.let(row.want)
			if diff := cmp.Diff(map[int]int{200: row.want}, statuses(all, row.want)); diff != "" {
				t.Errorf("answers by status (-want +got):\n%s", diff)
			}
			r.becomes(t, map[string]count{"bob": {0, requests}})
		})
	}
}

// hasty has the time-outs of the shipped files, for agents that do not answer.
var hasty = setup{Config: Config{Env: []string{"SLUICE_VERDICT_TIMEOUT=30ms", "SLUICE_CHECK_TIMEOUT=100ms"}}}

// hang has an agent accept connections in place of the one that died, and say nothing.
func (r *rig) hang(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(r.dir, "spoa.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// bounded is for an origin that gets two requests at a time.
var bounded = setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_ORIGIN_MAXCONN=2"}}}

func TestPriorityWhenTheOriginIsFull(t *testing.T) {
	g := newGate()
	r := shared(t, bounded.with(g.ServeHTTP))
	priority := map[string]string{"low": "10", "high": "-5", "highest": "-2047"}
	r.answerWith(func(h heard) vars {
		if p, ok := priority[h.User]; ok {
			return vars{"priority": p}
		}
		return nil
	})
	order := []string{"first", "first", "low", "none", "high", "low", "highest"}
	answers := make(chan answer, len(order))
	for i, user := range order {
		done := r.start(user)
		go func() { answers <- <-done }()
		if i < 2 {
			g.await(t, i+1)
			continue
		}
		testkit.Eventually(t, "the request queues", func() error {
			if got := r.stat(t, "asked", "BACKEND", "qcur"); got != fmt.Sprint(i-1) {
				return fmt.Errorf("%s in the queue, want %d", got, i-1)
			}
			return nil
		})
	}
	for i := range order {
		g.await(t, min(i+2, len(order)))
		g.let(1)
	}
	if diff := cmp.Diff([]string{"first", "first", "highest", "high", "none", "low", "low"}, g.arrived()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]int{200: len(order)}, statuses(answers, len(order))); diff != "" {
		t.Errorf("answers by status (-want +got):\n%s", diff)
	}
}

// cancelled sends a request over HTTP/2, and cancels its stream when ready returns.
func cancelled(t *testing.T, q *http.Request, ready func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		resp, err := browser(t, true).Do(q.WithContext(ctx))
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	ready()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the request ended with %v, want cancelled", err)
	}
}

// A cancelled HTTP/2 stream waits no longer, from 3.0 on, and never takes a place.
func TestGivesUpWaitingOverHTTP2(t *testing.T) {
	t.Parallel()
	r := shared(t, byHeader)
	waiting, free := make(chan struct{}), make(chan struct{})
	r.answerWith(tell(func() vars { waiting <- struct{}{}; <-free; return nil }))
	q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+r.addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	cancelled(t, q, func() { <-waiting })
	if versionAtLeast(t, 3, 0) {
		r.streamsBecome(t, 0)
	}
	close(free)
	r.streamsBecome(t, 0)
	if seen := r.takeSeen(); len(seen) != 0 {
		t.Errorf("%d requests reached the origin, want none", len(seen))
	}
}

// What the agent says does not count is not among the requests in progress, unless no agent says so.
func TestUncountedRequests(t *testing.T) {
	for _, s := range []setup{plain, {Config: Config{Addresses: limits.AddressLimits{Requests: 1000}}}} {
		g := newGate()
		r := newRig(t, s.with(g.ServeHTTP))
		r.answerWith(func(h heard) vars {
			if h.User == "stream" {
				return vars{"uncounted": uint32(1)}
			}
			return nil
		})
		all := []<-chan answer{r.start("stream"), r.start("alice"), r.start("stream")}
		g.await(t, 3)
		r.becomes(t, map[string]count{"alice": {1, 1}})
		// The whole table: versions with binary keys cannot be asked for one.
		if held := r.cli(t, "show table sluice/held"); !regexp.MustCompile(`key=stream .*conn_cur=2`).MatchString(held) {
			t.Errorf("table held has %q, want two requests of stream, for their bytes", held)
		}
		r.die()
		r.down(t)
		all = append(all, r.start("stream"))
		g.await(t, 4)
		r.becomes(t, map[string]count{"alice": {1, 1}, "stream": {1, 1}})
		g.let(4)
		for _, a := range all {
			if got := <-a; got.Status != 200 {
				t.Errorf("status %d, want 200", got.Status)
			}
		}
	}
}
