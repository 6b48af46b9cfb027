package haproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// unit is the share of bandwidth of 1, in bytes per second.
const unit = 64

const mib = 1 << 20

var zeros = make([]byte, 256<<10)

// mover is the origin of transfers. What arrives of each upload is counted.
type mover struct {
	mu      sync.Mutex
	uploads map[string]*atomic.Int64
}

// moving is the one of all tests: each upload has a number of its own.
var moving = &mover{}

// ServeHTTP answers GET /N with N bytes, POST /echo with the body as it comes, an upgrade with a tunnel in which it writes
// and reads at once, and anything else once it has the body. ?chunked leaves the size of an answer unknown.
func (m *mover) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	switch id := q.Header.Get("X-Stream"); {
	case q.Header.Get("Upgrade") != "":
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		// A length that would be a small answer's says nothing about a tunnel.
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\n")
		_ = rw.Flush()
		go fill(conn)
		drain(conn, m.upload(id))
		return
	case q.URL.Path == "/echo":
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		_, _ = io.Copy(flusher{w}, q.Body)
		return
	case id != "" && q.Method != http.MethodGet:
		_, _ = io.Copy(counting{m.upload(id)}, q.Body)
		return
	}
	_, _ = io.Copy(io.Discard, q.Body)
	var n int64
	_, _ = fmt.Sscanf(q.URL.Path, "/%d", &n)
	if q.URL.RawQuery != "chunked" {
		w.Header().Set("Content-Length", fmt.Sprint(n))
	}
	for n > 0 {
		part, err := w.Write(zeros[:min(n, int64(len(zeros)))])
		if err != nil {
			return
		}
		n -= int64(part)
	}
}

func (m *mover) upload(id string) *atomic.Int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uploads == nil {
		m.uploads = map[string]*atomic.Int64{}
	}
	if m.uploads[id] == nil {
		m.uploads[id] = new(atomic.Int64)
	}
	return m.uploads[id]
}

// counting counts what is written to it.
type counting struct{ n *atomic.Int64 }

func (c counting) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// fill writes until the connection ends.
func fill(conn net.Conn) {
	for {
		if _, err := conn.Write(zeros); err != nil {
			return
		}
	}
}

// drain reads and counts until the connection ends, and closes it.
func drain(conn net.Conn, count *atomic.Int64) {
	defer conn.Close()
	_, _ = io.Copy(counting{count}, conn)
}

// kind is a kind of transfer.
type kind struct {
	Up bool
	H2 bool
}

func (k kind) String() string {
	return map[bool]string{false: "down", true: "up"}[k.Up] + "/" + map[bool]string{false: "h1", true: "h2"}[k.H2]
}

// shares returns the bytes per second of the kind's direction, and far too few of the other.
func (k kind) shares(n int) (down, up int) {
	if k.Up {
		return 1000, n
	}
	return n, 1000
}

// flow is some transfers of one user that begin together and do not end by themselves.
type flow struct {
	moved []*atomic.Int64 // of each stream
	stop  func()          // ends them
}

// someone is a user whom no other test has.
type someone struct {
	*rig
	name string
}

var people, streams atomic.Int64

// someone is a user of the test's own about whom the agent answers this. They have an entry already: HAProxy 2.7 to 3.2.7 may make
// two if their first transfers come at the same instant (see DESIGN.md, Bounds).
func (r *rig) someone(answer vars) someone {
	s := someone{r, fmt.Sprint("user-", people.Add(1))}
	_, _ = testkit.AskHAProxy(r.stats, "set table sluice_credit key "+s.name+" data.server_id 0")
	s.answer(answer)
	return s
}

func (s someone) answer(v vars) { s.answerFor(s.name, func(told) vars { return v }) }

// header is the field that names the user.
func (s someone) header() string { return "X-User: " + s.name }

// browser is an HTTP client whose streams of HTTP/2 share one connection.
func browser(t testing.TB, h2 bool) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 100, DisableCompression: true, ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

const forever = 1 << 40

type endless struct{ ctx context.Context }

func (e endless) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flow starts n transfers.
func (s someone) flow(t testing.TB, k kind, n int) *flow {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &flow{}
	var wg sync.WaitGroup
	c := browser(t, k.H2)
	for range n {
		count := new(atomic.Int64)
		method, body := http.MethodGet, io.Reader(nil)
		id := fmt.Sprint(streams.Add(1))
		if k.Up {
			method, body, count = http.MethodPost, endless{ctx}, moving.upload(id)
		}
		q, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s/%d", s.addr, forever), body)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-User", s.name)
		q.Header.Set("X-Stream", id)
		f.moved = append(f.moved, count)
		wg.Go(func() {
			resp, err := c.Do(q)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			if k.Up {
				_, _ = io.Copy(io.Discard, resp.Body)
			} else {
				_, _ = io.Copy(counting{count}, resp.Body)
			}
		})
	}
	f.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(f.stop)
	return f
}

// join makes more a part of f: it counts, and ends, with it.
func (f *flow) join(more *flow) {
	stop := f.stop
	f.moved = append(f.moved, more.moved...)
	f.stop = func() { stop(); more.stop() }
}

// awaitEach waits until each transfer has moved something.
func (f *flow) awaitEach(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "all transfers move", func() error {
		for i, n := range f.moved {
			if n.Load() == 0 {
				return fmt.Errorf("transfer %d has not begun", i)
			}
		}
		return nil
	})
}

// await waits until n bytes have moved since a time, and returns how long after it that was.
func (f *flow) await(t testing.TB, since snapshot, n int64) time.Duration {
	t.Helper()
	testkit.Eventually(t, "bytes", func() error {
		if got := f.now().total() - since.total(); got < n {
			return fmt.Errorf("%d, want %d", got, n)
		}
		return nil
	})
	return time.Since(since.at)
}

// snapshot is what has moved at an instant.
type snapshot struct {
	at    time.Time
	moved []int64
}

func (f *flow) now() snapshot {
	s := snapshot{at: time.Now()}
	for _, m := range f.moved {
		s.moved = append(s.moved, m.Load())
	}
	return s
}

func (s snapshot) total() int64 {
	var sum int64
	for _, m := range s.moved {
		sum += m
	}
	return sum
}

// rate is bytes per second between two snapshots, and Jain's index over the streams.
func rate(a, b snapshot) (bytes, jain float64) {
	var sum, squares float64
	for i := range a.moved {
		d := float64(b.moved[i] - a.moved[i])
		sum += d
		squares += d * d
	}
	if squares > 0 {
		jain = sum * sum / squares / float64(len(a.moved))
	}
	return sum / b.at.Sub(a.at).Seconds(), jain
}

// runsAt waits until a flow has had a rate of want ± 5 % for 400 ms. However slow the
// machine is, there is such a time, but none when the rate is another.
func (f *flow) runsAt(t testing.TB, want float64) {
	t.Helper()
	f.runsFairly(t, want, 0)
}

// runsFairly waits until it was divided fairly, too.
func (f *flow) runsFairly(t testing.TB, want, jain float64) {
	t.Helper()
	testkit.Eventually(t, "the rate", func() error { return f.runs(want, jain) })
}

// runs is what is wrong with a flow for 400 ms: its rate is not want ± 5 %, or Jain's
// index is less than wanted.
func (f *flow) runs(want, jain float64) error {
	a := f.now()
	time.Sleep(400 * time.Millisecond)
	if got, j := rate(a, f.now()); got < 0.95*want || got > 1.05*want || j < jain {
		return fmt.Errorf("%.0f bytes/s, Jain's index %.3f, want %.0f ± 5 %% and at least %.1f", got, j, want, jain)
	}
	return nil
}

// neverOver checks that since a flow began it has not had more than its limit: 3 % for
// good, and 10 % of a second and what the kernel holds, once.
func (f *flow) neverOver(t testing.TB, began time.Time, limit float64) {
	t.Helper()
	got := float64(f.now().total())
	took := time.Since(began)
	if most := 1.03*limit*took.Seconds() + 0.1*limit; got > most {
		t.Errorf("%.0f bytes in %v, want at most %.0f", got, took, most)
	}
}

// loops sends requests with bodies of a size over n connections, one after the other. If one ends before the
// test does, the test's log says why.
func (s someone) loops(t testing.TB, n int, up bool, size int) *flow {
	raw := httpGET(fmt.Sprintf("/%d", size), s.header())
	if up {
		raw = httpRequest("PUT", "/1", s.header(), fmt.Sprintf("Content-Length: %d", size)) + strings.Repeat("x", size)
	}
	f := &flow{}
	for range n {
		count := new(atomic.Int64)
		f.moved = append(f.moved, count)
		conn := dial(t, "tcp", s.addr)
		ended := make(chan error, 1)
		t.Cleanup(func() {
			conn.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Log("a loop of requests ended:", err)
			}
		})
		go func() {
			in := bufio.NewReader(conn)
			for {
				if err := exchangeBody(conn, in, raw); err != nil {
					ended <- err
					return
				}
				count.Add(int64(size))
			}
		}()
	}
	return f
}

// exchangeBody sends a request, whose answer must be a 200 with a body.
func exchangeBody(conn io.Writer, in *bufio.Reader, raw string) error {
	if _, err := io.WriteString(conn, raw); err != nil {
		return err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != 200 || n == 0) {
		err = fmt.Errorf("the answer is %s with %d bytes", resp.Status, n)
	}
	return err
}

// share answers with bytes per second.
func share(down, up int) vars {
	v := vars{}
	if down > 0 {
		v["down"] = uint32(down / unit)
	}
	if up > 0 {
		v["up"] = uint32(up / unit)
	}
	return v
}

// session is an agent's peers session with a rig: HAProxy keeps one.
type session struct {
	once   sync.Once
	client *peers.Client

	mu     sync.Mutex
	active map[string]peers.Values // table active by user
}

// peer is the rig's session, which it begins if need be.
func (r *rig) peer(t testing.TB) *session {
	t.Helper()
	s := &r.session
	s.once.Do(func() {
		s.active = map[string]peers.Values{}
		s.client = peers.New(peers.Options{
			Network: "unix", Address: filepath.Join(r.dir, "peer.sock"), Local: AgentPeer, Remote: LocalPeer,
			Teach: []peers.Table{{Name: "sluice_share", KeyLen: 128, Expire: time.Minute, Data: []peers.DataType{peers.GPT0, peers.GPC0}}},
			Learn: func(u peers.Update) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if u.Table == "/active" {
					s.active[u.Key] = u.Values
				}
			},
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.client.Run(ctx) }()
		r.lives.Cleanup(func() {
			cancel()
			<-done
		})
	})
	testkit.Eventually(t, "the peers session", func() error {
		if !s.client.Connected() {
			return fmt.Errorf("not connected")
		}
		return nil
	})
	return s
}

// teachShare teaches bytes per second.
func (s someone) teachShare(t testing.TB, down, up int, ttl time.Duration) {
	t.Helper()
	s.peer(t).client.Teach("sluice_share", s.name, peers.Values{peers.GPT0: uint64(down / unit), peers.GPC0: uint64(up / unit)}, ttl)
}

// learned is what the peers session has learned of table active.
func (r *rig) learned(t testing.TB) map[string]peers.Values {
	t.Helper()
	s := r.peer(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.active)
}

// bytes is how many the peers session knows to have moved up and down.
func (s someone) bytes(t testing.TB) (up, down uint64) {
	t.Helper()
	v := s.learned(t)[s.name]
	return v[peers.BytesInCnt] + unit*v[peers.GPT0], v[peers.BytesOutCnt]
}
