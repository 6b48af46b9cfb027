package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// running is a command in a process group of its own, as a shell starts it.
type running struct {
	cmd            *exec.Cmd
	admin, limits  string // of sluice up
	tmp            string
	stdout, stderr *testkit.Buffer
	ended          chan error
}

// startUp starts "sluice up" with goodLimits and does not wait for it.
func startUp(t *testing.T, args ...string) *running {
	t.Helper()
	limits := apitest.WriteFile(t, t.TempDir(), "limits.yaml", goodLimits)
	admin := testkit.FreeAddr(t)
	u := startSluice(t, append([]string{"up", "--limits", limits, "--admin", admin, "--haproxy", testkit.HAProxyPath(t)}, args...)...)
	u.admin, u.limits = admin, limits
	return u
}

// startSluice starts a command with a folder of its own for temporary files.
func startSluice(t *testing.T, args ...string) *running {
	t.Helper()
	u := &running{tmp: shortTempDir(t), stdout: &testkit.Buffer{}, stderr: &testkit.Buffer{}, ended: make(chan error, 1)}
	u.cmd = exec.Command("sluice", args...)
	u.cmd.Env = append(os.Environ(), "TMPDIR="+u.tmp, "GORACE=atexit_sleep_ms=0")
	u.cmd.Stdout, u.cmd.Stderr = u.stdout, u.stderr
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	testkit.Must(t, u.cmd.Start())
	go func() { u.ended <- u.cmd.Wait() }()
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("sluice %s wrote:\n%s\n%s", args[0], u.stdout, u.stderr)
		}
	})
	return u
}

// shortTempDir is as t.TempDir, whose path may be too long for a unix socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "up")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (u *running) awaitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "sluice up is ready", func() error {
		if !strings.HasPrefix(u.stdout.String(), "ready") {
			return fmt.Errorf("it printed %q", u.stdout)
		}
		return nil
	})
}

// wait returns the exit code once the process has ended by itself.
func (u *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case err := <-u.ended:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return u.cmd.ProcessState.ExitCode()
	case <-time.After(testkit.Patience):
		t.Fatalf("sluice up did not end within %v", testkit.Patience)
		return -1
	}
}

// children are the process ids of its HAProxies.
func (u *running) children(t *testing.T) []int { return childrenOf(t, u.cmd.Process.Pid) }

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // proc(5): state, parent
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			testkit.Must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// leavesNothing checks that nothing is left of a process that has ended.
func (u *running) leavesNothing(t *testing.T, children []int) {
	t.Helper()
	nothingLeft(t, u.tmp, children)
}

func nothingLeft(t *testing.T, tmp string, children []int) {
	t.Helper()
	for _, pid := range children {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("HAProxy %d is still there", pid)
		}
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

func TestUpEndsWithItsSignal(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		group  bool
	}{
		{"Ctrl-C reaches the whole process group", syscall.SIGINT, true},
		{"an interrupt reaches the process alone", syscall.SIGINT, false},
		{"a service manager terminates it", syscall.SIGTERM, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			listen := testkit.FreeAddrs(t, 2)
			u := startUp(t, "--listen", listen, "--instances", "2")
			u.awaitReady(t)
			children := u.children(t)
			if len(children) != 2 {
				t.Fatalf("children of sluice up = %v, want two HAProxies", children)
			}
			pid := u.cmd.Process.Pid
			for _, child := range children { // else Ctrl-C would end it before its agent is told
				if group, err := syscall.Getpgid(child); group == pid || err != nil {
					t.Errorf("process group of HAProxy = %d, %v, want one of its own", group, err)
				}
			}
			if tt.group {
				pid = -pid
			}
			testkit.Must(t, syscall.Kill(pid, tt.signal))
			if code := u.wait(t); code != 0 {
				t.Errorf("exit code = %d, want 0", code)
			}
			u.leavesNothing(t, children)
			if lines := strings.Count(u.stdout.String(), "\n"); lines != 1 {
				t.Errorf("standard output = %q, want the one line that begins with ready", u.stdout)
			}
			if strings.Contains(u.stderr.String(), "level=ERROR") {
				t.Error("ending was logged as an error")
			}
		})
	}
}

// A user who has waited for long enough need not wait for the time-out.
func TestUpEndsWhileRedisIsNotThere(t *testing.T) {
	t.Parallel()
	redis := testkit.FreeAddr(t)
	u := startUp(t, "--listen", testkit.FreeAddr(t), "--redis", redis)
	testkit.Eventually(t, "the log tells of Redis", func() error {
		if !strings.Contains(u.stderr.String(), redis+": connect: connection refused") {
			return errors.New(u.stderr.String())
		}
		return nil
	})
	testkit.Must(t, syscall.Kill(-u.cmd.Process.Pid, syscall.SIGINT))
	if code := u.wait(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	u.leavesNothing(t, nil)
	if out := u.stdout.String(); out != "" {
		t.Errorf("standard output = %q, want nothing: it never was ready", out)
	}
}

// Kill -9 leaves no time to stop the HAProxies: the kernel does.
func TestUpKilledTakesItsHAProxyAlong(t *testing.T) {
	t.Parallel()
	u := startUp(t, "--listen", testkit.FreeAddr(t))
	u.awaitReady(t)
	children := u.children(t)
	if len(children) != 1 {
		t.Fatalf("children of sluice up = %v, want one HAProxy", children)
	}
	testkit.Must(t, u.cmd.Process.Kill())
	u.wait(t)
	testkit.Eventually(t, "HAProxy ends", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", children[0]))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil // gone, or dead and not yet reaped by the process that adopted it
		}
		return fmt.Errorf("process %d is still there", children[0])
	})
}
