package proctest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is an address behind which is another one, over a line that is slow.
type Link struct {
	Addr  string
	Delay atomic.Int64 // nanoseconds that bytes are on their way, without holding up those behind

	rate int // bytes per second from there; 0 is any number
	mu   sync.Mutex
	free time.Time // when all that came from there before has been carried
}

// NewLink makes a link until the test ends. From there it carries so many bytes per second, of all
// connections together and in the order in which they come; 0 is any number.
func NewLink(t testing.TB, to string, bytesPerSecond int) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	link := &Link{Addr: l.Addr().String(), rate: bytesPerSecond}
	var accepting, carrying sync.WaitGroup
	var conns []net.Conn
	accepting.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			conns = append(conns, near, far)
			carrying.Go(func() { link.carry(far, near, func(int) time.Time { return time.Now() }) })
			carrying.Go(func() { link.carry(near, far, link.busyUntil) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait() // so that no connection comes behind the loop
		for _, c := range conns {
			c.Close()
		}
		carrying.Wait()
	})
	return link
}

type parcel struct {
	due  time.Time
	data []byte
}

// carry carries bytes one way, each when it has left (which left says of so many bytes) and Delay is over.
func (l *Link) carry(to, from net.Conn, left func(bytes int) time.Time) {
	defer from.Close()
	defer to.Close()
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
		if _, err := to.Write(p.data); err != nil {
			from.Close() // which ends the parcels
		}
	}
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
