package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/negasus/haproxy-spoe-go/typeddata"
	"github.com/negasus/haproxy-spoe-go/varint"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// haproxyConn is HAProxy's side of an SPOE connection.
type haproxyConn struct {
	net.Conn
	t testing.TB
}

// args are a message's: strings, numbers, or nil where HAProxy has no value.
type args map[string]any

// vars are the variables that an answer sets.
type vars map[string]any

func spoeText(b []byte, s string) []byte {
	return append(spoeVarint(b, uint64(len(s))), s...)
}

func spoeVarint(b []byte, n uint64) []byte {
	buf := make([]byte, 10)
	return append(b, buf[:varint.PutUvarint(buf, n)]...)
}

func spoeItem(t testing.TB, b []byte, name string, v any) []byte {
	t.Helper()
	b, _, err := typeddata.Encode(v, spoeText(b, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// send sends a frame of one stream.
func (c haproxyConn) send(kind byte, stream uint64, payload []byte) {
	c.t.Helper()
	b := binary.BigEndian.AppendUint32([]byte{kind}, 1) // FIN
	b = append(spoeVarint(spoeVarint(b, stream), min(stream, 1)), payload...)
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		c.t.Fatalf("send a frame: %v", err)
	}
}

// receive reads a frame and returns what follows its ids.
func (c haproxyConn) receive(kind byte) []byte {
	c.t.Helper()
	size := make([]byte, 4)
	if _, err := io.ReadFull(c, size); err != nil {
		c.t.Fatalf("receive a frame: %v", err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size))
	if _, err := io.ReadFull(c, b); err != nil {
		c.t.Fatalf("receive a frame: %v", err)
	}
	if b[0] != kind {
		c.t.Fatalf("received a frame of type %d, want %d", b[0], kind)
	}
	_, n := varint.Uvarint(b[5:])
	_, m := varint.Uvarint(b[5+n:])
	return b[5+n+m:]
}

func (c haproxyConn) greet() haproxyConn {
	c.t.Helper()
	b := spoeItem(c.t, nil, "supported-versions", "2.0")
	b = spoeItem(c.t, b, "max-frame-size", uint32(16380))
	c.send(1, 0, spoeItem(c.t, b, "capabilities", "pipelining"))
	c.receive(101)
	return c
}

// ask sends one message and returns the variables that the answer sets.
func (c haproxyConn) ask(message string, with args) vars {
	c.t.Helper()
	b := append(spoeText(nil, message), byte(len(with)))
	for name, v := range with {
		b = spoeItem(c.t, b, name, v)
	}
	c.send(3, 1, b)
	got := vars{}
	for b = c.receive(103); len(b) > 0; {
		if b[0] != 1 || b[1] != 3 || b[2] != 2 {
			c.t.Fatalf("action % x, want set-var in the transaction's scope", b[:3])
		}
		size, n := varint.Uvarint(b[3:])
		name, rest := string(b[3+n:3+n+int(size)]), b[3+n+int(size):]
		v, n, err := typeddata.Decode(rest)
		if err != nil {
			c.t.Fatal(err)
		}
		got[name], b = v, rest[n:]
	}
	return got
}

// pipes is a listener whose connections are pipes, as a bubble needs.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.done); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// haproxy returns a connection to the agent's SPOE server, which it starts.
func (r *rig) haproxy() haproxyConn {
	r.t.Helper()
	l := pipes{make(chan net.Conn), make(chan struct{})}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.spop.Serve(ctx, l) }()
	ours, theirs := net.Pipe()
	r.t.Cleanup(func() {
		_ = ours.Close()
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Serve() = %v, want nil", err)
		}
	})
	l.conns <- theirs
	return haproxyConn{ours, r.t}.greet()
}

// What HAProxy gets as variables, for each answer that there is.
func TestVariables(t *testing.T) {
	const start, line = "start-message", "wait-message"
	type ask struct {
		message string
		args    args
	}
	of := func(user string) args { return args{"user": user, "class": "GET"} }
	concurrent := func(limit uint32) vars {
		return vars{"reason": "concurrent-requests", "cause": "own-count", "limit": limit}
	}
	for _, tt := range []struct {
		name   string
		before []ask
		last   ask
		want   vars
		took   time.Duration
	}{
		{"allowed: nothing", nil, ask{start, of("alice")}, vars{}, 0},
		{"allowed, with a priority", nil, ask{start, of("first")}, vars{"priority": "-5"}, 0},
		{"not limited: nothing", nil, ask{start, of("staff")}, vars{}, 0},
		{"no user: nothing", nil, ask{start, args{"class": "GET"}}, vars{}, 0},
		{"a user without a value: nothing", nil, ask{start, args{"user": nil}}, vars{}, 0},
		{"refused by a rate", []ask{{start, of("rate")}, {start, of("rate")}, {start, of("rate")}, {start, of("rate")}},
			ask{start, of("rate")}, vars{"reason": "request-rate", "cause": "own-count", "class": "GET", "limit": uint32(4), "retry": uint32(1)}, 0},
		{"refused by an operation class, for the rest of a minute", []ask{{start, args{"user": "lister", "class": "GET", "op": "LIST"}}},
			ask{start, args{"user": "lister", "class": "GET", "op": "LIST"}},
			vars{"reason": "request-rate", "cause": "pool", "class": "LIST/minute", "limit": uint32(1), "retry": uint32(60), "window": uint32(60)}, 0},
		{"another operation", []ask{{start, args{"user": "lister", "class": "GET", "op": "LIST"}}}, ask{start, args{"user": "lister", "class": "GET", "op": nil}}, vars{}, 0},
		{"refused for want of a slot", []ask{{start, of("alice")}, {start, of("alice")}}, ask{start, of("alice")}, concurrent(2), 0},
		{"told to wait", []ask{{start, of("first")}}, ask{start, of("first")}, vars{"wait": uint32(2000), "limit": uint32(1)}, 0},
		{"waited in vain", []ask{{start, of("first")}, {start, args{"user": "first", "tracked": int32(1), "active": int32(1)}}}, ask{line, of("first")}, vars{"reason": "concurrent-requests", "cause": "line-timeout", "limit": uint32(1)}, 2 * time.Second},
		{"waited, and the place is free", []ask{{start, of("patient")}, {start, of("patient")}},
			ask{line, args{"user": "patient", "class": "GET", "tracked": int32(1), "active": int32(0)}}, vars{}, 0},
		{"waited, and there is a priority", []ask{{start, of("first")}, {start, of("first")}},
			ask{line, args{"user": "first", "tracked": int32(1), "active": int32(0)}}, vars{"priority": "-5"}, 0},
		{"waited, and there is no token", []ask{
			{start, of("patient")}, {start, args{"user": "patient", "class": "GET", "tracked": int32(1), "active": int32(0)}},
			{start, args{"user": "patient", "class": "GET", "tracked": int32(2), "active": int32(0)}}},
			ask{line, args{"user": "patient", "class": "GET", "tracked": int32(3), "active": int32(0)}},
			vars{"reason": "request-rate", "cause": "own-count", "class": "GET", "limit": uint32(3), "retry": uint32(1)}, 0},
		{"what HAProxy counts, as a number", nil, ask{start, args{"user": "alice", "tracked": int64(7), "active": int64(2)}}, concurrent(2), 0},
		{"as text", nil, ask{start, args{"user": "alice", "tracked": "7", "active": "2"}}, concurrent(2), 0},
		{"nothing counted", nil, ask{start, args{"user": "alice", "tracked": nil, "active": nil}}, vars{}, 0},
		{"a count that is none", nil, ask{start, args{"user": "alice", "tracked": "seven", "active": "2"}}, vars{}, 0},
		{"a count below nothing", nil, ask{start, args{"user": "alice", "tracked": "7", "active": "-2"}}, vars{}, 0},
		{"more in progress than there ever were", nil, ask{start, args{"user": "alice", "tracked": int64(2), "active": int64(7)}}, vars{}, 0},
		{"a count beyond 32 bits", nil, ask{start, args{"user": "alice", "tracked": "4294967296", "active": "4294967296"}}, vars{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				c := r.haproxy()
				for _, q := range tt.before {
					c.ask(q.message, q.args)
				}
				began := time.Now()
				got := c.ask(tt.last.message, tt.last.args)
				if !maps.Equal(got, tt.want) || time.Since(began) != tt.took {
					t.Errorf("%s %v = %v after %v, want %v after %v", tt.last.message, tt.last.args, got, time.Since(began), tt.want, tt.took)
				}
			})
		})
	}
}

// An agent that is told to end does not let those who wait in line hold it up, and
// answers them.
func TestAgentEndsWithALine(t *testing.T) {
	t.Parallel()
	const patience = `version: 1
default_tier: patient
tiers: {patient: {concurrent: 1, over_limit: {concurrent: wait 30s}}}
`
	s := serve(t, redis(t), "a", nil)
	publish(t, s.bus, version(t, patience), patience)
	testkit.Eventually(t, "the agent serves", func() error {
		if !s.Serving() {
			return errors.New("not yet")
		}
		return nil
	})
	dial := func() haproxyConn {
		conn, err := net.Dial("unix", filepath.Join(s.dir, "spoa.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return haproxyConn{conn, t}.greet()
	}
	with := args{"user": "alice", "class": "GET"}
	c := dial()
	if got := c.ask("start-message", with); len(got) != 0 {
		t.Fatalf("the first answer sets %v, want nothing", got)
	}
	// It counts for a second only unless HAProxy tells of it.
	with["tracked"], with["active"] = "1", "1"
	if got, want := c.ask("start-message", with), (vars{"wait": uint32(30_000), "limit": uint32(1)}); !maps.Equal(got, want) {
		t.Fatalf("the second answer sets %v, want %v", got, want)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = testkit.Poll(testkit.Patience, func() error {
			if testutil.ToFloat64(s.metrics.line) != 1 {
				return errors.New("nobody waits yet")
			}
			return nil
		})
		s.stop()
	}()
	if got, want := c.ask("wait-message", with), (vars{"reason": "concurrent-requests", "cause": "line-timeout", "limit": uint32(1)}); !maps.Equal(got, want) {
		t.Errorf("the answer at the end sets %v, want %v", got, want)
	}
	<-stopped
	if err := s.wait(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}
