package proctest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Link is an address behind which is another one, over a link that carries so many bytes per
// second from there, of all connections together, in the order in which they come.
func Link(t testing.TB, to string, bytesPerSecond int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var loops sync.WaitGroup
	link := &link{rate: bytesPerSecond, conns: make(map[net.Conn]bool)}
	loops.Go(func() {
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
			link.open(near, far)
			loops.Go(func() {
				_, _ = io.Copy(far, near)
				link.close(near, far)
			})
			loops.Go(func() {
				link.carry(near, far)
				link.close(near, far)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		link.end()
		loops.Wait()
	})
	return l.Addr().String()
}

type link struct {
	rate int // bytes per second

	mu    sync.Mutex
	free  time.Time // when all that came before has been carried
	conns map[net.Conn]bool
	ended bool
}

func (l *link) carry(to, from net.Conn) {
	packet := make([]byte, 16<<10)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		time.Sleep(l.busyFor(n))
		if _, err := to.Write(packet[:n]); err != nil {
			return
		}
	}
}

// busyFor is how long it takes until so many bytes more have been carried.
func (l *link) busyFor(n int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	return l.free.Sub(now)
}

func (l *link) open(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.conns[c] = true
		if l.ended {
			c.Close()
		}
	}
}

func (l *link) close(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(l.conns, c)
	}
}

func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for c := range l.conns {
		c.Close()
	}
}
