package peers

import (
	"encoding/binary"
	"errors"

	spoevarint "github.com/negasus/haproxy-spoe-go/varint"
)

// maxVarint is the length of 2⁶⁴−1.
const maxVarint = 10

var (
	errShort  = errors.New("message ends too early")
	errVarint = errors.New("varint is longer than 64 bits")
)

// appendVarint appends v as the peers and SPOE protocols write integers: one
// byte below 240, otherwise four bits in the first byte and seven in each
// further one (doc/peers-v2.0.txt, "Encoded Integer").
func appendVarint(b []byte, v uint64) []byte {
	var buf [maxVarint]byte
	return append(b, buf[:spoevarint.PutUvarint(buf[:], v)]...)
}

// A varint is read byte by byte, so that a stream and a slice share one reader.
// The zero varint is ready.
type varint struct {
	value uint64
	shift uint // of the next byte; 0 before the first
}

func (v *varint) addByte(b byte) (done bool, err error) {
	if v.shift == 0 {
		v.value, v.shift = uint64(b), 4
		return b < 240, nil
	}
	// A number of more than 64 bits would come out as a small one: as a length, or a count of bytes, it would
	// be believed.
	part := uint64(b) << v.shift
	if part>>v.shift != uint64(b) || v.value+part < part {
		return false, errVarint
	}
	v.value += part
	v.shift += 7
	return b < 128, nil
}

// A decoder takes a message apart from the front. After its first error it
// returns zero values, so that callers check once, at the end.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) takeVarint() uint64 {
	var v varint
	for d.err == nil {
		b := d.takeBytes(1)
		if d.err != nil {
			break
		}
		done, err := v.addByte(b[0])
		if done {
			return v.value
		}
		d.err = err
	}
	return 0
}

// takeUint32 reads four bytes, big endian.
func (d *decoder) takeUint32() uint32 {
	b := d.takeBytes(4)
	if d.err != nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// takeBytes returns the next n bytes of the message itself, not a copy.
func (d *decoder) takeBytes(n uint64) []byte {
	// Compared as it was sent, before it becomes an int.
	if d.err == nil && n > uint64(len(d.rest)) {
		d.err = errShort
	}
	if d.err != nil {
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}
