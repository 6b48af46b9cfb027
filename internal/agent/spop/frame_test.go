package spop

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	lib "github.com/negasus/haproxy-spoe-go/frame"
	"github.com/negasus/haproxy-spoe-go/varint"
	"pgregory.net/rapid"
)

// frames are rows for parseFrame and the seeds of the fuzz tests.
var frames = []struct {
	name string
	body []byte
	want error
}{
	{"a HELLO of HAProxy", hello(item("engine-id", "e1"))[4:], nil},
	{"a HELLO that is a health check", hello(item("healthcheck", true))[4:], nil},
	{"a HELLO with an item that nobody knows", hello(item("x", net.IPv6loopback))[4:], nil},
	{"a NOTIFY of every data type", body(frameNotify, flagFin, 7, 1, message("start",
		item("null", nil), item("bool", true), item("int32", int32(-1)), item("uint32", uint32(1<<31)), item("int64", int64(-5)),
		item("uint64", uint64(1)<<63), item("v4", net.IPv4(192, 0, 2, 1)), item("v6", net.ParseIP("2001:db8::1")),
		item("string", "a\x00b"), item("binary", []byte{0, 255}))), nil},
	{"a NOTIFY of two messages", body(frameNotify, flagFin, 7, 1, message("a"), message("b", item("x", "y"))), nil},
	{"a NOTIFY without messages", body(frameNotify, flagFin, 7, 1), nil},
	{"a DISCONNECT", disconnect(0)[4:], nil},
	{"a DISCONNECT without items", body(frameDisconnect, flagFin, 0, 0), nil},
	{"as many messages as there may be", body(frameNotify, flagFin, 1, 1, bytes.Repeat(message("m"), maxMessages)), nil},
	{"as many arguments as there may be", body(frameNotify, flagFin, 1, 1, many(maxArgs)), nil},

	{"nothing", nil, rejectShort},
	{"a type alone", []byte{frameNotify}, rejectShort},
	{"flags cut off", []byte{frameNotify, 0, 0, 0}, rejectShort},
	{"a frame id missing", body(frameNotify, flagFin, 1, 1)[:6], rejectShort},
	{"type unset, as of a fragment", body(0, flagFin, 1, 1), rejectType},
	{"a frame of an agent", body(101, flagFin, 0, 0), rejectType},
	{"a type that nobody knows", body(77, flagFin, 0, 0), rejectType},
	{"FIN missing", body(frameNotify, 0, 1, 1), rejectFragmented},
	{"ABORT", body(frameNotify, flagFin|flagAbort, 1, 1), rejectFragmented},
	{"stream id cut off", []byte{frameNotify, 0, 0, 0, 1, 0xf0, 0x80}, rejectVarint},
	{"stream id without end", join([]byte{frameNotify, 0, 0, 0, 1}, bytes.Repeat([]byte{0xff}, 100), []byte{0}), rejectVarint},
	{"stream id of eleven bytes", join([]byte{frameNotify, 0, 0, 0, 1}, bytes.Repeat([]byte{0xff}, 10), []byte{0, 1}), rejectVarint},
	{"message name past the end", body(frameNotify, flagFin, 1, 1, []byte{5, 'a', 'b'}), rejectLength},
	{"message name of 2⁶³ bytes", body(frameNotify, flagFin, 1, 1, appendVarint(nil, 1<<63)), rejectLength},
	{"number of arguments missing", body(frameNotify, flagFin, 1, 1, []byte{1, 'a'}), rejectLength},
	{"fewer arguments than announced", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 2}, item("x", "y")), rejectVarint},
	{"argument name past the end", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 9, 'x'}), rejectLength},
	{"argument without a value", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x'}), rejectLength},
	{"string past the end", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataString, 3, 'y'}), rejectLength},
	{"string of 2⁶⁴−1 bytes", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataString}, appendVarint(nil, 1<<64-1)), rejectLength},
	{"binary length cut off", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataBinary, 0xff}), rejectVarint},
	{"integer missing", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataInt64}), rejectVarint},
	{"three bytes of IPv4", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataIPv4, 1, 2, 3}), rejectLength},
	{"fifteen bytes of IPv6", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', dataIPv6}, make([]byte, 15)), rejectLength},
	{"a data type that nobody knows", body(frameNotify, flagFin, 1, 1, []byte{1, 'a', 1, 1, 'x', 10}), rejectDataType},
	{"a message too many", body(frameNotify, flagFin, 1, 1, bytes.Repeat(message("m"), maxMessages+1)), rejectCount},
	{"an argument too many", body(frameNotify, flagFin, 1, 1, many(maxArgs+1)), rejectCount},
	{"an argument too many, in two messages", body(frameNotify, flagFin, 1, 1, many(maxArgs), many(1)), rejectCount},
	{"a HELLO with a bit of a stream id", body(frameHello, flagFin, 1, 0, item("max-frame-size", uint32(16380))), rejectHello},
	{"a HELLO without max-frame-size", body(frameHello, flagFin, 0, 0, item("supported-versions", "2.0")), rejectHello},
	{"a HELLO with a tiny max-frame-size", body(frameHello, flagFin, 0, 0, item("max-frame-size", uint32(255))), rejectHello},
	{"max-frame-size a string", body(frameHello, flagFin, 0, 0, item("max-frame-size", "16380")), rejectDataType},
	{"max-frame-size of 64 bits", body(frameHello, flagFin, 0, 0, item("max-frame-size", uint64(16380))), rejectDataType},
	{"healthcheck null", hello(item("healthcheck", nil))[4:], rejectDataType},
	{"healthcheck a number, the second time", hello(item("healthcheck", true), item("healthcheck", uint32(1)))[4:], rejectDataType},
	{"engine-id binary", hello(item("engine-id", []byte("e")))[4:], rejectDataType},
	{"engine-id of 257 bytes", hello(item("engine-id", strings.Repeat("e", 257)))[4:], rejectHello},
	{"capabilities a number", hello(item("capabilities", uint32(1)))[4:], rejectDataType},
	{"supported-versions a number", hello(item("supported-versions", uint32(2)))[4:], rejectDataType},
	{"item name past the end", hello([]byte{200, 'x'})[4:], rejectLength},
	{"a DISCONNECT with healthcheck null", body(frameDisconnect, flagFin, 0, 0, item("healthcheck", nil)), rejectDataType},
	{"status-code a string", body(frameDisconnect, flagFin, 0, 0, item("status-code", "0")), rejectDataType},
	{"disconnect message a number", body(frameDisconnect, flagFin, 0, 0, item("message", uint32(1))), rejectDataType},
}

// many is a message of n arguments.
func many(n int) []byte {
	return append(append(appendText(nil, "m"), byte(n)), bytes.Repeat(item("x", nil), n)...)
}

func TestParseFrame(t *testing.T) {
	for _, tt := range frames {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := parseFrame(tt.body); got != tt.want {
				t.Errorf("parseFrame(% x) = %v, want %v", tt.body, got, tt.want)
			}
		})
	}
}

func TestParseFrameReads(t *testing.T) {
	for _, tt := range []struct {
		name string
		body []byte
		want frame
	}{
		{"ids", body(frameNotify, flagFin, 1<<32, 300), frame{kind: frameNotify, stream: 1 << 32, id: 300}},
		{"a HELLO", hello(item("healthcheck", true), item("engine-id", "e1"))[4:],
			frame{kind: frameHello, maxFrame: 16380, healthcheck: true, engineID: "e1"}},
		{"healthcheck that is false", hello(item("healthcheck", false))[4:], frame{kind: frameHello, maxFrame: 16380}},
		{"the first of two items", hello(item("max-frame-size", uint32(300)))[4:], frame{kind: frameHello, maxFrame: 16380}},
		{"a DISCONNECT", disconnect(9)[4:], frame{kind: frameDisconnect, status: 9, message: "as told"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFrame(tt.body)
			if err != nil || got != tt.want {
				t.Errorf("parseFrame(% x) = %+v, %v, want %+v", tt.body, got, err, tt.want)
			}
		})
	}
}

func TestEveryCutFrameIsRejected(t *testing.T) {
	whole := body(frameNotify, flagFin, 300, 1, message("start", item("user", "alice"), item("n", int64(1000)), item("ip", net.IPv6loopback)))
	for n := range whole {
		// Cut right after the ids it is a NOTIFY without messages, which is fine.
		if _, err := parseFrame(whole[:n]); (err == nil) != (n == 8) {
			t.Errorf("parseFrame of the first %d of %d bytes = %v", n, len(whole), err)
		}
	}
}

func TestParsingANotifyAllocatesNothing(t *testing.T) {
	b := body(frameNotify, flagFin, 7, 1, message("start", item("user", "alice"), item("ip", net.IPv4(1, 2, 3, 4))))
	if n := testing.AllocsPerRun(100, func() { _, _ = parseFrame(b) }); n != 0 {
		t.Errorf("parseFrame allocates %v times, want 0", n)
	}
}

func TestVarintIsTheLibrarys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n")
		b := appendVarint(nil, n)
		if len(b) <= 8 { // beyond, the library's encoder overruns buffers
			want := make([]byte, maxVarint)
			want = want[:varint.PutUvarint(want, n)]
			if !bytes.Equal(b, want) {
				t.Fatalf("appendVarint(%d) = % x, want % x", n, b, want)
			}
		}
		s := scanner{rest: b}
		if got := s.takeVarint(); got != n || len(s.rest) > 0 || s.bad != "" {
			t.Fatalf("varint(% x) = %d with %d bytes left (%q), want %d", b, got, len(s.rest), s.bad, n)
		}
		if got, size := varint.Uvarint(b); got != n || size != len(b) {
			t.Fatalf("library's Uvarint(% x) = %d, %d, want %d, %d", b, got, size, n, len(b))
		}
		if got := textSize(strings.Repeat("x", int(n%5000))); got != len(appendText(nil, strings.Repeat("x", int(n%5000)))) {
			t.Fatalf("textSize of %d bytes = %d", n%5000, got)
		}
	})
}

func TestTheLibrarySeesTheSmallerFrameSize(t *testing.T) {
	for _, tt := range []struct{ theirs, ours, want uint32 }{{16380, 65532, 16380}, {65532, 16380, 16380}, {256, 256, 256}} {
		f := frame{kind: frameHello, maxFrame: tt.theirs, engineID: strings.Repeat("e", 250), healthcheck: true}
		got := lib.NewFrame()
		if err := got.Read(bytes.NewReader(appendHello(nil, f, tt.ours))); err != nil {
			t.Fatal(err)
		}
		if got.MaxFrameSize != tt.want || got.EngineID != f.engineID || !got.Healthcheck {
			t.Errorf("HELLO of %d with a limit of %d reads %+v, want frame size %d", tt.theirs, tt.ours, got, tt.want)
		}
	}
}

// FuzzFrame holds the guard's parser against the library's: what the guard
// lets through must decode without a panic or an error, to as many messages and
// arguments within the bounds.
func FuzzFrame(f *testing.F) {
	for _, tt := range frames {
		f.Add(tt.body)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := parseFrame(b)
		if err != nil {
			if _, ok := err.(rejection); !ok {
				t.Errorf("parseFrame(% x) = %v, want a rejection", b, err)
			}
			return
		}
		raw := sized(b)
		switch parsed.kind {
		case frameHello:
			raw = appendHello(nil, parsed, 16380)
		case frameDisconnect:
			raw = appendDisconnect(nil)
		}
		read := lib.NewFrame()
		if err := read.Read(bytes.NewReader(raw)); err != nil {
			t.Fatalf("the library cannot read % x: %v", raw, err)
		}
		got := frame{kind: byte(read.Type), stream: read.StreamID, id: read.FrameID}
		want := frame{kind: parsed.kind}
		if parsed.kind == frameNotify {
			want.stream, want.id = parsed.stream, parsed.id
		}
		if got != want {
			t.Fatalf("the library reads % x as %+v, want %+v", raw, got, want)
		}
		args := 0
		for _, m := range *read.Messages {
			args += len(m.KV.Data())
		}
		if len(*read.Messages) > maxMessages || args > maxArgs {
			t.Fatalf("%d messages of %d arguments passed", len(*read.Messages), args)
		}
		if read.EngineID != parsed.engineID || read.Healthcheck != parsed.healthcheck && parsed.kind == frameHello {
			t.Fatalf("the library reads % x as %+v, want %+v", raw, read, parsed)
		}
	})
}

func TestPrintsItsReason(t *testing.T) {
	if got, want := rejectOrder.Error(), "frame rejected: order"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	seen := map[rejection]bool{}
	for _, r := range rejections {
		seen[r] = true
	}
	for _, tt := range frames {
		if tt.want != nil && !seen[tt.want.(rejection)] {
			t.Errorf("%v is not in the list of rejections", tt.want)
		}
	}
	if diff := cmp.Diff(len(seen), len(rejections)); diff != "" {
		t.Errorf("a rejection is listed twice: %s", diff)
	}
}
