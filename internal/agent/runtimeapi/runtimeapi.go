// Package runtimeapi reads and withdraws entries of HAProxy's stick tables through its
// runtime API, which HAProxy serves on a unix socket ("stats socket"; level operator is
// enough).
//
// It is for what the peers protocol cannot do: to change one value of an entry and be
// certain that HAProxy has taken it, and to read a table that is in no peers section.
//
// Each command line has a connection of its own. A connection that is kept would stay
// with the process it was made to after a reload; a new one reaches a process that
// listens, which at a reload is the old or the new one for a moment. It costs HAProxy
// about as much as one more command. Every answer tells which process gave it.
//
// Users choose the names that become keys, and the runtime API reads commands: whatever
// is not a letter, a digit or one of a few harmless characters is escaped, and what
// cannot be escaped is an error. The formats are those of HAProxy 2.6 to 3.4, as seen.
package runtimeapi

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// creditTable and secondsTable are the tables that Withdraw is about.
	creditTable  = "sluice_credit"
	secondsTable = "sluice_seconds"
	// processVariable tells one HAProxy process from the one that a reload puts beside it.
	processVariable = "proc.sluice_process"
	// askProcess begins each line and ends it: an answer without the last part is not
	// whole. (Not all answers end with an empty line: 2.6 leaves it out behind a variable.)
	askProcess = "get var " + processVariable

	// maxLine bounds a line of commands. HAProxy takes one that fits into its buffer
	// (tune.bufsize, 16384 bytes if nobody set it) less some room of its own.
	maxLine = 8000
	// maxCalls and maxDumps bound the commands under way: HAProxy serves ten connections of its runtime API at
	// a time (stats maxconn), of which people need some. A long dump of one table must not hold up a short one.
	maxCalls = 4
	maxDumps = 2
	// answerTimeout is how long HAProxy may say nothing before it counts as hanging, also if the
	// caller's context has more time.
	answerTimeout = 5 * time.Second
	// attempts bounds how often a line is sent. A process that stops listening at a reload
	// drops the connections it has not accepted yet.
	attempts = 3
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
	return &Client{path: path, calls: make(chan struct{}, maxCalls), dumps: make(chan struct{}, maxDumps)}
}

// A Withdrawal is what HAProxy had of a user's credit when it was withdrawn.
type Withdrawal struct {
	Entry           // of sluice_credit
	Seconds []Entry // of sluice_seconds: those there are of the seconds that were asked for
}

// Withdraw takes the credit of users: it sets element 0 of gpt to 0, and server_id to granted, the second of the withdrawal,
// in the table sluice_credit, and returns each entry as it was read after that, and those of some seconds of HAProxy's clock, in the order of
// the keys. A user without entry gets an empty one. When an answer is there, HAProxy has
// applied it: see haproxy/DESIGN.md for why a request that is just being decided is counted, and
// credit that is on its way in an agent's answer of that second, or before it, is not taken.
//
// With an error the withdrawals are those, from the first key on, that are known to be
// withdrawn. The others may be: to repeat a withdrawal does no harm.
func (c *Client) Withdraw(ctx context.Context, granted uint32, keys []string, seconds ...int64) ([]Withdrawal, error) {
	// The rules of haproxy.cfg take server_id 0 for an entry that no withdrawal has touched.
	entries, err := c.lookUp(ctx, creditTable, keys, max(1, granted), func(key string) []lookup {
		all := []lookup{{creditTable, key}}
		for _, second := range seconds {
			for _, secondKey := range secondKeys(key, second) {
				all = append(all, lookup{secondsTable, secondKey})
			}
		}
		return all
	})
	withdrawals := make([]Withdrawal, 0, len(keys))
	for some := range slices.Chunk(entries, 1+2*len(seconds)) {
		missing := func(e Entry) bool { return !e.Found }
		withdrawals = append(withdrawals, Withdrawal{Entry: some[0], Seconds: slices.DeleteFunc(some[1:], missing)})
	}
	return withdrawals, err
}

// SecondKey is the key of a user's entry of sluice_seconds for a second.
func SecondKey(user string, second int64) string {
	return strconv.FormatInt(second, 10) + "|" + user
}

// pad is what fills a key up to its full length, in some of HAProxy's versions: see sluice_pad in haproxy.cfg.
const (
	pad          = "\x7f"
	secondKeyLen = 112
)

// UnpaddedSecondKey is SecondKey's for a key as HAProxy tells it.
func UnpaddedSecondKey(key string) string { return strings.TrimRight(key, pad) }

// secondKeys are the keys that the entry can have: as it is, and filled up.
func secondKeys(user string, second int64) [2]string {
	key := SecondKey(user, second)
	return [2]string{key, key + strings.Repeat(pad, max(0, secondKeyLen-len(key)))}
}

// Read returns the entries of a table that have the keys, in their order. One that does
// not exist has Found false.
func (c *Client) Read(ctx context.Context, table string, keys []string) ([]Entry, error) {
	return c.lookUp(ctx, table, keys, 0, func(key string) []lookup { return []lookup{{table, key}} })
}

// lookUp returns the entries that are looked up for each key, of as many keys as were answered. Before that it takes the credit of each
// key, if withdrawn is not 0.
func (c *Client) lookUp(ctx context.Context, table string, keys []string, withdrawn uint32, of func(key string) []lookup) ([]Entry, error) {
	entries := make([]Entry, 0, len(keys))
	err := inLines(table, keys, func(line []byte, key string) []byte {
		if withdrawn > 0 {
			line = appendWithdrawal(line, table, key, withdrawn)
		}
		// Read in the same line, right behind: HAProxy runs a line's commands in their order.
		for _, l := range of(key) {
			line = appendKeyed(line, "show", l.table, l.key)
		}
		return line
	}, func(line []byte, some []string) error {
		a := answer{question: question{withdraw: withdrawn > 0}}
		for _, key := range some {
			a.lookups = append(a.lookups, of(key)...)
		}
		if err := c.sendLine(ctx, c.calls, line, &a); err != nil {
			return err
		}
		entries = append(entries, a.entries...)
		return nil
	})
	return entries, err
}

// A Filter is which entries of a table are read: those with a value of one type.
type Filter struct {
	Data     string // such as "conn_cur", or "gpt" for element 0 of an array; "": all entries
	Operator string // "eq", "gt" and the like
	Value    int64
}

// Dump calls each with every entry of a table that the filter lets pass, as HAProxy sends them: in no order, and
// not of one moment. The entry's slices are valid until each returns. One dump runs at a
// time.
//
// rate is how many entries a second are read at most. HAProxy does nothing else while it
// prints as many as its buffers hold, and without a pause it does so again and again:
// with one thread, requests then wait for tens of milliseconds until all is printed.
func (c *Client) Dump(ctx context.Context, table string, filter Filter, rate int, each func(Entry)) error {
	if rate <= 0 {
		return fmt.Errorf("%d entries a second: want more", rate)
	}
	command := "show table " + table
	if filter != (Filter{}) {
		if !validWord(filter.Data) || !validWord(filter.Operator) {
			return fmt.Errorf("haproxy's filter %+v: not a name and an operator", filter)
		}
		command += fmt.Sprintf(" data.%s %s %d", filter.Data, filter.Operator, filter.Value)
	}
	// A dump takes seconds. With a token of its own it keeps no withdrawal waiting.
	_, err := c.ask(ctx, c.dumps, question{table: table, each: each, rate: rate}, command)
	return err
}

// Variable returns what a variable of the process holds, such as proc.sluice_process,
// and which process it is. "" means that there is no such variable.
func (c *Client) Variable(ctx context.Context, name string) (value string, process uint64, err error) {
	a, err := c.ask(ctx, c.calls, question{variable: name}, "get var "+name)
	return a.value, a.process, err
}

// ask sends one command about a table or a variable.
func (c *Client) ask(ctx context.Context, tokens chan struct{}, q question, command string) (*answer, error) {
	a := &answer{question: q}
	// One of the two is empty. Neither is escaped in the command, so it must need none.
	if !validWord(q.table + q.variable) {
		return a, fmt.Errorf("haproxy's %q: not a name", q.table+q.variable)
	}
	return a, c.sendLine(ctx, tokens, []byte(askProcess+";"+command+";"+askProcess), a)
}
