package load

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"time"
)

// stallAfter ends a slice of whose requests none is answered any more.
const stallAfter = 5 * time.Second

// A Slicer is a closed-loop load: each of its connections sends the next
// request as soon as the answer to the last one is there. It does so in short
// slices, so that several Slicers can take turns within one run: a machine
// whose speed drifts still compares them fairly. The connections stay open
// from slice to slice.
//
// A Slicer keeps its servers as busy as they can be. For what users feel under
// a given load use Run, which does not slow down with the servers.
type Slicer struct {
	poller      *poller
	in          *receiver
	connections []*conn // all of them
	byFD        []*conn // the same by file descriptor
	next        int     // index of the next request
	requests    func(i int) Request
}

// A Slice is what one slice saw.
type Slice struct {
	Answers int             // answers received
	Others  map[int]int     // how many of them had another status than 200, by status
	Elapsed time.Duration   // from the first request to the last answer
	Times   []time.Duration // of each answer, from the sending of its request; sorted
}

// Quantile is the time within which the part q (0 to 1) of the answers came.
func (s Slice) Quantile(q float64) time.Duration {
	if len(s.Times) == 0 {
		return 0
	}
	return s.Times[int(q*float64(len(s.Times)-1))]
}

// NewSlicer returns a Slicer with connections to the addresses, which must be on
// this machine, to each the same number or one more. The first slice opens them.
// The i-th request of all is requests(i).
func NewSlicer(addresses []string, connections int, requests func(i int) Request) (*Slicer, error) {
	if len(addresses) == 0 || connections < len(addresses) || connections > MaxConns {
		return nil, fmt.Errorf("load: %d connections to %d addresses: want one to each at least, and %d at most", connections, len(addresses), MaxConns)
	}
	p, err := newPoller()
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	s := &Slicer{poller: p, in: newReceiver(), requests: requests}
	for i := range connections {
		s.connections = append(s.connections, &conn{state: closed, target: &target{host: addresses[i%len(addresses)]}})
	}
	return s, nil
}

// connect opens a connection and waits until it is established. No other one
// may have an answer to come.
func (s *Slicer) connect(c *conn) error {
	to := c.target.host
	a, err := net.ResolveTCPAddr("tcp", to)
	if err != nil {
		return fmt.Errorf("address %q: %w", to, err)
	}
	if !a.IP.IsLoopback() {
		return fmt.Errorf("address %q: %w", to, ErrNotLoopback)
	}
	family, sockaddr := address(netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port)))
	if c.fd, err = connect(family, sockaddr, 0); err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	c.state = idle
	if err := s.poller.add(c.fd, writable); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	for len(s.byFD) <= c.fd {
		s.byFD = append(s.byFD, nil)
	}
	s.byFD[c.fd] = c
	for deadline := time.Now().Add(stallAfter); time.Now().Before(deadline); {
		events, err := s.poller.wait(time.Until(deadline))
		switch {
		case err != nil:
			return fmt.Errorf("epoll_pwait2: %w", err)
		case len(events) == 0: // a signal
		case !connected(c.fd):
			return fmt.Errorf("connect to %s: refused", to)
		default:
			return s.poller.change(c.fd, readable)
		}
	}
	return fmt.Errorf("connect to %s: no answer within %v", to, stallAfter)
}

// close closes a connection, which the next slice opens again.
func (s *Slicer) close(c *conn) {
	if c.state != closed {
		s.poller.closeSocket(c.fd)
		s.byFD[c.fd] = nil
		c.state = closed
	}
}

// Run sends requests for a time, and waits for the answers to those on their
// way. An error means that the Slicer is of no more use.
func (s *Slicer) Run(d time.Duration) (Slice, error) {
	slice := Slice{Others: make(map[int]int)}
	// Before the slice's time begins, and before any answer can come.
	if err := s.connectClosed(); err != nil {
		return slice, err
	}
	started := time.Now()
	waiting, last, yielded := 0, started, started
	for _, c := range s.connections {
		if err := s.send(c, time.Since(started)); err != nil {
			return slice, err
		}
		waiting++
	}
	for waiting > 0 {
		// See yieldEvery: a goroutine that never yields is watched, at a price.
		if time.Since(yielded) >= yieldEvery {
			runtime.Gosched()
			yielded = time.Now()
		}
		events, err := s.poller.wait(stallAfter)
		if err != nil {
			return slice, fmt.Errorf("load: epoll_pwait2: %w", err)
		}
		if len(events) == 0 && time.Since(last) >= stallAfter {
			return slice, fmt.Errorf("load: %d requests without an answer for %v", waiting, stallAfter)
		}
		for _, e := range events {
			c := s.byFD[e.Fd]
			done, err := s.receive(c)
			if err != nil {
				return slice, err
			}
			if !done {
				continue
			}
			last = time.Now()
			now := last.Sub(started)
			slice.Answers++
			if c.parser.status != 200 {
				slice.Others[c.parser.status]++
			}
			slice.Times = append(slice.Times, now-time.Duration(c.since))
			waiting--
			switch {
			case !c.parser.keepAlive:
				s.close(c)
			case now < d:
				if err := s.send(c, now); err != nil {
					return slice, err
				}
				waiting++
			}
		}
	}
	slice.Elapsed = last.Sub(started)
	slices.Sort(slice.Times)
	return slice, nil
}

func (s *Slicer) connectClosed() error {
	for _, c := range s.connections {
		if c.state == closed {
			if err := s.connect(c); err != nil {
				return fmt.Errorf("load: %w", err)
			}
		}
	}
	return nil
}

// send sends the next request on a connection.
func (s *Slicer) send(c *conn, now time.Duration) error {
	r := s.requests(s.next)
	s.next++
	c.buf = append(render(c.buf[:0], r, c.target.host), r.Body...)
	c.parser.reset(r.Method == "HEAD")
	c.since = int64(now)
	// A request is small and the connection idle: the kernel takes all of it.
	if n := write(c.fd, c.buf); n != len(c.buf) {
		return fmt.Errorf("load: wrote %d of the %d bytes of a request to %s", n, len(c.buf), c.target.host)
	}
	return nil
}

// receive reads a piece of an answer and reports whether it is complete.
func (s *Slicer) receive(c *conn) (done bool, err error) {
	piece, _, open := s.in.read(c.fd)
	if !open {
		return false, fmt.Errorf("load: %s closed a connection", c.target.host)
	}
	_, done, err = c.parser.feed(piece)
	if err != nil {
		return false, fmt.Errorf("load: %s: %w", c.target.host, err)
	}
	return done, nil
}

// Close closes the connections.
func (s *Slicer) Close() {
	for _, c := range s.connections {
		s.close(c)
	}
	s.poller.close()
}
