package spop

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// BenchmarkServe asks over one connection of a unix socket, with as many
// NOTIFYs under way as the name says; 20 is HAProxy's max-waiting-frames.
// asks/cpu-s counts all processor time of the test: the server's, the client's
// and the kernel's. GOMAXPROCS=1 tells what one core does.
func BenchmarkServe(b *testing.B) {
	for _, window := range []int{1, 20, 100} {
		b.Run(fmt.Sprintf("pipelined=%d", window), func(b *testing.B) { benchmarkServe(b, window) })
	}
}

func benchmarkServe(b *testing.B, window int) {
	s := New(Options{Handler: func(r *Request) {
		user, _ := r.Arg("user")
		if user == "" {
			b.Error("no user")
		}
		r.SetUint("allowed", 1)
		r.SetUint("remaining", 99)
	}})
	l, err := Listen("unix:" + filepath.Join(b.TempDir(), "s"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	c := dial(b, l.Addr()).greet()
	defer c.Close()

	ask := notify(9, message("start", item("user", "alice"), item("class", "GET"), item("id", "4711-0123"), item("active", int64(3))))
	c.send(ask)
	c.receive(frameAck)
	c.send(ask)
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		b.Fatal(err)
	}
	size := 4 + int(head[3]) // all answers have this size
	if _, err := io.ReadFull(c, make([]byte, size-4)); err != nil {
		b.Fatal(err)
	}

	asks := make([]byte, 0, window*len(ask))
	for range window {
		asks = append(asks, ask...)
	}
	buf := make([]byte, window*size)
	b.ReportAllocs()
	before := cpuTime(b)
	b.ResetTimer()
	// As many asks follow as answers have come.
	sent, answered, part := 0, 0, 0
	for answered < b.N {
		if n := min(b.N-sent, window-(sent-answered)); n > 0 {
			c.send(asks[:n*len(ask)])
			sent += n
		}
		n, err := c.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		answered += (part + n) / size
		part = (part + n) % size
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/(cpuTime(b)-before).Seconds(), "asks/cpu-s")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
