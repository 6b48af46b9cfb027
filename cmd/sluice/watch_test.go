package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/apitest"
	"github.com/sluice-qos/sluice/internal/proctest"
)

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
// prints the decision. Their only limit is of a minute, so that they stay throttled until
// top has looked, however busy the machine is.
func TestTopAndWatchUp(t *testing.T) {
	t.Parallel()
	listen := proctest.FreeAddr(t)
	u := startUpWith(t, `version: 1
default_tier: free
tiers: {free: {requests: {GET: {minute: 10}}}}
`, "--listen", listen)
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
		if code := runCommand([]string{"top", "--once", "--admin", u.admin}, &out, &errs); code != 0 {
			return fmt.Errorf("it ended with %d: %s", code, &errs)
		}
		rows := strings.Split(out.String(), "\n")
		if len(rows) < 3 || !strings.Contains(rows[0], "polygen polygen, leading, limits version ") {
			return fmt.Errorf("it printed %s", &out)
		}
		bob := strings.Fields(rows[2])
		if len(bob) != 10 || bob[0] != "bob" || bob[1] != "free" || bob[2] != "throttled" || bob[7] != "GET/minute" {
			return fmt.Errorf("it printed %s", &out)
		}
		return nil
	})
	line := w.await(t, "a decision", func(line string) bool {
		return strings.Contains(line, `"decision":`) && strings.Contains(line, `"limit":"GET/minute"`)
	})
	var got struct {
		User     string
		Decision api.Decision
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil || got.User != "bob" || got.Decision.Kind != api.Throttle || got.Decision.Limit != "GET/minute" {
		t.Errorf("the decision is %s, %v, want bob's throttle of GET/minute", line, err)
	}
	w.await(t, "an answer with the line of bob's limit", func(line string) bool {
		return strings.Contains(line, u.limits)
	})
	w.interrupt(t)
}
