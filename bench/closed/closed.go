// Package closed is a load of closed loops: clients that each have one request at
// a time, as users with a limit of requests in progress have. Its origin counts
// what runs, to the instant.
package closed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/daemon"
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
		clients.Go(func() { r.loop(ctx, i) })
	}
	clients.Wait()
	r.client.Close()
	return r.report
}

type run struct {
	Spec
	client load.Client
	end    time.Time

	mu     sync.Mutex
	report Report
}

func (r *run) loop(ctx context.Context, i int) {
	random := rand.New(rand.NewPCG(r.Seed, uint64(i)))
	daemon.Sleep(ctx, r.Ramp*time.Duration(i)/time.Duration(r.Clients)+time.Duration(random.Int64N(int64(r.Retry))))
	call := load.Call{Address: r.Addresses[i%len(r.Addresses)], User: r.User, Group: i}
	for time.Now().Before(r.end) && ctx.Err() == nil {
		call.Path = fmt.Sprintf("/sleep/%d", r.Work(random).Milliseconds())
		answer, err := r.client.Do(ctx, call)
		r.note(answer.Status, err)
		if answer.Status == http.StatusOK {
			daemon.Sleep(ctx, r.Think)
		} else {
			daemon.Sleep(ctx, r.Retry)
		}
	}
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

// Origin answers /sleep/MS after so many milliseconds, and records what runs.
type Origin struct {
	limit int

	mu     sync.Mutex
	active int
	points []Point
}

// A Point is a change of what runs.
type Point struct {
	At     time.Time
	Active int // from then on
}

// maxPoints bounds the memory of a run that is never read.
const maxPoints = 1_000_000

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
	daemon.Sleep(r.Context(), time.Duration(ms)*time.Millisecond)
}

func (o *Origin) change(by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active += by; len(o.points) < maxPoints {
		o.points = append(o.points, Point{time.Now(), o.active}) // under the lock: points are in order
	}
}

// Begin forgets what was, except for what runs.
func (o *Origin) Begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.points = []Point{{time.Now(), o.active}}
}

// Points returns the changes since Begin, or the first million of them.
func (o *Origin) Points() []Point {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Point(nil), o.points...)
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
func (o *Origin) Counts() (c Counts) {
	now, points := time.Now(), o.Points()
	if len(points) == 0 {
		return c
	}
	var area time.Duration // requests × time
	var freed time.Time    // since when fewer run than the limit
	for i, p := range points {
		end := now
		if i+1 < len(points) {
			end = points[i+1].At
		}
		area += time.Duration(p.Active) * end.Sub(p.At)
		c.Most, c.Active = max(c.Most, p.Active), p.Active
		switch {
		case i > 0 && p.Active == o.limit-1 && points[i-1].Active == o.limit:
			freed = p.At
		case i > 0 && p.Active > points[i-1].Active && !freed.IsZero():
			c.Gaps, freed = append(c.Gaps, p.At.Sub(freed)), time.Time{}
		}
	}
	if span := now.Sub(points[0].At); span > 0 {
		c.Mean = float64(area) / float64(span)
	}
	return c
}
