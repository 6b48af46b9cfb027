package spoa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	// maxTallied bounds the users whose counters are remembered. haproxy.cfg's table has
	// room for fewer.
	maxTallied = 1 << 18
	// maxGrown is of how many users starts are told after a read: as many as it has room for.
	maxGrown = startShards * maxStarted
	// toldTogether is of how many users natives and the metrics are told at once: each of them costs
	// as much as an entry, or keeps requests waiting for a lock.
	toldTogether = 64
	// maxUntold is how long one of them waits for the others.
	maxUntold = 50 * time.Millisecond
	// presentEvery is how often the names of users with requests by credit are renewed, which are
	// kept for nameSpan, and how often others learn who is in the table.
	presentEvery = time.Minute
	// maxTallyBatches bounds what waits to be told; one and the next is what there should be.
	maxTallyBatches = 4
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
//
// A user costs some 64 bytes, for names are not kept.
type tallies struct {
	table  creditReader
	of     func(user string) *limits.Limits
	starts *starts
	// natives is told how many requests a user has in progress by HAProxy's table of credit,
	// those included that were asked about, and the bytes that requests of theirs ever moved,
	// by direction: of everyone who has some in progress or was admitted since, at each
	// read, and once of who was not any more. nil tells nobody.
	natives func([]nativeCount)
	// inherited is told how many requests users have in progress from whom another agent has
	// taken their credit back, in the first read of a process that is older than this agent.
	// nil tells nobody.
	inherited func(user string, n int)
	// present is told about once a minute of users who have requests by credit. nil tells nobody.
	present func(user string)
	// absent is told about once a minute, after a complete read, which process it was of, when
	// it began, and who was in it. nil tells nobody.
	absent  func(process uint64, began time.Time, shown func(user string) bool)
	metrics *metrics
	log     *slog.Logger
	quiet   time.Time // until when errors are not logged
	failing bool      // an error was logged, and none of the reads since went well

	process  uint64 // which HAProxy was read, by when it began, in µs; at first: when this agent did
	layout   tallyLayout
	fromZero bool // entries that are new to index began when their counters were 0
	round    uint32
	lastRead time.Time // when the last one began
	anew     time.Time // when slots were last numbered: of tallySlot.present
	absentAt time.Time // when absent was last told

	seed   maphash.Seed
	index  map[uint64]int // by a hash of the user: of slots, and of counts
	slots  []tallySlot
	counts []uint32 // layout.width of each slot, as last read
	free   []int    // slots

	untold      []nativeCount // of whom natives are to be told next
	untoldSince time.Time     // when the first of them was read
	sums        tierSums      // that the metrics are to be told next
	grown       []grownUser   // in this read
	leastGrown  int64         // who grew by no more is not among them

	mu      sync.Mutex
	batches []tallyBatch // what starts are not told yet
}

// tallySlot is what is remembered of a user, beside their counters.
type tallySlot struct {
	round uint32 // of the last read that had the entry
	busy  bool   // some were in progress in that read, or admitted since the one before

	present uint32 // in seconds since tallies.anew, when present was last told; 0: never
}

// nativeCount is what HAProxy's table of credit says of a user.
type nativeCount struct {
	user       string
	of         *limits.Limits
	inProgress int
	bytes      [2]int64 // that requests of theirs ever moved, by direction
}

// tierSums are requests of users of one tier, most of whom follow each other.
type tierSums struct {
	tier   string
	all    int64
	byKind []int64
}

// A tallyBatch is what was read at once: what users started in the span before at.
type tallyBatch struct {
	at    time.Time
	span  time.Duration
	users []grownUser
	kinds []tallyKind
}

// grownUser is a user whose counters grew, and by how much for each kind of request.
type grownUser struct {
	user        string
	total       int64
	grew, given []uint32
}

func newTallies(table creditReader, of func(user string) *limits.Limits, s *starts, m *metrics, log *slog.Logger) *tallies {
	return &tallies{table: table, of: of, starts: s, metrics: m, log: log,
		process: uint64(time.Now().UnixMicro()), seed: maphash.MakeSeed(), index: make(map[uint64]int)}
}

// run reads the table until ctx ends.
func (t *tallies) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	t.quiet = time.Now().Add(startGrace)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begun := time.Now()
		err := t.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.tell(time.Now(), err)
		timer.Reset(max(tallyEvery/10, tallyEvery-time.Since(begun)))
	}
}

// tell logs that reads fail, now and then, and that they do not any more.
func (t *tallies) tell(now time.Time, err error) {
	switch {
	case err == nil:
		t.metrics.tallyAt.Set(float64(now.UnixNano()) / 1e9)
		if t.failing {
			t.log.Info("requests that HAProxy admits by itself are counted again")
		}
		t.failing = false
		return
	case !now.Before(t.quiet):
		t.quiet = now.Add(logGap)
		t.failing = true
		t.log.Warn("requests that HAProxy admits by itself are not counted", slog.Any("error", err))
	}
	t.metrics.tallyErrors.Inc()
}

// errNewProcess says that HAProxy was replaced in the midst of a read.
var errNewProcess = errors.New("haproxy was replaced while its table was read")

// read takes what the table has.
func (t *tallies) read(ctx context.Context) error {
	text, process, err := t.table.Variable(ctx, tallyVariable)
	if err != nil {
		return err
	}
	layout, err := parseTallyLayout(text)
	if err != nil {
		return err
	}
	began := time.Now()
	t.begin(process, layout)
	t.round++
	entries, beyond := 0, 0
	var unusable error
	err = t.dump(ctx, func(e runtimeapi.Entry) {
		entries++
		switch {
		case e.Process != process:
			unusable = errNewProcess
		case len(e.GPC) < layout.first+len(layout.kinds):
			unusable = fmt.Errorf("an entry of %s has %d counters: %s is %q", tallyTable, len(e.GPC), tallyVariable, text)
		case !t.entry(&e):
			beyond++
		}
	})
	t.flush()
	t.batch(time.Now())
	if err := cmp.Or(err, unusable); err != nil {
		return err
	}
	t.fromZero = true
	t.forget()
	if t.absent != nil && beyond == 0 && began.Sub(t.absentAt) >= presentEvery {
		t.absentAt = began
		t.absent(process, began, t.known)
	}
	t.metrics.creditUsers.Set(float64(entries))
	t.metrics.untallied.Set(float64(beyond))
	return nil
}

// dump reads the table of the process that was begun with. It stops when that one is
// replaced: a process ends only once nobody reads from it, and until it does its requests
// in progress count in full.
func (t *tallies) dump(ctx context.Context, each func(runtimeapi.Entry)) error {
	ctx, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
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

// begin begins anew if it is another process than before.
func (t *tallies) begin(process uint64, layout tallyLayout) {
	if process == t.process && slices.Equal(layout.kinds, t.layout.kinds) && layout.first == t.layout.first {
		return
	}
	// A process that began after this agent, and after the one before, has admitted nothing
	// that was counted. What is found of an older one may have been counted by another agent.
	t.fromZero = process > t.process
	t.process, t.layout, t.anew = process, layout, time.Now()
	clear(t.index)
	t.slots, t.counts, t.free = nil, nil, nil
	t.sums.byKind = make([]int64, len(layout.kinds))
}

// entry takes an entry. It reports false if there is no room to remember it.
func (t *tallies) entry(e *runtimeapi.Entry) bool {
	width := len(t.layout.kinds)
	read := e.GPC[t.layout.first : t.layout.first+width]
	hash := maphash.String(t.seed, e.Key)
	i, known := t.index[hash]
	if !known {
		if len(t.index) >= maxTallied {
			return false
		}
		i = t.slot()
		t.index[hash] = i
		if !t.fromZero {
			copy(t.counts[i*width:], read)
		}
	}
	s := &t.slots[i]
	s.round = t.round
	before := t.counts[i*width : (i+1)*width]
	if busy := e.ConnCur > 0 || !slices.Equal(before, read); busy || s.busy {
		s.busy = busy
		t.starts.inCredit(e.Key, int64(e.ConnCur))
		of := t.of(e.Key)
		t.tellPresent(e.Key, s)
		if len(t.untold) == 0 {
			t.untoldSince = time.Now()
		}
		t.untold = append(t.untold, nativeCount{user: e.Key, of: of, inProgress: e.ConnCur, bytes: [2]int64{bandwidth.Down: e.BytesOut, bandwidth.Up: e.BytesIn}})
		t.grow(e.Key, of.Tier, before, read)
	}
	// Of a large table few may be busy. What is told of them is compared with what HAProxy's
	// other tables say at once, and with the time since the last read of it.
	if n := len(t.untold); n == toldTogether || n > 0 && time.Since(t.untoldSince) > maxUntold {
		t.flush()
	}
	if older := !t.fromZero; older && t.inherited != nil && e.ConnCur > 0 && gpt(e, 0) == 0 {
		t.flush()
		t.inherited(e.Key, e.ConnCur)
	}
	return true
}

// tellPresent tells present of a user. The names that it keeps are those of many minutes, and it
// takes a lock, so that each read of each user would be too often.
func (t *tallies) tellPresent(user string, s *tallySlot) {
	now := 1 + uint32(time.Since(t.anew)/time.Second)
	if t.present == nil || s.present > 0 && now-s.present < uint32(presentEvery/time.Second) {
		return
	}
	s.present = now
	t.present(user)
}

// known reports whether the last read had a user.
func (t *tallies) known(user string) bool {
	_, known := t.index[maphash.String(t.seed, user)]
	return known
}

// flush tells natives and the metrics what has come up.
func (t *tallies) flush() {
	if t.natives != nil && len(t.untold) > 0 {
		t.natives(t.untold)
	}
	clear(t.untold)
	t.untold = t.untold[:0]
	t.flushSums()
}

// flushSums tells the metrics what users of one tier have started.
func (t *tallies) flushSums() {
	s := &t.sums
	if s.all == 0 {
		return
	}
	t.metrics.credited.Add(float64(s.all))
	t.metrics.byTier.add(outcome(s.tier, "credit", ""), s.all)
	for k, n := range s.byKind {
		if n > 0 {
			t.metrics.started.add(series{s.tier, t.layout.kinds[k].verb, t.layout.kinds[k].operation}, n)
		}
	}
	s.all = 0
	clear(s.byKind)
}

// sum counts the requests that a user of a tier has started since.
func (t *tallies) sum(tier string, before, read []uint32) (all int64) {
	if t.sums.tier != tier {
		t.flushSums()
		t.sums.tier = tier
	}
	for k := range read {
		n := int64(read[k] - before[k])
		t.sums.byKind[k] += n
		all += n
	}
	t.sums.all += all
	return all
}

// slot is the number of a slot with all counters 0.
func (t *tallies) slot() int {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		width := len(t.layout.kinds)
		clear(t.counts[i*width : (i+1)*width])
		t.slots[i] = tallySlot{}
		return i
	}
	t.slots = append(t.slots, tallySlot{})
	t.counts = append(t.counts, make([]uint32, len(t.layout.kinds))...)
	return len(t.slots) - 1
}

// grow counts what is new in the counters of a user, and remembers them.
func (t *tallies) grow(user, tier string, before, read []uint32) {
	if slices.Equal(before, read) {
		return
	}
	for k := range read {
		if read[k] < before[k] {
			clear(before) // HAProxy had forgotten the entry, and began another
			break
		}
	}
	all := t.sum(tier, before, read)
	if all <= t.leastGrown {
		copy(before, read)
		return
	}
	grew := make([]uint32, 2*len(read))
	for k := range read {
		grew[k] = read[k] - before[k]
	}
	copy(before, read)
	t.grown = append(t.grown, grownUser{user: user, total: all, grew: grew[:len(read)], given: grew[len(read):]})
	if len(t.grown) == 2*maxGrown {
		t.keepMost()
		t.leastGrown = t.grown[maxGrown-1].total
	}
}

// keepMost leaves those who grew most in grown.
func (t *tallies) keepMost() {
	slices.SortFunc(t.grown, func(a, b grownUser) int {
		return cmp.Or(cmp.Compare(b.total, a.total), strings.Compare(a.user, b.user))
	})
	if len(t.grown) > maxGrown {
		clear(t.grown[maxGrown:])
		t.grown = t.grown[:maxGrown]
	}
}

// batch has starts told of what was read, evenly over the time that it took to come up.
func (t *tallies) batch(now time.Time) {
	t.keepMost()
	span := tallyEvery
	if !t.lastRead.IsZero() {
		span = now.Sub(t.lastRead)
	}
	t.lastRead = now
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.grown) > 0 && len(t.batches) < maxTallyBatches {
		t.batches = append(t.batches, tallyBatch{at: now, span: span, users: t.grown, kinds: t.layout.kinds})
	}
	t.grown, t.leastGrown = nil, 0
}

// give tells starts what has come up until now; see tallies. A nil one has nothing to
// tell: HAProxy admits nothing by itself.
func (t *tallies) give(now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches = slices.DeleteFunc(t.batches, func(b tallyBatch) bool {
		part := 1.0
		if passed := now.Sub(b.at); passed < b.span {
			part = max(0, passed.Seconds()/b.span.Seconds())
		}
		for i := range b.users {
			u := &b.users[i]
			for k, n := range u.grew {
				if due := uint32(float64(n) * part); due > u.given[k] {
					t.starts.add(u.user, b.kinds[k].verb, b.kinds[k].operation, int64(due-u.given[k]))
					u.given[k] = due
				}
			}
		}
		return part == 1
	})
}

// forget forgets the users whom the last read did not have any more.
func (t *tallies) forget() {
	for hash, i := range t.index {
		if t.slots[i].round != t.round {
			delete(t.index, hash)
			t.free = append(t.free, i)
		}
	}
}

// tallyKind is a kind of requests that HAProxy counts apart.
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
