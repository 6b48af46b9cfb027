package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// creditEntries and secondEntries are haproxy.cfg's tables of credit and of what came of it in each second.
	// countersVariable says which counters of a second count what; see parseCounters.
	creditEntries    = "sluice_credit"
	secondEntries    = "sluice_seconds"
	countersVariable = "proc.sluice_classes"

	// readAfter is how long after its end a second is read: threads whose clock is late have counted in it by then.
	readAfter = 150 * time.Millisecond
	// readTimeout bounds one read. maxMissed is how many seconds are read later than that: HAProxy forgets an entry
	// five seconds after its last use.
	readTimeout = 2 * time.Second
	maxMissed   = 3
	// secondRate and creditRate are how many entries a second are read, of users with requests and of all users: an entry
	// costs HAProxy 2 to 5 µs and the agent as much.
	secondRate = 40_000
	creditRate = 5000
	// maxNatives is for how many users natives is called at once: each of them keeps requests
	// waiting for a lock.
	maxNatives = 64
	// readBatch bounds the users whose entries are read with one call.
	readBatch = 256
	// absentEvery is how often absent is called.
	absentEvery = time.Minute
)

// creditReader reads HAProxy's tables: runtimeapi.Client.
type creditReader interface {
	Variable(ctx context.Context, name string) (value string, process uint64, err error)
	Dump(ctx context.Context, table string, filter runtimeapi.Filter, rate int, each func(runtimeapi.Entry)) error
	Read(ctx context.Context, table string, keys []string) ([]runtimeapi.Entry, error)
}

// secondReader reads what HAProxy has counted in a second after the second has ended: requests admitted by credit and
// requests refused, by user and kind. The cores follow what HAProxy has in progress by credit (see creditHearers).
//
// No count is above the truth. Not counted are requests that a HAProxy admits between the last
// read and its end, those of seconds that ended before this agent began, and those that a thread counts later than readAfter.
// It is for one goroutine.
type secondReader struct {
	table   creditReader
	of      func(user string) *limits.Limits
	metrics *metrics
	hearers creditHearers
	log     *slog.Logger
	failure failureTimes

	began     uint64 // when this agent did, in µs: HAProxy processes are named so
	process   uint64 // HAProxy process that was read
	inherited bool   // what an older process has in progress was taken
	last      int64  // the last second that was read, by HAProxy's clock
	counters  counters
	busy      map[string]bool // users with requests in progress at the last read
}

// creditHearers are called with what a read found; nil ones are not.
type creditHearers struct {
	// natives is called with how many requests a user has in progress by HAProxy's table of
	// credit, those included that were asked about, and the bytes that requests of the user ever
	// moved: in each read for every user with some in progress, once more when that is over, and for users with a bandwidth limit
	// after each second in which requests of theirs were admitted.
	natives func([]nativeCount)
	// inherited is called with how many requests a user has in progress whose credit another agent
	// took back, in the first read of a process that is older than this agent.
	inherited func(user string, n int)
	// present is called in each read for users with requests in progress or admitted.
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

// A counted is what HAProxy counted of a kind of a user's requests in a second.
type counted struct {
	user              string
	kind              requestKind
	admitted, refused int64
}

func newSecondReader(table creditReader, of func(user string) *limits.Limits, m *metrics, log *slog.Logger) *secondReader {
	now := time.Now()
	return &secondReader{table: table, of: of, metrics: m, log: log, failure: afterStart(), began: uint64(now.UnixMicro()), last: now.Unix() - 1, busy: map[string]bool{}}
}

// read reads what HAProxy has counted through a second by its clock, which has ended.
func (t *secondReader) read(ctx context.Context, second int64, count func(counted)) {
	ctx, stop := context.WithTimeout(ctx, readTimeout)
	defer stop()
	err := t.readThrough(ctx, second, count)
	if errors.Is(err, context.Canceled) {
		return
	}
	if err == nil {
		t.metrics.creditReadAt.Set(float64(time.Now().UnixNano()) / 1e9)
	} else {
		t.metrics.creditReadErrors.Inc()
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

func (t *secondReader) readThrough(ctx context.Context, through int64, count func(counted)) error {
	text, process, err := t.table.Variable(ctx, countersVariable)
	if err != nil {
		return err
	}
	if t.counters, err = parseCounters(text); err != nil {
		return err
	}
	if process != t.process {
		t.process, t.inherited, t.busy = process, process > t.began, map[string]bool{}
	}
	named := map[string]bool{}
	// A clock that was set back begins with the present second.
	first := max(t.last+1, through-maxMissed)
	if t.last > through {
		first = through
	}
	for second := first; second <= through; second++ {
		if err := t.readSecond(ctx, second, count, named); err != nil {
			return err
		}
		t.last = second
	}
	return t.readProgress(ctx, named)
}

// readSecond reads the counters of a second, and names the users with admitted requests.
func (t *secondReader) readSecond(ctx context.Context, second int64, count func(counted), named map[string]bool) error {
	prefix := runtimeapi.SecondKey("", second)
	var unusable error
	err := t.dump(ctx, t.process, secondEntries, runtimeapi.Filter{Data: "gpt", Operator: "eq", Value: second}, secondRate, func(e runtimeapi.Entry) {
		// Read once, also if an error follows: what was counted before it would count twice.
		t.last = second
		user, ok := strings.CutPrefix(runtimeapi.UnpaddedSecondKey(e.Key), prefix)
		switch {
		case len(e.GPC) < t.counters.refused+len(t.counters.kinds):
			unusable = fmt.Errorf("an entry of %s has %d counters: %s does not fit", secondEntries, len(e.GPC), countersVariable)
			return
		case !ok:
			return
		}
		t.counters.count(&e, func(kind requestKind, admitted, refused int64) {
			if admitted+refused > 0 {
				named[user] = named[user] || admitted > 0
				count(counted{user, kind, admitted, refused})
			}
		})
	})
	return cmp.Or(err, unusable)
}

// readProgress reads what is in progress by credit, and the bytes of it. named are the users with requests since the last read.
func (t *secondReader) readProgress(ctx context.Context, named map[string]bool) error {
	var natives []nativeCount
	flush := func() {
		if t.hearers.natives != nil && len(natives) > 0 {
			t.hearers.natives(natives)
		}
		natives = natives[:0]
	}
	busy := make(map[string]bool, len(t.busy))
	hear := func(e *runtimeapi.Entry, of *limits.Limits) {
		n := e.ConnCur
		// Without credit those are requests that were asked about: their bodies are held by the clock in this entry.
		if gpt(e, 0) == 0 && bandwidthOf(of).Limited() {
			n = 0
		}
		natives = append(natives, nativeCount{user: e.Key, of: of, inProgress: n, bytes: [2]int64{bandwidth.Down: e.BytesOut, bandwidth.Up: e.BytesIn}})
		if len(natives) == maxNatives {
			flush()
		}
	}
	err := t.dump(ctx, t.process, creditEntries, runtimeapi.Filter{Data: "conn_cur", Operator: "gt", Value: 0}, secondRate, func(e runtimeapi.Entry) {
		busy[e.Key] = true
		hear(&e, t.of(e.Key))
		// No generation, but requests in progress: another agent has taken this credit back.
		if !t.inherited && t.hearers.inherited != nil && gpt(&e, 0) == 0 {
			flush()
			t.hearers.inherited(e.Key, e.ConnCur)
		}
	})
	flush()
	if err != nil {
		return err
	}
	t.inherited = true
	if t.hearers.present != nil {
		for user := range busy {
			t.hearers.present(user)
		}
		for user := range named {
			t.hearers.present(user)
		}
	}
	// Nothing is in progress any more, or was when the table was read; of short requests the bytes count.
	var over []string
	for user := range t.busy {
		if !busy[user] {
			over = append(over, user)
		}
	}
	for user := range named {
		if !busy[user] && !t.busy[user] && bandwidthOf(t.of(user)).Limited() {
			over = append(over, user)
		}
	}
	t.busy = busy
	slices.Sort(over)
	for some := range slices.Chunk(over, readBatch) {
		entries, err := t.table.Read(ctx, creditEntries, some)
		if err != nil {
			return err
		}
		for i := range entries {
			hear(&entries[i], t.of(entries[i].Key))
		}
	}
	flush()
	return nil
}

// watch tells once a minute which users the table of credit has, until ctx ends.
func (t *secondReader) watch(ctx context.Context) error {
	for daemon.Sleep(ctx, absentEvery) {
		if err := t.readUsers(ctx); err != nil && ctx.Err() == nil {
			t.metrics.creditReadErrors.Inc()
			t.log.Debug("users with credit not read", slog.Any("error", err))
		}
	}
	return nil
}

func (t *secondReader) readUsers(ctx context.Context) error {
	_, process, err := t.table.Variable(ctx, countersVariable)
	if err != nil {
		return err
	}
	// From before the first entry: places that are given later may be missing in what is read, and are not forgotten for it.
	began, users := time.Now(), map[string]bool{}
	if err := t.dumpUsers(ctx, process, func(e runtimeapi.Entry) { users[e.Key] = true }); err != nil {
		return err
	}
	if t.hearers.absent != nil {
		t.hearers.absent(process, began, func(user string) bool { return users[user] })
	}
	t.metrics.creditUsers.Set(float64(len(users)))
	return nil
}

// dumpUsers reads the table of credit of a process. It stops when that one is
// replaced: a process ends only once nobody reads from it, and until it does its requests
// in progress count in full.
func (t *secondReader) dumpUsers(ctx context.Context, process uint64, each func(runtimeapi.Entry)) error {
	ctx, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	defer func() { stop(nil); <-watched }()
	go func() {
		defer close(watched)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			// An error here says nothing: the read itself fails if HAProxy is away.
			if _, now, err := t.table.Variable(ctx, countersVariable); err == nil && now != process {
				stop(errNewProcess)
			}
		}
	}()
	err := t.dump(ctx, process, creditEntries, runtimeapi.Filter{}, creditRate, each)
	if err != nil && errors.Is(context.Cause(ctx), errNewProcess) {
		return errNewProcess
	}
	return err
}

// dump reads a table of a process.
func (t *secondReader) dump(ctx context.Context, process uint64, table string, filter runtimeapi.Filter, rate int, each func(runtimeapi.Entry)) error {
	var replaced error
	err := t.table.Dump(ctx, table, filter, rate, func(e runtimeapi.Entry) {
		if e.Process != process {
			replaced = errNewProcess
			return
		}
		each(e)
	})
	return cmp.Or(err, replaced)
}

type requestKind struct {
	verb      string // "": not known
	operation string // "": none
}

// counters says which counters (gpc) of a second count what: see parseCounters.
type counters struct {
	classes int // that have tickets
	kinds   []requestKind
	at      []int // counter of requests admitted of each kind; of a class, of its tickets
	refused int   // the first counter of requests refused of each kind
	ofAll   int   // counter of the tickets of all requests; -1: none
}

// parseCounters reads what haproxy.cfg says of its counters, such as "* PUT GET/LIST | GET PUT /BULK": 0 to 2 are tickets of all requests,
// of PUT, and of the class LIST, which all are GETs; 3 to 5 are how many of these admitted nothing. 6 to 8 are requests admitted: GETs and
// PUTs without operation class, and those of the class BULK with any verb. Behind these are requests refused, of each kind. A class is a kind
// unless it is behind the bar as well, and "*" is that of the GETs if these are not there.
func parseCounters(text string) (c counters, err error) {
	const most = 100 // that an entry can have
	before, behind, bar := strings.Cut(text, "|")
	if !bar {
		return c, fmt.Errorf("HAProxy does not tell what it counts (%s): it needs the haproxy.cfg of this version, and a reload", countersVariable)
	}
	classes, others := strings.Fields(before), strings.Fields(behind)
	for i, word := range slices.Concat(classes, others) {
		at := i
		if i >= len(classes) {
			at += len(classes)
		} else if slices.Contains(others, word) || word == limits.All && slices.Contains(slices.Concat(classes, others), "GET") {
			continue
		}
		verb, operation, _ := strings.Cut(word, "/")
		if word == limits.All {
			verb = "GET"
		}
		kind := requestKind{verb, operation}
		if len(word) > 100 || kind == (requestKind{}) || slices.Contains(c.kinds, kind) {
			return counters{}, fmt.Errorf("%s is %.100q: %.100q is not a verb or VERB/OPERATION that is there once", countersVariable, text, word)
		}
		c.kinds, c.at = append(c.kinds, kind), append(c.at, at)
	}
	c.classes, c.refused = len(classes), 2*len(classes)+len(others)
	// What comes from HAProxy bounds memory here.
	if len(c.kinds) == 0 || c.refused+len(c.kinds) > most {
		return counters{}, fmt.Errorf("%s is %.100q: want what counters 0 to %d count", countersVariable, text, most-1)
	}
	c.ofAll = slices.Index(classes, limits.All)
	return c, nil
}

// count is how many requests of each kind were admitted and refused in a second.
func (c *counters) count(second *runtimeapi.Entry, each func(kind requestKind, admitted, refused int64)) {
	counts, others := make([]int64, len(c.kinds)), int64(0)
	for i, at := range c.at {
		counts[i] = int64(gpc(second, at))
		if at < c.classes {
			counts[i] = max(0, counts[i]-int64(gpc(second, c.classes+at)))
		}
		if at != c.ofAll {
			others += counts[i]
		}
	}
	for i, kind := range c.kinds {
		if c.at[i] == c.ofAll {
			counts[i] = max(0, counts[i]-others)
		}
		each(kind, counts[i], int64(gpc(second, c.refused+i)))
	}
}
