// Package runtimeapi reads and withdraws entries of HAProxy's stick tables through its
// runtime API, which HAProxy serves on a unix socket ("stats socket"; level operator is
// enough).
//
// It is for what the peers protocol cannot do: to change one value of an entry and be
// certain that HAProxy has taken it, and to read a table that is in no peers section.
//
// Each command line has a connection of its own. A connection that is kept would stay
// with the process it was made to after a reload; a new one always reaches the process
// that listens now. It costs HAProxy about as much as one more command. Every answer
// tells which process gave it.
//
// Users choose the names that become keys, and the runtime API reads commands: whatever
// is not a letter, a digit or one of a few harmless characters is escaped, and what
// cannot be escaped is an error. The formats are those of HAProxy 2.6 to 3.2, as seen.
package runtimeapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// creditTable is the table that Withdraw is about.
	creditTable = "sluice_credit"
	// processVariable tells one HAProxy process from the one that a reload puts beside it.
	processVariable = "proc.sluice_process"
	// askProcess begins each line and ends it: an answer without the last part is not
	// whole. (Not all answers end with an empty line: 2.6 leaves it out behind a variable.)
	askProcess = "get var " + processVariable

	// maxLine bounds a line of commands. HAProxy takes one that fits into its buffer
	// (tune.bufsize, 16384 bytes if nobody set it) less some room of its own.
	maxLine = 8000
	// maxCalls bounds the commands under way, and a dump comes on top: HAProxy serves ten
	// connections of its runtime API at a time (stats maxconn), of which people need some.
	maxCalls = 4
	// answerTimeout is how long HAProxy may say nothing before it counts as hanging, also if the
	// caller's context has more time.
	answerTimeout = 5 * time.Second
	// attempts bounds how often a line is sent. A process that stops listening at a reload
	// drops the connections it has not accepted yet.
	attempts = 3
	// inUseEntriesPerSecond bounds the entries a second that InUse reads.
	inUseEntriesPerSecond = 50_000
	// maxAnswerLine bounds a line of an answer: an entry of 100 gpt, 100 gpc and a long key
	// has about 6000 bytes.
	maxAnswerLine = 16 << 10
)

// Client calls one HAProxy. It is safe for concurrent use, and needs no closing.
type Client struct {
	path  string
	calls chan struct{} // holds a token for each command under way
	dumps chan struct{} // the same for dumps, which take long
}

// New returns a client of the runtime API at the path of a unix socket. It does not
// connect: HAProxy may start later.
func New(path string) *Client {
	return &Client{path: path, calls: make(chan struct{}, maxCalls), dumps: make(chan struct{}, 1)}
}

// Withdraw takes the credit of users: it sets element 0 of gpt to 0, and server_id to the second,
// in the table sluice_credit, and returns each entry as it was read after that, in the order of
// the keys. A user without entry gets an empty one. When an answer is there, HAProxy has
// applied it: see haproxy.cfg for why a request that is just being decided is counted, and
// credit that is on its way in an agent's answer of that second, or before it, is not taken.
//
// With an error the entries are those, from the first key on, that are known to be
// withdrawn. The others may be: to repeat a withdrawal does no harm.
func (c *Client) Withdraw(ctx context.Context, second uint32, keys []string) ([]Entry, error) {
	return c.entries(ctx, creditTable, keys, max(1, second))
}

// Read returns the entries of a table that have the keys, in their order. One that does
// not exist has Found false.
func (c *Client) Read(ctx context.Context, table string, keys []string) ([]Entry, error) {
	return c.entries(ctx, table, keys, 0)
}

// entries reads the entries of a table, and before that takes the credit, if withdrawn is not 0.
func (c *Client) entries(ctx context.Context, table string, keys []string, withdrawn uint32) ([]Entry, error) {
	if !validWord(table) {
		return nil, fmt.Errorf("haproxy's table %q: not a name", table)
	}
	for _, key := range keys {
		if err := expressible(key); err != nil {
			return nil, err
		}
	}
	entries := make([]Entry, 0, len(keys))
	line := make([]byte, 0, maxLine+len(askProcess))
	for len(keys) > 0 {
		line = append(line[:0], askProcess...)
		n := 0
		for ; n < len(keys); n++ {
			before := len(line)
			line = appendCommands(line, table, keys[n], withdrawn)
			if n > 0 && len(line) >= maxLine {
				line = line[:before]
				break
			}
		}
		a := answer{question: question{table: table, keys: keys[:n], withdraw: withdrawn > 0}}
		if err := c.sendLine(ctx, c.calls, append(append(line, ';'), askProcess...), &a); err != nil {
			return entries, err
		}
		entries = append(entries, a.entries...)
		keys = keys[n:]
	}
	return entries, nil
}

// appendCommands appends the commands about one key, each with a semicolon in front.
func appendCommands(line []byte, table, key string, withdrawn uint32) []byte {
	if withdrawn > 0 {
		// In a table with an array of gpt, data.gpt is element 0, and the only one that the
		// runtime API can set.
		line = append(append(line, ";set table "...), table...)
		// server_id, which HAProxy has no other use for there, says when it was withdrawn: without
		// it HAProxy could take the entry for one that is just being made by a request, and write
		// credit into it that was given before.
		line = append(appendKey(append(line, " key "...), key), " data.gpt 0 data.server_id "...)
		line = strconv.AppendUint(line, uint64(withdrawn), 10)
	}
	line = append(append(line, ";show table "...), table...)
	return appendKey(append(line, " key "...), key)
}

// Dump calls each with every entry of a table, as HAProxy sends them: in no order, and
// not of one moment. The entry's slices are valid until each returns. One dump runs at a
// time.
//
// rate is how many entries a second are read at most. HAProxy does nothing else while it
// prints as many as its buffers hold, and without a pause it does so again and again:
// with one thread, requests then wait for tens of milliseconds until all is printed.
func (c *Client) Dump(ctx context.Context, table string, rate int, each func(Entry)) error {
	if !validWord(table) {
		return fmt.Errorf("haproxy's table %q: not a name", table)
	}
	if rate <= 0 {
		return fmt.Errorf("%d entries a second: want more", rate)
	}
	a := answer{question: question{table: table, each: each, rate: rate}}
	return c.sendLine(ctx, c.dumps, []byte(askProcess+";show table "+table+";"+askProcess), &a)
}

// InUse calls each with every entry of a table that has requests or connections in progress, and
// returns which process has them. HAProxy looks at all entries at once, which takes it some 50 ns
// each, and prints these.
func (c *Client) InUse(ctx context.Context, table string, each func(Entry)) (process uint64, err error) {
	if !validWord(table) {
		return 0, fmt.Errorf("haproxy's table %q: not a name", table)
	}
	a := answer{question: question{table: table, each: each, rate: inUseEntriesPerSecond}}
	err = c.sendLine(ctx, c.calls, []byte(askProcess+";show table "+table+" data.conn_cur gt 0;"+askProcess), &a)
	return a.process, err
}

// A Row is an entry of a table of which only element 0 of gpt counts.
type Row struct {
	Key   string
	Value uint32
}

// Set writes rows into a table, in their order, and returns which process has them. With an
// error it may have written some.
func (c *Client) Set(ctx context.Context, table string, rows []Row) (process uint64, err error) {
	if !validWord(table) {
		return 0, fmt.Errorf("haproxy's table %q: not a name", table)
	}
	for _, row := range rows {
		if err := expressible(row.Key); err != nil {
			return 0, err
		}
	}
	line := make([]byte, 0, maxLine+len(askProcess))
	for len(rows) > 0 {
		line = append(line[:0], askProcess...)
		n := 0
		for ; n < len(rows); n++ {
			before := len(line)
			line = append(append(line, ";set table "...), table...)
			line = append(appendKey(append(line, " key "...), rows[n].Key), " data.gpt "...)
			line = strconv.AppendUint(line, uint64(rows[n].Value), 10)
			if n > 0 && len(line) >= maxLine {
				line = line[:before]
				break
			}
		}
		a := answer{question: question{table: table}}
		if err := c.sendLine(ctx, c.calls, append(append(line, ';'), askProcess...), &a); err != nil {
			return 0, err
		}
		if process != 0 && process != a.process {
			return 0, fmt.Errorf("haproxy's %s changed from %d to %d", processVariable, process, a.process)
		}
		process = a.process
		rows = rows[n:]
	}
	return process, nil
}

// Clear forgets all entries of a table, and returns which process has it.
func (c *Client) Clear(ctx context.Context, table string) (process uint64, err error) {
	if !validWord(table) {
		return 0, fmt.Errorf("haproxy's table %q: not a name", table)
	}
	a := answer{question: question{table: table}}
	err = c.sendLine(ctx, c.calls, []byte(askProcess+";clear table "+table+";"+askProcess), &a)
	return a.process, err
}

// Variable returns what a variable of the process holds, such as proc.sluice_process,
// and which process it is. "" means that there is no such variable.
func (c *Client) Variable(ctx context.Context, name string) (value string, process uint64, err error) {
	if !validWord(name) {
		return "", 0, fmt.Errorf("haproxy's variable %q: not a name", name)
	}
	a := answer{question: question{variable: name}}
	err = c.sendLine(ctx, c.calls, []byte(askProcess+";get var "+name+";"+askProcess), &a)
	return a.value, a.process, err
}

// sendLine sends a line of commands and reads the whole answer.
func (c *Client) sendLine(ctx context.Context, tokens chan struct{}, line []byte, a *answer) error {
	select {
	case tokens <- struct{}{}:
		defer func() { <-tokens }()
	case <-ctx.Done():
		return fmt.Errorf("haproxy's runtime API: %d calls are under way: %w", cap(tokens), ctx.Err())
	}
	for attempt := 1; ; attempt++ {
		heard, err := c.sendLineOnce(ctx, line, a)
		if err == nil {
			return nil
		}
		// All commands may be repeated, but what a caller was given of an answer may not.
		if heard || attempt == attempts || ctx.Err() != nil || !dropped(err) {
			return c.explain(ctx, err)
		}
	}
}

// dropped reports whether the other side closed the connection without a word.
func dropped(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// sendLineOnce reports whether any of the answer was read.
func (c *Client) sendLineOnce(ctx context.Context, line []byte, a *answer) (heard bool, err error) {
	dialer := net.Dialer{Timeout: answerTimeout}
	conn, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	// Closing is what ends a write or read that the deadlines below would let go on.
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return false, err
	}
	r := bufio.NewReaderSize(deadlineReader{conn}, maxAnswerLine)
	for {
		text, err := r.ReadSlice('\n')
		switch {
		case err == nil:
			heard = true
			if err := a.takeLine(text[:len(text)-1]); err != nil {
				return true, err
			}
			if err := a.keepRate(ctx); err != nil {
				return true, err
			}
		case errors.Is(err, io.EOF) && len(text) == 0:
			return heard, a.checkWhole()
		case errors.Is(err, io.EOF):
			return true, fmt.Errorf("%w, in a line", io.ErrUnexpectedEOF)
		default:
			return heard, err
		}
	}
}

// deadlineReader reads from a connection that may be silent for so long at a time.
type deadlineReader struct{ conn net.Conn }

func (r deadlineReader) Read(p []byte) (int, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	return r.conn.Read(p)
}

// explain says what to do about an error.
func (c *Client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		// The connection was closed because of it, which is all that err tells.
		err = ctx.Err()
	}
	advice := ""
	var refused refusedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = ": HAProxy is not running, or has its runtime socket elsewhere (SLUICE_RUNTIME)"
	case errors.Is(err, syscall.ECONNREFUSED):
		advice = ": the socket is there but nobody listens: HAProxy has ended, or has its runtime socket elsewhere (SLUICE_RUNTIME)"
	case errors.Is(err, fs.ErrPermission):
		advice = ": the agent's user must be in the socket's group, or the socket's mode must let them in (SLUICE_RUNTIME_MODE)"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		advice = ": HAProxy did not answer in time"
	case errors.As(err, &refused):
		advice = refused.advice()
	}
	return fmt.Errorf("haproxy's runtime API at %s: %w%s", c.path, err, advice)
}

// refusedError is what HAProxy said instead of an answer.
type refusedError string

func (e refusedError) Error() string { return fmt.Sprintf("haproxy said %q", string(e)) }

func (e refusedError) advice() string {
	switch e {
	case "Permission denied":
		return `: its "stats socket" needs "level operator"`
	case "No such table", "Data type not stored in this table":
		return ": its configuration is an older one, or does without credit"
	}
	return ""
}

// A question is what is asked in one line: about keys of a table, about all of its entries, or
// about a variable.
type question struct {
	table    string
	keys     []string    // asked for, or
	each     func(Entry) // gets all, or
	variable string      // asked for
	withdraw bool
	rate     int // of entries a second that each gets at most
}

// A phase is how far an answer was read. They follow one another in takeLine alone.
type phase int

const (
	phaseProcess  phase = iota // the first askProcess is not answered yet
	phaseVariable              // the variable comes next
	phaseEntries               // entries come, and then the answer to the last askProcess
	phaseWhole                 // nothing may follow
)

// answer takes HAProxy's answer to one line, line by line: to askProcess, to the
// question, and to askProcess.
type answer struct {
	question
	phase phase

	process uint64
	value   string  // of the variable
	entries []Entry // of keys, once the answer is whole

	scratch Entry // of each
	told    int   // entries that each got
	began   time.Time
}

// unallocated is what "set table" says when the table is full and all entries are in
// use. The key has no entry then, and so no credit.
const unallocated = "Unable to allocate a new entry"

func (a *answer) takeLine(line []byte) error {
	switch {
	case len(line) == 0:
		return nil // behind every command, or nearly so
	case a.phase == phaseWhole:
		return refusedError(truncated(line))
	case a.phase == phaseProcess:
		a.phase = phaseEntries
		if a.variable != "" {
			a.phase = phaseVariable
		}
		process, err := processOf(line)
		a.process = process
		return err
	case a.phase == phaseVariable:
		a.phase = phaseEntries
		value, _, err := variableOf(line, a.variable)
		a.value = string(value)
		return err
	case bytes.HasPrefix(line, []byte("0x")):
		return a.takeEntry(line)
	case bytes.HasPrefix(line, []byte("# table: ")): // before each entry; an entry that is not there has none
		return nil
	case a.withdraw && string(line) == unallocated:
		return nil
	}
	process, err := processOf(line)
	if err != nil {
		return err
	}
	if process != a.process {
		return fmt.Errorf("haproxy's %s changed from %d to %d", processVariable, a.process, process)
	}
	a.phase = phaseWhole
	a.fillMissing(len(a.keys))
	return nil
}

func (a *answer) takeEntry(line []byte) error {
	if err := parseEntry(line, &a.scratch); err != nil {
		return err
	}
	a.scratch.Process = a.process
	if a.each != nil {
		if a.told == 0 {
			a.began = time.Now()
		}
		a.told++
		a.each(a.scratch)
		return nil
	}
	// The answers come in the order of the questions, and nothing at all where there is no
	// entry.
	next := len(a.entries)
	for ; next < len(a.keys); next++ {
		if a.keys[next] == a.scratch.Key {
			a.fillMissing(next)
			a.entries = append(a.entries, a.scratch)
			a.scratch = Entry{} // its slices are the caller's now
			return nil
		}
	}
	return fmt.Errorf("haproxy tells of the key %q, which it was not asked about here: is the len of its table %s too small?", a.scratch.Key, a.table)
}

// keepRate waits if each got its entries faster than it may.
func (a *answer) keepRate(ctx context.Context) error {
	const together = 50 // entries, after which to look
	if a.each == nil || a.told%together != 0 {
		return nil
	}
	due := a.began.Add(time.Duration(a.told) * time.Second / time.Duration(a.rate))
	wait := time.Until(due)
	if wait <= 0 {
		return nil
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fillMissing notes that the keys up to number n, of which nothing was said, have no entry.
func (a *answer) fillMissing(n int) {
	for len(a.entries) < n {
		a.entries = append(a.entries, Entry{Process: a.process, Key: a.keys[len(a.entries)]})
	}
}

// checkWhole is called when HAProxy has closed the connection.
func (a *answer) checkWhole() error {
	if a.phase != phaseWhole {
		return fmt.Errorf("%w: haproxy closed the connection before its answer was whole", io.ErrUnexpectedEOF)
	}
	return nil
}
