package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// tallyTable is haproxy.cfg's table of credit, and tallyVariable says which of its
	// counters count what; see parseTallyLayout.
	tallyTable    = "sluice_credit"
	tallyVariable = "proc.sluice_tallies"

	// tallyEvery is how often the table is read, and tallyRate how many entries a second:
	// one costs HAProxy 2 to 5 µs and the agent as much, so this is 1 to 3 % of a processor
	// each. Reading a full table takes 40 s.
	tallyEvery = time.Second
	tallyRate  = 5000
	// maxNatives is for how many users natives is called at once: each of them keeps requests
	// waiting for a lock. maxNativesAge is how long one of them waits for the others.
	maxNatives    = 64
	maxNativesAge = 50 * time.Millisecond
	// absentEvery is how often absent is called.
	absentEvery = time.Minute
)

// creditReader reads HAProxy's tables: runtimeapi.Client.
type creditReader interface {
	Variable(ctx context.Context, name string) (value string, process uint64, err error)
	Dump(ctx context.Context, table string, rate int, each func(runtimeapi.Entry)) error
}

// tallies reads HAProxy's table of credit once a second. The cores follow what HAProxy has in
// progress by credit (see tallyHearers), and starts and metrics count the requests that HAProxy
// admits by itself. HAProxy counts these in the table apart from the tickets that it draws,
// because one ticket may not suffice; tallies adds the differences between two reads.
//
// No count is above the truth. Not counted are requests that a HAProxy admits between the last
// read and its end, those that were admitted before this agent began, and those of an entry that
// HAProxy forgot between two reads. If a table takes longer than a second
// to read, an entry counts in the second in which it is read.
type tallies struct {
	table   creditReader
	clock   *daemon.Clock
	of      func(user string) *limits.Limits
	starts  *starts
	metrics *metrics
	hearers tallyHearers
	log     *slog.Logger
	failure failureTimes

	process  uint64    // HAProxy process that was read, by when it began, in µs; at first: when this agent did
	fromZero bool      // entries that are new to users began when their counters were 0
	absentAt time.Time // when absent was last called

	layout  tallyLayout
	round   uint32 // number of the read
	users   map[string]*tally
	natives []nativeCount // for the next call of natives
	since   time.Time     // when the first of them was read
}

type tally struct {
	counts []uint32 // by the kinds of the layout
	round  uint32   // of that read
	busy   bool     // requests were in progress, or admitted since the read before
}

// tallyHearers are called with what a read found; nil ones are not.
type tallyHearers struct {
	// natives is called with how many requests a user has in progress by HAProxy's table of
	// credit, those included that were asked about, and the bytes that requests of the user ever
	// moved: in each read for every user with some in progress or admitted since the last read,
	// and one read longer.
	natives func([]nativeCount)
	// inherited is called with how many requests a user has in progress whose credit another agent
	// took back, in the first read of a process that is older than this agent.
	inherited func(user string, n int)
	// present is called in each read for the users of natives.
	present func(user string)
	// absent is called once a minute, after a complete read, with the process, when the read
	// began, and which users it found.
	absent func(process uint64, began time.Time, shown func(user string) bool)
}

type nativeCount struct {
	user       string
	of         *limits.Limits
	inProgress int
	bytes      [2]int64 // that requests of the user ever moved, by direction
}

func newTallies(table creditReader, c *daemon.Clock, of func(user string) *limits.Limits, s *starts, m *metrics, log *slog.Logger) *tallies {
	return &tallies{table: table, clock: c, of: of, starts: s, metrics: m, log: log, process: uint64(time.Now().UnixMicro())}
}

// run reads the table until ctx ends.
func (t *tallies) run(ctx context.Context) error {
	t.failure = afterStart()
	for wait := time.Duration(0); daemon.Sleep(ctx, wait); {
		err := t.readTable(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.tellHealth(err)
		// In the middle of a second, so that each report of starts, at a second's end, has one read of a small table.
		// HAProxy has a rest after the read of a large one.
		now := t.clock.Now()
		middle := now.Add(tallyEvery / 2).Truncate(tallyEvery).Add(tallyEvery / 2)
		wait = max(tallyEvery/10, middle.Sub(now))
	}
	return nil
}

func (t *tallies) tellHealth(err error) {
	if err == nil {
		t.metrics.tallyAt.Set(float64(time.Now().UnixNano()) / 1e9)
	} else {
		t.metrics.tallyErrors.Inc()
	}
	switch warn, again := t.failure.note(err); {
	case warn:
		t.log.Warn("requests that HAProxy admits by itself are not counted", slog.Any("error", err))
	case again:
		t.log.Info("requests that HAProxy admits by itself are counted again")
	}
}

// errNewProcess says that HAProxy was replaced in the midst of a read.
var errNewProcess = errors.New("haproxy was replaced while its table was read")

func (t *tallies) readTable(ctx context.Context) error {
	text, process, err := t.table.Variable(ctx, tallyVariable)
	if err != nil {
		return err
	}
	layout, err := parseTallyLayout(text)
	if err != nil {
		return err
	}
	// From before the first entry: places that are given later may be missing in what is read, and are not forgotten for it.
	began := time.Now()
	t.beginProcess(process, layout)
	t.round++
	entries := 0
	var unusable error
	err = t.dumpTable(ctx, func(e runtimeapi.Entry) {
		entries++
		switch {
		case e.Process != process:
			unusable = errNewProcess
		case len(e.GPC) < layout.first+len(layout.kinds):
			unusable = fmt.Errorf("an entry of %s has %d counters: %s is %q", tallyTable, len(e.GPC), tallyVariable, text)
		default:
			t.takeEntry(&e)
		}
	})
	// Entries that were read before an error count: the tallies have them already.
	t.flushNatives()
	if err := cmp.Or(err, unusable); err != nil {
		return err
	}
	// The read was complete: users who are new from now on have begun since.
	t.fromZero = true
	for user, u := range t.users {
		if u.round != t.round {
			delete(t.users, user)
		}
	}
	if t.hearers.absent != nil && began.Sub(t.absentAt) >= absentEvery {
		t.absentAt = began
		t.hearers.absent(process, began, func(user string) bool { return t.users[user] != nil })
	}
	t.metrics.creditUsers.Set(float64(entries))
	return nil
}

// dumpTable reads the table of the process that was begun with. It stops when that one is
// replaced: a process ends only once nobody reads from it, and until it does its requests
// in progress count in full.
func (t *tallies) dumpTable(ctx context.Context, each func(runtimeapi.Entry)) error {
	ctx, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	// The watch compares with t.process, which the next read may change: it has ended by then.
	defer func() { stop(nil); <-watched }()
	go func() {
		defer close(watched)
		ticker := time.NewTicker(tallyEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			// An error here says nothing: the read itself fails if HAProxy is away.
			if _, process, err := t.table.Variable(ctx, tallyVariable); err == nil && process != t.process {
				stop(errNewProcess)
			}
		}
	}()
	err := t.table.Dump(ctx, tallyTable, tallyRate, each)
	if err != nil && errors.Is(context.Cause(ctx), errNewProcess) {
		return errNewProcess
	}
	return err
}

// beginProcess begins again if it is another process than before: the counters of one process, or
// of other classes, say nothing about how much those of another grew.
func (t *tallies) beginProcess(process uint64, layout tallyLayout) {
	if process == t.process && slices.Equal(layout.kinds, t.layout.kinds) && layout.first == t.layout.first {
		return
	}
	// A process that began after this agent, and after the one before, has admitted nothing
	// that was counted. What is found of an older one may have been counted by another agent.
	t.fromZero = process > t.process
	t.process, t.layout, t.users = process, layout, make(map[string]*tally)
}

func (t *tallies) takeEntry(e *runtimeapi.Entry) {
	read := e.GPC[t.layout.first : t.layout.first+len(t.layout.kinds)]
	u, known := t.users[e.Key]
	if !known {
		u = &tally{counts: make([]uint32, len(read))}
		t.users[e.Key] = u
		// Another agent may have counted these: no count may be above the truth.
		if !t.fromZero {
			copy(u.counts, read)
		}
	}
	u.round = t.round
	busy := e.ConnCur > 0 || !slices.Equal(u.counts, read)
	if busy || u.busy {
		of := t.of(e.Key)
		t.starts.inCredit(e.Key, int64(e.ConnCur))
		t.countGrowth(e.Key, of.Tier, u.counts, read)
		if t.hearers.present != nil {
			t.hearers.present(e.Key)
		}
		if len(t.natives) == 0 {
			t.since = time.Now()
		}
		t.natives = append(t.natives, nativeCount{user: e.Key, of: of, inProgress: e.ConnCur, bytes: [2]int64{bandwidth.Down: e.BytesOut, bandwidth.Up: e.BytesIn}})
	}
	u.busy = busy
	// Few users of a large table may be busy. The counts of natives are compared with HAProxy's
	// other tables, which are current, and with the time since the last read of the user.
	if n := len(t.natives); n == maxNatives || n > 0 && time.Since(t.since) > maxNativesAge {
		t.flushNatives()
	}
	// No generation, but requests in progress: another agent has taken this credit back.
	if older := !t.fromZero; older && t.hearers.inherited != nil && e.ConnCur > 0 && gpt(e, 0) == 0 {
		t.flushNatives()
		t.hearers.inherited(e.Key, e.ConnCur)
	}
}

// countGrowth counts what is new in the counters of a user of a tier, and remembers them.
func (t *tallies) countGrowth(user, tier string, before, read []uint32) {
	for k := range read {
		// HAProxy had forgotten the entry, and began another from 0.
		if read[k] < before[k] {
			clear(before)
			break
		}
	}
	var all int64
	for k, kind := range t.layout.kinds {
		// Kinds that did not grow would become series that are 0 for ever.
		n := int64(read[k] - before[k])
		if n == 0 {
			continue
		}
		t.starts.countStarts(user, kind.verb, kind.operation, n)
		t.metrics.started.add(series{tier, kind.verb, kind.operation}, n)
		all += n
	}
	if all > 0 {
		t.metrics.credited.Add(float64(all))
		t.metrics.byTier.add(outcome(tier, "credit", ""), all)
	}
	copy(before, read)
}

func (t *tallies) flushNatives() {
	if t.hearers.natives != nil && len(t.natives) > 0 {
		t.hearers.natives(t.natives)
	}
	// The array is used again, and must not keep names.
	clear(t.natives)
	t.natives = t.natives[:0]
}

type tallyKind struct {
	verb      string // "": not known
	operation string // "": none
}

// tallyLayout says what the counters (gpc) of an entry count, from number first on: each
// request that was admitted by credit is in one of them.
type tallyLayout struct {
	first int
	kinds []tallyKind
}

// parseTallyLayout reads what haproxy.cfg says of its counters, such as "4 GET PUT
// GET/LIST /BULK": counter 4 is of GETs without operation class, counter 5 of PUTs without
// one, counter 6 of the class LIST, which all are GETs, and counter 7 of the class BULK
// with any verb.
func parseTallyLayout(text string) (tallyLayout, error) {
	const counters = 100 // that an entry can have
	words := strings.Fields(text)
	if len(words) == 0 {
		return tallyLayout{}, fmt.Errorf("HAProxy does not tell what it counts (%s): it needs the haproxy.cfg of this version, and a reload", tallyVariable)
	}
	first, err := strconv.Atoi(words[0])
	// What comes from HAProxy bounds memory here: each kind costs a counter of each user.
	if err != nil || first < 0 || len(words) == 1 || first+len(words)-1 > counters {
		return tallyLayout{}, fmt.Errorf("%s is %.100q: want the number of a counter, and what it and each one behind it counts, up to number %d", tallyVariable, text, counters-1)
	}
	layout := tallyLayout{first: first}
	for _, word := range words[1:] {
		verb, operation, _ := strings.Cut(word, "/")
		kind := tallyKind{verb, operation}
		if len(word) > 100 || kind == (tallyKind{}) || slices.Contains(layout.kinds, kind) {
			return tallyLayout{}, fmt.Errorf("%s is %.100q: %.100q is not a verb or VERB/OPERATION that is there once", tallyVariable, text, word)
		}
		layout.kinds = append(layout.kinds, kind)
	}
	return layout, nil
}
