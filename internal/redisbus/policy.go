// Messages of polygen to agents are text, one message a line, so that a person can read
// what a channel carries.
//
//	1 throttle "GET" "alice" 1760000000 100
//	1 throttle "GET/minute" "alice" 1760000040 1000
//
// The class of a key stands there as the name of its limit, with the window if that
// is longer than a second.
// A line is the version 1, the kind, and the kind's fields. Strings are quoted
// as Go quotes them, which restores every byte of a user's name, be it valid
// UTF-8 or not, and keeps a name from ending its line. A kind whose fields
// change needs a new kind or version: an agent that does not know it skips the
// line and reads on.

package redisbus

import (
	"bytes"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// MaxLine and MaxBatch bound, in bytes, what Decode reads. The longest name
// that can come in an HTTP header (16 KiB), escaped byte by byte, fits a line.
const (
	MaxLine  = 72 << 10
	MaxBatch = 1 << 20
)

// A Message is one of the types below.
type Message interface {
	// appendKind appends the message's kind and fields, each after a blank.
	appendKind(b []byte) []byte
}

// Throttle says that the cluster has used a key's limit up for a window.
type Throttle struct {
	Key    ratelimit.Key
	Second int64 // the cluster second at which the window begins, in seconds since the epoch; >= 0
	Limit  int   // the limit that was reached, in requests per window; >= 0
}

// Hot says that the use of a key has come near its limit.
type Hot struct {
	Key       ratelimit.Key
	Until     time.Time // when it ends by itself; to the millisecond, not before 1970
	Instances int       // agents that share the key's requests; 0: not known, it may be all
}

// Block says that a user's requests in progress have reached the limit.
type Block struct {
	User    string
	Limit   int // the limit that was reached, in requests in progress; >= 0
	Release int // requests in progress at or below which the user is let in again; >= 0
}

// Unblock says that a user who was blocked is let in again.
type Unblock struct {
	User string
}

// Slots says how a user's slots are best shared among the instances. Without shares it says to all instances
// that were not given any that they have 0.
type Slots struct {
	User   string
	Until  time.Time   // when it ends by itself; to the millisecond, not before 1970
	Shares []SlotShare // each instance at most once
}

// A SlotShare is one instance's fair share of a user's slots.
type SlotShare struct {
	Instance string
	Slots    int // >= 0
}

// Share says how a user's bandwidth in one direction is divided: each instance's
// share, in bytes per second. Instances that are not named have none: what begins
// there has the default share.
type Share struct {
	User      string
	Direction bandwidth.Direction
	Shares    []bandwidth.Share // each instance at most once; Bytes >= 0
}

// Limits says that a new set of limits has been published.
type Limits struct {
	Version string
}

// Kind is the message's kind, as its line has it: "throttle" and the like.
func Kind(m Message) string { return KindOf(m.appendKind([]byte(version))) }

// KindOf is the kind of a line that Append has made.
func KindOf(line []byte) string {
	// From the line, which whoever counts policies has made anyway.
	kind, _, _ := bytes.Cut(line[len(version)+1:], []byte{' '})
	return string(kind)
}

// Append appends m's line to b. The numbers must be in their ranges and the
// class valid; Decode skips a line where they are not.
func Append(b []byte, m Message) []byte {
	b = append(b, version...)
	b = m.appendKind(b)
	return append(b, '\n')
}

const version = "1"

func (m Throttle) appendKind(b []byte) []byte {
	b = appendKey(append(b, " throttle"...), m.Key)
	return appendNumber(appendNumber(b, m.Second), int64(m.Limit))
}

func (m Hot) appendKind(b []byte) []byte {
	b = appendKey(append(b, " hot"...), m.Key)
	return appendNumber(appendNumber(b, m.Until.UnixMilli()), int64(m.Instances))
}

func (m Block) appendKind(b []byte) []byte {
	b = appendQuoted(append(b, " block"...), m.User)
	return appendNumber(appendNumber(b, int64(m.Limit)), int64(m.Release))
}

func (m Unblock) appendKind(b []byte) []byte {
	return appendQuoted(append(b, " unblock"...), m.User)
}

func (m Slots) appendKind(b []byte) []byte {
	b = appendNumber(appendQuoted(append(b, " slots"...), m.User), m.Until.UnixMilli())
	for _, s := range m.Shares {
		b = appendNumber(appendQuoted(b, s.Instance), int64(s.Slots))
	}
	return b
}

func (m Share) appendKind(b []byte) []byte {
	b = appendQuoted(append(b, " share"...), m.User)
	b = append(append(b, ' '), m.Direction.String()...)
	for _, s := range m.Shares {
		b = appendNumber(appendQuoted(b, s.Instance), s.Bytes)
	}
	return b
}

func (m Limits) appendKind(b []byte) []byte {
	return appendQuoted(append(b, " limits"...), m.Version)
}

func appendKey(b []byte, k ratelimit.Key) []byte {
	return appendQuoted(appendQuoted(b, limits.RateName(k.Class, k.Window)), k.User)
}

func appendQuoted(b []byte, s string) []byte { return strconv.AppendQuote(append(b, ' '), s) }

func appendNumber(b []byte, n int64) []byte { return strconv.AppendInt(append(b, ' '), n, 10) }

// ValidClass reports whether a class can stand before the '|' of a "class|user"
// key, and before the '/' of a window's name: it holds neither byte, nor a control
// byte.
func ValidClass(class string) bool {
	// Bytes, not characters: HAProxy compares bytes, and none of these is part of a longer character in UTF-8.
	for i := range len(class) {
		if c := class[i]; c == '|' || c == '/' || c < ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
