package testkit

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is an address behind which is a server, over a line that may be slow, stand still, be reset, or lead
// to another server from some time on.
type Link struct {
	Addr   string
	Delay  atomic.Int64 // nanoseconds that bytes are on their way, without holding up those behind
	Jitter atomic.Int64 // nanoseconds more at most, another number each time, in order all the same
	Rate   atomic.Int64 // bytes per second each way, of all connections together; 0 is any number

	mu      sync.Mutex
	to      string
	conns   map[net.Conn]bool
	stops   func(from string) bool // whether nothing passes on connections from this IP address; nil: all pass
	changed *sync.Cond             // stops or conns
	free    [2]time.Time           // when all that went there, and came from there, before has been carried
}

// NewLink makes a link to "host:port" or the path of a unix socket until the test ends: the path of its own ends with ".link".
// It carries so many bytes per second each way, of all connections together and in the order in which they come; 0 is any number.
func NewLink(t testing.TB, to string, bytesPerSecond int) *Link {
	t.Helper()
	network, at := networkOf(to), "127.0.0.1:0"
	if network == "unix" {
		at = to + ".link"
		_ = os.Remove(at)
	}
	listener, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{Addr: listener.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	l.Rate.Store(int64(bytesPerSecond))
	l.changed = sync.NewCond(&l.mu)
	var accepting, carrying sync.WaitGroup
	accepting.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() {
				far := l.dial(near)
				if far == nil {
					near.Close()
					return
				}
				from, _, _ := net.SplitHostPort(near.RemoteAddr().String())
				carrying.Go(func() { l.carry(far, near, from, &l.free[0]) })
				l.carry(near, far, from, &l.free[1])
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		accepting.Wait() // so that no connection comes behind the loop
		l.To("")
		carrying.Wait()
	})
	return l
}

// dial connects to the server, nil if that cannot be.
func (l *Link) dial(near net.Conn) net.Conn {
	l.mu.Lock()
	to := l.to
	l.mu.Unlock()
	far, err := net.Dial(networkOf(to), to)
	if err != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != to { // To has ended all that lead there
		far.Close()
		return nil
	}
	l.conns[near], l.conns[far] = true, true
	return far
}

// Hold lets nothing pass from now on, though all connections stay open.
func (l *Link) Hold() { l.Stop(func(string) bool { return true }) }

// Stop lets nothing pass of connections from some IP addresses, and everything of the others. Those that
// stand still stay open, and what they carried goes on its way when they may pass again. Nil lets all pass.
func (l *Link) Stop(from func(ip string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stops = from
	l.changed.Broadcast()
}

// To ends all connections, and has new ones lead to another server.
func (l *Link) To(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to, l.stops = addr, nil
	l.endAll()
}

// Reset ends all connections, those of TCP with a reset.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c, ok := c.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
	}
	l.endAll()
}

// endAll is called with the lock.
func (l *Link) endAll() {
	for c := range l.conns {
		c.Close()
		delete(l.conns, c)
	}
	l.changed.Broadcast()
}

type parcel struct {
	due  time.Time
	data []byte
}

// carry carries bytes one way, each when those before it have left, Delay is over, and the connection, which came from an
// IP address, may pass. What is on its way is bounded: then the sender waits.
func (l *Link) carry(to, from net.Conn, ip string, free *time.Time) {
	defer l.end(to, from)
	parcels := make(chan parcel, 256)
	go func() {
		defer close(parcels)
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b[:l.room(free)])
			if n > 0 {
				parcels <- parcel{l.due(n, free), bytes.Clone(b[:n])}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range parcels {
		time.Sleep(time.Until(p.due))
		if !l.passes(to, ip) {
			continue
		}
		if _, err := to.Write(p.data); err != nil {
			from.Close() // which ends the parcels
		}
	}
	l.passes(to, ip) // nor does the end of a connection pass
}

// passes waits until a connection may pass, and reports whether it has not ended meanwhile.
func (l *Link) passes(to net.Conn, ip string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.conns[to] && l.stops != nil && l.stops(ip) {
		l.changed.Wait()
	}
	return l.conns[to]
}

func (l *Link) end(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(l.conns, c)
	}
	l.changed.Broadcast()
}

// A line with a rate holds what it carries in so long, and takes parcels of half as long: like a router's queue that is
// short, so that who sends little does not wait for all that others have sent.
const queued = 100 * time.Millisecond

// room waits until a line with a rate can take more, and returns how many bytes it takes at most.
func (l *Link) room(free *time.Time) int {
	const most = 32 << 10
	for {
		rate := l.Rate.Load()
		if rate == 0 {
			return most
		}
		l.mu.Lock()
		full := time.Until(free.Add(-queued))
		l.mu.Unlock()
		if full <= 0 {
			return int(min(most, max(1, rate*int64(queued/2)/int64(time.Second))))
		}
		time.Sleep(min(full, queued)) // the rate may change meanwhile
	}
}

// due is when so many bytes more arrive, free when those before them have left.
func (l *Link) due(n int, free *time.Time) time.Time {
	now, delay := time.Now(), time.Duration(l.Delay.Load())
	if jitter := l.Jitter.Load(); jitter > 0 {
		delay += time.Duration(rand.Int64N(jitter))
	}
	rate := l.Rate.Load()
	if rate == 0 {
		return now.Add(delay)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if free.Before(now) {
		*free = now
	}
	*free = free.Add(time.Duration(n) * time.Second / time.Duration(rate))
	return free.Add(delay)
}

// networkOf is that of "host:port", or of the path of a unix socket.
func networkOf(addr string) string {
	if strings.HasPrefix(addr, "/") {
		return "unix"
	}
	return "tcp"
}
