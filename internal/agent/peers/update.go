package peers

import (
	"encoding/binary"
	"strings"
	"time"

	spoevarint "github.com/negasus/haproxy-spoe-go/varint"
)

// An Update is one entry of a stick table as HAProxy pushed it.
type Update struct {
	Session uint64        // the session it came in, as in [Session]
	Table   string        // the table's name on the wire, such as "/active"
	Key     string        // as it is, without the zeros behind a binary one
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
	if d.keyType == keyBinary {
		u.Key = strings.TrimRight(string(r.takeBytes(d.keyLen)), "\x00")
	} else {
		u.Key = string(r.takeBytes(r.takeVarint()))
	}
	for t := range d.eachType {
		// Of a rate or an array the length is not known here, and so not where the next value begins. No
		// table that the agent reads has one.
		if plainNumbers>>t&1 == 0 {
			break
		}
		u.Values[t] = r.takeVarint()
	}
	if r.err != nil {
		return 0, Update{}, protocolErrorf("update of table %q: %v", d.name, r.err)
	}
	return id, u, nil
}
