package haproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/peers"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// unit is the share of bandwidth of 1, in bytes per second.
const unit = 64

var zeros = make([]byte, 256<<10)

// mover is both ends of a rig's transfers: the origin, which sends and reads bodies,
// and the clients. What has moved of each stream is counted where it arrives.
type mover struct {
	mu      sync.Mutex
	uploads map[string]*atomic.Int64
}

// ServeHTTP answers GET /N with N bytes, and anything else once it has the body.
// ?chunked leaves the size unknown.
func (m *mover) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if id := q.Header.Get("X-Stream"); id != "" && q.Method != http.MethodGet {
		count := m.upload(id)
		buf := make([]byte, 64<<10)
		for {
			n, err := q.Body.Read(buf)
			count.Add(int64(n))
			if err != nil {
				break
			}
		}
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

// kind is a kind of transfer.
type kind struct {
	Up bool
	H2 bool
}

func (k kind) String() string {
	return map[bool]string{false: "down", true: "up"}[k.Up] + "/" + map[bool]string{false: "h1", true: "h2"}[k.H2]
}

// counter is bytes that have moved.
type counter = atomic.Int64

// flow is some transfers of one user that begin together and do not end by themselves.
type flow struct {
	moved []*atomic.Int64 // of each stream
	stop  func()          // ends them
}

var streamID atomic.Int64

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

// flow starts n transfers of a user.
func (r *rig) flow(t testing.TB, m *mover, user string, k kind, n int) *flow {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &flow{}
	var wg sync.WaitGroup
	c := browser(t, k.H2)
	for range n {
		count := new(atomic.Int64)
		method, body := http.MethodGet, io.Reader(nil)
		id := fmt.Sprint(streamID.Add(1))
		if k.Up {
			method, body, count = http.MethodPost, endless{ctx}, m.upload(id)
		}
		q, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s/%d", r.addr, forever), body)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-User", user)
		q.Header.Set("X-Stream", id)
		f.moved = append(f.moved, count)
		wg.Go(func() {
			resp, err := c.Do(q)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := resp.Body.Read(buf)
				if !k.Up {
					count.Add(int64(n))
				}
				if err != nil {
					return
				}
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

// bytesTold is what a peer knows of alice in table active.
type bytesTold struct{ In, Out uint64 }

// learnBytes dials HAProxy's peer and returns what is learned.
func (r *rig) learnBytes(t testing.TB) func() bytesTold {
	t.Helper()
	var in, out atomic.Uint64
	r.peer(t, peers.Options{Learn: func(u peers.Update) {
		if u.Table == "/active" && u.Key == "alice" {
			in.Store(u.Values[peers.BytesInCnt] + unit*u.Values[peers.GPT0])
			out.Store(u.Values[peers.BytesOutCnt])
		}
	}})
	return func() bytesTold { return bytesTold{in.Load(), out.Load()} }
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

// teacher is an agent's peers session that teaches shares, in bytes per second.
func (r *rig) teacher(t testing.TB) func(user string, down, up int, ttl time.Duration) {
	t.Helper()
	c := r.peer(t, peers.Options{Teach: []peers.Table{
		{Name: "sluice_share", KeyLen: 128, Expire: time.Minute, Data: []peers.DataType{peers.GPT0, peers.GPC0}},
	}})
	return func(user string, down, up int, ttl time.Duration) {
		c.Teach("sluice_share", user, peers.Values{peers.GPT0: uint64(down / unit), peers.GPC0: uint64(up / unit)}, ttl)
	}
}

// peer dials HAProxy's peer, as the agent does, until the test ends.
func (r *rig) peer(t testing.TB, o peers.Options) *peers.Client {
	t.Helper()
	o.Network, o.Address, o.Local, o.Remote = "unix", filepath.Join(r.dir, "peer.sock"), AgentPeer, LocalPeer
	c := peers.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("peers: %v", err)
		}
	})
	proctest.Eventually(t, "the peers session", func() error {
		if !c.Connected() {
			return fmt.Errorf("not connected")
		}
		return nil
	})
	return c
}
