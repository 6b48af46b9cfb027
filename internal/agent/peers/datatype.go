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
)

const plainNumbers = 1<<ServerID | 1<<GPT0 | 1<<GPC0 | 1<<ConnCnt | 1<<ConnCur | 1<<SessCnt | 1<<HTTPReqCnt | 1<<HTTPErrCnt |
	1<<BytesInCnt | 1<<BytesOutCnt | 1<<GPC1 | 1<<HTTPFailCnt

// Values are an entry's numbers by data type: Values{GPT0: 1}. Types that the
// table does not store are 0.
type Values [HTTPFailCnt + 1]uint64
