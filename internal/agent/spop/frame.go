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
	// Of all types that HAProxy sends. The library takes others for an error of its own, and says nothing of
	// it.
	if f.kind != frameHello && f.kind != frameDisconnect && f.kind != frameNotify {
		return frame{}, rejectType
	}
	// No HAProxy sends fragments unless the agent offers to take them, and ours does
	// not.
	if flags := binary.BigEndian.Uint32(b[1:5]); flags&flagFin == 0 || flags&flagAbort != 0 {
		return frame{}, rejectFragmented
	}
	s := scanner{rest: b[5:]}
	f.stream = s.takeVarint()
	f.id = s.takeVarint()
	// HELLO and DISCONNECT have a list of items; a NOTIFY has messages, in another form.
	if f.kind == frameNotify {
		s.takeMessages()
	} else {
		s.takeItems(&f)
	}
	if s.bad != "" {
		return frame{}, s.bad
	}
	// With a smaller frame than the protocol allows no answer would have room. The ids of these frames are 0
	// by definition.
	if f.kind == frameHello && (f.maxFrame < minMaxFrame || f.stream != 0 || f.id != 0) {
		return frame{}, rejectHello
	}
	return f, nil
}
