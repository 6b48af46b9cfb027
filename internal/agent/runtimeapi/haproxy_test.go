package runtimeapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// stand is a real HAProxy with testdata/haproxy.cfg, and an origin that answers nothing
// until the test ends.
type stand struct {
	t      *testing.T
	front  string
	socket string
	env    []string
	proc   *testkit.Process
	*Client
}

func newStand(t *testing.T, args ...string) *stand {
	t.Helper()
	dir, err := os.MkdirTemp("", "runtime") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	release := make(chan struct{})
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(origin.Close)
	t.Cleanup(func() { close(release) })
	s := &stand{t: t, front: testkit.FreeAddr(t), socket: filepath.Join(dir, "run.sock")}
	s.Client = New(s.socket)
	s.env = []string{"RUNTIME=" + s.socket, "HTTP_BIND=" + s.front,
		"ORIGIN=" + strings.TrimPrefix(origin.URL, "http://")}
	s.start(args...)
	return s
}

func (s *stand) start(args ...string) {
	s.t.Helper()
	if len(args) == 0 {
		args = []string{"-db"}
	}
	s.proc = testkit.Start(s.t, s.env, testkit.HAProxyPath(s.t), append(args, "-f", "testdata/haproxy.cfg")...)
	s.eventually("the runtime API answers", func() error {
		_, _, err := s.Variable(s.t.Context(), processVariable)
		return err
	})
}

func (s *stand) eventually(what string, check func() error) {
	s.t.Helper()
	testkit.Eventually(s.t, what, check)
}

// request sends a request of a user.
func (s *stand) request(ctx context.Context, path, user string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.front+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-User", base64.StdEncoding.EncodeToString([]byte(user)))
	response, err := http.DefaultClient.Do(r)
	if err == nil {
		response.Body.Close()
	}
	return response, err
}

// hold has a request of a user in progress until the test ends.
func (s *stand) hold(t *testing.T, user string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.request(ctx, "/held", user)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// credit gives users credit: each is tracked once.
func (s *stand) credit(users ...string) {
	s.t.Helper()
	for _, user := range users {
		response, err := s.request(s.t.Context(), "/", user)
		if err != nil {
			s.t.Fatalf("request of %q: %v", user, err)
		}
		if response.StatusCode != http.StatusOK {
			s.t.Fatalf("request of %q: status %d", user, response.StatusCode)
		}
	}
}

// hostile are keys as users may choose them.
func hostile() []string {
	keys := []string{
		"alice", "a b", " lead", "trail ", "a;b", "a; set table sluice_credit key alice data.gpt 9", `a\b`, `ends\`, `\\;\`,
		`"quoted"`, "it's", "<<", "a <<", "<<end", "#comment", "a=b use=0 exp=1 gpc1=9", "!", "?", "@1", "@!1", "%20", "$HOME", "${HOME}", "`id`",
		"naïve", "名前 と", "\xff\xfe", "@up/~.deadbeef", "~unreadable", "2001:db8::/64", strings.Repeat(`;\`, 63),
	}
	for b := 0x20; b < 0x100; b++ {
		if b != 0x7f {
			keys = append(keys, string([]byte{byte(b)}), string([]byte{'a', byte(b), 'z'}), string([]byte{byte(b), byte(b)}))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Tests of one HAProxy, whose table is empty before each.
func TestHAProxy(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *stand)
	}{
		{"every key that a user may have is withdrawn", testWithdrawEveryKeyThatAUserMayHave},
		{"to withdraw one leaves the others", testWithdrawOfOneLeavesTheOthers},
		{"seconds are read with a withdrawal", testWithdrawReadsSeconds},
		{"a dump has every entry once", testDumpTellsOfEveryEntryOnce},
		{"what is in progress is read", testReadTellsWhatIsInProgress},
		{"errors say what to do", testErrorsOfHAProxySayWhatToDo},
		{"variables", testVariable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "clear table "+creditTable+"\n"); err != nil {
				t.Fatal(err)
			}
			if out, err := io.ReadAll(conn); err != nil || strings.TrimSpace(string(out)) != "" {
				t.Fatalf("clear table: %q, %v", out, err)
			}
			test.run(t, s)
		})
	}
}

func testWithdrawEveryKeyThatAUserMayHave(t *testing.T, s *stand) {
	keys := hostile()
	s.credit(keys...)
	read, err := s.Read(t.Context(), creditTable, keys)
	if err != nil {
		t.Fatal(err)
	}
	_, process, err := s.Variable(t.Context(), processVariable)
	if err != nil || process == 0 {
		t.Fatalf("Variable() tells of process %d, %v", process, err)
	}
	for i, e := range read {
		if want := (Entry{Process: process, Found: true, Key: keys[i], Expires: e.Expires, HTTPReqCnt: 1,
			GPT: []uint32{7, 0, 4294967295, 0}, GPC: []uint32{0, 1, 0}}); !same(e, want) {
			t.Errorf("Read(%q) = %+v, want %+v", keys[i], e, want)
		}
	}
	withdrawn, err := s.Withdraw(t.Context(), 5, keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(withdrawn) != len(keys) {
		t.Fatalf("Withdraw() of %d keys = %d entries", len(keys), len(withdrawn))
	}
	for i, e := range withdrawn {
		if want := (Entry{Process: process, Found: true, Key: keys[i], Expires: e.Expires, HTTPReqCnt: 1,
			GPT: []uint32{0, 0, 4294967295, 0}, GPC: []uint32{0, 1, 0}}); !same(e.Entry, want) {
			t.Errorf("Withdraw(%q) = %+v, want %+v", keys[i], e, want)
		}
	}
	count := 0
	if err := s.Dump(t.Context(), creditTable, Filter{}, fast, func(Entry) { count++ }); err != nil || count != len(keys) {
		t.Errorf("the table has %d entries, %v: want the %d that were made, and none by injection", count, err, len(keys))
	}
}

// same compares all but the time until the entry ends, which must be one.
func same(a, b Entry) bool {
	return a.Process == b.Process && a.Found == b.Found && a.Key == b.Key && a.ConnCur == b.ConnCur && a.HTTPReqCnt == b.HTTPReqCnt &&
		slices.Equal(a.GPT, b.GPT) && slices.Equal(a.GPC, b.GPC) && a.Expires > 0 && a.Expires <= 10*time.Minute
}

// The entries of seconds that are there are read behind the withdrawal of their user, those whose keys are filled up as well.
func testWithdrawReadsSeconds(t *testing.T, s *stand) {
	for _, command := range []string{"set table sluice_seconds key 5|a\\;b data.gpt 3", "set table sluice_seconds key " + secondKeys("bob", 6)[1] + " data.gpt 4"} {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, command+"\n")
		if out, err := io.ReadAll(conn); err != nil || strings.TrimSpace(string(out)) != "" {
			t.Fatalf("%s: %q, %v", command, out, err)
		}
		conn.Close()
	}
	withdrawn, err := s.Withdraw(t.Context(), 5, []string{"a;b", "nobody", "bob"}, 5, 6)
	if err != nil || len(withdrawn) != 3 {
		t.Fatalf("Withdraw() = %+v, %v, want three", withdrawn, err)
	}
	for i, want := range []string{SecondKey("a;b", 5), "", SecondKey("bob", 6)} {
		got := ""
		for _, e := range withdrawn[i].Seconds {
			got += UnpaddedSecondKey(e.Key)
		}
		if got != want {
			t.Errorf("withdrawal of %q: seconds %q, want %q", withdrawn[i].Key, got, want)
		}
	}
}

func testWithdrawOfOneLeavesTheOthers(t *testing.T, s *stand) {
	s.credit("alice", "bob")
	if _, err := s.Withdraw(t.Context(), 5, []string{"alice"}); err != nil {
		t.Fatal(err)
	}
	entries, err := s.Read(t.Context(), creditTable, []string{"bob", "nobody", "alice"})
	if err != nil {
		t.Fatal(err)
	}
	if got := entries[0].GPT[0]; got != 7 {
		t.Errorf("gpt(0) of bob = %d, want 7", got)
	}
	if e := entries[1]; e.Found || e.Key != "nobody" || e.Process == 0 {
		t.Errorf("entry of nobody = %+v, want none, of a process", e)
	}
	if got := entries[2].GPT[0]; got != 0 {
		t.Errorf("gpt(0) of alice = %d, want 0", got)
	}
}

func testDumpTellsOfEveryEntryOnce(t *testing.T, s *stand) {
	var keys []string
	for i := range 20_000 {
		keys = append(keys, fmt.Sprintf("user %d; of many", i))
	}
	entries, err := s.Withdraw(t.Context(), 5, keys) // which makes them
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		if e.Key != keys[i] || !e.Found {
			t.Fatalf("Withdraw() tells of %+v where %q was asked", e, keys[i])
		}
	}
	seen := map[string]int{}
	if err := s.Dump(t.Context(), creditTable, Filter{}, fast, func(e Entry) { seen[e.Key]++ }); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if seen[key] != 1 {
			t.Fatalf("Dump() tells of %q %d times, want once", key, seen[key])
		}
	}
	if len(seen) != len(keys) {
		t.Errorf("Dump() tells of %d entries, want %d", len(seen), len(keys))
	}
}

func testReadTellsWhatIsInProgress(t *testing.T, s *stand) {
	for range 3 {
		s.hold(t, "alice")
	}
	s.eventually("three requests are in progress", func() error {
		entries, err := s.Withdraw(t.Context(), 5, []string{"alice"})
		if err == nil && entries[0].ConnCur != 3 {
			err = fmt.Errorf("conn_cur is %d", entries[0].ConnCur)
		}
		return err
	})
}

func TestReloadIsNoticed(t *testing.T) {
	t.Parallel()
	s := newStand(t, "-W")
	s.credit("alice")
	s.hold(t, "bob") // keeps the old process alive
	before, err := s.Read(t.Context(), creditTable, []string{"alice"})
	if err != nil || !before[0].Found {
		t.Fatalf("Read() = %+v, %v, want alice's entry", before, err)
	}
	var signalled time.Time
	s.eventually("another process answers", func() error {
		if time.Since(signalled) > 2*time.Second { // a master that has just begun loses it
			if err := s.proc.Signal(syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
			signalled = time.Now()
		}
		after, err := s.Read(t.Context(), creditTable, []string{"alice"})
		switch {
		case err != nil:
			return err
		case after[0].Process == before[0].Process:
			return errors.New("it is still the old process")
		case after[0].Found:
			t.Errorf("the new process has the entry %+v, which is in no peers section", after[0])
		}
		return nil
	})
	// The old worker inherited the same socket and accepts from it until it is told to stop.
	s.eventually("no call reaches the old process", func() error {
		for range 50 {
			if _, process, err := s.Variable(t.Context(), processVariable); err != nil || process == before[0].Process {
				return fmt.Errorf("Variable() tells of process %d, %v: want another than %d", process, err, before[0].Process)
			}
		}
		return nil
	})
}

func TestHAProxyThatHangsBlocksNobody(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	if err := s.proc.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.proc.Signal(syscall.SIGCONT) })
	s.eventually("all threads are stopped", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.proc.Pid()))
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if err != nil {
				return err
			}
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return fmt.Errorf("%s: %.20s", thread, state)
			}
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls := make(chan error)
	for range 2 * maxCalls { // also those who only wait for their turn
		go func() {
			_, err := s.Withdraw(ctx, 5, []string{"alice"})
			calls <- err
		}()
	}
	go func() { calls <- s.Dump(ctx, creditTable, Filter{}, fast, func(Entry) {}) }()
	for range 2*maxCalls + 1 {
		if err := <-calls; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call of a stopped HAProxy = %v, want that the time is over", err)
		}
	}
	if err := s.proc.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.eventually("HAProxy answers again", func() error {
		_, err := s.Withdraw(t.Context(), 5, []string{"alice"})
		return err
	})
}

func testErrorsOfHAProxySayWhatToDo(t *testing.T, s *stand) {
	for _, tt := range []struct {
		name string
		call func() error
		want string
	}{
		{"no table", func() error { _, err := s.Read(t.Context(), "none", []string{"a"}); return err },
			`haproxy's runtime API at ` + s.socket + `: haproxy said "No such table": its configuration is an older one, or does without credit`},
		{"no table to dump", func() error { return s.Dump(t.Context(), "none", Filter{}, fast, func(Entry) {}) },
			`haproxy's runtime API at ` + s.socket + `: haproxy said "No such table": its configuration is an older one, or does without credit`},
		{"level user", func() error { _, err := New(s.socket+".user").Withdraw(t.Context(), 5, []string{"a"}); return err },
			`haproxy's runtime API at ` + s.socket + `.user: haproxy said "Permission denied": its "stats socket" needs "level operator"`},
		{"no array", func() error {
			a := answer{question: question{lookups: []lookup{{"bare", "a"}}, withdraw: true}}
			return s.sendLine(t.Context(), s.calls, []byte(askProcess+";set table bare key a data.gpt 0;"+askProcess), &a)
		},
			`haproxy's runtime API at ` + s.socket + `: haproxy said "Data type not stored in this table": its configuration is an older one, or does without credit`},
		{"long key", func() error {
			_, err := s.Read(t.Context(), creditTable, []string{strings.Repeat("k", 161)})
			return err
		},
			`haproxy's runtime API at ` + s.socket + `: haproxy tells of the key "` + strings.Repeat("k", 160) + `", which it was not asked about here: is the len of its table sluice_credit too small?`},
	} {
		if tt.name == "long key" {
			s.credit(strings.Repeat("k", 160))
		}
		if err := tt.call(); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

func testVariable(t *testing.T, s *stand) {
	value, process, err := s.Variable(t.Context(), processVariable)
	if err != nil || value != fmt.Sprint(process) || process == 0 {
		t.Errorf("Variable(%s) = %q of process %d, %v, want the number of the process", processVariable, value, process, err)
	}
	value, again, err := s.Variable(t.Context(), "proc.none")
	if err != nil || value != "" || again != process {
		t.Errorf("Variable(proc.none) = %q of process %d, %v, want nothing of process %d", value, again, err, process)
	}
}
