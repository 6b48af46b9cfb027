package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

// begin begins a fault, and returns what ends it; that is never nil. An error says that the fault is not as it was meant to be.
func (r *runner) begin(f schedule.Fault) (end func() error, err error) {
	w := r.world
	nothing := func() error { return nil }
	switch f.Name {
	case history.Kill, history.Restart:
		p := w.parts[f.Target]
		p.end(f.Name == history.Kill)
		return p.again, nil
	case history.Stop:
		p := w.parts[f.Target]
		p.signal(syscall.SIGSTOP)
		return func() error { p.signal(syscall.SIGCONT); return nil }, nil
	case history.Reload:
		// Not the workers, which would end.
		return nothing, syscall.Kill(w.parts[f.Target].pids()[0], syscall.SIGUSR2)
	case history.Slow, history.Partition, history.Reset:
		return r.beginLink(f)
	case history.NoFiles:
		return w.parts[f.Target].limitFiles(f.Amount)
	case history.ClockStep:
		p := w.parts[f.Target]
		return func() error { return p.clock(0) }, p.clock(f.Amount)
	case history.Replace, history.Break, history.Empty:
		return r.beginLimits(f)
	case history.FullDisk, history.Flush, history.NoMemory, history.Failover:
		return r.beginRedis(f)
	case history.NeverReads:
		return r.neverRead(f)
	case history.Storm:
		return r.storm(f)
	case history.Overload:
		return r.flood(int(f.Amount), f.For)
	}
	return nothing, fmt.Errorf("nobody knows how to begin %q", f.Name)
}

func (r *runner) beginLink(f schedule.Fault) (end func() error, err error) {
	l := r.world.links[f.Target]
	if l == nil {
		return func() error { return nil }, fmt.Errorf("there is no link %q", f.Target)
	}
	switch {
	case f.Name == history.Reset:
		l.Reset()
	case f.Name == history.Partition:
		l.Hold()
	case strings.HasPrefix(f.Variant, "rate"):
		l.Rate.Store(f.Amount * 1000)
	default:
		l.Delay.Store(f.Amount * int64(time.Millisecond))
		l.Jitter.Store(f.Amount * int64(time.Millisecond))
	}
	return func() error {
		l.Rate.Store(0)
		l.Delay.Store(0)
		l.Jitter.Store(0)
		l.Stop(nil)
		return nil
	}, nil
}

func (r *runner) beginLimits(f schedule.Fault) (end func() error, err error) {
	set := func(text string) error { return attempt(func() { r.world.c.SetLimits(r.world.t, text) }) }
	restore := func() error { return set(r.limits) }
	switch {
	case f.Name == history.Replace:
		r.writeLimits(r.others)
		return func() error { r.writeLimits(r.users); return restore() }, set(r.otherLimits)
	case f.Name == history.Break:
		return restore, set(r.limits + "\nusers: [\n")
	case f.Variant == "gone":
		return restore, os.Remove(r.world.c.LimitsFile)
	}
	return restore, set("")
}

func (r *runner) beginRedis(f schedule.Fault) (end func() error, err error) {
	n := r.world.store.master(f.Target)
	call := func(command ...string) error {
		said, err := redisCall(n.Addr, command...)
		if err == nil && (strings.HasPrefix(said, "ERR") || strings.Contains(said, "(error)")) {
			err = errors.New(said)
		}
		return err
	}
	end = func() error { return nil }
	switch f.Name {
	case history.FullDisk:
		return r.fillDisk(f.Target)
	case history.Flush:
		return end, call("FLUSHALL")
	case history.NoMemory:
		end = func() error { // when it is there: another fault may just have killed it
			return attempt(func() {
				testkit.Eventually(r.world.t, "redis has memory again", func() error { return call("CONFIG", "SET", "maxmemory", "0") })
			})
		}
		return end, call("CONFIG", "SET", "maxmemory", "1")
	case history.Failover:
		if r.world.store.kind == "sentinel" {
			_, err := redisCall(r.world.store.addrs[0], "SENTINEL", "FAILOVER", "sluice")
			return end, err
		}
		replica := r.world.store.replicaOf(n)
		if replica == nil {
			return end, errors.New("no replica to fail over to")
		}
		_, err := redisCall(replica.Addr, "CLUSTER", "FAILOVER")
		return end, err
	}
	return end, fmt.Errorf("nobody knows how to begin %q", f.Name)
}

// fillDisk has a disk be full on which a server cannot write a snapshot then: it takes no writes any more. A replica that gets
// some ends itself.
func (r *runner) fillDisk(target string) (end func() error, err error) {
	p, addr := r.world.parts[target], r.world.store.node(target).Addr
	none := unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}
	free := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = p.mayEnd(true)
	pid := p.pids()[0]
	_, snapshots := redisCall(addr, "CONFIG", "SET", "save", "3600 1")
	err = errors.Join(unix.Prlimit(pid, unix.RLIMIT_FSIZE, &none, nil), snapshots)
	_, _ = redisCall(addr, "BGSAVE") // fails, as it should
	return func() error {
		_ = unix.Prlimit(pid, unix.RLIMIT_FSIZE, &free, nil) // one that has ended needs nothing
		if err := p.mayEnd(false); err != nil {
			return err
		}
		_, err := redisCall(addr, "CONFIG", "SET", "save", "")
		return err
	}, err
}

// neverRead asks a polygen's admin API for much, on many connections, and reads nothing.
func (r *runner) neverRead(f schedule.Fault) (end func() error, err error) {
	paths := []string{"/api/v1/live", "/api/v1/policies", "/api/v1/users", "/metrics"}
	return r.open(r.world.parts[f.Target].adminAddr(), int(f.Amount), func(conn net.Conn, i int) {
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		ask := "GET " + paths[i%len(paths)] + " HTTP/1.1\r\nHost: chaos\r\n\r\n"
		_, _ = conn.Write([]byte(strings.Repeat(ask, 100)))
	})
}

// storm opens many connections at once: to all HAProxies with a request on each, or to one HAProxy, where most send nothing and some
// half of a request.
func (r *runner) storm(f schedule.Fault) (end func() error, err error) {
	if f.Target == "all" {
		return r.connectAtOnce(int(f.Amount))
	}
	var i int
	_, _ = fmt.Sscanf(f.Target, "haproxy-%d", &i)
	return r.open(r.world.c.Instances[i].Address, int(f.Amount), func(conn net.Conn, i int) {
		if i%4 == 0 {
			_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: chaos\r\nX-Us"))
		}
	})
}

// open opens connections, and greets on each.
func (r *runner) open(addr string, n int, greet func(net.Conn, int)) (end func() error, err error) {
	conns := make([]net.Conn, n)
	var dialing sync.WaitGroup
	for i := range n {
		dialing.Go(func() {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err != nil {
				return // refused: that is an answer, too
			}
			conns[i] = conn
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			greet(conn, i)
		})
	}
	return func() error {
		dialing.Wait()
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil
	}, nil
}
