package peers

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A fake is HAProxy's end of one connection, played by a test.
type fake struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// testClient runs a client inside a synctest bubble, whose connections the
// returned function accepts, each as a fake.
func testClient(t *testing.T, change func(*Options)) (c *Client, log *strings.Builder, accept func() *fake) {
	t.Helper()
	log = &strings.Builder{}
	opts := Options{
		Network: "unix", Address: "fake", Local: "agent", Remote: "haproxy",
		Teach:      []Table{throttle, {Name: "/block", KeyLen: 128, Expire: time.Minute, Data: []DataType{GPT0}}},
		Logger:     slog.New(slog.NewTextHandler(log, nil)),
		Registerer: prometheus.NewPedanticRegistry(),
	}
	if change != nil {
		change(&opts)
	}
	c = New(opts)
	conns := make(chan net.Conn)
	c.dial = func(ctx context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case conns <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v after its context was done, want nil", err)
		}
		if c.Connected() {
			t.Error("Connected() after Run() = true, want false")
		}
	})
	return c, log, func() *fake {
		t.Helper()
		select {
		case conn := <-conns:
			t.Cleanup(func() { _ = conn.Close() })
			return &fake{t, conn, bufio.NewReaderSize(conn, maxMessage)}
		case <-time.After(time.Minute):
			t.Fatal("the client does not connect")
			return nil
		}
	}
}

// hello reads the client's three lines.
func (f *fake) hello() string {
	f.t.Helper()
	var lines string
	for range 3 {
		line, err := f.in.ReadString('\n')
		if err != nil {
			f.t.Fatalf("hello: %v after %q", err, lines)
		}
		lines += line
	}
	return lines
}

func (f *fake) send(s string) {
	f.t.Helper()
	if _, err := io.WriteString(f.conn, s); err != nil {
		f.t.Fatalf("send(%q) = %v", s, err)
	}
}

// open does HAProxy's part of a handshake, and takes the request for a resync.
func (f *fake) open() *fake {
	f.t.Helper()
	f.hello()
	f.send("200\n")
	f.want("resync")
	return f
}

// read returns the next message in words, heartbeats left out.
func (f *fake) read() string {
	for {
		m, err := readMessage(f.in)
		if err != nil {
			return err.Error()
		}
		if s := inWords(m); s != "heartbeat" {
			return s
		}
	}
}

func (f *fake) want(messages ...string) {
	f.t.Helper()
	for _, want := range messages {
		if got := f.read(); got != want {
			f.t.Fatalf("the client sends %q, want %q", got, want)
		}
	}
}

func inWords(m message) string {
	r := decoder{rest: m.body}
	switch {
	case m.class == classControl:
		return []string{"resync", "finished", "partial", "confirm", "heartbeat"}[m.kind]
	case m.kind == tableDefinition:
		d, err := parseDefinition(m.body)
		return fmt.Sprint("define ", d.name, " as ", d.id, orError(err))
	case m.kind == tableSwitch:
		return fmt.Sprint("switch to ", r.takeVarint())
	case m.kind == tableAck:
		return fmt.Sprint("ack ", r.takeVarint(), "/", r.takeUint32())
	case m.kind == tableTimed:
		id, left := r.takeUint32(), time.Duration(r.takeUint32())*time.Millisecond
		key := string(r.takeBytes(r.takeVarint()))
		return fmt.Sprint("teach ", id, " ", key, "=", r.takeVarint(), " for ", left)
	}
	return fmt.Sprint(m)
}

func orError(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// closed waits until the client has ended the connection.
func (f *fake) closed() {
	f.t.Helper()
	for {
		if s := f.read(); s == "EOF" || strings.Contains(s, "closed pipe") {
			return
		}
	}
}

// appendUpdate appends an update as HAProxy sends it, with 32-bit id.
func appendUpdate(b []byte, id uint32, key string, values ...uint64) []byte {
	body := binary.BigEndian.AppendUint32(nil, id)
	body = append(appendVarint(body, uint64(len(key))), key...)
	for _, v := range values {
		body = appendVarint(body, v)
	}
	return appendTableMessage(b, tableUpdate, body)
}
