package runtimeapi

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Entry is one of a stick table. What the table does not store is 0, or nil.
type Entry struct {
	Process uint64 // which HAProxy process has it: proc.sluice_process, 0 if that is not set
	Found   bool   // false: the table has no entry of the key
	Key     string
	Expires time.Duration // until HAProxy forgets it, if nobody uses it

	ConnCur    int      // requests or connections in progress
	HTTPReqCnt uint32   // requests ever tracked
	BytesIn    int64    // bytes that clients ever sent in them
	BytesOut   int64    // bytes that clients ever received
	GPT, GPC   []uint32 // tags and counters; a table without arrays has at most gpt0, gpc0 and gpc1
}

const (
	// maxArray is how many elements HAProxy lets gpt and gpc have.
	maxArray = 100
	// maxKey is far above the length of any key that Sluice uses.
	maxKey = 1000
)

// parseEntry reads a line of "show table", such as
//
//	0x7f6373071330: key=a\ b use=0 exp=600000 shard=0 conn_cur=0 gpt0=5 gpt1=0 gpc0=0
//
// into e, whose slices it uses again. What it does not know it leaves out.
func parseEntry(line []byte, e *Entry) error {
	// A dump has hundreds of thousands of lines: the arrays of the one before are used again.
	*e = Entry{Found: true, GPT: e.GPT[:0], GPC: e.GPC[:0]}
	_, rest, ok := bytes.Cut(line, []byte(": key="))
	if !ok {
		return fmt.Errorf("entry %q: no key", line)
	}
	var err error
	e.Key, rest, err = parseKey(rest)
	if err != nil {
		return fmt.Errorf("entry %q: %w", line, err)
	}
	for len(rest) > 0 {
		if left, ok := e.nextElement(rest); ok {
			rest = left
			continue
		}
		var field []byte
		field, rest, _ = bytes.Cut(rest, []byte{' '})
		name, value, ok := bytes.Cut(field, []byte{'='})
		if !ok {
			// A part of something unknown, such as server_key, whose value may have blanks.
			continue
		}
		if err := e.setField(name, value); err != nil {
			return fmt.Errorf("entry %q: %s: %w", line, name, err)
		}
	}
	return nil
}

// parseKey reads an escaped key up to the first blank that is not part of it.
func parseKey(text []byte) (key string, rest []byte, err error) {
	end := bytes.IndexAny(text, ` \`)
	if end < 0 {
		return string(text), nil, nil
	}
	if text[end] == ' ' { // as nearly always: nothing is escaped
		return string(text[:end]), text[end+1:], nil
	}
	raw := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ' ':
			return string(raw), text[i+1:], nil
		case c != '\\':
			raw = append(raw, c)
		case i+1 == len(text):
			return "", nil, errors.New("the key ends with a backslash")
		case text[i+1] == 'x':
			// Bytes that are not printable, of which names in UTF-8 are made.
			if i+4 > len(text) {
				return "", nil, errors.New("the key ends within an escaped byte")
			}
			b, err := strconv.ParseUint(string(text[i+2:i+4]), 16, 8)
			if err != nil {
				return "", nil, err
			}
			raw = append(raw, byte(b))
			i += 3
		default:
			i++
			raw = append(raw, unescaped(text[i]))
		}
	}
	return string(raw), nil, nil
}

// unescaped is what HAProxy means by a letter behind a backslash; anything else means
// itself.
func unescaped(c byte) byte {
	switch c {
	case 't':
		return '\t'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 'e':
		return 0x1b
	}
	return c
}

// setField takes a field that is known, and leaves out any other.
func (e *Entry) setField(name, value []byte) error {
	// The widths are HAProxy's: what does not fit is no number of its own, and is not to be cut.
	switch string(name) {
	case "exp":
		n, err := strconv.ParseUint(string(value), 10, 32)
		e.Expires = time.Duration(n) * time.Millisecond
		return err
	case "conn_cur":
		n, err := strconv.ParseUint(string(value), 10, 32)
		e.ConnCur = int(n)
		return err
	case "bytes_in_cnt":
		n, err := strconv.ParseUint(string(value), 10, 63)
		e.BytesIn = int64(n)
		return err
	case "bytes_out_cnt":
		n, err := strconv.ParseUint(string(value), 10, 63)
		e.BytesOut = int64(n)
		return err
	case "http_req_cnt":
		n, err := strconv.ParseUint(string(value), 10, 32)
		e.HTTPReqCnt = uint32(n)
		return err
	}
	switch {
	case bytes.HasPrefix(name, []byte("gpt")):
		return setElement(&e.GPT, name[3:], value)
	case bytes.HasPrefix(name, []byte("gpc")):
		return setElement(&e.GPC, name[3:], value)
	}
	return nil
}

// nextElement takes a field such as "gpc12=77 " in front of a text, which is the next element
// of its array, and returns what is behind it. These are most of what HAProxy prints, and to cut
// them first would take most of the time. Whatever is not exactly so is left to set.
func (e *Entry) nextElement(text []byte) (behind []byte, ok bool) {
	if len(text) < 4 || text[0] != 'g' || text[1] != 'p' {
		return nil, false
	}
	// Every condition that fails leaves the field to setField, which tells what is wrong with it: here
	// only what is right is read.
	array := &e.GPC
	if text[2] == 't' {
		array = &e.GPT
	} else if text[2] != 'c' {
		return nil, false
	}
	index, at := digits(text, 3)
	if at == 3 || at > 5 || at == len(text) || text[at] != '=' || index != uint64(len(*array)) || index >= maxArray {
		return nil, false
	}
	value, end := digits(text, at+1)
	if end == at+1 || end > at+11 || value > math.MaxUint32 || end < len(text) && text[end] != ' ' {
		return nil, false
	}
	*array = append(*array, uint32(value))
	return text[min(end+1, len(text)):], true
}

// digits reads digits from an index on, and returns the index behind them. The number of more
// than 19 is not right.
func digits(text []byte, from int) (n uint64, end int) {
	for end = from; end < len(text) && '0' <= text[end] && text[end] <= '9'; end++ {
		n = n*10 + uint64(text[end]-'0')
	}
	return n, end
}

// setElement takes an element of an array, of which HAProxy prints one after the other.
func setElement(array *[]uint32, index, value []byte) error {
	i, err := strconv.ParseUint(string(index), 10, 32)
	if err != nil {
		return nil //nolint:nilerr // gpc0_rate(1000) and the like
	}
	n, err := strconv.ParseUint(string(value), 10, 32)
	switch {
	case err != nil:
		return err
	case i >= maxArray:
		// Else a line could make this allocate what its number says.
		return fmt.Errorf("want at most %d elements", maxArray)
	}
	// HAProxy prints all elements in their order. One that is missing in between is 0.
	for uint64(len(*array)) <= i {
		*array = append(*array, 0)
	}
	(*array)[i] = uint32(n)
	return nil
}
