package peers

import (
	"math"
	"math/bits"
	"time"
)

// Types of keys. Tables with others are not read.
const (
	keyString uint64 = 6
	keyBinary uint64 = 7 // names that zeros fill up
)

type definition struct {
	id      uint64 // the table's number in later messages; each side has its own
	name    string
	keyType uint64
	keyLen  uint64 // bytes; of a string one more than HAProxy's "len"
	data    uint64 // a bit for each DataType
	expire  time.Duration
}

func appendDefinition(b []byte, d definition) []byte {
	body := appendVarint(nil, d.id)
	body = appendVarint(body, uint64(len(d.name)))
	body = append(body, d.name...)
	body = appendVarint(body, d.keyType)
	body = appendVarint(body, d.keyLen)
	body = appendVarint(body, d.data)
	body = appendVarint(body, milliseconds(d.expire))
	return appendTableMessage(b, tableDefinition, body)
}

// parseDefinition reads a definition. Data types that are no plain numbers are kept in data;
// an update's values are read up to the first of them.
func parseDefinition(body []byte) (definition, error) {
	// In the order of the wire. The decoder remembers its first error, which is looked at once, at the end.
	r := decoder{rest: body}
	d := definition{id: r.takeVarint()}
	d.name = string(r.takeBytes(r.takeVarint()))
	d.keyType = r.takeVarint()
	d.keyLen = r.takeVarint()
	d.data = r.takeVarint()
	d.expire = durationOf(r.takeVarint())
	// What follows are the parameters of rates and arrays, which are not read.
	if r.err != nil {
		return definition{}, protocolErrorf("definition: %v", r.err)
	}
	return d, nil
}

// eachType calls yield for each data type of the table in the order of the wire,
// until it returns false.
func (d *definition) eachType(yield func(DataType) bool) {
	// By the bits that are set, because an update has values for these and no place for others.
	for rest := d.data; rest != 0; rest &= rest - 1 {
		if !yield(DataType(bits.TrailingZeros64(rest))) {
			return
		}
	}
}

// durationOf converts milliseconds, bounded by the longest duration.
func durationOf(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}
