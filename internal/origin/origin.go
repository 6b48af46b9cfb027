// Package origin is the server behind HAProxy in demonstrations, tests and
// benchmarks. It answers with as many bytes, or after as long, as the path asks
// for, swallows uploads, and counts what it sees, so that a test can compare
// what HAProxy let through with what was sent.
//
//	GET /bytes/N    N bytes; N takes the suffixes KiB, MiB and GiB; at most MaxBytes
//	GET /sleep/MS   an answer after MS milliseconds, at most MaxSleep
//	GET /cost/N     X-Cost: N in the header; at most MaxCost
//	GET anything    "hello" and the path
//	POST /v1/chat/completions    what a language model would answer, see below
//	POST, PUT, PATCH anything    reads the body and answers its size in bytes
//
// HEAD is GET without the body, and every other method is answered like GET. A
// number that is malformed or too large is answered with 400, a larger upload
// with 413.
//
// To /v1/chat/completions a request and its answer have the form of OpenAI's API. The answer
// costs tokens by a rule that anybody can compute: one for each word of the messages, and
// half of max_tokens (256 if it is not said; the half is rounded up) for the completion. With
// "stream": true it comes as server-sent events, one a token, of which the last before [DONE]
// has the usage, unless stream_options has "include_usage": false. ?ms_per_token=N has the
// model take so long for each token; all of them take at most MaxSleep.
//
// It is no web server: it has no files, no TLS and no defence beyond its bounds.
package origin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
)

const (
	// MaxBytes is the largest body that is sent or read, in bytes.
	MaxBytes = 1 << 30
	// MaxSleep is the longest that an answer is held back.
	MaxSleep = time.Minute
	// MaxCost is the largest cost that /cost/N says.
	MaxCost = 1_000_000_000_000
	// CostHeader says what a request to /cost/N has cost.
	CostHeader = "X-Cost"
	// UserHeader names the user for the counters of MaxUsers.
	UserHeader = "X-User"

	// drain is how long Serve lets requests in progress finish once it was
	// told to end. It is short because a connection that never sent a request
	// holds a graceful shutdown of net/http up for 5 s.
	drain = time.Second

	block = 64 << 10 // bytes sent or read at a time
)

// An Origin is an http.Handler that counts. Its zero value is ready; it must
// not be copied. All methods may be called by many goroutines.
type Origin struct {
	// MaxUsers is how many users are counted one by one, by UserHeader
	// (requests without it are the user ""); the requests of further users
	// count only in total. The zero value counts none and saves the cost.
	// Set it before the first request.
	MaxUsers int

	all   gauge
	mu    sync.Mutex
	users map[string]*gauge
}

// New returns an Origin that counts no users one by one.
func New() *Origin { return &Origin{} }

// Counts are the requests seen since the start. The zero value is none.
type Counts struct {
	Served    int64 // answered, whether or not the client stayed to the end
	Active    int64 // in progress now
	MaxActive int64 // the most that were in progress at once
}

// Counts returns the counts of all requests.
func (o *Origin) Counts() Counts { return o.all.counts() }

// UserCounts returns the counts of one user. A user not seen, or beyond
// MaxUsers, has none.
func (o *Origin) UserCounts(user string) Counts {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g := o.users[user]; g != nil {
		return g.counts()
	}
	return Counts{}
}

// Serve answers the connections of a listener until ctx ends, then lets
// requests in progress finish for a second, cuts off the rest and returns nil.
// It closes the listener, which may be one of listen.Bound. Any other error is the
// listener's.
func (o *Origin) Serve(ctx context.Context, l net.Listener) error {
	// Requests outlive ctx by the time that they have to finish.
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	// Behind HAProxy, which has its own time-outs: these only keep what is left over from staying for good.
	s := &http.Server{
		Handler:           o,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	daemon.TrackRequests(s)
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	// Only a listener that fails ends here: Serve returns for nothing else while nobody shuts it down.
	case err := <-failed:
		_ = s.Close()
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	// Shutdown waits for the requests; who sleeps for a minute is cut off.
	deadline, stop := context.WithTimeout(requests, drain)
	defer stop()
	if s.Shutdown(deadline) != nil {
		cut()
		_ = s.Close() // what is left has had its time; there is nobody to tell
	}
	<-failed //nolint:errcheck // it is http.ErrServerClosed
	return nil
}

// userGauge returns the gauge of a user, nil once MaxUsers others are known.
func (o *Origin) userGauge(name string) *gauge {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A map of pointers: what counts goes on without this lock.
	g := o.users[name]
	// Bounded, because clients choose the names.
	if g == nil && len(o.users) < o.MaxUsers {
		if o.users == nil {
			o.users = make(map[string]*gauge)
		}
		g = new(gauge)
		o.users[name] = g
	}
	return g
}

type gauge struct{ served, active, most atomic.Int64 }

func (g *gauge) countBegin() {
	n := g.active.Add(1)
	// Another request may have raised it meanwhile, to more or to less than this one saw.
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
}

func (g *gauge) countEnd() {
	g.active.Add(-1)
	g.served.Add(1)
}

func (g *gauge) counts() Counts {
	return Counts{Served: g.served.Load(), Active: g.active.Load(), MaxActive: g.most.Load()}
}

var (
	blocks = sync.Pool{New: func() any { return new([block]byte) }}
	filler = []byte(strings.Repeat("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n", block/64))
)
