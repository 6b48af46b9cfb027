package proctest

import (
	"net"
	"sync"
	"testing"
)

// A Relay carries connections to a server, which can be exchanged for another one: for clients
// that follow a failover, and replicas that lag behind.
type Relay struct {
	Addr string // where it listens

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
	held  *sync.Cond
	holds bool
}

// StartRelay starts a Relay to a server.
func StartRelay(t testing.TB, to string) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{Addr: l.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	r.held = sync.NewCond(&r.mu)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			target := r.to
			r.mu.Unlock()
			to, err := net.Dial("tcp", target)
			if err != nil {
				from.Close()
				continue
			}
			r.mu.Lock()
			r.conns[from], r.conns[to] = true, true
			r.mu.Unlock()
			all.Go(func() { r.carry(to, from) })
			all.Go(func() { r.carry(from, to) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.To("")
		all.Wait()
	})
	return r
}

// Hold lets nothing pass from now on, though all connections stay open.
func (r *Relay) Hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = true
}

// To ends all connections, and has new ones lead to another server.
func (r *Relay) To(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.holds = addr, false
	for c := range r.conns {
		c.Close()
		delete(r.conns, c)
	}
	r.held.Broadcast()
}

func (r *Relay) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		for r.holds {
			r.held.Wait()
		}
		open := r.conns[to]
		r.mu.Unlock()
		if err != nil || !open {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
