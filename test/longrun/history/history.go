// Package history is the record of a long run: requests as clients and the origin saw them, faults, limits and samples of
// processes. A file has one JSON object a line, in no order. All times are of one clock, because one process is the clients
// and the origin.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Run is what a run was asked for.
type Run struct {
	Kind      string // chaos, soak or overload
	Seed      uint64
	Store     string // single, sentinel or cluster
	Instances int    // HAProxies with their agents
	Begin     time.Time
	Settle    time.Duration      `json:",omitempty"` // after Begin, before samples count; 0: growth is not judged
	Memory    map[string]float64 `json:",omitempty"` // MiB that one process may have, by its kind
}

// Request is a finished request of a client.
type Request struct {
	User, Kind, Method, Path string
	Instance                 int    // the HAProxy, from 0
	ID                       string // unique; the origin receives it in a header
	Sent, Done               time.Time
	Status                   int           // 0: no answer
	GivenUp                  bool          `json:",omitempty"` // the client ended the request early, as planned
	Error                    string        `json:",omitempty"` // why there was no answer, or only a part
	Reason                   string        `json:",omitempty"` // the header Sluice-Reason
	Up, Down                 int64         // bytes of bodies that the client sent and received
	Estimate                 int64         `json:",omitempty"` // cost that the request announced
	Within                   time.Duration `json:",omitempty"` // in which the answer must come; 0 is any time
}

// Arrival is a finished request at the origin: HAProxy admitted it.
type Arrival struct {
	ID, User  string
	Method    string
	At, Ended time.Time
	Up, Down  int64 // bytes of bodies that the origin received and sent
	Cost      int64 `json:",omitempty"` // cost that the answer reported; 0: none, or the answer was cut before
}

// Crowd counts requests of a user that arrived at the origin within one second of a flood, and were sent in another one.
type Crowd struct {
	User, Method string
	Sent, At     int64 // seconds since 1970
	Requests     int
}

// Transfer is the part of a long transfer that its receiver got in the 100 ms before At. (The sender's bytes lie in buffers
// for seconds.)
type Transfer struct {
	User, ID string
	At       time.Time
	Down, Up int64
}

// Fault is a fault from Begin to End. Target is a part, such as "agent-0", "redis-3" or "limits", or a link between two parts,
// such as "agent-0→redis". Instances are numbered as in Request.
type Fault struct {
	Name, Target, Parameter string
	Begin, End              time.Time
	Error                   string `json:",omitempty"` // why the fault did not begin or end as planned
}

// Limit is a user's limits from a time on, of one class. 0 and nil are no limit. Records of a user with a later time replace all
// earlier ones. Limits that are not of a class are the same in all of a user's records of a time.
type Limit struct {
	User       string         // "": each user without records of their own
	Class      string         // of Requests: a method, or "*"
	Requests   map[string]int // by "second", "minute" and "hour"
	Burst      int            // next to "second": unused requests of earlier seconds that one second may have besides
	Concurrent int            // requests in progress
	Wait       time.Duration  // for a slot
	Down, Up   int64          // bytes a second
	Costs      map[string]int `json:",omitempty"` // of all requests, by "second" and "minute"
	Debt       bool           `json:",omitempty"` // requests may cost more than announced: a window may have twice the limit, and the next ones pay
	From       time.Time
}

// Quiet is a time with load and without faults: everything must be exact before its end.
type Quiet struct {
	Begin, End time.Time
}

// Leak is something that is still held after a quiet time, while nothing runs.
type Leak struct {
	At     time.Time
	Place  string // "agent", "redis" or "haproxy"
	Holder string // name of the agent or HAProxy, or the key in Redis
	User   string `json:",omitempty"`
	What   string // "slots", "requests in progress", …
	Count  int64  // negative: the holder did not answer
}

// Sample is a measurement of a part.
type Sample struct {
	At     time.Time
	Part   string             // "agent-0", "redis", "clients"
	Values map[string]float64 // by quantity
}

// Problem is something wrong that needs no judge, such as a process that ended by itself.
type Problem struct {
	At   time.Time
	What string
}

// History is all records of a file.
type History struct {
	Run       Run
	Requests  []Request
	Arrivals  []Arrival
	Crowds    []Crowd
	Transfers []Transfer
	Faults    []Fault
	Limits    []Limit
	Quiets    []Quiet
	Leaks     []Leak
	Samples   []Sample
	Problems  []Problem
}

// line is one line of a file: one field is set.
type line struct {
	Run      *Run      `json:"run,omitempty"`
	Request  *Request  `json:"request,omitempty"`
	Arrival  *Arrival  `json:"arrival,omitempty"`
	Crowd    *Crowd    `json:"crowd,omitempty"`
	Transfer *Transfer `json:"transfer,omitempty"`
	Fault    *Fault    `json:"fault,omitempty"`
	Limit    *Limit    `json:"limit,omitempty"`
	Quiet    *Quiet    `json:"quiet,omitempty"`
	Leak     *Leak     `json:"leak,omitempty"`
	Sample   *Sample   `json:"sample,omitempty"`
	Problem  *Problem  `json:"problem,omitempty"`
}

// MaxRecords bounds a file: about an hour at 1000 requests a second.
const MaxRecords = 10_000_000

// maxLine bounds a line; names and errors of a run are short.
const maxLine = 64 << 10

// ErrFull means that a file has MaxRecords records.
var ErrFull = errors.New("the history is full")

// Writer writes records. Several goroutines may use it. After an error it writes nothing more.
type Writer struct {
	mu      sync.Mutex
	out     *bufio.Writer
	records int
	err     error
}

// NewWriter returns a writer of a file that the caller closes after Close.
func NewWriter(w io.Writer) *Writer { return &Writer{out: bufio.NewWriterSize(w, 1<<20)} }

// Write writes a record: a value of one of the types of History's fields.
func (w *Writer) Write(record any) {
	var l line
	switch r := record.(type) {
	case Run:
		l.Run = &r
	case Request:
		l.Request = &r
	case Arrival:
		l.Arrival = &r
	case Crowd:
		l.Crowd = &r
	case Transfer:
		l.Transfer = &r
	case Fault:
		l.Fault = &r
	case Limit:
		l.Limit = &r
	case Quiet:
		l.Quiet = &r
	case Leak:
		l.Leak = &r
	case Sample:
		l.Sample = &r
	case Problem:
		l.Problem = &r
	default:
		panic(fmt.Sprintf("history: %T is no record", record))
	}
	text, err := json.Marshal(l)
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
		_, w.err = w.out.Write(append(text, '\n'))
	}
}

// Close writes what is still in memory, and returns the first error.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.out.Flush())
}

// Read reads a whole file. It skips records of unknown types. A last line that was cut, as of a killed run, is an error.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if n > MaxRecords {
			return nil, ErrFull
		}
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if l.Run != nil {
			h.Run = *l.Run
		}
		add(&h.Requests, l.Request)
		add(&h.Arrivals, l.Arrival)
		add(&h.Crowds, l.Crowd)
		add(&h.Transfers, l.Transfer)
		add(&h.Faults, l.Fault)
		add(&h.Limits, l.Limit)
		add(&h.Quiets, l.Quiet)
		add(&h.Leaks, l.Leak)
		add(&h.Samples, l.Sample)
		add(&h.Problems, l.Problem)
	}
	return h, lines.Err()
}

func add[R any](to *[]R, record *R) {
	if record != nil {
		*to = append(*to, *record)
	}
}
