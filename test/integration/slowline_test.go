package integration

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slowLine is a TCP line to a server on which every byte takes a while, in both
// directions, without holding up the bytes behind it.
type slowLine struct {
	addr  string
	delay atomic.Int64 // each way, half of it
}

func newSlowLine(t *testing.T, to string) *slowLine {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowLine{addr: l.Addr().String()}
	var mu sync.Mutex
	var conns []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
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
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			wg.Go(func() { s.carry(far, near) })
			wg.Go(func() { s.carry(near, far) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

type parcel struct {
	due  time.Time
	data []byte
}

func (s *slowLine) carry(to, from net.Conn) {
	parcels := make(chan parcel, 4096)
	go func() {
		defer close(parcels)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				parcels <- parcel{time.Now().Add(time.Duration(s.delay.Load()) / 2), b[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	defer to.Close()
	for p := range parcels {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			from.Close()
			_, _ = io.Copy(io.Discard, from)
		}
	}
}
