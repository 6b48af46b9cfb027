package peers

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"
)

// An Update is one entry of a stick table as HAProxy pushed it.
type Update struct {
	Session uint64        // the session it came in, as in [Session]
	Table   string        // the table's name on the wire, such as "/active"
	Key     string        // a string or binary key as it is; an address or integer as text
	Values  Values        // absolute, not differences
	Expire  time.Duration // until HAProxy forgets the entry, should nothing else happen to it
}

// appendTimed appends a timed update of the table that was announced or
// switched to last. values are the encoded values of its data types.
func appendTimed(b []byte, id uint32, left time.Duration, key string, values []byte) []byte {
	b = append(b, classTable, tableTimed)
	b = appendVarint(b, uint64(8+varintLen(uint64(len(key)))+len(key)+len(values)))
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(milliseconds(left)))
	b = appendVarint(b, uint64(len(key)))
	b = append(b, key...)
	return append(b, values...)
}

func varintLen(v uint64) int {
	var b [10]byte
	return len(appendVarint(b[:0], v))
}

// parseUpdate reads an update of any of the four kinds. last is the id of the
// update before it. The update's Session and Table are the caller's to set.
func (d *definition) parseUpdate(kind byte, body []byte, last uint32) (id uint32, u Update, err error) {
	r := decoder{rest: body}
	id, u.Expire = last+1, d.expire
	if kind == tableUpdate || kind == tableTimed {
		id = r.takeUint32()
	}
	if kind == tableTimed || kind == tableTimedIncremental {
		u.Expire = durationOf(uint64(r.takeUint32()))
	}
	u.Key = d.readKey(&r)
	for t := range d.eachType {
		if !d.readValue(&r, t, &u.Values) {
			break
		}
	}
	if r.err != nil {
		return 0, Update{}, protocolErrorf("update of table %q: %v", d.name, r.err)
	}
	return id, u, nil
}

func (d *definition) readKey(r *decoder) string {
	switch d.keyType {
	case keyString:
		return string(r.takeBytes(r.takeVarint()))
	case keyInteger:
		return strconv.FormatUint(uint64(r.takeUint32()), 10)
	case keyIPv4, keyIPv6:
		if addr, ok := netip.AddrFromSlice(r.takeBytes(d.keyLen)); ok {
			return addr.String()
		}
		if r.err == nil {
			r.err = protocolError("an address of " + strconv.FormatUint(d.keyLen, 10) + " bytes")
		}
		return ""
	default:
		return string(r.takeBytes(d.keyLen))
	}
}

// readValue reads the value of one data type and reports whether the one after
// it can be found.
func (d *definition) readValue(r *decoder, t DataType, values *Values) bool {
	switch t.wireShape() {
	case number:
		values[t] = r.takeVarint()
	case rate:
		skipVarints(r, 3)
	case word:
		r.takeBytes(r.takeVarint())
	case numbers:
		skipVarints(r, d.arrays[t-gptArray])
	case rateArray:
		for range 3 {
			skipVarints(r, d.arrays[t-gptArray])
		}
	default:
		return false
	}
	return r.err == nil
}

// skipVarints reads n varints, or as many as there are.
func skipVarints(r *decoder, n uint64) {
	for ; n > 0 && r.err == nil; n-- {
		r.takeVarint()
	}
}
