package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Record is one of the types of this package's records.
type Record interface {
	Run | Request | Arrival | Transfer | Fault | Limit | Quiet | Leak
}

// MaxRecords bounds a file: about an hour at 1000 requests a second.
const MaxRecords = 10_000_000

// maxLine bounds a line; names and errors of a run are short.
const maxLine = 64 << 10

// ErrFull is that a file has MaxRecords records already.
var ErrFull = errors.New("the history is full")

// Writer writes records. It may be used by several goroutines. After an error it writes nothing more.
type Writer struct {
	mu      sync.Mutex
	out     *bufio.Writer
	records int
	err     error
}

// NewWriter returns a writer of a file that the caller closes after Close.
func NewWriter(w io.Writer) *Writer { return &Writer{out: bufio.NewWriterSize(w, 1<<20)} }

// Write writes a record.
func Write[R Record](w *Writer, r R) {
	line, err := json.Marshal(struct {
		Type   string `json:"type"`
		Record R      `json:"record"`
	}{kindOf(r), r})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return
	case err != nil:
		w.err = err
	case w.records >= MaxRecords:
		w.err = ErrFull
	default:
		w.records++
		_, w.err = w.out.Write(append(line, '\n'))
	}
}

// Close writes what is still in memory, and returns the first error there was.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.out.Flush())
}

func kindOf[R Record](r R) string {
	switch any(r).(type) {
	case Run:
		return "run"
	case Request:
		return "request"
	case Arrival:
		return "arrival"
	case Transfer:
		return "transfer"
	case Fault:
		return "fault"
	case Limit:
		return "limit"
	case Quiet:
		return "quiet"
	default:
		return "leak"
	}
}

// History is all that a file says.
type History struct {
	Run       Run
	Requests  []Request
	Arrivals  []Arrival
	Transfers []Transfer
	Faults    []Fault
	Limits    []Limit
	Quiets    []Quiet
	Leaks     []Leak
}

// Read reads a whole file. Records of types that it does not know are passed over. A last line that was cut, as when the
// run was killed, is an error.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if n > MaxRecords {
			return nil, ErrFull
		}
		if err := h.add(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return h, lines.Err()
}

func (h *History) add(text []byte) error {
	var line struct {
		Type   string          `json:"type"`
		Record json.RawMessage `json:"record"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	switch line.Type {
	case "run":
		return json.Unmarshal(line.Record, &h.Run)
	case "request":
		return appendTo(&h.Requests, line.Record)
	case "arrival":
		return appendTo(&h.Arrivals, line.Record)
	case "transfer":
		return appendTo(&h.Transfers, line.Record)
	case "fault":
		return appendTo(&h.Faults, line.Record)
	case "limit":
		return appendTo(&h.Limits, line.Record)
	case "quiet":
		return appendTo(&h.Quiets, line.Record)
	case "leak":
		return appendTo(&h.Leaks, line.Record)
	}
	return nil
}

func appendTo[R Record](to *[]R, text []byte) error {
	var r R
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	*to = append(*to, r)
	return nil
}
