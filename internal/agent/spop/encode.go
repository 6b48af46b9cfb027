package spop

import (
	"encoding/binary"

	"github.com/negasus/haproxy-spoe-go/varint"
)

// appendHello appends the HELLO that the library gets to see, with its length.
// The library answers with the frame size that it finds in it.
func appendHello(dst []byte, f frame, maxFrame uint32) []byte {
	return appendFrame(dst, frameHello, func(b []byte) []byte {
		// Nothing of what HAProxy sent is passed on as it came: the library sees only what was understood, in
		// a form that it is known to read.
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
	// The length stands in front and is known behind. Flags are FIN alone, and both ids 0.
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
	var b [maxVarint]byte
	return append(dst, b[:varint.PutUvarint(b[:], n)]...)
}

func textSize(s string) int {
	var b [maxVarint]byte
	return varint.PutUvarint(b[:], uint64(len(s))) + len(s)
}
