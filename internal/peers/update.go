package peers

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"

	spoevarint "github.com/negasus/haproxy-spoe-go/varint"
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
	// Timed, so that the entry ends in HAProxy when it ends here, whatever the "expire" of the table is.
	b = append(b, classTable, tableTimed)
	b = appendVarint(b, uint64(8+varintLen(uint64(len(key)))+len(key)+len(values)))
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(milliseconds(left)))
	b = appendVarint(b, uint64(len(key)))
	b = append(b, key...)
	return append(b, values...)
}

func varintLen(v uint64) int {
	var b [maxVarint]byte
	return spoevarint.PutUvarint(b[:], v)
}

// parseUpdate reads an update of any of the four kinds. last is the id of the
// update before it. The update's Session and Table are the caller's to set.
func (d *definition) parseUpdate(kind byte, body []byte, last uint32) (id uint32, u Update, err error) {
	r := decoder{rest: body}
	// What the short kinds leave out follows from the update before and from the table.
	id, u.Expire = last+1, d.expire
	if kind == tableUpdate || kind == tableTimed {
		id = r.takeUint32()
	}
	if kind == tableTimed || kind == tableTimedIncremental {
		u.Expire = durationOf(uint64(r.takeUint32()))
	}
	u.Key = d.readKey(&r)
	// Until the first type that is not known: how long its value is cannot be told, nor where the next one
	// begins.
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
		// The length is that of the definition, which HAProxy may have wrong for the type.
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
		// A rate is three numbers, and this side needs none of them.
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
	// It ends with the message, even if the definition promised 2⁶⁴ elements.
	for ; n > 0 && r.err == nil; n-- {
		r.takeVarint()
	}
}
