package peers

// DataType is what a stick table stores, by its number on the wire, which is
// its bit in a table's definition.
type DataType int

// The data types that are one plain number. Their names are HAProxy's.
const (
	ServerID    DataType = 0
	GPT0        DataType = 1 // 32 bits
	GPC0        DataType = 2 // 32 bits
	ConnCnt     DataType = 4
	ConnCur     DataType = 6
	SessCnt     DataType = 7
	HTTPReqCnt  DataType = 9
	HTTPErrCnt  DataType = 11
	BytesInCnt  DataType = 13 // 64 bits
	BytesOutCnt DataType = 15 // 64 bits
	GPC1        DataType = 17
	HTTPFailCnt DataType = 20
	GlitchCnt   DataType = 25 // from HAProxy 3.0
)

// serverKey is a word of a dictionary; array types follow it.
const (
	serverKey    DataType = 19
	gptArray     DataType = 22
	gpcArray     DataType = 23
	gpcRateArray DataType = 24
)

// dataTypes is the number of types known here. HAProxy may define others, all
// of which come after these.
const dataTypes = 27

// Values are an entry's numbers by data type: Values{GPT0: 1}. Types that the
// table does not store are 0, and so are rates, arrays and server names.
type Values [dataTypes]uint64

// shape is how a data type's value looks on the wire.
type shape int

const (
	unknown   shape = iota
	number          // one varint
	rate            // three varints: the period's age, its count, the last period's count
	word            // a length and as many bytes
	numbers         // as many varints as the table's definition says
	rateArray       // as many rates as the table's definition says
)

func (t DataType) wireShape() shape {
	switch t {
	case ServerID, GPT0, GPC0, ConnCnt, ConnCur, SessCnt, HTTPReqCnt, HTTPErrCnt,
		BytesInCnt, BytesOutCnt, GPC1, HTTPFailCnt, GlitchCnt:
		return number
	case 3, 5, 8, 10, 12, 14, 16, 18, 21, 26:
		return rate
	case serverKey:
		return word
	case gptArray, gpcArray:
		return numbers
	case gpcRateArray:
		return rateArray
	}
	return unknown
}
