// Package load sends HTTP/1.1 requests to one or more HAProxies at times fixed
// beforehand and records what became of each.
//
// It is open-loop: a request is sent when it is due, whether or not earlier
// ones have been answered, so a server that stalls is seen to stall rather than
// offered less. What cannot be sent, because every connection that is allowed
// is busy, is recorded as dropped, and what was sent late shows by how much.
//
// One goroutine does it all, on non-blocking sockets and an epoll of its own:
// net/http's client costs about 25 µs of CPU a request, which would leave a
// small machine too little for the programs under test. It speaks as much
// HTTP/1.1 as HAProxy and Go's servers answer with (keep-alive, Content-Length
// and chunked bodies), one request on a connection at a time. It needs 64-bit
// Linux, 5.11 or newer, and refuses to send anywhere but to this machine.
package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"
)

// Bounds of a Spec.
const (
	MaxRate     = 1_000_000 // requests per second
	MaxRequests = 5_000_000 // planned requests; each takes 48 bytes
	MaxTargets  = 256
	MaxConns    = 16_384 // connections to one target
	MaxSources  = 254
	maxTick     = 100 * time.Millisecond
)

// A Target is one server, usually one HAProxy.
type Target struct {
	Address string // host:port on this machine
	Weight  Weight // part of the load; nil is an even part, a constant 1
}

// A Request is what to send. Its bytes are not modified and must not be
// modified while the run lasts.
type Request struct {
	Method  string // empty means GET
	Path    string // with its query, as it goes on the wire; empty means /
	Headers []byte // complete lines, each ended by CR LF; Host and Content-Length are added
	Body    []byte
	User    string // a label for the Report; the server learns the user from Headers
}

// A Spec says what to send where and when. Targets, Rate, Duration and Requests
// are needed; the other zero values have a meaning.
type Spec struct {
	Targets  []Target
	Rate     float64       // requests per second to all targets together, at most MaxRate
	Duration time.Duration // of the sending; answers may come up to Timeout later
	Arrivals Arrivals      // nil means Uniform
	Seed     uint64        // of the arrivals and of the choice of targets

	// Requests returns the i-th request in the order of the schedule. It is
	// called from one goroutine when the request is due, and again should
	// the request have to wait, and must be quick: it is the sender that waits.
	Requests func(i int) Request

	// Settled, unless nil, is told what became of each request, and its answer's Sluice-Reason,
	// by the sender's goroutine, as soon as that is known.
	Settled func(user, reason string, r Result)

	// Timeout is how long a request may wait for a connection, and how long
	// its answer may take from when it was sent. Zero means 5 s.
	Timeout time.Duration

	// Conns is how many connections to each target may be open, and so how
	// many requests in progress. Zero means 512.
	Conns int

	// Ahead is how many connections to each target are opened before the
	// start. Zero means 64, or Conns if that is less.
	Ahead int

	// Sources is from how many addresses, 127.0.0.1 and those that follow, connections are made in
	// turn: each address has some 28 000 ports to a target, and one that was closed is not free
	// for a minute. Zero leaves the choice to the kernel.
	Sources int

	// Tick is the least time between two wakings of the sender, so how late
	// a request may be sent: less is more punctual and costs more CPU. Zero
	// means 500 µs.
	Tick time.Duration

	// Align makes the first second of the schedule a whole second of the
	// wall clock.
	Align bool
}

// Run sends what the Spec says and returns the Report once every request has
// been answered or given up. When ctx ends earlier it returns at once, with
// what it has so far and the cause. Any other error means that nothing was sent.
func Run(ctx context.Context, s Spec) (*Report, error) {
	addrs, err := s.validate()
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	l, err := newLoop(s, addrs)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return l.run(ctx)
}

// Users returns requests of a method and path by each of the users in turn,
// named by the header X-User. Without users there is no such header.
func Users(method, path string, users ...string) func(i int) Request {
	if len(users) == 0 {
		return func(int) Request { return Request{Method: method, Path: path} }
	}
	all := make([]Request, len(users))
	for i, user := range users {
		all[i] = Request{Method: method, Path: path, User: user, Headers: []byte("X-User: " + user + "\r\n")}
	}
	return func(i int) Request { return all[i%len(all)] }
}

func (s *Spec) validate() ([]netip.AddrPort, error) {
	if s.Timeout == 0 {
		s.Timeout = 5 * time.Second
	}
	if s.Conns == 0 {
		s.Conns = 512
	}
	if s.Ahead == 0 {
		s.Ahead = min(64, s.Conns)
	}
	if s.Tick == 0 {
		s.Tick = 500 * time.Microsecond
	}
	if s.Arrivals == nil {
		s.Arrivals = Uniform
	}
	switch {
	case len(s.Targets) == 0 || len(s.Targets) > MaxTargets:
		return nil, fmt.Errorf("%d targets: want 1 to %d", len(s.Targets), MaxTargets)
	case !(s.Rate > 0 && s.Rate <= MaxRate): // NaN too
		return nil, fmt.Errorf("rate %v: want more than 0 and at most %d requests per second", s.Rate, MaxRate)
	case s.Duration <= 0:
		return nil, fmt.Errorf("duration %v: want more than 0", s.Duration)
	case math.Ceil(s.Rate*s.Duration.Seconds()) > MaxRequests:
		return nil, fmt.Errorf("rate %v for %v: want at most %d requests", s.Rate, s.Duration, MaxRequests)
	case s.Timeout < 0:
		return nil, fmt.Errorf("timeout %v: want more than 0", s.Timeout)
	case s.Tick < 0 || s.Tick > maxTick:
		return nil, fmt.Errorf("tick %v: want at most %v", s.Tick, maxTick)
	case s.Conns < 1 || s.Conns > MaxConns:
		return nil, fmt.Errorf("%d connections: want 1 to %d", s.Conns, MaxConns)
	case s.Ahead < 0 || s.Ahead > s.Conns:
		return nil, fmt.Errorf("%d connections ahead: want 0 to %d", s.Ahead, s.Conns)
	case s.Sources < 0 || s.Sources > MaxSources:
		return nil, fmt.Errorf("%d sources: want 0 to %d", s.Sources, MaxSources)
	case s.Requests == nil:
		return nil, errors.New("no requests to send")
	}
	addrs := make([]netip.AddrPort, len(s.Targets))
	for i, t := range s.Targets {
		a, err := net.ResolveTCPAddr("tcp", t.Address)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", t.Address, err)
		}
		if !a.IP.IsLoopback() {
			return nil, fmt.Errorf("target %q: %w", t.Address, ErrNotLoopback)
		}
		addrs[i] = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
	}
	return addrs, nil
}

// ErrNotLoopback is what Run wraps when a target is not on this machine.
var ErrNotLoopback = errors.New("not a loopback address: " +
	"open-loop load does not slow down for a server in trouble, so it is sent to this machine alone")
