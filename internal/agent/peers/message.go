package peers

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"time"
)

// Message classes and types.
const (
	classControl byte = 0
	classError   byte = 1
	classTable   byte = 10

	controlResync    byte = 0 // "teach me everything"
	controlFinished  byte = 1 // "that was everything"
	controlPartial   byte = 2 // "that was everything I have, I am not up to date myself"
	controlConfirm   byte = 3 // the answer to both
	controlHeartbeat byte = 4

	tableUpdate           byte = 128
	tableIncremental      byte = 129 // an update whose id is the last one plus 1
	tableDefinition       byte = 130
	tableSwitch           byte = 131
	tableAck              byte = 132
	tableTimed            byte = 133 // an update with the time its entry has left
	tableTimedIncremental byte = 134
)

// maxMessage bounds the body of a message. HAProxy builds each one in a single
// buffer (tune.bufsize, 16 KiB by default), and its parts are far smaller.
const maxMessage = 64 << 10

type protocolError string

func (e protocolError) Error() string { return "protocol error: " + string(e) }

func protocolErrorf(format string, args ...any) error {
	return protocolError(fmt.Sprintf(format, args...))
}

// A message is one frame. Types from 128 on have a body.
type message struct {
	class, kind byte
	body        []byte
}

// readMessage reads the next message. Its body lies in the reader's buffer,
// which must hold maxMessage bytes, and is valid until the next read: no length
// makes it allocate.
func readMessage(r *bufio.Reader) (message, error) {
	class, err := r.ReadByte()
	if err != nil {
		return message{}, err
	}
	kind, err := r.ReadByte()
	if err != nil {
		return message{}, err
	}
	m := message{class: class, kind: kind}
	// Types below have no body, not even a length.
	if kind < 128 {
		return m, nil
	}
	var length varint
	for done := false; !done; {
		b, err := r.ReadByte()
		if err != nil {
			return message{}, err
		}
		if done, err = length.addByte(b); err != nil {
			return message{}, protocolErrorf("length of a message %d/%d: %v", class, kind, err)
		}
	}
	// Before it is waited for: a length that cannot be right means that this side and HAProxy no longer read
	// at the same place.
	if length.value > maxMessage {
		return message{}, protocolErrorf("message %d/%d of %d bytes, at most %d are accepted", class, kind, length.value, maxMessage)
	}
	if m.body, err = r.Peek(int(length.value)); err != nil {
		return message{}, err
	}
	_, err = r.Discard(int(length.value)) // cannot fail after Peek, and leaves the bytes in place
	return m, err
}

func appendControl(b []byte, kind byte) []byte { return append(b, classControl, kind) }

func appendTableMessage(b []byte, kind byte, body []byte) []byte {
	b = append(b, classTable, kind)
	b = appendVarint(b, uint64(len(body)))
	return append(b, body...)
}

func appendSwitch(b []byte, id uint64) []byte {
	return appendTableMessage(b, tableSwitch, appendVarint(nil, id))
}

// appendAck appends "learned up to this update", with the table's id as the
// other side defined it.
func appendAck(b []byte, table uint64, update uint32) []byte {
	return appendTableMessage(b, tableAck, binary.BigEndian.AppendUint32(appendVarint(nil, table), update))
}

func parseAck(body []byte) (table uint64, update uint32, err error) {
	d := decoder{rest: body}
	// Two forms of number in one message: that is how HAProxy writes it.
	table, update = d.takeVarint(), d.takeUint32()
	if d.err != nil {
		return 0, 0, protocolErrorf("ack: %v", d.err)
	}
	return table, update, nil
}

func parseSwitch(body []byte) (table uint64, err error) {
	d := decoder{rest: body}
	if table = d.takeVarint(); d.err != nil {
		return 0, protocolErrorf("switch: %v", d.err)
	}
	return table, nil
}

// milliseconds of a remaining time, rounded up: an entry that still lives is
// never sent as one that is over.
func milliseconds(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}
