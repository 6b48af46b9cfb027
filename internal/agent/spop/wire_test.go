package spop

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/negasus/haproxy-spoe-go/typeddata"
	"github.com/negasus/haproxy-spoe-go/varint"
)

// item encodes a name and a typed value: nil, bool, int64, uint32, string, []byte or net.IP.
func item(name string, v any) []byte {
	b := appendText(nil, name)
	switch v := v.(type) {
	case nil:
		return append(b, dataNull)
	case bool:
		if v {
			return append(b, dataBool|0x10)
		}
		return append(b, dataBool)
	case int32:
		return appendVarint(append(b, dataInt32), uint64(v))
	case uint32:
		return appendVarint(append(b, dataUint32), uint64(v))
	case int64:
		return appendVarint(append(b, dataInt64), uint64(v))
	case uint64:
		return appendVarint(append(b, dataUint64), v)
	case string:
		return appendText(append(b, dataString), v)
	case []byte:
		return appendText(append(b, dataBinary), string(v))
	case net.IP:
		if v4 := v.To4(); v4 != nil {
			return append(append(b, dataIPv4), v4...)
		}
		return append(append(b, dataIPv6), v...)
	}
	panic(fmt.Sprintf("item %s of type %T", name, v))
}

func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// body is a frame without its length.
func body(kind byte, flags uint32, stream, id uint64, payload ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, flags)
	b = appendVarint(appendVarint(b, stream), id)
	return append(b, join(payload...)...)
}

// sized puts a frame's length before it.
func sized(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func message(name string, args ...[]byte) []byte {
	return append(append(appendText(nil, name), byte(len(args))), join(args...)...)
}

func hello(extra ...[]byte) []byte {
	return sized(body(frameHello, flagFin, 0, 0,
		item("supported-versions", "2.0"), item("max-frame-size", uint32(16380)),
		item("capabilities", "pipelining,async"), join(extra...)))
}

func notify(stream uint64, messages ...[]byte) []byte {
	return sized(body(frameNotify, flagFin, stream, 1, messages...))
}

func disconnect(status uint32) []byte {
	return sized(body(frameDisconnect, flagFin, 0, 0, item("status-code", status), item("message", "as told")))
}

// An answer is a frame of the agent.
type answer struct {
	kind   byte
	stream uint64
	vars   map[string]any // of the set-var actions of an ACK, or the items of the others
}

func readAnswer(r io.Reader) (answer, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return answer{}, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(r, b); err != nil {
		return answer{}, err
	}
	a := answer{kind: b[0], vars: map[string]any{}}
	stream, n := varint.Uvarint(b[5:])
	_, m := varint.Uvarint(b[5+n:])
	a.stream = stream
	for b = b[5+n+m:]; len(b) > 0; {
		if a.kind == frameAck {
			if b[0] != 1 || b[1] != 3 || b[2] != 2 {
				return a, fmt.Errorf("action % x, want set-var of three arguments in the transaction's scope", b[:3])
			}
			b = b[3:]
		}
		size, n := varint.Uvarint(b)
		name := string(b[n : n+int(size)])
		b = b[n+int(size):]
		v, n, err := typeddata.Decode(b)
		if err != nil {
			return a, err
		}
		a.vars[name] = v
		b = b[n:]
	}
	return a, nil
}

// A client is HAProxy's side of a connection.
type client struct {
	net.Conn
	t testing.TB
}

func (c client) send(frames ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(join(frames...)); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c client) receive(kind byte) answer {
	c.t.Helper()
	a, err := readAnswer(c)
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	if a.kind != kind {
		c.t.Fatalf("received a frame of type %d, want %d", a.kind, kind)
	}
	return a
}

func (c client) greet() client {
	c.t.Helper()
	c.send(hello())
	c.receive(101)
	return c
}

// wantKinds receives two frames, in either order.
func (c client) wantKinds(a, b byte) {
	c.t.Helper()
	var got [2]byte
	for i := range got {
		ans, err := readAnswer(c)
		if err != nil {
			c.t.Fatalf("receive: %v", err)
		}
		got[i] = ans.kind
	}
	if got != [2]byte{a, b} && got != [2]byte{b, a} {
		c.t.Errorf("received frames of types %v, want %d and %d", got, a, b)
	}
}

// ask sends one message "start" and returns the variables of its answer.
func (c client) ask(stream uint64, args ...[]byte) map[string]any {
	c.t.Helper()
	c.send(notify(stream, message("start", args...)))
	a := c.receive(frameAck)
	if a.stream != stream {
		c.t.Fatalf("ACK is of stream %d, want %d", a.stream, stream)
	}
	return a.vars
}

// wantClosed reads until the server closes, and fails on any further frame.
func (c client) wantClosed() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		c.t.Fatalf("read %d bytes (err %v), want a closed connection", n, err)
	}
}

func dial(t testing.TB, addr net.Addr) client {
	t.Helper()
	conn, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{conn, t}
}
