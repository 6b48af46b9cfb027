package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// secondRig is a secondReader of tables that the test writes.
type secondRig struct {
	*secondReader
	t        *testing.T
	tables   *tablesFake
	registry *prometheus.Registry
	now      int64 // the second that is read next
	heard    []string
	logged   strings.Builder
}

// tablesFake plays HAProxy's two tables.
type tablesFake struct {
	mu      sync.Mutex
	process uint64
	counted string
	credit  []runtimeapi.Entry
	seconds []runtimeapi.Entry
	err     error
	during  func() // called before the last entry of a dump, with mu held
}

func (f *tablesFake) Variable(context.Context, string) (string, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counted, f.process, f.err
}

func (f *tablesFake) Dump(_ context.Context, table string, filter runtimeapi.Filter, _ int, each func(runtimeapi.Entry)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := f.seconds
	if table == creditEntries {
		entries = f.credit
	}
	for i, e := range entries {
		switch filter {
		case runtimeapi.Filter{Data: "conn_cur", Operator: "gt"}:
			if e.ConnCur == 0 {
				continue
			}
		case runtimeapi.Filter{Data: "gpt", Operator: "eq", Value: filter.Value}:
			if int64(gpt(&e, 0)) != filter.Value {
				continue
			}
		}
		if f.during != nil && i == len(entries)-1 {
			f.during()
			if f.err != nil {
				return f.err
			}
		}
		e.Process = f.process
		each(e)
	}
	return nil
}

func (f *tablesFake) Read(_ context.Context, _ string, keys []string) (entries []runtimeapi.Entry, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		entry := runtimeapi.Entry{Key: key}
		for _, e := range f.credit {
			if e.Key == key {
				entry = e
			}
		}
		entries = append(entries, entry)
	}
	return entries, f.err
}

func newSecondRig(t *testing.T) *secondRig {
	r := &secondRig{t: t, tables: &tablesFake{process: uint64(time.Now().Add(time.Minute).UnixMicro()), counted: "| GET PUT GET/LIST"},
		registry: prometheus.NewPedanticRegistry()}
	set := parse(t, strings.NewReplacer("staff: {}", "staff: {}\n  bytes: {bandwidth: {down: 1MB}}", "wilma: wide,", "wilma: wide, bytes: bytes,").Replace(testLimits))
	r.secondReader = newSecondReader(r.tables, set.User, newMetrics(r.registry),
		slog.New(slog.NewTextHandler(&r.logged, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
	r.now = r.last + 1
	r.hearers = creditHearers{
		natives: func(counts []nativeCount) {
			for _, c := range counts {
				r.hear("%s has %d in progress, %d down, %d up", c.user, c.inProgress, c.bytes[bandwidth.Down], c.bytes[bandwidth.Up])
			}
		},
		inherited: func(user string, n int) { r.hear("%s inherited %d", user, n) },
	}
	return r
}

func (r *secondRig) hear(format string, args ...any) {
	r.heard = append(r.heard, fmt.Sprintf(format, args...))
}

func (r *secondRig) count(c counted) {
	for what, n := range map[string]int64{"admitted": c.admitted, "refused": c.refused} {
		if n > 0 {
			r.hear("%s %s %d %s/%s", c.user, what, n, c.kind.verb, c.kind.operation)
		}
	}
}

// reads reads the next second, and returns what it told, sorted.
func (r *secondRig) reads() []string {
	r.heard = nil
	r.read(r.t.Context(), r.now, r.count)
	r.now++
	slices.Sort(r.heard)
	return r.heard
}

// of is an entry of the second that is read next.
func (r *secondRig) of(user string, counters ...uint32) runtimeapi.Entry {
	return runtimeapi.Entry{Found: true, Key: runtimeapi.SecondKey(user, r.now), GPT: []uint32{uint32(r.now), 7}, GPC: counters}
}

// with is an entry of credit.
func with(user string, generation uint32, inProgress int, bytes int64) runtimeapi.Entry {
	return runtimeapi.Entry{Found: true, Key: user, GPT: []uint32{generation}, ConnCur: inProgress, BytesOut: bytes}
}

// Each second is read once: the requests that were admitted and refused in it, by user and kind, and of no other second.
func TestSeconds(t *testing.T) {
	r := newSecondRig(t)
	r.tables.seconds = []runtimeapi.Entry{r.of("alice", 5, 0, 2, 0, 0, 0), r.of("a|b", 0, 1, 0, 3, 0, 4), r.of("late", 0, 0, 0, 0, 0, 0)}
	want := []string{"alice admitted 2 GET/LIST", "alice admitted 5 GET/", "a|b admitted 1 PUT/", "a|b refused 3 GET/", "a|b refused 4 GET/LIST"}
	if diff := cmp.Diff(want, r.reads()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	r.tables.seconds = append(r.tables.seconds, r.of("alice", 1, 0, 0, 0, 0, 0))
	if diff := cmp.Diff([]string{"alice admitted 1 GET/"}, r.reads()); diff != "" {
		t.Errorf("of the next second, told (-want +got):\n%s", diff)
	}
	r.now--
	if got := r.reads(); len(got) > 0 {
		t.Errorf("read again, told %q, want nothing", got)
	}
	// Two reads failed: their seconds are read with the next one. What HAProxy has forgotten by then is not.
	r.tables.err = errors.New("busy")
	for range 6 {
		r.tables.seconds = append(r.tables.seconds, r.of("bob", uint32(r.now-r.last), 0, 0, 0, 0, 0))
		r.reads()
	}
	r.tables.err = nil
	if diff := cmp.Diff([]string{"bob admitted 4 GET/", "bob admitted 5 GET/", "bob admitted 6 GET/"}, r.reads()); diff != "" {
		t.Errorf("after errors, told (-want +got):\n%s", diff)
	}
	if got := testutil.ToFloat64(r.metrics.creditReadErrors); got != 6 {
		t.Errorf("%v errors, want 6", got)
	}
}

// What a read has told before an error is not told again.
func TestSecondThatIsReadInPart(t *testing.T) {
	for name, break1 := range map[string]func(f *tablesFake){
		"HAProxy hangs":    func(f *tablesFake) { f.err = errors.New("cut") },
		"HAProxy reloaded": func(f *tablesFake) { f.process++ },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSecondRig(t)
			r.tables.seconds = []runtimeapi.Entry{r.of("alice", 5, 0, 0, 0, 0, 0), r.of("bob", 7, 0, 0, 0, 0, 0)}
			r.tables.during = func() { break1(r.tables) }
			if diff := cmp.Diff([]string{"alice admitted 5 GET/"}, r.reads()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			r.tables.during, r.tables.err = nil, nil
			if got := r.reads(); len(got) > 0 {
				t.Errorf("told %q by the next read, want nothing", got)
			}
		})
	}
}

// Users with requests in progress are told each second, and once more when that is over. Of users with a bandwidth limit the
// bytes of short requests are told as well.
func TestSecondsTellOfProgress(t *testing.T) {
	r := newSecondRig(t)
	for _, step := range []struct {
		name   string
		credit []runtimeapi.Entry
		starts []string
		want   []string
	}{
		{"one in progress", []runtimeapi.Entry{with("alice", 7, 2, 900), with("bob", 7, 0, 5)}, nil, []string{"alice has 2 in progress, 900 down, 0 up"}},
		{"still", []runtimeapi.Entry{with("alice", 7, 1, 990), with("bob", 7, 0, 5)}, nil, []string{"alice has 1 in progress, 990 down, 0 up"}},
		{"over", []runtimeapi.Entry{with("alice", 7, 0, 999)}, nil, []string{"alice has 0 in progress, 999 down, 0 up"}},
		{"nothing more", []runtimeapi.Entry{with("alice", 7, 0, 999)}, nil, nil},
		{"short requests", []runtimeapi.Entry{with("bytes", 7, 0, 400), with("alice", 7, 0, 400)}, []string{"bytes", "alice"},
			[]string{"alice admitted 1 GET/", "bytes admitted 1 GET/", "bytes has 0 in progress, 400 down, 0 up"}},
		{"asked about, with bodies that are held", []runtimeapi.Entry{with("bytes", 0, 3, 800)}, nil, []string{"bytes has 0 in progress, 800 down, 0 up"}},
		{"and forgotten", nil, nil, []string{"bytes has 0 in progress, 0 down, 0 up"}},
	} {
		r.tables.credit, r.tables.seconds = step.credit, nil
		for _, user := range step.starts {
			r.tables.seconds = append(r.tables.seconds, r.of(user, 1, 0, 0, 0, 0, 0))
		}
		if diff := cmp.Diff(step.want, r.reads()); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", step.name, diff)
		}
	}
}

// Of requests in progress whose credit the agent before this one took back it is told once, in
// the first read of a process that is older than this agent.
func TestInheritedRequestsAreTold(t *testing.T) {
	r := newSecondRig(t)
	r.hearers.natives = nil
	r.tables.credit = []runtimeapi.Entry{with("alice", 7, 3, 0), with("bob", 0, 4, 0), with("carol", 0, 0, 0)}
	for _, tt := range []struct {
		name    string
		process uint64
		want    []string
	}{
		{"older", r.began - 1, []string{"bob inherited 4"}},
		{"the same again", r.began - 1, nil},
		{"a new one", r.began + 1, nil},
	} {
		r.tables.process = tt.process
		if diff := cmp.Diff(tt.want, r.reads()); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Each read tells which users have requests by credit, and once a minute all users of the table are told.
func TestSecondsTellWhoIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSecondRig(t)
		r.hearers = creditHearers{present: func(user string) { r.hear("%s", user) }, absent: func(process uint64, began time.Time, shown func(string) bool) {
			if process != r.tables.process || !began.Equal(time.Now()) {
				t.Errorf("process %d, at %v; want %d, now", process, began, r.tables.process)
			}
			for _, user := range []string{"alice", "bob", "carol"} {
				if shown(user) {
					r.hear("shown %s", user)
				}
			}
		}}
		r.tables.credit = []runtimeapi.Entry{with("alice", 7, 0, 0), with("bob", 7, 1, 0)}
		r.tables.seconds = []runtimeapi.Entry{r.of("alice", 1, 0, 0, 0, 0, 0)}
		if diff := cmp.Diff([]string{"alice admitted 1 GET/", "alice", "bob"}, r.reads(), cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		r.heard = nil
		go func() { done <- r.watch(ctx) }()
		time.Sleep(absentEvery + time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"shown alice", "shown bob"}, r.heard); diff != "" {
			t.Errorf("after a minute, told (-want +got):\n%s", diff)
		}
		r.tables.mu.Lock()
		r.tables.during = func() { r.tables.err = errors.New("closed") }
		r.tables.mu.Unlock()
		time.Sleep(absentEvery)
		synctest.Wait()
		if len(r.heard) != 2 {
			t.Errorf("a read that fails tells %q, want nothing", r.heard[2:])
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := testutil.ToFloat64(r.metrics.creditUsers); got != 2 {
			t.Errorf("%v users with credit, want 2", got)
		}
	})
}

// The process that is read has been replaced: it could not end while it is read.
func TestReadLeavesAnOldProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSecondRig(t)
		tells := make(chan struct{})
		r.table = endlessTable{r.tables, tells}
		go func() {
			<-tells
			time.Sleep(10 * time.Second)
			r.tables.mu.Lock()
			defer r.tables.mu.Unlock()
			r.tables.process++
		}()
		begun := time.Now()
		if err := r.readUsers(t.Context()); err != errNewProcess {
			t.Errorf("readUsers() = %v, want %v", err, errNewProcess)
		}
		if took := time.Since(begun); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("readUsers() ended after %v, want 10 to 12 s", took)
		}
	})
}

// endlessTable is one of which a dump never ends.
type endlessTable struct {
	*tablesFake
	tells chan struct{}
}

func (e endlessTable) Dump(ctx context.Context, _ string, _ runtimeapi.Filter, _ int, _ func(runtimeapi.Entry)) error {
	close(e.tells)
	<-ctx.Done()
	return ctx.Err()
}

// Reports name requests by credit under their own second, with what the agent was asked about in it.
func TestReportsOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		f := &tablesFake{process: 1, counted: "| GET PUT GET/LIST"}
		time.Sleep(1200 * time.Millisecond)
		r.seconds = newSecondReader(f, r.limiter.inForce.limitsOf, r.metrics, slog.New(slog.DiscardHandler))
		second := time.Now().Unix()
		r.ask("alice", "GET")
		time.Sleep(time.Second)
		taken, counts, refused := r.starts.take(), r.metrics.started.takeCounts(), map[series]int64{}
		r.ask("alice", "PUT") // of the next second
		f.seconds = []runtimeapi.Entry{{Key: runtimeapi.SecondKey("alice", second), GPT: []uint32{uint32(second)}, GPC: []uint32{3, 0, 2, 1, 0, 0}},
			{Key: runtimeapi.SecondKey("bob", second), GPT: []uint32{uint32(second)}, GPC: []uint32{0, 0, 0, 0, 4, 0}}}
		r.readSecond(t.Context(), second, taken, counts, refused)
		want := []redisbus.Started{
			{User: "alice", Starts: 6, Refused: 1, Classes: []redisbus.StartedClass{{Class: "GET", Starts: 6, Refused: 1}, {Class: "LIST", Starts: 2}}},
			{User: "bob", Refused: 4, Classes: []redisbus.StartedClass{{Class: "PUT", Refused: 4}}},
		}
		if diff := cmp.Diff(want, taken.sorted()); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[series]int64{{"free", "GET", ""}: 4, {"free", "GET", "LIST"}: 2}, counts); diff != "" {
			t.Errorf("by tier (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[series]int64{{"free", "PUT", ""}: 1}, r.metrics.started.takeCounts()); diff != "" {
			t.Errorf("by tier, of the next second (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[series]int64{{"free", "GET", ""}: 1, {"free", "PUT", ""}: 4}, refused); diff != "" {
			t.Errorf("refused by tier (-want +got):\n%s", diff)
		}
	})
}

func TestCounters(t *testing.T) {
	for _, tt := range []struct {
		counted string
		gpc     []uint32
		want    string
	}{
		{"| GET PUT", []uint32{1, 2, 3, 4}, "GET/ 1 3, PUT/ 2 4"},
		{"GET | PUT", []uint32{9, 2, 5, 3, 4}, "GET/ 7 3, PUT/ 5 4"},
		{"* | PUT", []uint32{9, 2, 5, 3, 4}, "GET/ 2 3, PUT/ 5 4"},
		{"* GET | PUT", []uint32{99, 9, 90, 2, 1, 3, 4}, "GET/ 7 3, PUT/ 1 4"},
		{"* GET GET/LIST | GET /BULK", []uint32{99, 9, 8, 90, 2, 1, 5, 6, 10, 11, 12}, "GET/LIST 7 10, GET/ 5 11, /BULK 6 12"},
		{"* | PUT", []uint32{4, 3, 5, 0, 0}, "GET/ 0 0, PUT/ 5 0"}, // while a request is being decided
	} {
		c, err := parseCounters(tt.counted)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		c.count(&runtimeapi.Entry{GPC: tt.gpc}, func(kind requestKind, admitted, refused int64) {
			got = append(got, fmt.Sprintf("%s/%s %d %d", kind.verb, kind.operation, admitted, refused))
		})
		if got := strings.Join(got, ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.counted, got, tt.want)
		}
	}
	const wantCounts = ": want what counters 0 to 99 count"
	many := "|"
	for i := range 51 {
		many += fmt.Sprintf(" A%d", i)
	}
	for text, want := range map[string]string{
		"":          "HAProxy does not tell what it counts (proc.sluice_classes): it needs the haproxy.cfg of this version, and a reload",
		"|":         `proc.sluice_classes is "|"` + wantCounts,
		many:        fmt.Sprintf("proc.sluice_classes is %.100q", many) + wantCounts,
		"| PUT PUT": `proc.sluice_classes is "| PUT PUT": "PUT" is not a verb or VERB/OPERATION that is there once`,
		"| /":       `proc.sluice_classes is "| /": "/" is not a verb or VERB/OPERATION that is there once`,
	} {
		if _, err := parseCounters(text); err == nil || err.Error() != want {
			t.Errorf("parseCounters(%q) = %v, want %q", text, err, want)
		}
	}
}

func FuzzParseCounters(f *testing.F) {
	f.Add("* PUT GET/LIST | GET PUT /BULK")
	f.Add("|")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCounters(text)
		if err == nil && (len(c.kinds) == 0 || len(c.at) != len(c.kinds) || c.refused+len(c.kinds) > 100) {
			t.Errorf("parseCounters(%q) = %+v", text, c)
		}
	})
}
