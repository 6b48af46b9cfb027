// Package closed is a load of closed loops: clients that each have one request at
// a time, as users with a limit of requests in progress have. Its origin counts
// what runs, to the instant.
package closed

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Spec describes a load. Fields without a stated default are required.
type Spec struct {
	Addresses []string // of the instances; client i uses the i-th, around and around
	User      string   // in the header X-User
	Clients   int
	Duration  time.Duration // after which no request begins; those that run end

	Work  func(*rand.Rand) time.Duration // how long the origin works on a request; nil means Mixed
	Ramp  time.Duration                  // over which the clients begin
	Retry time.Duration                  // pause after a refusal; 0 means 50 ms
	Think time.Duration                  // pause after an answer
	Seed  uint64
}

// Mixed is 0.15 to 2.85 s of work.
func Mixed(r *rand.Rand) time.Duration {
	return 150*time.Millisecond + time.Duration(r.Int64N(int64(2700*time.Millisecond)))
}

// Report is what came of a load.
type Report struct {
	Statuses map[int]int
	Failed   int      // requests without an answer
	Errors   []string // of the first few of them
}

// Run runs a load to its end, or until ctx ends.
func Run(ctx context.Context, s Spec) Report {
	if s.Work == nil {
		s.Work = Mixed
	}
	if s.Retry == 0 {
		s.Retry = 50 * time.Millisecond
	}
	r := &run{Spec: s, end: time.Now().Add(s.Duration)}
	r.report.Statuses = make(map[int]int)
	var clients sync.WaitGroup
	for i := range s.Clients {
		clients.Go(func() { r.client(ctx, i) })
	}
	clients.Wait()
	return r.report
}

type run struct {
	Spec
	end time.Time

	mu     sync.Mutex
	report Report
}

func (r *run) client(ctx context.Context, i int) {
	random := rand.New(rand.NewPCG(r.Seed, uint64(i)))
	transport := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}
	defer transport.CloseIdleConnections()
	pause(ctx, r.Ramp*time.Duration(i)/time.Duration(r.Clients)+time.Duration(random.Int64N(int64(r.Retry))))
	address := r.Addresses[i%len(r.Addresses)]
	for time.Now().Before(r.end) && ctx.Err() == nil {
		status, err := r.request(ctx, transport, address, r.Work(random))
		r.note(status, err)
		if status == http.StatusOK {
			pause(ctx, r.Think)
		} else {
			pause(ctx, r.Retry)
		}
	}
}

func (r *run) request(ctx context.Context, t *http.Transport, address string, work time.Duration) (int, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/sleep/%d", address, work.Milliseconds()), nil)
	if err != nil {
		return 0, err
	}
	req.Header["X-User"] = []string{r.User}
	res, err := t.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

func (r *run) note(status int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.report.Statuses[status]++
		return
	}
	if r.report.Failed++; len(r.report.Errors) < 5 {
		r.report.Errors = append(r.report.Errors, err.Error())
	}
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Origin answers /sleep/MS after so many milliseconds, and counts what runs.
type Origin struct {
	limit int

	mu     sync.Mutex
	active int
	most   int
	since  time.Time // the mean is of the time from here on
	at     time.Time
	area   time.Duration // active × time
	freed  time.Time     // when active fell below the limit; zero if it was not at it
	gaps   []time.Duration
	points []Point
}

// A Point is a change of what runs.
type Point struct {
	At     time.Time
	Active int // from then on
}

// maxPoints bounds the memory of a run that is never read.
const maxPoints = 1_000_000

// Points returns the changes since Begin, or the first million of them.
func (o *Origin) Points() []Point {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Point(nil), o.points...)
}

// NewOrigin returns an origin for one user with a limit.
func NewOrigin(limit int) *Origin { return &Origin{limit: limit} }

// Serve answers the connections of a listener until ctx ends.
func (o *Origin) Serve(ctx context.Context, l net.Listener) {
	s := &http.Server{Handler: o, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	_ = s.Serve(l) // ends with Close
}

// ServeHTTP implements http.Handler.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.change(1)
	defer o.change(-1)
	ms, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/sleep/"))
	if err != nil {
		http.Error(w, "want /sleep/MS", http.StatusBadRequest)
		return
	}
	pause(r.Context(), time.Duration(ms)*time.Millisecond)
}

func (o *Origin) change(by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now() // under the lock: points are in order
	if !o.since.IsZero() {
		o.area += time.Duration(o.active) * now.Sub(o.at)
	}
	o.at = now
	switch {
	case by < 0 && o.active == o.limit:
		o.freed = now
	case by > 0 && !o.freed.IsZero():
		o.gaps = append(o.gaps, now.Sub(o.freed))
		o.freed = time.Time{}
	}
	o.active += by
	o.most = max(o.most, o.active)
	if len(o.points) < maxPoints {
		o.points = append(o.points, Point{now, o.active})
	}
}

// Begin forgets what was, but for what runs.
func (o *Origin) Begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Now()
	o.at, o.area, o.most, o.gaps, o.freed, o.points = o.since, 0, o.active, nil, time.Time{}, nil
}

// Counts are an origin's since Begin.
type Counts struct {
	Active int // requests that run now
	Most   int // the most that ran at once
	Mean   float64
	// Gaps are the times from the end of a request, while as many ran as the limit
	// allows, to the beginning of the next one.
	Gaps []time.Duration
}

// Counts returns the counts since Begin.
func (o *Origin) Counts() Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	c := Counts{Active: o.active, Most: o.most, Gaps: append([]time.Duration(nil), o.gaps...)}
	if span := now.Sub(o.since); !o.since.IsZero() && span > 0 {
		c.Mean = float64(o.area+time.Duration(o.active)*now.Sub(o.at)) / float64(span)
	}
	return c
}
