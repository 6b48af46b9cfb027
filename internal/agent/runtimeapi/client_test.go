package runtimeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a runtime API that answers each connection by a function of its number, from 1
// on, and of the line.
func fake(t *testing.T, answer func(n int, line string) string) (*Client, *atomic.Int64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(calls.Add(1))
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err == nil {
				_, _ = io.WriteString(conn, answer(n, line))
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return New(path), &calls
}

// fast is a rate of entries that does not matter.
const fast = 1e9

const (
	aliceEntry = "# table: sluice_credit, type: string, size:204800, used:1\n0x55: key=alice use=0 exp=600000 conn_cur=1 gpt0=0 gpt1=3 gpc0=5\n\n"
	process7   = "proc.sluice_process: type=sint value=<7>\n\n"
)

func TestAnswersThatAreNotWhole(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, answer, want string
	}{
		{"cut in a line", process7 + "\n# table: sluice_credit, type: string", "unexpected EOF, in a line"},
		{"without the end", process7 + "\n" + aliceEntry, "unexpected EOF: haproxy closed the connection before its answer was whole"},
		{"process that changes", process7 + "\n" + aliceEntry + "proc.sluice_process: type=sint value=<8>\n\n", "haproxy's proc.sluice_process changed from 7 to 8"},
		{"something behind it", process7 + "\n" + aliceEntry + process7 + "more\n", `haproxy said "more"`},
		{"entry of another key", process7 + "\n" + strings.ReplaceAll(aliceEntry, "alice", "bob") + process7,
			`haproxy tells of the key "bob", which it was not asked about here: is the len of its table sluice_credit too small?`},
		{"entry twice", process7 + "\n" + aliceEntry + aliceEntry + process7,
			`haproxy tells of the key "alice", which it was not asked about here: is the len of its table sluice_credit too small?`},
		{"number that is none", process7 + "\n" + strings.ReplaceAll(aliceEntry, "gpc0=5", "gpc0=-5") + process7,
			`entry "0x55: key=alice use=0 exp=600000 conn_cur=1 gpt0=0 gpt1=3 gpc0=-5": gpc0: strconv.ParseUint: parsing "-5": invalid syntax`},
		{"line without end", process7 + strings.Repeat("x", maxAnswerLine), "bufio: buffer full"},
		{"not HAProxy", "HTTP/1.1 400 Bad Request\r\n\r\n", `haproxy said "HTTP/1.1 400 Bad Request\r"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, calls := fake(t, func(int, string) string { return tt.answer })
			entries, err := c.Withdraw(t.Context(), 5, []string{"alice"})
			if want := "haproxy's runtime API at " + c.path + ": " + tt.want; err == nil || err.Error() != want {
				t.Errorf("Withdraw() = %v, want %s", err, want)
			}
			if len(entries) > 0 {
				t.Errorf("Withdraw() = %+v, want no entry", entries)
			}
			if n := calls.Load(); n != 1 {
				t.Errorf("asked %d times, want once: something was answered", n)
			}
		})
	}
}

// A process that stops listening drops what it has not accepted.
func TestConnectionThatIsDroppedIsMadeAnew(t *testing.T) {
	t.Parallel()
	c, calls := fake(t, func(n int, _ string) string {
		if n < attempts {
			return ""
		}
		return process7 + "\n" + aliceEntry + process7
	})
	entries, err := c.Withdraw(t.Context(), 5, []string{"alice"})
	if err != nil || len(entries) != 1 || entries[0].GPC[0] != 5 || entries[0].ConnCur != 1 || entries[0].Process != 7 {
		t.Errorf("Withdraw() = %+v, %v, want alice's entry", entries, err)
	}
	if n := calls.Load(); n != attempts {
		t.Errorf("asked %d times, want %d", n, attempts)
	}
}

func TestConnectionThatIsAlwaysDroppedIsAnError(t *testing.T) {
	t.Parallel()
	c, calls := fake(t, func(int, string) string { return "" })
	if _, err := c.Withdraw(t.Context(), 5, []string{"alice"}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Withdraw() = %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if n := calls.Load(); n != attempts {
		t.Errorf("asked %d times, want %d", n, attempts)
	}
}

// The table is full of entries in use: the first key has none.
func TestUserWithoutRoomInTheTableHasNoCredit(t *testing.T) {
	t.Parallel()
	c, _ := fake(t, func(int, string) string {
		return process7 + unallocated + "\n\n\n\n" + aliceEntry + process7
	})
	entries, err := c.Withdraw(t.Context(), 5, []string{"bob", "alice"})
	if err != nil || len(entries) != 2 || entries[0].Found || entries[0].Key != "bob" || !entries[1].Found {
		t.Errorf("Withdraw() = %+v, %v, want no entry of bob and alice's", entries, err)
	}
}

// The second line of a long withdrawal fails: what the first one did is known.
func TestWithdrawTellsWhatItDid(t *testing.T) {
	t.Parallel()
	var asked []string
	for i := range 500 {
		asked = append(asked, fmt.Sprintf("user%d", i))
	}
	done := 0
	c, calls := fake(t, func(n int, line string) string {
		if n > 1 {
			return process7 + "\n" + "Permission denied\n\n"
		}
		if len(line) > maxLine+2*len(askProcess) {
			t.Errorf("a line of %d bytes", len(line))
		}
		done = strings.Count(line, "set table")
		answer := process7
		for i := range done {
			answer += "\n" + strings.ReplaceAll(aliceEntry, "alice", asked[i])
		}
		return answer + process7
	})
	entries, err := c.Withdraw(t.Context(), 5, asked)
	if want := "haproxy's runtime API at " + c.path + `: haproxy said "Permission denied": its "stats socket" needs "level operator"`; err == nil || err.Error() != want {
		t.Errorf("Withdraw() = %v, want %s", err, want)
	}
	if done < 50 || len(entries) != done || entries[done-1].Key != asked[done-1] || calls.Load() != 2 {
		t.Errorf("Withdraw() = %d entries after %d calls, want the %d of the first line, at least 50", len(entries), calls.Load(), done)
	}
}

func TestKeysThatCannotBeExpressed(t *testing.T) {
	t.Parallel()
	c := New("/nowhere")
	for key, want := range map[string]string{
		"":                            "key of 0 bytes: haproxy's runtime API takes 1 to 1000",
		strings.Repeat("k", maxKey+1): "key of 1001 bytes: haproxy's runtime API takes 1 to 1000",
		"a\nset table t key b":        `key "a\nset table t key b": control bytes cannot be given to haproxy's runtime API`,
		"a\r":                         `key "a\r": control bytes cannot be given to haproxy's runtime API`,
		"a\x00b":                      `key "a\x00b": control bytes cannot be given to haproxy's runtime API`,
	} {
		if _, err := c.Withdraw(t.Context(), 5, []string{"alice", key}); err == nil || err.Error() != want {
			t.Errorf("Withdraw(%.20q) = %v, want %s", key, err, want)
		}
	}
	for _, name := range []string{"", "a b", "t;quit", "t\n"} {
		if _, err := c.Read(t.Context(), name, []string{"a"}); err == nil || !strings.HasSuffix(err.Error(), "not a name") {
			t.Errorf("Read(%q) = %v, want that it is not a name", name, err)
		}
		if err := c.Dump(t.Context(), name, Filter{}, fast, func(Entry) {}); err == nil || !strings.HasSuffix(err.Error(), "not a name") {
			t.Errorf("Dump(%q) = %v, want that it is not a name", name, err)
		}
		if _, _, err := c.Variable(t.Context(), name); err == nil || !strings.HasSuffix(err.Error(), "not a name") {
			t.Errorf("Variable(%q) = %v, want that it is not a name", name, err)
		}
	}
}

func TestSocketErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "s")
	_, err := New(missing).Withdraw(t.Context(), 5, []string{"alice"})
	if want := "haproxy's runtime API at " + missing + ": dial unix " + missing + ": connect: no such file or directory: HAProxy is not running, or has its runtime socket elsewhere (SLUICE_RUNTIME)"; err == nil || err.Error() != want {
		t.Errorf("without a socket: %v, want %s", err, want)
	}
	stale := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	err = New(stale).Dump(t.Context(), "t", Filter{}, fast, func(Entry) {})
	if want := "haproxy's runtime API at " + stale + ": dial unix " + stale + ": connect: connection refused: the socket is there but nobody listens: HAProxy has ended, or has its runtime socket elsewhere (SLUICE_RUNTIME)"; err == nil || err.Error() != want {
		t.Errorf("with the socket of one that has ended: %v, want %s", err, want)
	}
	// Of root, which tests may be, no socket refuses anything.
	err = New("/s").explain(t.Context(), fs.ErrPermission)
	if want := "haproxy's runtime API at /s: permission denied: the agent's user must be in the socket's group, or the socket's mode must let them in (SLUICE_RUNTIME_MODE)"; err.Error() != want {
		t.Errorf("without permission: %v, want %s", err, want)
	}
}

// An answer without end holds nobody up, nor does one that does not begin.
func TestContextEndsEveryCall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(path)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for text := process7; ; text = aliceEntry { // without end
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Dump(ctx, "t", Filter{}, fast, func(Entry) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("Dump() of an endless table = %v, want %v", err, context.Canceled)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, _, err := c.Variable(ctx, "v"); !errors.Is(err, context.DeadlineExceeded) { // nobody accepts
		t.Errorf("Variable() = %v, want %v", err, context.DeadlineExceeded)
	}
}

// HAProxy has time for requests while a table is read.
func TestDumpIsSlow(t *testing.T) {
	t.Parallel()
	const entries, rate = 100, 400
	c, _ := fake(t, func(int, string) string {
		return process7 + strings.Repeat(aliceEntry, entries) + process7
	})
	begun := time.Now()
	n := 0
	if err := c.Dump(t.Context(), "t", Filter{}, rate, func(Entry) { n++ }); err != nil || n != entries {
		t.Fatalf("Dump() = %d entries, %v, want %d", n, err, entries)
	}
	if took := time.Since(begun); took < time.Second*entries/rate-5*time.Millisecond {
		t.Errorf("%d entries took %v, want at least %v", entries, took, time.Second*entries/rate)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := c.Dump(ctx, "t", Filter{}, 1, func(Entry) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("Dump() that waits = %v, want %v", err, context.Canceled)
	}
	if err := c.Dump(ctx, "t", Filter{}, 0, func(Entry) {}); err == nil || err.Error() != "0 entries a second: want more" {
		t.Errorf("Dump() without a rate = %v, want that it needs one", err)
	}
}
