package spop

// A scanner takes values off the front of a frame. After the first thing that
// does not fit, bad says what, and rest is empty, which ends every loop.
type scanner struct {
	rest []byte
	bad  rejection
}

func (s *scanner) reject(r rejection) {
	// The first reason is the one that explains: all after it follow from it.
	if s.bad == "" {
		s.bad = r
	}
	s.rest = nil
}

func (s *scanner) takeBytes(n uint64) []byte {
	// Compared before it is cut, and as it was sent: a length near 2⁶⁴ is no number that could be added to.
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
	// One byte, which nearly all lengths and numbers of a NOTIFY are.
	if n < 240 {
		s.rest = s.rest[1:]
		return n
	}
	shift := 4
	// Bounded, where the library reads on for as long as the high bit is set.
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
	// A bool is in the type byte itself.
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

func (s *scanner) takeMessages() {
	args := 0
	for n := 1; len(s.rest) > 0; n++ {
		s.takeBytes(s.takeVarint()) // name
		count := int(s.takeByte())
		// Counted over the whole frame, and before any of them is read, for the library allocates by this
		// number.
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
	// HAProxy may send items that are not known here, of any type. They are read over.
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
			// It is kept for as long as the connection is, so it must not be as large as a frame.
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
		// The library asserts these types when it reads the items, and panics with others.
		if v.kind != want {
			s.reject(rejectDataType)
		}
	}
}
