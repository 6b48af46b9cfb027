package spop

import "encoding/binary"

// Frame types and data types of SPOE.txt, sections 3.2.2 and 3.1.
const (
	frameHello      = 1
	frameDisconnect = 2
	frameNotify     = 3
	frameAck        = 103

	dataNull   = 0
	dataBool   = 1
	dataInt32  = 2
	dataUint32 = 3
	dataInt64  = 4
	dataUint64 = 5
	dataIPv4   = 6
	dataIPv6   = 7
	dataString = 8
	dataBinary = 9
)

const (
	flagFin   = 1
	flagAbort = 2

	// minFrame is a type, four bytes of flags and two varints of one byte.
	minFrame = 7
	// minMaxFrame is the smallest frame size either side may ask for (SPOE.txt, section 3.2).
	minMaxFrame = 256
	// maxVarint is the length of 2⁶⁴−1. The library reads on without end.
	maxVarint = 10

	// A NOTIFY of this project has one message of a few arguments. The bounds
	// keep what the library allocates for a frame near the frame's own size:
	// an empty message of two bytes costs it about a hundred.
	maxMessages = 16
	maxArgs     = 64 // in all messages of a frame

	// maxEngineID is several times HAProxy's, which is a UUID.
	maxEngineID = 256
)

// A rejection is why a connection was closed: the value of the label "reason".
type rejection string

func (r rejection) Error() string { return "frame rejected: " + string(r) }

const (
	rejectOversized  rejection = "oversized"       // longer than agreed
	rejectShort      rejection = "short"           // no room for type, flags and ids
	rejectType       rejection = "frame_type"      // not a type that HAProxy sends
	rejectOrder      rejection = "order"           // NOTIFY before HELLO, or a second HELLO
	rejectFragmented rejection = "fragmented"      // FIN missing, or ABORT set
	rejectVarint     rejection = "varint"          // cut off, or too long
	rejectLength     rejection = "length"          // a name or value past the frame's end
	rejectDataType   rejection = "data_type"       // unknown, or not the one the item must have
	rejectHello      rejection = "hello"           // lacks an item, or announces an impossible value
	rejectCount      rejection = "count"           // too many messages or arguments
	rejectTimeout    rejection = "timeout"         // a frame was begun, or a HELLO due, and did not arrive
	rejectUnread     rejection = "unread_answers"  // answers pile up because the peer does not read
	rejectWrite      rejection = "write_timed_out" // the peer does not read at all
)

var rejections = []rejection{
	rejectOversized, rejectShort, rejectType, rejectOrder, rejectFragmented, rejectVarint, rejectLength,
	rejectDataType, rejectHello, rejectCount, rejectTimeout, rejectUnread, rejectWrite,
}

// A frame is what was understood of one frame of HAProxy.
type frame struct {
	kind   byte
	stream uint64
	id     uint64

	// Of a HELLO; a DISCONNECT that carries them is held to the same types.
	maxFrame    uint32
	healthcheck bool
	engineID    string

	// Of a DISCONNECT.
	status  uint64
	message string
}

// parseFrame parses a frame, without its length, to its last byte. What it
// accepts, the library's own decoder decodes without an error or a panic. A
// NOTIFY costs no allocation. Every error is a rejection.
func parseFrame(b []byte) (frame, error) {
	if len(b) < minFrame {
		return frame{}, rejectShort
	}
	f := frame{kind: b[0]}
	if f.kind != frameHello && f.kind != frameDisconnect && f.kind != frameNotify {
		return frame{}, rejectType
	}
	if flags := binary.BigEndian.Uint32(b[1:5]); flags&flagFin == 0 || flags&flagAbort != 0 {
		return frame{}, rejectFragmented
	}
	s := scanner{rest: b[5:]}
	f.stream = s.takeVarint()
	f.id = s.takeVarint()
	if f.kind == frameNotify {
		s.takeMessages()
	} else {
		s.takeItems(&f)
	}
	if s.bad != "" {
		return frame{}, s.bad
	}
	if f.kind == frameHello && (f.maxFrame < minMaxFrame || f.stream != 0 || f.id != 0) {
		return frame{}, rejectHello
	}
	return f, nil
}

// A scanner takes values off the front of a frame. After the first thing that
// does not fit, bad says what, and rest is empty, which ends every loop.
type scanner struct {
	rest []byte
	bad  rejection
}

func (s *scanner) reject(r rejection) {
	if s.bad == "" {
		s.bad = r
	}
	s.rest = nil
}

func (s *scanner) takeBytes(n uint64) []byte {
	if n > uint64(len(s.rest)) {
		s.reject(rejectLength)
		return nil
	}
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}

func (s *scanner) takeByte() byte {
	if b := s.takeBytes(1); b != nil {
		return b[0]
	}
	return 0
}

// takeVarint reads the encoding of SPOE.txt, section 3.1. Bits past the 64th are
// lost, as they are in the library: both must take the same length for the same bytes.
func (s *scanner) takeVarint() uint64 {
	if len(s.rest) == 0 {
		s.reject(rejectVarint)
		return 0
	}
	n := uint64(s.rest[0])
	if n < 240 {
		s.rest = s.rest[1:]
		return n
	}
	shift := 4
	for i := 1; i < len(s.rest) && i < maxVarint; i++ {
		n += uint64(s.rest[i]) << shift
		shift += 7
		if s.rest[i] < 128 {
			s.rest = s.rest[i+1:]
			return n
		}
	}
	s.reject(rejectVarint)
	return 0
}

// A value is one typed datum, of which only what the checks need is kept.
type value struct {
	kind  byte
	flag  bool
	num   uint64
	bytes []byte
}

func (s *scanner) takeValue() value {
	head := s.takeByte()
	// The type is in the low bits, in spite of the order in SPOE.txt.
	v := value{kind: head & 0x0f, flag: head&0x10 != 0}
	switch v.kind {
	case dataNull, dataBool:
	case dataInt32, dataUint32, dataInt64, dataUint64:
		v.num = s.takeVarint()
	case dataIPv4:
		v.bytes = s.takeBytes(4)
	case dataIPv6:
		v.bytes = s.takeBytes(16)
	case dataString, dataBinary:
		v.bytes = s.takeBytes(s.takeVarint())
	default:
		s.reject(rejectDataType)
	}
	return v
}

// takeMessages reads the payload of a NOTIFY.
func (s *scanner) takeMessages() {
	args := 0
	for n := 1; len(s.rest) > 0; n++ {
		s.takeBytes(s.takeVarint()) // name
		count := int(s.takeByte())
		if args += count; n > maxMessages || args > maxArgs {
			s.reject(rejectCount)
		}
		for ; count > 0 && s.bad == ""; count-- {
			s.takeBytes(s.takeVarint()) // name
			s.takeValue()
		}
	}
}

// takeItems reads the payload of a HELLO or a DISCONNECT. Of an item that comes
// twice the first counts, as it does in the library, but all must have the type.
func (s *scanner) takeItems(f *frame) {
	var seen struct{ maxFrame, healthcheck, engineID, status, message bool }
	first := func(seen *bool) bool {
		was := *seen
		*seen = true
		return !was
	}
	for len(s.rest) > 0 {
		name := s.takeBytes(s.takeVarint())
		v := s.takeValue()
		if s.bad != "" {
			return
		}
		want := v.kind
		switch string(name) {
		case "max-frame-size":
			want = dataUint32
			if first(&seen.maxFrame) {
				f.maxFrame = uint32(v.num)
			}
		case "healthcheck":
			want = dataBool
			if first(&seen.healthcheck) {
				f.healthcheck = v.flag
			}
		case "engine-id":
			want = dataString
			if len(v.bytes) > maxEngineID {
				s.reject(rejectHello)
			}
			if first(&seen.engineID) {
				f.engineID = string(v.bytes)
			}
		case "supported-versions", "capabilities":
			want = dataString
		case "status-code":
			want = dataUint32
			if first(&seen.status) {
				f.status = v.num
			}
		case "message":
			want = dataString
			if first(&seen.message) {
				f.message = string(v.bytes)
			}
		}
		if v.kind != want {
			s.reject(rejectDataType)
		}
	}
}

// appendHello appends the HELLO that the library gets to see, with its length.
// The library answers with the frame size that it finds in it.
func appendHello(dst []byte, f frame, maxFrame uint32) []byte {
	return appendFrame(dst, frameHello, func(b []byte) []byte {
		b = append(appendText(b, "max-frame-size"), dataUint32)
		b = appendVarint(b, uint64(min(f.maxFrame, maxFrame)))
		b = append(appendText(b, "engine-id"), dataString)
		b = appendText(b, f.engineID)
		if f.healthcheck {
			b = append(appendText(b, "healthcheck"), dataBool|0x10)
		}
		return b
	})
}

// appendDisconnect appends the DISCONNECT that the library gets to see, with its length.
func appendDisconnect(dst []byte) []byte {
	return appendFrame(dst, frameDisconnect, func(b []byte) []byte { return b })
}

func appendFrame(dst []byte, kind byte, payload func([]byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, kind, 0, 0, 0, flagFin, 0, 0)
	dst = payload(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

func appendText(dst []byte, s string) []byte {
	return append(appendVarint(dst, uint64(len(s))), s...)
}

func appendVarint(dst []byte, n uint64) []byte {
	if n < 240 {
		return append(dst, byte(n))
	}
	dst = append(dst, byte(n)|0xf0)
	for n = (n - 240) >> 4; n >= 128; n = (n - 128) >> 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n))
}

// textSize is how many bytes appendText appends.
func textSize(s string) int {
	var b [maxVarint]byte
	return len(appendVarint(b[:0], uint64(len(s)))) + len(s)
}
