package runtimeapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"
)

// A question is what is asked in one line: about keys of a table, about all of its entries, or
// about a variable.
type question struct {
	lookups  []lookup    // asked for, or
	table    string      // of which
	each     func(Entry) // gets all, or
	variable string      // asked for
	withdraw bool
	rate     int // of entries a second that each gets at most
}

// A lookup is an entry that is asked for.
type lookup struct{ table, key string }

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
	shown   string  // the table of the next entry
	entries []Entry // of the lookups, once the answer is whole

	scratch Entry // of each
	told    int   // entries that each got
	began   time.Time
}

// unallocated is what "set table" says when the table is full and all entries are in
// use. The key has no entry then, and so no credit.
const unallocated = "Unable to allocate a new entry"

var tableHeader = []byte("# table: ")

func (a *answer) takeLine(line []byte) error {
	switch {
	case len(line) == 0:
		return nil // behind every command, or nearly so
	case a.phase == phaseWhole:
		// The last command was answered. What follows is an error about a command that was none of ours.
		return refusedError(truncated(line))
	case a.phase == phaseProcess:
		// Before anything else, so that each entry can be told with its process.
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
	case bytes.HasPrefix(line, tableHeader): // before each entry; an entry that is not there has none
		name, _, _ := bytes.Cut(line[len(tableHeader):], []byte{','})
		a.shown = string(name)
		return nil
	case a.withdraw && string(line) == unallocated:
		return nil
	}
	// Whatever else HAProxy says is the answer to the last askProcess, or it refuses a command.
	process, err := processOf(line)
	if err != nil {
		return err
	}
	// One connection is served by one process: this would be an answer to somebody else's line.
	if process != a.process {
		return fmt.Errorf("haproxy's %s changed from %d to %d", processVariable, a.process, process)
	}
	a.phase = phaseWhole
	a.fillMissing(len(a.lookups))
	return nil
}

func (a *answer) takeEntry(line []byte) error {
	if err := parseEntry(line, &a.scratch); err != nil {
		return err
	}
	a.scratch.Process = a.process
	if a.each != nil {
		if a.told == 0 {
			// The rate counts from the first entry: HAProxy may let a dump wait for its turn.
			a.began = time.Now()
		}
		a.told++
		a.each(a.scratch)
		return nil
	}
	// The answers come in the order of the questions, and nothing at all where there is no
	// entry.
	// So the keys that are passed over have none, and one that comes out of turn is none of these.
	next := len(a.entries)
	for ; next < len(a.lookups); next++ {
		if a.lookups[next] == (lookup{a.shown, a.scratch.Key}) {
			a.fillMissing(next)
			a.entries = append(a.entries, a.scratch)
			a.scratch = Entry{} // its slices are the caller's now
			return nil
		}
	}
	// A table whose keys are shorter cuts them. To take the entry for that of the whole key would give
	// credit back that another user has spent.
	return fmt.Errorf("haproxy tells of the key %q, which it was not asked about here: is the len of its table %s too small?", a.scratch.Key, a.shown)
}

func (a *answer) keepRate(ctx context.Context) error {
	// A timer for each entry would cost more than to read it, and a thousand a second need no finer steps.
	const together = 50 // entries, after which to look
	if a.each == nil || a.told%together != 0 {
		return nil
	}
	// What is not read fills the socket, and HAProxy stops printing until there is room.
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

// fillMissing notes that the lookups up to number n, of which nothing was said, have no entry.
func (a *answer) fillMissing(n int) {
	for len(a.entries) < n {
		a.entries = append(a.entries, Entry{Process: a.process, Key: a.lookups[len(a.entries)].key})
	}
}

func (a *answer) checkWhole() error {
	if a.phase != phaseWhole {
		return fmt.Errorf("%w: haproxy closed the connection before its answer was whole", io.ErrUnexpectedEOF)
	}
	return nil
}

// variableOf reads an answer of "get var", such as
//
//	proc.sluice_process: type=sint value=<1795329825725885>
func variableOf(line []byte, name string) (value []byte, found bool, err error) {
	// HAProxy before this configuration, or without the variable, says so: that is no error.
	if string(line) == "Variable not found." {
		return nil, false, nil
	}
	after, ok := bytes.CutPrefix(line, []byte(name+": type="))
	if ok {
		_, value, ok = bytes.Cut(after, []byte(" value=<"))
	}
	if ok {
		value, ok = bytes.CutSuffix(value, []byte{'>'})
	}
	if !ok {
		return nil, false, refusedError(truncated(line))
	}
	return value, true, nil
}

// processOf reads an answer about processVariable; 0 is one that is not set.
func processOf(line []byte) (uint64, error) {
	value, found, err := variableOf(line, processVariable)
	if err != nil || !found {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

func truncated(line []byte) []byte { return line[:min(len(line), 200)] }
