package peers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestHandshakeAndTeach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, accept := testClient(t, nil)
		c.Teach("/throttle", "GET|bob", Values{GPT0: 7, GPC0: 1, ConnCur: 9}, time.Second) // before any session

		f := accept()
		if got, want := f.hello(), fmt.Sprintf("HAProxyS 2.1\nhaproxy\nagent %d 1\n", os.Getpid()); got != want {
			t.Errorf("hello is %q, want %q", got, want)
		}
		f.send("200\n")
		f.want("resync", "define /throttle as 1", "teach 1 GET|bob=7 for 1s")
		if !c.Connected() {
			t.Error("Connected() = false, want true")
		}

		c.Teach("/block", "bob", Values{GPT0: 8}, 90*time.Second)
		f.want("define /block as 2", "teach 1 bob=8 for 1m0s") // the table's expire
		c.Teach("/throttle", "PUT|bob", Values{GPT0: 9}, 1500*time.Microsecond)
		f.want("switch to 1", "teach 2 PUT|bob=9 for 2ms")

		f.send("\x00\x00") // HAProxy wants to hear it all
		f.want("teach 3 GET|bob=7 for 1s", "switch to 2", "teach 2 bob=8 for 1m0s",
			"switch to 1", "teach 4 PUT|bob=9 for 2ms", "finished")
	})
}

// Entries that gather while a write is under way leave together in the next
// one, the last value of each only.
func TestTeachCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, accept := testClient(t, nil)
		f := accept().open()
		c.Teach("/block", "bob", Values{GPT0: 100}, time.Second)
		synctest.Wait() // until the write waits for its reader
		for i := range uint64(5) {
			c.Teach("/block", "bob", Values{GPT0: i}, time.Second)
			c.Teach("/block", "eve", Values{GPT0: i}, time.Second)
		}
		f.want("define /block as 2", "teach 1 bob=100 for 1s")
		write := make([]byte, maxWrite)
		n, err := f.conn.Read(write) // a pipe never joins two writes
		if err != nil {
			t.Fatal(err)
		}
		f.in.Reset(bytes.NewReader(write[:n]))
		f.want("teach 2 bob=4 for 1s", "teach 3 eve=4 for 1s", "EOF")
	})
}

// A Teach reaches the connection without any time passing.
func TestTeachIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, accept := testClient(t, nil)
		f := accept().open()
		for i := range 3 {
			start := time.Now()
			c.Teach("/throttle", strconv.Itoa(i), Values{GPT0: 1}, time.Second)
			for !strings.HasPrefix(f.read(), "teach ") {
			}
			if waited := time.Since(start); waited != 0 {
				t.Errorf("entry %d was sent after %v, want at once", i, waited)
			}
		}
	})
}

func TestTeachDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, accept := testClient(t, nil)
		c.mu.Lock()
		c.live = newLive(2)
		c.mu.Unlock()
		for _, key := range []string{"", strings.Repeat("k", 129), "a\x00b"} {
			c.Teach("/block", key, Values{GPT0: 1}, time.Second)
		}
		c.Teach("/other", "bob", Values{GPT0: 1}, time.Second)
		c.Teach("/block", "late", Values{GPT0: 1}, 0)
		c.Teach("/block", "never sent", Values{GPT0: 1}, time.Millisecond)
		time.Sleep(2 * time.Millisecond)
		c.Teach("/block", strings.Repeat("k", 128), Values{GPT0: 1}, time.Second)
		c.Teach("/block", "a", Values{GPT0: 1}, time.Second)
		c.Teach("/block", "b", Values{GPT0: 1}, time.Second)    // one too many
		c.Teach("/block", "a", Values{GPT0: 2}, time.Second)    // not a new one
		c.Teach("/throttle", "a", Values{GPT0: 3}, time.Second) // has a budget of its own
		for _, tt := range []struct {
			reason string
			got    prometheus.Counter
			want   float64
		}{
			{"bad", c.metrics.bad, 4}, {"late in block", c.metrics.late[1], 2}, {"late in throttle", c.metrics.late[0], 0},
			{"full in block", c.metrics.full[1], 1}, {"full in throttle", c.metrics.full[0], 0},
		} {
			if got := testutil.ToFloat64(tt.got); got != tt.want {
				t.Errorf("dropped as %s: %v, want %v", tt.reason, got, tt.want)
			}
		}
		accept().open().want("define /block as 2", "teach 1 "+strings.Repeat("k", 128)+"=1 for 1s", "teach 2 a=2 for 1s",
			"define /throttle as 1", "teach 1 a=3 for 1s")
	})
}

func TestLearn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		_, _, accept := testClient(t, func(o *Options) {
			o.Learn = func(u Update) {
				got = append(got, fmt.Sprint(u.Session, u.Table, " ", u.Key, " ", u.Values[ConnCur], " ", u.Expire))
			}
			o.OnSession = func(s Session) { got = append(got, fmt.Sprint(s.ID, " ", s.State)) }
		})
		f := accept().open()
		b := appendDefinition(nil, active)
		b = appendUpdate(b, 40, "bob", 2, 10)
		b = appendTableMessage(b, tableIncremental, []byte("\x03eve\x01\x05"))
		other := active
		other.id, other.name, other.keyType = 4, "/of the future", 99
		b = appendDefinition(b, other)
		b = appendUpdate(b, 1, "skipped", 1)
		b = appendSwitch(b, active.id)
		b = appendTableMessage(b, tableTimedIncremental, []byte("\x00\x00\x00\x64\x03bob\x00\x0b"))
		b = appendAck(b, 1, 1)
		b = appendControl(b, controlHeartbeat)
		b = appendControl(b, controlFinished)
		f.send(string(b))
		for got := f.read(); got != "ack 3/42"; got = f.read() {
			if !strings.HasPrefix(got, "ack 3/4") { // of what came before
				t.Fatalf("the client sends %q, want ack 3/42", got)
			}
		}
		f.want("confirm")
		_ = f.conn.Close()
		accept().open().send("\x00\x02")
		synctest.Wait()
		want := []string{
			"1 up",
			"1/active bob 2 1m0s", "1/active eve 1 1m0s", "1/active bob 0 100ms", "1 synced",
			"1 down",
			"2 up", "2 synced",
		}
		if !slices.Equal(got, want) {
			t.Errorf("learned %q, want %q", got, want)
		}
	})
}

// Any fault of HAProxy, or of another program that listens there, ends the session and
// is counted. A new session follows, in which the agent teaches everything again.
func TestFaultsEndTheSession(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		established  bool
		fault        func(f *fake)
	}{
		{"closed before the status", "closed", false, func(f *fake) { _ = f.conn.Close() }},
		{"half a status", "closed", false, func(f *fake) { f.send("20"); _ = f.conn.Close() }},
		{"no status", "timeout", false, func(f *fake) { f.closed() }},
		{"try again", "refused", false, func(f *fake) { f.send("300\n") }},
		{"unknown peer", "refused", false, func(f *fake) { f.send("504\n") }},
		{"not a status", "protocol", false, func(f *fake) { f.send("SSH-") }},
		{"closed", "closed", true, func(f *fake) { _ = f.conn.Close() }},
		{"half a message", "closed", true, func(f *fake) { f.send("\x0a\x80\x20abc"); _ = f.conn.Close() }},
		{"half a message and silence", "timeout", true, func(f *fake) { f.send("\x0a\x80\x20abc"); f.closed() }},
		{"silence", "timeout", true, func(f *fake) { f.closed() }},
		{"nothing is read", "timeout", true, func(*fake) { time.Sleep(6 * time.Second) }},
		{"garbage", "protocol", true, func(f *fake) { f.send("garbage") }},
		{"garbage while a write waits", "protocol", true, func(f *fake) {
			time.Sleep(1500 * time.Millisecond) // nobody reads the first heartbeat
			f.send("garbage")
		}},
		{"an unknown control message", "protocol", true, func(f *fake) { f.send("\x00\x09") }},
		{"an unknown table message", "protocol", true, func(f *fake) { f.send("\x0a\x99\x00") }},
		{"a message of a gigabyte", "protocol", true, func(f *fake) { f.send(string(appendVarint([]byte{10, 128}, 1<<30))) }},
		{"an update before any table", "protocol", true, func(f *fake) { f.send(string(appendUpdate(nil, 1, "bob", 1))) }},
		{"a broken definition", "protocol", true, func(f *fake) { f.send("\x0a\x82\x01\x01") }},
		{"a broken update", "protocol", true, func(f *fake) {
			f.send(string(appendTableMessage(appendDefinition(nil, active), tableUpdate, []byte("abc"))))
		}},
		{"a broken ack", "protocol", true, func(f *fake) { f.send("\x0a\x84\x01\x01") }},
		{"a switch to no table", "protocol", true, func(f *fake) { f.send(string(appendSwitch(nil, 7))) }},
		{"too many tables", "protocol", true, func(f *fake) {
			d := active
			for d.id = range uint64(maxTables + 1) {
				f.send(string(appendDefinition(nil, d)))
			}
		}},
		{"an error message", "protocol", true, func(f *fake) { f.send("\x01\x00") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, log, accept := testClient(t, nil)
				c.Teach("/block", "bob", Values{GPT0: 1}, 30*time.Second)
				f := accept()
				f.hello()
				if tt.established {
					f.send("200\n")
					f.want("resync", "define /block as 2", "teach 1 bob=1 for 30s")
				}
				tt.fault(f)
				start := time.Now()
				next := accept()
				if waited := time.Since(start); waited > time.Second {
					t.Errorf("connected again after %v, want 1s at most", waited)
				}
				if got := testutil.ToFloat64(c.metrics.errors.WithLabelValues(tt.reason)); got != 1 {
					t.Errorf("errors of reason %s = %v, want 1\n%s", tt.reason, got, log)
				}
				next.hello()
				next.send("200\n")
				next.want("resync", "define /block as 2")
				if got := next.read(); !strings.HasPrefix(got, "teach 1 bob=1 for ") {
					t.Errorf("the next session begins with %q, want bob taught again", got)
				}
			})
		})
	}
}

func TestHeartbeatsEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, accept := testClient(t, nil)
		f := accept().open()
		for want := time.Second; want <= 3*time.Second; want += time.Second {
			start := time.Now()
			m, err := readMessage(f.in)
			if got := time.Since(start); err != nil || inWords(m) != "heartbeat" || got != time.Second {
				t.Errorf("after %v: %v, %v, want a heartbeat after 1s", got, m, err)
			}
			f.send("\x00\x04")
		}
	})
}

// After a session the client tries again at once, then after 50 ms, and less
// and less often. Attempts that fail have no session's number.
func TestReconnectBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ups []uint64
		c, _, accept := testClient(t, func(o *Options) {
			o.OnSession = func(s Session) {
				if s.State == Up {
					ups = append(ups, s.ID)
				}
			}
		})
		f := accept().open()
		var start time.Time
		var tries []time.Duration
		dial := c.dial
		c.dial = func(ctx context.Context) (net.Conn, error) {
			tries = append(tries, time.Since(start))
			if len(tries) == 9 {
				return dial(ctx)
			}
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		for range 2 { // a session resets the waiting time
			time.Sleep(time.Second)
			start, tries = time.Now(), nil
			_ = f.conn.Close()
			f = accept().open()
			want := []time.Duration{0, 10, 30, 70, 150, 310, 630, 1130, 1630}
			for i := range want {
				want[i] *= time.Millisecond
			}
			if !slices.Equal(tries, want) {
				t.Errorf("tried after %v, want %v", tries, want)
			}
		}
		if got := testutil.ToFloat64(c.metrics.errors.WithLabelValues("dial")); got != 16 {
			t.Errorf("dial errors = %v, want 16", got)
		}
		synctest.Wait()
		if want := []uint64{1, 2, 3}; !slices.Equal(ups, want) {
			t.Errorf("sessions are numbered %v, want %v", ups, want)
		}
	})
}

// Sessions that do not last are not begun again in a busy loop.
func TestShortSessionsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, accept := testClient(t, nil)
		start := time.Now()
		for range 6 {
			_ = accept().open().conn.Close()
		}
		if got, want := time.Since(start), 150*time.Millisecond; got != want {
			t.Errorf("the sixth session began after %v, want %v", got, want)
		}
	})
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, accept := testClient(t, nil)
		accept().open()
		if err := c.Run(t.Context()); err == nil {
			t.Error("a second Run() = nil, want an error")
		}
	})
}

// FuzzSession feeds a session whatever HAProxy might send: it must neither
// panic nor keep more than its bounds.
func FuzzSession(f *testing.F) {
	b := appendUpdate(appendDefinition(nil, active), 40, "bob", 2, 10)
	b = appendTableMessage(b, tableTimedIncremental, []byte("\x00\x00\x00\x64\x03eve\x00\x0b"))
	f.Add(appendControl(appendSwitch(b, active.id), controlFinished))
	f.Add(appendAck([]byte{0, 4, 0, 0}, 1, 1))
	c := New(Options{Network: "unix", Address: "fake", Local: "agent", Remote: "haproxy", Learn: func(Update) {}})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newSession(c, 1, nil)
		s.in = reader(in)
		if err := s.readMessages(); err == nil {
			t.Fatal("read() = nil, want an error at the end of the input")
		}
		if len(s.tables) > maxTables || len(s.owed.acks) > len(s.tables) {
			t.Fatalf("%d tables and %d acks are kept", len(s.tables), len(s.owed.acks))
		}
	})
}
