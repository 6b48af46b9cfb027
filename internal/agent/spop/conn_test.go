package spop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	rtmetrics "runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Streams of good frames are answered one by one, however they are cut into
// reads and whatever the limits.
func TestEveryQuestionIsAnsweredOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Options{Handler: echo})
		s.bounds.inFlight = rapid.IntRange(1, 8).Draw(t, "in flight")
		// All answers together are less than maxUnsent: the goroutine that sends may get no time before all are ready.
		users := rapid.SliceOfN(rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("u", 12000))), 0, maxUnsent/12500).Draw(t, "users")
		in := hello()
		for i, user := range users {
			in = append(in, notify(uint64(i), message("start", item("id", int64(i)), item("user", user)))...)
		}
		if rapid.Bool().Draw(t, "disconnects") {
			in = append(in, disconnect(0)...)
		}
		mem := &memoryConn{in: in, chunk: rapid.IntRange(1, 9000).Draw(t, "chunk")}
		s.runConn(newConn(s, mem))

		if first, err := readAnswer(bytes.NewReader(mem.writes[0])); err != nil || first.kind != 101 {
			t.Fatalf("the first write is %v, %v, want the AGENT-HELLO and nothing else", first, err)
		}
		out := bytes.NewReader(join(mem.writes...))
		got := map[uint64]any{}
		for {
			a, err := readAnswer(out)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.kind != frameAck {
				continue
			}
			if _, twice := got[a.stream]; twice {
				t.Fatalf("stream %d answered twice", a.stream)
			}
			got[a.stream] = a.vars["user"]
		}
		if len(got) != len(users) {
			t.Fatalf("%d answers, want %d", len(got), len(users))
		}
		for i, user := range users {
			if got[uint64(i)] != user {
				t.Fatalf("stream %d answered with %q, want %q", i, got[uint64(i)], user)
			}
		}
	})
}

// A stuckConn takes a write when it is told to.
type stuckConn struct {
	memoryConn
	take chan struct{}
}

func (c *stuckConn) Write(p []byte) (int, error) {
	<-c.take
	return c.memoryConn.Write(p)
}

func TestAnswersWrittenMeanwhileShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Handler: echo})
		stuck := &stuckConn{take: make(chan struct{})}
		c := newConn(s, stuck)
		var returned atomic.Int32
		write := func(b string) {
			go func() {
				if n, err := c.Write([]byte(b)); n != len(b) || err != nil {
					t.Errorf("Write(%q) = %d, %v", b, n, err)
				}
				returned.Add(1)
			}()
			synctest.Wait()
		}
		write("first")
		for i := range 9 {
			write(fmt.Sprint(i))
		}
		if got := returned.Load(); got != 9 {
			t.Errorf("%d writes returned while one was stuck, want 9", got)
		}
		stuck.take <- struct{}{}
		synctest.Wait()
		write("x") // while the second write is under way
		stuck.take <- struct{}{}
		synctest.Wait()
		stuck.take <- struct{}{}
		synctest.Wait()
		if got := fmt.Sprintf("%s", stuck.writes); got != "[first 012345678 x]" {
			t.Errorf("writes are %s, want [first 012345678 x]", got)
		}
		if got := returned.Load(); got != 11 {
			t.Errorf("%d writes returned, want 11", got)
		}
	})
}

func TestPeerThatDoesNotReadIsClosed(t *testing.T) {
	// Each answer carries 12 KiB.
	long := item("user", strings.Repeat("u", 12<<10))
	t.Run("a write times out", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			s := serve(t, l, Options{}, func(b *bounds) { b.writeTimeout = 3 * time.Second })
			c := l.dial(t).greet()
			c.send(notify(1, message("start", long)))
			start := time.Now()
			synctest.Wait()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			c.wantClosed()
			if got := testutil.ToFloat64(s.metrics.rejected.WithLabelValues(string(rejectWrite))); got != 1 {
				t.Errorf("rejected after %v: %v, want 1", time.Since(start), got)
			}
			s.stop()
		})
	})
	t.Run("answers pile up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			s := serve(t, l, Options{}, func(b *bounds) { b.writeTimeout = time.Hour })
			c := l.dial(t).greet()
			sent := 0
			for ; sent < 1000; sent++ {
				if _, err := c.Write(notify(1, message("start", long))); err != nil {
					break
				}
				synctest.Wait()
			}
			// One answer is being written, and 256 KiB wait.
			if want := 1 + maxUnsent/(12<<10) + 1; sent != want {
				t.Errorf("closed after %d questions, want %d", sent, want)
			}
			if got := testutil.ToFloat64(s.metrics.rejected.WithLabelValues(string(rejectUnread))); got != 1 {
				t.Errorf("rejected %v, want 1", got)
			}
			s.stop()
		})
	})
}

// Buffers change hands between writers and the flusher: every frame must come
// out whole, under the race detector too.
func TestConcurrentAnswersStayWhole(t *testing.T) {
	s := serveUnix(t, Options{}, func(b *bounds) { b.inFlight = 1000; b.writeTimeout = testkit.Patience })
	var clients sync.WaitGroup
	for range 4 {
		c := dial(t, s.addr).greet()
		clients.Go(func() {
			const asked = 800 // whose answers, all together, may wait for a slow reader
			go func() {
				for i := range asked {
					user := strings.Repeat(string(rune('a'+i%26)), i%500)
					_, _ = c.Write(notify(uint64(i), message("start", item("user", user))))
				}
			}()
			seen := map[uint64]bool{}
			for range asked {
				a, err := readAnswer(c)
				if err != nil {
					t.Errorf("after %d answers: %v", len(seen), err)
					return
				}
				i := int(a.stream)
				if want := strings.Repeat(string(rune('a'+i%26)), i%500); a.vars["user"] != want || seen[a.stream] {
					t.Errorf("stream %d answered with %q, want %q once", i, a.vars["user"], want)
				}
				seen[a.stream] = true
			}
		})
	}
	clients.Wait()
}

// FuzzGuard feeds anything to the guard with the real library behind it. The
// library runs handlers in goroutines of its own, so a panic ends the test.
func FuzzGuard(f *testing.F) {
	f.Add(uint16(100), join(hello(), notify(1, message("start", item("user", "alice"))), disconnect(0)))
	f.Add(uint16(1), hello(item("healthcheck", true)))
	f.Add(uint16(9000), []byte{0x40, 0, 0, 0, frameNotify})
	for _, tt := range frames {
		f.Add(uint16(4096), join(hello(), sized(tt.body), notify(2)))
	}
	s := New(Options{Handler: func(r *Request) {
		for i := range r.args {
			v, _ := r.Arg(r.args[i].Name)
			r.SetString(r.Message(), v)
		}
		r.SetUint("n", uint32(len(r.args)))
	}})
	s.bounds.inFlight = 4
	f.Fuzz(func(t *testing.T, chunk uint16, in []byte) {
		mem := &memoryConn{in: in, chunk: int(chunk) + 1}
		before, panics := allocated(), testutil.ToFloat64(s.metrics.panics)
		s.runConn(newConn(s, mem))
		// What is allocated is in proportion to what came. The constant is for
		// buffers, and for other goroutines that allocate in this process.
		if got, limit := allocated()-before, uint64(1<<20+200*len(in)); got > limit {
			t.Errorf("%d bytes of input made %d bytes be allocated, want %d at most", len(in), got, limit)
		}
		if testutil.ToFloat64(s.metrics.panics) != panics {
			t.Error("a panic was recovered")
		}
		out := bytes.NewReader(join(mem.writes...))
		for out.Len() > 0 {
			before := out.Len()
			if _, err := readAnswer(out); err != nil {
				t.Fatalf("answer: %v", err)
			}
			if size := before - out.Len() - 4; size > int(s.bounds.frame) {
				t.Fatalf("an answer of %d bytes", size)
			}
		}
	})
}

// allocated is how much this process has ever allocated.
func allocated() uint64 {
	sample := []rtmetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	rtmetrics.Read(sample)
	return sample[0].Value.Uint64()
}
