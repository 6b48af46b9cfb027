package proctest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is an address behind which is a server, over a line that may be slow, stand still, or lead
// to another server from some time on.
type Link struct {
	Addr  string
	Delay atomic.Int64 // nanoseconds that bytes are on their way, without holding up those behind

	rate int // bytes per second from there; 0 is any number

	mu      sync.Mutex
	to      string
	conns   map[net.Conn]bool
	stops   func(from string) bool // whether nothing passes on connections from this IP address; nil: all pass
	changed *sync.Cond             // stops or conns
	free    time.Time              // when all that came from there before has been carried
}

// NewLink makes a link until the test ends. From there it carries so many bytes per second, of all
// connections together and in the order in which they come; 0 is any number.
func NewLink(t testing.TB, to string, bytesPerSecond int) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{Addr: listener.Addr().String(), rate: bytesPerSecond, to: to, conns: map[net.Conn]bool{}}
	l.changed = sync.NewCond(&l.mu)
	var accepting, carrying sync.WaitGroup
	accepting.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far := l.dial(near)
			if far == nil {
				near.Close()
				continue
			}
			from, _, _ := net.SplitHostPort(near.RemoteAddr().String())
			carrying.Go(func() { l.carry(far, near, from, func(int) time.Time { return time.Now() }) })
			carrying.Go(func() { l.carry(near, far, from, l.busyUntil) })
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
	far, err := net.Dial("tcp", to)
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

// carry carries bytes one way, each when it has left (which left says of so many bytes), Delay is over,
// and the connection, which came from an IP address, may pass.
func (l *Link) carry(to, from net.Conn, ip string, left func(bytes int) time.Time) {
	defer l.end(to, from)
	parcels := make(chan parcel, 4096)
	go func() {
		defer close(parcels)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				parcels <- parcel{left(n).Add(time.Duration(l.Delay.Load())), b[:n]}
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

// busyUntil is when so many bytes more have left.
func (l *Link) busyUntil(n int) time.Time {
	if l.rate == 0 {
		return time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	return l.free
}
