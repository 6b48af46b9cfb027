package spoa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/runtimeapi"
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
	// toldTogether is of how many users natives and the metrics are told at once: each of them costs
	// as much as an entry, or keeps requests waiting for a lock.
	toldTogether = 64
	// maxUntold is how long one of them waits for the others.
	maxUntold = 50 * time.Millisecond
	// presentEvery is how often the names of users with requests by credit are renewed, which are
	// kept for nameSpan, and how often others learn who is in the table.
	presentEvery = time.Minute
)

// creditReader reads HAProxy's tables: runtimeapi.Client.
type creditReader interface {
	Variable(ctx context.Context, name string) (value string, process uint64, err error)
	Dump(ctx context.Context, table string, rate int, each func(runtimeapi.Entry)) error
}

// tallies counts the requests that HAProxy admits by itself. HAProxy counts them in its
// table of credit, apart from the tickets it draws, since one that is drawn may not
// suffice; this reads the table now and then, and takes the differences.
//
// Metrics are given them at once. The starts of each second, which people look at, are
// given them evenly over as much time as they were gathered in. With few users a request
// is known after one or two seconds; 200 000 take 40 s to read, and are told evenly in the
// 40 s after that.
//
// No count is above the truth. Not counted is what a HAProxy admits after the last read
// before it ends, what was admitted before this agent began, and what an entry had that
// HAProxy forgot between two reads.
type tallies struct {
	table   creditReader
	of      func(user string) *limits.Limits
	starts  *starts
	metrics *metrics
	hearers tallyHearers
	log     *slog.Logger
	failure failureTimes

	process  uint64    // which HAProxy was read, by when it began, in µs; at first: when this agent did
	fromZero bool      // entries that are new to the memory began when their counters were 0
	absentAt time.Time // when absent was last told

	memory  tallyMemory
	untold  untoldCounts
	batches tallyBatches
}

func newTallies(table creditReader, of func(user string) *limits.Limits, s *starts, m *metrics, log *slog.Logger) *tallies {
	return &tallies{table: table, of: of, starts: s, metrics: m, log: log,
		process: uint64(time.Now().UnixMicro()), memory: newTallyMemory(), batches: tallyBatches{starts: s}}
}

// run reads the table until ctx ends.
func (t *tallies) run(ctx context.Context) error {
	t.failure = afterStart()
	for wait := time.Duration(0); clock.Sleep(ctx, wait); {
		begun := time.Now()
		err := t.readTable(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.tellHealth(err)
		// A read of a large table takes longer than a second: HAProxy has a rest all the same.
		wait = max(tallyEvery/10, tallyEvery-time.Since(begun))
	}
	return nil
}

// tellHealth has metrics and log say how a read went.
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

// readTable takes what the table has.
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
	t.memory.round++
	entries, beyond := 0, 0
	var unusable error
	err = t.dumpTable(ctx, func(e runtimeapi.Entry) {
		entries++
		switch {
		case e.Process != process:
			unusable = errNewProcess
		case len(e.GPC) < layout.first+len(layout.kinds):
			unusable = fmt.Errorf("an entry of %s has %d counters: %s is %q", tallyTable, len(e.GPC), tallyVariable, text)
		case !t.takeEntry(&e):
			beyond++
		}
	})
	// What was read before an error is told too: the memory has it already.
	t.flushUntold()
	t.batches.endRead(time.Now(), layout.kinds)
	if err := cmp.Or(err, unusable); err != nil {
		return err
	}
	// The read was complete: whoever is new from now on has begun since.
	t.fromZero = true
	t.memory.forgetMissing()
	// Who is beyond the bound is in the table, but the memory would say that they are not.
	if t.hearers.absent != nil && beyond == 0 && began.Sub(t.absentAt) >= presentEvery {
		t.absentAt = began
		t.hearers.absent(process, began, t.memory.remembers)
	}
	t.metrics.creditUsers.Set(float64(entries))
	t.metrics.untallied.Set(float64(beyond))
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

// beginProcess begins anew if it is another process than before.
func (t *tallies) beginProcess(process uint64, layout tallyLayout) {
	if process == t.process && slices.Equal(layout.kinds, t.memory.layout.kinds) && layout.first == t.memory.layout.first {
		return
	}
	// A process that began after this agent, and after the one before, has admitted nothing
	// that was counted. What is found of an older one may have been counted by another agent.
	t.fromZero = process > t.process
	t.process = process
	t.memory.beginAnew(layout)
	t.untold.sums.byKind = make([]int64, len(layout.kinds))
}

// takeEntry takes an entry. It reports false if there is no room to remember it.
func (t *tallies) takeEntry(e *runtimeapi.Entry) bool {
	m := &t.memory
	read := e.GPC[m.layout.first : m.layout.first+len(m.layout.kinds)]
	i, known, room := m.slotOf(e.Key)
	if !room {
		return false
	}
	before := m.countersOf(i)
	// Another agent may have counted it: no count may be above the truth.
	if !known && !t.fromZero {
		copy(before, read)
	}
	s := &m.slots[i]
	s.round = m.round
	// Who is not busy any more is told of once more: their last requests have ended since.
	if busy := e.ConnCur > 0 || !slices.Equal(before, read); busy || s.busy {
		s.busy = busy
		t.starts.inCredit(e.Key, int64(e.ConnCur))
		of := t.of(e.Key)
		t.tellPresent(e.Key, s)
		t.untold.add(nativeCount{user: e.Key, of: of, inProgress: e.ConnCur, bytes: [2]int64{bandwidth.Down: e.BytesOut, bandwidth.Up: e.BytesIn}})
		t.countGrowth(e.Key, of.Tier, before, read)
	}
	// Of a large table few may be busy. What is told of them is compared with what HAProxy's
	// other tables say at once, and with the time since the last read of it.
	if n := len(t.untold.natives); n == toldTogether || n > 0 && time.Since(t.untold.since) > maxUntold {
		t.flushUntold()
	}
	// No generation, but requests in progress: somebody else has taken this credit back.
	if older := !t.fromZero; older && t.hearers.inherited != nil && e.ConnCur > 0 && gpt(e, 0) == 0 {
		t.flushUntold()
		t.hearers.inherited(e.Key, e.ConnCur)
	}
	return true
}

// tellPresent tells present of a user. The names that it keeps are those of many minutes, and it
// takes a lock, so that each read of each user would be too often.
func (t *tallies) tellPresent(user string, s *tallySlot) {
	now := 1 + uint32(time.Since(t.memory.anew)/time.Second)
	// 0 is never: a slot that is new has told nobody, so the count begins with 1.
	if t.hearers.present == nil || s.present > 0 && now-s.present < uint32(presentEvery/time.Second) {
		return
	}
	s.present = now
	t.hearers.present(user)
}
