package peers

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
)

func reader(b []byte) *bufio.Reader {
	return bufio.NewReaderSize(bytes.NewReader(b), maxMessage)
}

func TestHelloBytes(t *testing.T) {
	if got, want := string(appendHello(nil, "haproxy", "agent", 42)), "HAProxyS 2.1\nhaproxy\nagent 42 1\n"; got != want {
		t.Errorf("appendHello(haproxy, agent, 42) = %q, want %q", got, want)
	}
}

func TestReadStatus(t *testing.T) {
	for _, tt := range []struct {
		in, want string // "" is success
	}{
		{"200\n", ""},
		{"300\n", "refused with status 300: try again later"},
		{"501\n", "refused with status 501: protocol error"},
		{"502\n", "refused with status 502: protocol version not spoken"},
		{"503\n", "refused with status 503: its peer name is another one"},
		{"504\n", "refused with status 504: its peers section does not name this peer"},
		{"999\n", "refused with status 999: unknown reason"},
		{"2000", `protocol error: status line "2000"`},
		{"HTTP/1.1 400", `protocol error: status line "HTTP"`},
		{"+20\n", `protocol error: status line "+20\n"`},
		{"020\n", `protocol error: status line "020\n"`},
		{"200", "EOF"},
		{"", "EOF"},
	} {
		err := readStatus(reader([]byte(tt.in)))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("readStatus(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestReadMessage(t *testing.T) {
	r := reader([]byte("\x00\x04" + "\x0a\x83\x01\x05" + "\x00\x00"))
	for _, want := range []message{
		{classControl, controlHeartbeat, nil},
		{classTable, tableSwitch, []byte{5}},
		{classControl, controlResync, nil},
	} {
		m, err := readMessage(r)
		if err != nil || m.class != want.class || m.kind != want.kind || !bytes.Equal(m.body, want.body) {
			t.Errorf("readMessage() = %v, %v, want %v", m, err, want)
		}
	}
	if _, err := readMessage(r); err != io.EOF {
		t.Errorf("readMessage(nothing) = %v, want EOF", err)
	}
}

func TestReadMessageRejects(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want string
	}{
		{"half a header", []byte{0}, "EOF"},
		{"no length", []byte{10, 128}, "EOF"},
		{"half a length", []byte{10, 128, 0xff}, "EOF"},
		{"half a body", []byte{10, 128, 5, 1, 2}, "EOF"},
		{"a length without end", append([]byte{10, 128}, bytes.Repeat([]byte{0xff}, 20)...),
			"protocol error: length of a message 10/128: varint is longer than 64 bits"},
		{"a gigabyte", appendVarint([]byte{10, 128}, 1<<30),
			"protocol error: message 10/128 of 1073741824 bytes, at most 65536 are accepted"},
		{"a byte too much", appendVarint([]byte{10, 128}, maxMessage+1),
			"protocol error: message 10/128 of 65537 bytes, at most 65536 are accepted"},
	} {
		if m, err := readMessage(reader(tt.in)); err == nil || err.Error() != tt.want {
			t.Errorf("%s: readMessage() = %v, %v, want %s", tt.name, m, err, tt.want)
		}
	}
	longest := append(appendVarint([]byte{10, 128}, maxMessage), make([]byte, maxMessage)...)
	if m, err := readMessage(reader(longest)); err != nil || len(m.body) != maxMessage {
		t.Errorf("readMessage(longest) = %d bytes, %v, want %d", len(m.body), err, maxMessage)
	}
}

func TestControlAndAckBytes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want []byte
	}{
		{"resync", appendControl(nil, controlResync), []byte{0, 0}},
		{"finished", appendControl(nil, controlFinished), []byte{0, 1}},
		{"confirm", appendControl(nil, controlConfirm), []byte{0, 3}},
		{"heartbeat", appendControl(nil, controlHeartbeat), []byte{0, 4}},
		{"switch", appendSwitch(nil, 300), []byte{10, 131, 2, 0xfc, 0x03}},
		{"ack", appendAck(nil, 2, 0x01020304), []byte{10, 132, 5, 2, 1, 2, 3, 4}},
	} {
		if !bytes.Equal(tt.got, tt.want) {
			t.Errorf("%s = %x, want %x", tt.name, tt.got, tt.want)
		}
	}
	if table, update, err := parseAck([]byte{2, 1, 2, 3, 4}); table != 2 || update != 0x01020304 || err != nil {
		t.Errorf("parseAck() = %d, %#x, %v, want 2, 0x1020304", table, update, err)
	}
	if table, err := parseSwitch([]byte{0xfc, 0x03}); table != 300 || err != nil {
		t.Errorf("parseSwitch() = %d, %v, want 300", table, err)
	}
}

func TestMilliseconds(t *testing.T) {
	for _, tt := range []struct {
		in   time.Duration
		want uint64
	}{{time.Nanosecond, 1}, {time.Millisecond, 1}, {time.Millisecond + 1, 2}, {time.Minute, 60_000}} {
		if got := milliseconds(tt.in); got != tt.want {
			t.Errorf("milliseconds(%v) = %d, want %d", tt.in, got, tt.want)
		}
	}
}

func FuzzAckAndSwitch(f *testing.F) {
	f.Add([]byte{2, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, in []byte) {
		var protocol protocolError
		if table, update, err := parseAck(in); err == nil {
			if again := appendAck(nil, table, update)[3:]; !bytes.HasPrefix(in, again) {
				t.Fatalf("parseAck(%x) is written %x", in, again)
			}
		} else if !errors.As(err, &protocol) {
			t.Fatalf("parseAck(%x) = %v, want a protocol error", in, err)
		}
		if table, err := parseSwitch(in); err == nil {
			if again := appendSwitch(nil, table)[3:]; !bytes.HasPrefix(in, again) {
				t.Fatalf("parseSwitch(%x) is written %x", in, again)
			}
		} else if !errors.As(err, &protocol) {
			t.Fatalf("parseSwitch(%x) = %v, want a protocol error", in, err)
		}
	})
}
