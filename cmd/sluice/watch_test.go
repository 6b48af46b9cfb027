package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/apitest"
	"github.com/sluice-qos/sluice/internal/proctest"
)

func TestStateLine(t *testing.T) {
	for _, tt := range []struct {
		name string
		user api.User
		want string
	}{
		{"who is refused", apitest.Cluster().Bob, `2026-11-20T12:00:00.250Z throttled: GET until 12:00:01.000; ` +
			`GET 12/10 (last 10), */minute 12/500+7 (last 10) (dry-run), concurrent 5/5, down 1.5 MiB/s of 10 MiB/s; ` +
			`one 3 of 4 slots, down 1.5 MiB/s of 8.0 MiB/s; "\x1b[31mred\a" 2 of 1 slots, up 9 B/s of none`},
		{"who is blocked, and would be throttled", api.User{From: api.From{Time: apitest.Noon}, State: api.Blocked, Seen: &apitest.Noon,
			Why: []api.Why{{Limit: "concurrent", Mode: "enforce"}, {Limit: "GET", Mode: "dry-run", Until: &apitest.Noon}}},
			"2026-11-20T12:00:00.250Z blocked: concurrent until less is in progress, GET until 12:00:00.250 (dry-run); no limit"},
		{"who was never heard of", api.User{From: api.From{Time: apitest.Noon}, State: api.OK},
			"2026-11-20T12:00:00.250Z ok, nothing was heard of the user; no limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, stateLine(tt.user)); diff != "" {
				t.Errorf("stateLine() (-want +got):\n%s", diff)
			}
		})
	}
}

// Each decision is told once, whichever polygen answers.
func TestStory(t *testing.T) {
	at := func(s int, kind api.Kind, count int) api.Decision {
		return api.Decision{Time: apitest.Noon.Add(time.Duration(s) * time.Second), Kind: kind, Limit: "l", Mode: "enforce", Count: count}
	}
	one := func(d ...api.Decision) api.User {
		return api.User{From: api.From{Polygen: "one"}, State: api.OK, Decisions: d}
	}
	other := one(at(7, api.Block, 0), at(2, api.Throttle, 0))
	other.Polygen = "two"
	raised := other
	raised.Limits = []api.Limit{{Name: "GET", Max: 3}}
	why := raised
	why.Why = []api.Why{{Limit: "GET", Mode: "dry-run"}}
	same := why
	same.Why = []api.Why{{Limit: "GET", Mode: "dry-run", Since: apitest.Noon, Until: &apitest.Noon}}
	same.InProgress = 3
	var s story
	for _, step := range []struct {
		name    string
		user    api.User
		fresh   []api.Decision
		changed bool
	}{
		{"what was before is not told", one(at(1, api.Throttle, 0)), nil, true},
		{"nothing is new", one(at(1, api.Throttle, 0)), nil, false},
		{"the oldest first", one(at(3, api.Refused, 2), at(2, api.Throttle, 0), at(1, api.Throttle, 0)), []api.Decision{at(2, api.Throttle, 0), at(3, api.Refused, 2)}, false},
		{"refusals that are added", one(at(3, api.Refused, 7), at(2, api.Throttle, 0), at(1, api.Throttle, 0)), []api.Decision{at(3, api.Refused, 5)}, false},
		{"what is forgotten is no news, and one at the same time is", one(at(3, api.Block, 0), at(3, api.Refused, 7), at(2, api.Throttle, 0)), []api.Decision{at(3, api.Block, 0)}, false},
		{"another polygen tells what it saw since", other, []api.Decision{at(7, api.Block, 0)}, false},
		{"a limit is another", raised, nil, true},
		{"there is a reason", why, nil, true},
		{"the same reason at another time is no change, nor is use", same, nil, false},
	} {
		fresh, changed := s.next(step.user)
		if diff := cmp.Diff(step.fresh, fresh); diff != "" || changed != step.changed {
			t.Errorf("%s: next() is changed %v, want %v (-want +got):\n%s", step.name, changed, step.changed, diff)
		}
	}
}

// One line for each interval, and what happens in between at once.
func TestWatchLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		ask := func(context.Context) (api.User, error) {
			s := int(time.Since(began) / time.Second)
			u := api.User{From: api.From{Polygen: "one", Time: time.Now()}, State: api.OK, Seen: &began, Limits: []api.Limit{{Name: "concurrent", Max: 9, Used: int64(s), Mode: "enforce"}}}
			switch {
			case s == 4:
				u.State = api.Blocked
			case s == 8 || s == 9:
				return u, errors.New("nothing listens")
			case s > 10:
				stop()
			}
			if s >= 5 {
				u.Decisions = []api.Decision{{Time: began.Add(4500 * time.Millisecond), Kind: api.Unblock, Limit: "concurrent", Reason: api.ConcurrentRequests, Mode: "enforce"}}
			}
			return u, nil
		}
		var out, errs bytes.Buffer
		if err := (&watch{Interval: 3 * time.Second}).follow(ctx, ask, &out, &errs); err != nil {
			t.Errorf("follow() = %v, want nil after Ctrl-C", err)
		}
		want := `2000-01-01T00:00:00.000Z ok; concurrent 0/9
2000-01-01T00:00:03.000Z ok; concurrent 3/9
2000-01-01T00:00:04.000Z blocked; concurrent 4/9
2000-01-01T00:00:04.500Z decision: unblock concurrent (concurrent-requests)
2000-01-01T00:00:05.000Z ok; concurrent 5/9
2000-01-01T00:00:06.000Z ok; concurrent 6/9
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("standard output (-want +got):\n%s", diff)
		}
		if want := "sluice watch: no answer since 2000-01-01T00:00:07Z: nothing listens\nsluice watch: there are answers again, after 3s\n"; errs.String() != want {
			t.Errorf("standard error %q, want %q", &errs, want)
		}
	})
}

// JSON is one object a line, and nothing that a terminal would obey.
func TestWatchJSON(t *testing.T) {
	u := apitest.Cluster().Bob
	u.User = apitest.Evil[2]
	var told story
	told.next(api.User{From: u.From})
	var out bytes.Buffer
	if err := (&watch{JSON: true}).print(&out, u, &told, true); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := `{"time":"2026-11-20T12:00:00.25Z","user":"\u009b2J","endpoint":"","decision":{"time":"2026-11-20T12:00:00.25Z","kind":"throttle","limit":"GET","reason":"request-rate","mode":"enforce"}}`; lines[0] != want {
		t.Errorf("the decision is %s, want %s", lines[0], want)
	}
	var got api.User
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil || len(lines) != 2 {
		t.Fatalf("%d lines, %v: %s", len(lines), err, &out)
	}
	if diff := cmp.Diff(u, got); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	if err := apitest.PrintableOnly(out.String()); err != nil {
		t.Error(err)
	}
}

// The command for real: a user with an odd name, until Ctrl-C.
func TestWatchEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	server := apitest.Serve(apitest.Cluster())
	defer server.Close()
	w := startWatch(t, "a/b c", "--admin", server.Listener.Addr().String())
	w.await(t, "a line", func(line string) bool {
		return strings.Contains(line, " throttled: GET until 12:00:01.000; GET 12/10 (last 10), ")
	})
	w.interrupt(t)
}

// watching is a "sluice watch".
type watching struct {
	cmd   *exec.Cmd
	lines chan string // closed at the end
}

func startWatch(t *testing.T, args ...string) *watching {
	t.Helper()
	w := &watching{cmd: exec.Command("sluice", append([]string{"watch"}, args...)...), lines: make(chan string, 10_000)}
	w.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	w.cmd.Stderr = t.Output()
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	go func() {
		defer close(w.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			w.lines <- s.Text()
		}
	}()
	return w
}

// await returns the first line that is as it should be.
func (w *watching) await(t *testing.T, what string, ok func(string) bool) string {
	t.Helper()
	late := time.After(proctest.Patience)
	var last string
	for {
		select {
		case line, open := <-w.lines:
			if !open {
				t.Fatalf("sluice watch ended before %s; its last line is %q", what, last)
			}
			if last = line; ok(line) {
				return line
			}
		case <-late:
			t.Fatalf("no %s within %v; the last line is %q", what, proctest.Patience, last)
		}
	}
}

func (w *watching) interrupt(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	late := time.After(proctest.Patience)
	for {
		select {
		case _, open := <-w.lines:
			if open {
				continue
			}
			if err := w.cmd.Wait(); err != nil {
				t.Errorf("sluice watch ended with %v, want exit code 0", err)
			}
			return
		case <-late:
			t.Fatal("sluice watch does not end with Ctrl-C")
		}
	}
}

// With real processes: a user who asks for too much is on the list of top, and watch
// prints the decision.
func TestTopAndWatchUp(t *testing.T) {
	t.Parallel()
	listen := proctest.FreeAddr(t)
	u := startUp(t, "--listen", listen)
	u.awaitReady(t)
	w := startWatch(t, "bob", "--json", "--interval", "100ms", "--admin", u.admin)
	w.await(t, "the first answer", func(line string) bool { return strings.Contains(line, `"state":"ok"`) })
	proctest.Eventually(t, "bob is on the list", func() error {
		for range 30 {
			req, err := http.NewRequest("GET", "http://"+listen+"/bytes/1", nil)
			if err != nil {
				return err
			}
			req.Header.Set("X-User", "bob")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			res.Body.Close()
		}
		var out, errs bytes.Buffer
		if code := run([]string{"top", "--once", "--admin", u.admin}, &out, &errs); code != 0 {
			return fmt.Errorf("it ended with %d: %s", code, &errs)
		}
		rows := strings.Split(out.String(), "\n")
		if len(rows) < 3 || !strings.Contains(rows[0], "polygen polygen, leading, limits version ") {
			return fmt.Errorf("it printed %s", &out)
		}
		bob := strings.Fields(rows[2])
		if len(bob) != 10 || bob[0] != "bob" || bob[1] != "free" || bob[2] != "throttled" || bob[7] != "GET" {
			return fmt.Errorf("it printed %s", &out)
		}
		return nil
	})
	line := w.await(t, "a decision", func(line string) bool {
		return strings.Contains(line, `"decision":`) && strings.Contains(line, `"limit":"GET"`)
	})
	var got decided
	if err := json.Unmarshal([]byte(line), &got); err != nil || got.User != "bob" || got.Decision.Kind != api.Throttle || got.Decision.Limit != "GET" {
		t.Errorf("the decision is %s, %v, want bob's throttle of GET", line, err)
	}
	w.await(t, "an answer with the line of bob's limit", func(line string) bool {
		return strings.Contains(line, filepath.Join(filepath.Dir(u.tmp), "limits.yaml"))
	})
	w.interrupt(t)
}
