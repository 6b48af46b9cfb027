package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// tallyRig is tallies of a table that the test writes.
type tallyRig struct {
	*tallies
	t        *testing.T
	table    *creditTableFake
	registry *prometheus.Registry
	natives  map[string]int
	logged   strings.Builder
}

type creditTableFake struct {
	mu      sync.Mutex
	process uint64
	layout  string
	entries []runtimeapi.Entry
	err     error
	during  func() // called before the last entry is told, with mu held
}

func (f *creditTableFake) Variable(context.Context, string) (string, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.layout, f.process, f.err
}

func (f *creditTableFake) Dump(_ context.Context, _ string, _ int, each func(runtimeapi.Entry)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, e := range f.entries {
		if f.during != nil && i == len(f.entries)-1 {
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

const tallyLayoutText = "2 GET PUT GET/LIST"

func newTallyRig(t *testing.T) *tallyRig {
	r := &tallyRig{t: t, table: &creditTableFake{process: uint64(time.Now().Add(time.Minute).UnixMicro()), layout: tallyLayoutText},
		registry: prometheus.NewPedanticRegistry(), natives: map[string]int{}}
	set := parse(t, testLimits)
	r.tallies = newTallies(r.table, &daemon.Clock{}, set.User, newStarts(), newMetrics(r.registry),
		slog.New(slog.NewTextHandler(&r.logged, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
	r.hearers.natives = func(counts []nativeCount) {
		for _, c := range counts {
			r.natives[c.user] = c.inProgress
		}
	}
	return r
}

// entry is one of a user with so many requests admitted, and of those PUTs, and GETs of
// LIST. Tickets drawn, in the counter before, are always more.
func entry(user string, inProgress int, all, put, list uint32) runtimeapi.Entry {
	return runtimeapi.Entry{Found: true, Key: user, ConnCur: inProgress, GPC: []uint32{9, all + 100, all - put - list, put, list}}
}

func (r *tallyRig) has(entries ...runtimeapi.Entry) {
	r.change(func(f *creditTableFake) { f.entries = entries })
}

func (r *tallyRig) change(how func(*creditTableFake)) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	how(r.table)
}

func (r *tallyRig) mustRead() {
	r.t.Helper()
	if err := r.readTable(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// told is what starts were told until now, by user; each user's in progress is behind @.
func (r *tallyRig) told() toldStarts {
	told := toldStarts{}
	for _, report := range takeStarts(r.starts) {
		told[report.User] = map[string]int64{"*": report.Starts}
		for _, c := range report.Classes {
			told[report.User][c.Class] = c.Starts
		}
		if report.Active > 0 {
			told[report.User]["@"] = int64(report.Active)
		}
	}
	return told
}

type toldStarts = map[string]map[string]int64

// What grew between two reads is what was admitted, and nothing else.
func TestTallies(t *testing.T) {
	type step struct {
		name    string
		change  func(*creditTableFake)
		entries []runtimeapi.Entry
		want    toldStarts
	}
	later := func(f *creditTableFake) { f.process += 1e6 }
	for _, tt := range []struct {
		name  string
		steps []step
		total float64 // of sluice_requests_total{verdict="credit"}
	}{
		{"entries that come and grow", []step{
			{"alice is new", nil, []runtimeapi.Entry{entry("alice", 0, 10, 2, 3)}, toldStarts{"alice": {"*": 10, "GET": 8, "PUT": 2, "LIST": 3}}},
			{"nothing happens", nil, []runtimeapi.Entry{entry("alice", 0, 10, 2, 3)}, toldStarts{}},
			{"she goes on, bob comes", nil, []runtimeapi.Entry{entry("bob", 0, 1, 1, 0), entry("alice", 0, 12, 2, 5)},
				toldStarts{"alice": {"*": 2, "GET": 2, "LIST": 2}, "bob": {"*": 1, "PUT": 1}}},
		}, 13},
		{"entry that HAProxy forgot", []step{
			{"she comes", nil, []runtimeapi.Entry{entry("alice", 0, 10, 2, 3)}, toldStarts{"alice": {"*": 10, "GET": 8, "PUT": 2, "LIST": 3}}},
			{"she is gone", nil, nil, toldStarts{}},
			{"she is back with more", nil, []runtimeapi.Entry{entry("alice", 0, 12, 2, 3)}, toldStarts{"alice": {"*": 12, "GET": 10, "PUT": 2, "LIST": 3}}},
			{"she was gone between two reads", nil, []runtimeapi.Entry{entry("alice", 0, 12, 1, 0)}, toldStarts{"alice": {"*": 12, "GET": 11, "PUT": 1}}},
		}, 34},
		{"HAProxy is replaced", []step{
			{"she comes", nil, []runtimeapi.Entry{entry("alice", 0, 10, 2, 3)}, toldStarts{"alice": {"*": 10, "GET": 8, "PUT": 2, "LIST": 3}}},
			{"the new one has counted more", later, []runtimeapi.Entry{entry("alice", 0, 30, 0, 0)}, toldStarts{"alice": {"*": 30, "GET": 30}}},
			{"and goes on", nil, []runtimeapi.Entry{entry("alice", 0, 31, 0, 0)}, toldStarts{"alice": {"*": 1, "GET": 1}}},
		}, 41},
		{"HAProxy is older than the agent", []step{
			{"what it has counted is another agent's", func(f *creditTableFake) { f.process = 7 }, []runtimeapi.Entry{entry("alice", 0, 10, 2, 3)}, toldStarts{}},
			{"she goes on, bob comes", nil, []runtimeapi.Entry{entry("alice", 0, 11, 2, 3), entry("bob", 0, 2, 0, 0)},
				toldStarts{"alice": {"*": 1, "GET": 1}, "bob": {"*": 2, "GET": 2}}},
			{"an older one answers", func(f *creditTableFake) { f.process = 6 }, []runtimeapi.Entry{entry("alice", 0, 99, 2, 3)}, toldStarts{}},
		}, 3},
		{"in progress", []step{
			{"three, and none was counted", nil, []runtimeapi.Entry{entry("alice", 3, 0, 0, 0)}, toldStarts{"alice": {"*": 0, "@": 3}}},
			{"two", nil, []runtimeapi.Entry{entry("alice", 2, 1, 1, 0)}, toldStarts{"alice": {"*": 1, "PUT": 1, "@": 2}}},
			{"none", nil, []runtimeapi.Entry{entry("alice", 0, 1, 1, 0)}, toldStarts{"alice": {"*": 0}}},
			{"none any more", nil, []runtimeapi.Entry{entry("alice", 0, 1, 1, 0)}, toldStarts{}},
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTallyRig(t)
				for _, s := range tt.steps {
					if s.change != nil {
						r.change(s.change)
					}
					r.has(s.entries...)
					r.mustRead()
					time.Sleep(time.Second)
					if diff := cmp.Diff(s.want, r.told()); diff != "" {
						t.Errorf("%s: starts (-want +got):\n%s", s.name, diff)
					}
				}
				if got := testutil.ToFloat64(r.metrics.credited); got != tt.total {
					t.Errorf("%v requests by credit, want %v", got, tt.total)
				}
			})
		})
	}
}

// Of everybody who has requests in progress or was admitted it is told how many and how many
// bytes, and once more when that is over.
func TestTalliesTellOfBytes(t *testing.T) {
	r := newTallyRig(t)
	var told []string
	r.hearers.natives = func(counts []nativeCount) {
		for _, c := range counts {
			told = append(told, fmt.Sprintf("%s: %d in progress, %d down, %d up", c.user, c.inProgress, c.bytes[bandwidth.Down], c.bytes[bandwidth.Up]))
		}
	}
	for _, step := range []struct {
		inProgress int
		admitted   uint32
		down       int64
		want       []string
	}{
		{0, 1, 500, []string{"alice: 0 in progress, 500 down, 7 up"}},
		{0, 1, 500, []string{"alice: 0 in progress, 500 down, 7 up"}},
		{0, 1, 500, nil},
		{2, 1, 900, []string{"alice: 2 in progress, 900 down, 7 up"}},
		{2, 1, 990, []string{"alice: 2 in progress, 990 down, 7 up"}},
		{0, 1, 999, []string{"alice: 0 in progress, 999 down, 7 up"}},
		{0, 1, 999, nil},
	} {
		e := entry("alice", step.inProgress, step.admitted, 0, 0)
		e.BytesOut, e.BytesIn = step.down, 7
		r.has(e)
		r.mustRead()
		if diff := cmp.Diff(step.want, told); diff != "" {
			t.Errorf("%+v: told (-want +got):\n%s", step, diff)
		}
		told = nil
	}
}

// Who is busy is told of soon, although few are and the read of a large table goes on: rates
// are of the time between two tellings.
func TestTalliesTellOfFewSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTallyRig(t)
		r.has(entry("alice", 1, 1, 0, 0), entry("bob", 0, 0, 0, 0), entry("carol", 0, 0, 0, 0))
		r.mustRead()
		var told time.Time
		r.hearers.natives = func([]nativeCount) { told = time.Now() }
		begun := time.Now()
		for i := range 3 {
			r.takeEntry(&r.table.entries[i])
			time.Sleep(maxNativesAge + time.Millisecond)
		}
		if told.IsZero() || told.Sub(begun) > 2*maxNativesAge {
			t.Errorf("told after %v, want after %v at most, before the read has ended", told.Sub(begun), 2*maxNativesAge)
		}
	})
}

// Of requests in progress whose credit the agent before this one took back it is told once, in
// the first whole read of a process that is older than this agent.
func TestTalliesTellOfInheritedRequests(t *testing.T) {
	r := newTallyRig(t)
	var told []string
	r.hearers.inherited = func(user string, n int) { told = append(told, fmt.Sprint(user, " ", n)) }
	with, without, idle := entry("alice", 3, 5, 0, 0), entry("bob", 4, 5, 0, 0), entry("carol", 0, 5, 0, 0)
	with.GPT, without.GPT, idle.GPT = []uint32{7}, []uint32{0}, []uint32{0}
	r.has(with, without, idle)
	for _, tt := range []struct {
		name    string
		process uint64
		want    []string
	}{
		{"older", r.process - 1, []string{"bob 4"}},
		{"the same again", r.process - 1, nil},
		{"a new one", r.process + 1, nil},
	} {
		r.change(func(f *creditTableFake) { f.process = tt.process })
		r.mustRead()
		if diff := cmp.Diff(tt.want, told); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", tt.name, diff)
		}
		told = nil
	}
}

func TestTalliesByTier(t *testing.T) {
	r := newTallyRig(t)
	r.has(entry("alice", 0, 10, 2, 3), entry("wilma", 0, 5, 0, 0), entry("bob", 0, 1, 0, 0))
	r.mustRead()
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(`
# HELP sluice_requests_started_total Requests that the agent let start, or HAProxy by credit, limited or not, by their users' tier, their verb (empty: admitted by credit, of an operation class with several verbs) and their operation class (empty: none, or admitted by credit where no class of the limit file has a limit); beyond 1000 series the tier is other. Not in it: who was refused, and who passed without a verdict.
# TYPE sluice_requests_started_total counter
sluice_requests_started_total{operation="",tier="free",verb="GET"} 6
sluice_requests_started_total{operation="",tier="free",verb="PUT"} 2
sluice_requests_started_total{operation="",tier="wide",verb="GET"} 5
sluice_requests_started_total{operation="LIST",tier="free",verb="GET"} 3
# HELP sluice_tier_requests_total Requests as in sluice_requests_total, by their users' tier; beyond 1000 series the tier is other.
# TYPE sluice_tier_requests_total counter
sluice_tier_requests_total{limit="",tier="free",verdict="credit"} 11
sluice_tier_requests_total{limit="",tier="wide",verdict="credit"} 5
# HELP sluice_credit_users Users in HAProxy's table of credit when it was last read: those who have credit, or had it in the last 10 minutes.
# TYPE sluice_credit_users gauge
sluice_credit_users 3
`), "sluice_requests_started_total", "sluice_tier_requests_total", "sluice_credit_users"); err != nil {
		t.Error(err)
	}
}

// A read that fails in its midst has counted what it has read, once.
func TestTalliesOfAReadThatFails(t *testing.T) {
	for name, break1 := range map[string]func(f *creditTableFake){
		"HAProxy hangs":    func(f *creditTableFake) { f.err = errors.New("cut") },
		"HAProxy reloaded": func(f *creditTableFake) { f.process++ },
	} {
		t.Run(name, func(t *testing.T) {
			r := newTallyRig(t)
			r.has(entry("alice", 0, 10, 2, 3), entry("bob", 0, 5, 0, 0))
			r.mustRead()
			r.has(entry("alice", 0, 11, 2, 3), entry("bob", 0, 7, 0, 0))
			before := r.table.process
			r.table.during = func() { break1(r.table) }
			if err := r.readTable(t.Context()); err == nil {
				t.Fatal("readTable() = nil, want an error")
			}
			if got := testutil.ToFloat64(r.metrics.credited); got != 16 {
				t.Errorf("%v requests by credit, want the 16 that were read", got)
			}
			r.table.during, r.table.err = nil, nil
			r.mustRead()
			want := 18.0 // bob's two
			if r.table.process != before {
				want = 16 + 18 // the new process has counted as many for itself
			}
			if got := testutil.ToFloat64(r.metrics.credited); got != want {
				t.Errorf("%v requests by credit, want %v", got, want)
			}
		})
	}
}

// The process that is read has been replaced: it could not end while it is read.
func TestTalliesLeaveAnOldProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTallyRig(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tells := make(chan struct{})
		r.tallies.table = endlessTable{r.table, tells}
		go func() {
			<-tells
			time.Sleep(10 * time.Second)
			r.change(func(f *creditTableFake) { f.process++ })
		}()
		begun := time.Now()
		if err := r.readTable(ctx); err != errNewProcess {
			t.Errorf("readTable() = %v, want %v", err, errNewProcess)
		}
		if took := time.Since(begun); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("readTable() ended after %v, want 10 to 12 s", took)
		}
	})
}

// endlessTable is one of which a dump never ends.
type endlessTable struct {
	*creditTableFake
	tells chan struct{}
}

func (e endlessTable) Dump(ctx context.Context, _ string, _ int, _ func(runtimeapi.Entry)) error {
	close(e.tells)
	<-ctx.Done()
	return ctx.Err()
}

// HAProxy is away at first, then it is there, and is asked each second.
func TestTalliesGoOnAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTallyRig(t)
		r.table.err = errors.New("no such file")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.run(ctx) }()
		time.Sleep(21*time.Second + time.Millisecond) // the first ten are those in which HAProxy may start
		synctest.Wait()
		if got := testutil.ToFloat64(r.metrics.tallyErrors); got != 22 {
			t.Errorf("%v errors, want 22", got)
		}
		r.change(func(f *creditTableFake) { f.err = nil })
		r.has(entry("alice", 0, 3, 0, 0))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := testutil.ToFloat64(r.metrics.credited); got != 3 {
			t.Errorf("%v requests by credit, want 3", got)
		}
		if got := testutil.ToFloat64(r.metrics.tallyAt); got != float64(time.Now().Unix())-.5 {
			t.Errorf("last read at %v, want half a second before %d", got, time.Now().Unix())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run() = %v, want nil", err)
		}
		want := strings.Repeat(`level=WARN msg="requests that HAProxy admits by itself are not counted" error="no such file"`+"\n", 2) +
			`level=INFO msg="requests that HAProxy admits by itself are counted again"` + "\n"
		if got := r.logged.String(); got != want {
			t.Errorf("logged:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestParseTallyLayout(t *testing.T) {
	got, err := parseTallyLayout("4 GET PUT GET/LIST /BULK")
	want := tallyLayout{first: 4, kinds: []tallyKind{{"GET", ""}, {"PUT", ""}, {"GET", "LIST"}, {"", "BULK"}}}
	if err != nil || !slices.Equal(got.kinds, want.kinds) || got.first != want.first {
		t.Errorf("parseTallyLayout() = %+v, %v, want %+v", got, err, want)
	}
	const wantNumber = ": want the number of a counter, and what it and each one behind it counts, up to number 99"
	for text, want := range map[string]string{
		"":           "HAProxy does not tell what it counts (proc.sluice_tallies): it needs the haproxy.cfg of this version, and a reload",
		"x PUT":      `proc.sluice_tallies is "x PUT"` + wantNumber,
		"99 PUT GET": `proc.sluice_tallies is "99 PUT GET"` + wantNumber,
		"-1 PUT":     `proc.sluice_tallies is "-1 PUT"` + wantNumber,
		"2":          `proc.sluice_tallies is "2"` + wantNumber,
		"2 PUT PUT":  `proc.sluice_tallies is "2 PUT PUT": "PUT" is not a verb or VERB/OPERATION that is there once`,
		"2 /":        `proc.sluice_tallies is "2 /": "/" is not a verb or VERB/OPERATION that is there once`,
		"99 PUT ":    "",
	} {
		if _, err := parseTallyLayout(text); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("parseTallyLayout(%q) = %v, want %q", text, err, want)
		}
	}
}

func FuzzParseTallyLayout(f *testing.F) {
	f.Add("4 GET PUT GET/LIST /BULK")
	f.Add("0")
	f.Add("-1 /")
	f.Fuzz(func(t *testing.T, text string) {
		layout, err := parseTallyLayout(text)
		if err == nil && (layout.first < 0 || len(layout.kinds) == 0 || layout.first+len(layout.kinds) > 100) {
			t.Errorf("parseTallyLayout(%q) = %+v", text, layout)
		}
	})
}

// tallyStand is a real HAProxy with testdata/tallies.cfg.
type tallyStand struct {
	*tallies
	t     *testing.T
	front string
	proc  *testkit.Process
	start func()
}

func newTallyStand(t *testing.T) *tallyStand {
	t.Helper()
	dir, err := os.MkdirTemp("", "tallies") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	release := make(chan struct{})
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(origin.Close)
	t.Cleanup(func() { close(release) })
	s := &tallyStand{t: t, front: testkit.FreeAddr(t)}
	client := runtimeapi.New(filepath.Join(dir, "s"))
	set := parse(t, testLimits)
	s.tallies = newTallies(client, &daemon.Clock{}, set.User, newStarts(), newMetrics(nil), slog.New(slog.DiscardHandler))
	s.start = func() {
		s.proc = testkit.Start(t, []string{"RUNTIME=" + filepath.Join(dir, "s"), "HTTP_BIND=" + s.front, "ORIGIN=" + strings.TrimPrefix(origin.URL, "http://")},
			testkit.HAProxyPath(t), "-W", "-db", "-f", "testdata/tallies.cfg")
		testkit.Eventually(t, "HAProxy is there", func() error {
			_, _, err := client.Variable(t.Context(), tallyVariable)
			return err
		})
	}
	s.start()
	return s
}

// send sends requests of a user, and returns how many were admitted.
func (s *tallyStand) send(n int, method, user, path string) (admitted int) {
	s.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // or a reload would have to wait
	for range n {
		r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.front+path, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		r.Header.Set("X-User", user)
		response, err := client.Do(r)
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			admitted++
		}
	}
	return admitted
}

// counted reads the table, and returns what was admitted of tier free since the last time.
func (s *tallyStand) counted() map[string]int64 {
	s.t.Helper()
	if err := s.readTable(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	counted := map[string]int64{}
	for _, report := range takeStarts(s.starts) {
		if report.Starts == 0 { // HAProxy may not have ended a request of which the client has the answer
			continue
		}
		counted[report.User] += report.Starts
		for _, c := range report.Classes {
			counted[report.User+" "+c.Class] += c.Starts
		}
	}
	return counted
}

// A real HAProxy's requests are counted exactly, refused ones are not, and neither a reload
// nor a restart makes the counts wrong.
func TestTalliesOfHAProxy(t *testing.T) {
	t.Parallel()
	s := newTallyStand(t)
	check := func(what string, want map[string]int64) {
		t.Helper()
		if got := s.counted(); !maps.Equal(got, want) {
			t.Errorf("%s: counted %v, want %v", what, got, want)
		}
	}
	admit := func(want, n int, method, user, path string) {
		t.Helper()
		if got := s.send(n, method, user, path); got != want {
			t.Fatalf("%d of %d admitted, want %d", got, n, want)
		}
	}
	check("before anything", map[string]int64{})
	admit(3, 3, "GET", "alice", "/")
	admit(2, 2, "PUT", "alice", "/")
	admit(2, 2, "GET", "alice", "/?list")
	admit(1, 1, "POST", "alice", "/?bulk")
	admit(2, 6, "DELETE", "alice", "/") // four are refused
	admit(1, 1, "HEAD", "bob b; \\", "/")
	check("two users", map[string]int64{"alice": 10, "alice GET": 5, "alice PUT": 2, "alice LIST": 2, "alice BULK": 1, "alice DELETE": 2,
		`bob b; \`: 1, `bob b; \ HEAD`: 1})
	check("nothing more", map[string]int64{})
	admit(4, 4, "GET", `bob b; \`, "/")
	check("bob goes on", map[string]int64{`bob b; \`: 4, `bob b; \ GET`: 4})

	before := s.process
	var signalled time.Time
	testkit.Eventually(t, "another process answers", func() error {
		if time.Since(signalled) > 2*time.Second { // a master that has just begun loses it
			if err := s.proc.Signal(syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
			signalled = time.Now()
		}
		_, process, err := s.table.Variable(t.Context(), tallyVariable)
		if err == nil && process == before {
			err = errors.New("it is still the old one")
		}
		return err
	})
	admit(2, 2, "GET", "alice", "/")
	check("after a reload", map[string]int64{"alice": 2, "alice GET": 2})

	s.proc.Kill()
	if err := s.readTable(t.Context()); err == nil {
		t.Error("readTable() of a HAProxy that is dead = nil, want an error")
	}
	s.start()
	admit(7, 7, "GET", "alice", "/")
	check("after a restart", map[string]int64{"alice": 7, "alice GET": 7})
	if got := testutil.ToFloat64(s.metrics.credited); got != 24 {
		t.Errorf("%v requests by credit, want 24", got)
	}
}

func TestTalliesOfRequestsInProgress(t *testing.T) {
	t.Parallel()
	s := newTallyStand(t)
	ctx, cancel := context.WithCancel(t.Context())
	var ended []chan struct{}
	for range 3 {
		done := make(chan struct{})
		ended = append(ended, done)
		go func() {
			defer close(done)
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.front+"/held", nil)
			if err != nil {
				return
			}
			r.Header.Set("X-User", "alice")
			if response, err := http.DefaultClient.Do(r); err == nil {
				response.Body.Close()
			}
		}()
	}
	inProgress := func(want int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("alice has %d requests in progress", want), func() error {
			if err := s.readTable(t.Context()); err != nil {
				return err
			}
			got := 0
			for _, report := range takeStarts(s.starts) {
				got += report.Active
			}
			if got != want {
				return fmt.Errorf("starts report %d", got)
			}
			return nil
		})
	}
	inProgress(3)
	cancel()
	for _, done := range ended {
		<-done
	}
	inProgress(0)
}

// What an entry costs the agent, reading aside, if it has changed and if it has not.
func BenchmarkTallies(b *testing.B) {
	for _, changed := range []bool{false, true} {
		b.Run(fmt.Sprintf("changed=%v", changed), func(b *testing.B) {
			const users = 10_000
			f := &creditTableFake{process: 1, layout: "4 GET HEAD PUT POST DELETE PATCH OPTIONS OTHER"}
			for i := range users {
				f.entries = append(f.entries, runtimeapi.Entry{Found: true, Key: fmt.Sprint("user", i), GPC: make([]uint32, 12)})
			}
			t := newTallies(f, &daemon.Clock{}, func(string) *limits.Limits { return &limits.Limits{Tier: "free"} }, newStarts(), newMetrics(nil), slog.New(slog.DiscardHandler))
			b.ReportAllocs()
			for b.Loop() {
				if changed {
					for i := range f.entries {
						f.entries[i].GPC[4]++
					}
				}
				if err := t.readTable(b.Context()); err != nil {
					b.Fatal(err)
				}
				t.starts.take()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*users), "ns/entry")
		})
	}
}

// Each read tells of users who have requests by credit, and a complete one, once a minute, which users
// are in the table.
func TestTalliesTellWhoIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTallyRig(t)
		var told []string
		r.hearers.present = func(user string) { told = append(told, user) }
		r.hearers.absent = func(process uint64, began time.Time, shown func(string) bool) {
			if process != r.table.process || !began.Equal(time.Now()) {
				t.Errorf("process %d, at %v; want %d, now", process, began, r.table.process)
			}
			for _, user := range []string{"alice", "bob", "carol"} {
				if shown(user) {
					told = append(told, "shown "+user)
				}
			}
		}
		for _, step := range []struct {
			name string
			do   func()
			want []string
		}{
			{"alice had requests", func() { r.has(entry("alice", 0, 5, 0, 0), entry("bob", 0, 0, 0, 0)) }, []string{"alice", "shown alice", "shown bob"}},
			{"half a minute later", func() { time.Sleep(30 * time.Second); r.has(entry("alice", 0, 7, 0, 0)) }, []string{"alice"}},
			{"a minute later", func() { time.Sleep(31 * time.Second); r.has(entry("alice", 0, 9, 0, 0), entry("carol", 1, 0, 0, 0)) }, []string{"alice", "carol", "shown alice", "shown carol"}},
			{"alice has nothing more", func() { time.Sleep(61 * time.Second); r.has(entry("alice", 0, 9, 0, 0)) }, []string{"alice", "shown alice"}},
			{"nor now", func() { time.Sleep(61 * time.Second) }, []string{"shown alice"}},
		} {
			told = nil
			step.do()
			r.mustRead()
			if diff := cmp.Diff(step.want, told); diff != "" {
				t.Errorf("%s (-want +told):\n%s", step.name, diff)
			}
		}
		time.Sleep(61 * time.Second)
		r.change(func(f *creditTableFake) { f.during = func() { f.err = errors.New("closed") } })
		told = nil
		if err := r.readTable(t.Context()); err == nil || told != nil {
			t.Errorf("a read that fails tells %q, %v; want nothing, and an error", told, err)
		}
	})
}
