// Package transfer is a load of large bodies: streams that download or upload
// without end, and an origin for them. It counts the bytes that arrive, by stream
// and tenth of a second: of downloads at the client, of uploads at the origin.
package transfer

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/daemon"
)

// Step is the resolution of the counts.
const Step = 100 * time.Millisecond

// Stream is one transfer. Fields without a stated default are required.
type Stream struct {
	Address string
	User    string // in the header X-User
	Up      bool   // it uploads
	H2      bool   // over HTTP/2; streams of one address share a connection if their Group is equal
	Group   int
	Begin   time.Duration // after Run's beginning
	End     time.Duration // after Run's beginning; 0 means with it
}

// Report is what arrived.
type Report struct {
	Bytes  [][]int64 // by stream and Step
	Errors []string  // of streams that failed or were refused
}

// Origin serves GET /endless and takes PUT /sink?stream=N.
type Origin struct {
	listener net.Listener
	server   *http.Server
	mu       sync.Mutex
	counters map[string]*counter
}

// NewOrigin starts an origin on a free loopback port. The caller closes it.
func NewOrigin() (*Origin, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &Origin{listener: l, counters: make(map[string]*counter)}
	o.server = &http.Server{Handler: o, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = o.server.Serve(l) }() // ends with Close
	return o, nil
}

// Addr is where it listens.
func (o *Origin) Addr() string { return o.listener.Addr().String() }

// Close ends it.
func (o *Origin) Close() error { return o.server.Close() }

var block [256 << 10]byte

// ServeHTTP implements http.Handler.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Length", strconv.FormatInt(1<<40, 10))
		for {
			if _, err := w.Write(block[:]); err != nil {
				return // the client has had enough
			}
		}
	}
	o.mu.Lock()
	c := o.counters[r.URL.Query().Get("stream")]
	o.mu.Unlock()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Body.Read(buf)
		c.add(n)
		if err != nil {
			return
		}
	}
}

// counter counts the bytes of a stream in steps of time.
type counter struct {
	start time.Time
	steps []atomic.Int64
}

func (c *counter) add(n int) {
	if c == nil || n == 0 {
		return
	}
	if i := int(time.Since(c.start) / Step); i >= 0 && i < len(c.steps) {
		c.steps[i].Add(int64(n))
	}
}

// Run runs the streams for a while.
func Run(ctx context.Context, o *Origin, streams []Stream, d time.Duration) Report {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	start := time.Now()
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		report   Report
		counters = make([]*counter, len(streams))
		client   load.Client
	)
	for i, s := range streams {
		c := &counter{start: start, steps: make([]atomic.Int64, int(d/Step)+1)}
		counters[i] = c
		id := fmt.Sprint(start.UnixNano(), "-", i)
		o.mu.Lock()
		o.counters[id] = c
		o.mu.Unlock()
		call := load.Call{Address: s.Address, User: s.User, Path: "/endless", Received: c.add, Group: i}
		if s.H2 {
			call.Connection, call.Group = load.HTTP2, s.Group
		}
		wg.Go(func() {
			if !daemon.Sleep(ctx, s.Begin) {
				return
			}
			ctx := ctx
			if s.End > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, start.Add(s.End))
				defer cancel()
			}
			if s.Up {
				call.Method, call.Path, call.Body, call.Received = "PUT", "/sink?stream="+id, endless{ctx}, nil
			}
			answer, err := client.Do(ctx, call)
			if err == nil && answer.Status != http.StatusOK {
				err = fmt.Errorf("%s %s: %d", s.User, call.Path, answer.Status)
			}
			if err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				report.Errors = append(report.Errors, err.Error())
			}
		})
	}
	wg.Wait()
	client.Close()
	for _, c := range counters {
		steps := make([]int64, int(d/Step))
		for i := range steps {
			steps[i] = c.steps[i].Load()
		}
		report.Bytes = append(report.Bytes, steps)
	}
	return report
}

type endless struct{ ctx context.Context }

func (e endless) Read(b []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Of is the report of some of the streams.
func (r Report) Of(from, to int) Report {
	return Report{Bytes: r.Bytes[from:to], Errors: r.Errors}
}

// Rate is the bytes per second of all streams between two instants of the run.
func (r Report) Rate(from, to time.Duration) float64 {
	sum := int64(0)
	for i := range r.Bytes {
		sum += r.between(i, from, to)
	}
	return float64(sum) / (to - from).Seconds()
}

func (r Report) between(stream int, from, to time.Duration) (sum int64) {
	for _, n := range r.Bytes[stream][from/Step : to/Step] {
		sum += n
	}
	return sum
}

// Jain is Jain's index of fairness over the streams: 1 if all moved the same.
func (r Report) Jain(from, to time.Duration) float64 {
	var sum, squares float64
	for i := range r.Bytes {
		x := float64(r.between(i, from, to))
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.Bytes)) * squares)
}

// Worst is the largest deviation of any whole second between two instants from a
// rate in bytes per second, as a fraction of it.
func (r Report) Worst(from, to time.Duration, rate float64) (worst float64) {
	for at := from; at+time.Second <= to; at += Step {
		d := r.Rate(at, at+time.Second)/rate - 1
		if d < 0 {
			d = -d
		}
		worst = max(worst, d)
	}
	return worst
}
