// Package testkit starts real servers for tests: redis-server, HAProxy and
// this project's own commands, as child processes on free loopback ports or in
// a directory of the test's own. Each is ended by its process id when the test
// ends, and its output is shown when the test failed.
//
// A mock proves nothing about the programs Sluice works with, so a missing
// program fails the test with the package to install; it never skips.
package testkit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a running child process.
type Process struct {
	Name string

	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when the process has been reaped
	err  error         // its exit error, valid once done is closed
}

// Start runs a program until the test ends. Environment entries are added to
// the test's own.
func Start(t testing.TB, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: path, out: &output{}, done: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	// The kernel ends the child should the test binary itself be killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("output of %s (pid %d):\n%s", p.Name, p.Pid(), p.Output())
		}
	})
	return p
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// atStart matches lines that HAProxy writes at each start from 3.4 on, whatever its configuration: notices, and warnings
// that it runs as root.
var atStart = regexp.MustCompile(`(?m)^\[(NOTICE|WARNING)\] .*(Automatically setting global\.maxconn|haproxy version is|path to executable is|HAProxy was started as ).*\n`)

// Output is what the process has written so far, its last 256 KiB at most, without HAProxy's lines of each start.
func (p *Process) Output() string { return atStart.ReplaceAllString(p.out.String(), "") }

// ClearOutput drops what the process has written so far.
func (p *Process) ClearOutput() {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	p.out.buf = nil
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process at once, as kill -9 does, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, waits, and kills it when it does not. A
// stopped (SIGSTOP) process is continued first.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.Kill()
	}
}

// Wait waits for the process to end by itself and returns its exit error.
func (p *Process) Wait() error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(Patience):
		return fmt.Errorf("%s (pid %d) did not end within %v", p.Name, p.Pid(), Patience)
	}
}

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// CPU is the processor time, user and system, that the process has used so far.
func (p *Process) CPU() (time.Duration, error) { return CPUOf(p.Pid()) }

// HAProxyPath is the HAProxy under test: $SLUICE_HAPROXY, or haproxy from PATH.
func HAProxyPath(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("SLUICE_HAPROXY"); path != "" {
		return path
	}
	return lookup(t, "haproxy")
}

// HAProxy starts HAProxy on a configuration file and waits until it accepts
// connections at addr ("host:port", or the path of a unix socket).
func HAProxy(t testing.TB, file, addr string, env ...string) *Process {
	t.Helper()
	p := Start(t, env, HAProxyPath(t), "-db", "-f", file)
	p.Name = "haproxy -f " + file
	p.waitFor(t, "HAProxy at "+addr, func() error { return dial(addr) })
	// HAProxy gives its sockets their names after it listens on ports.
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "SLUICE_STATS="); ok {
			p.waitFor(t, "HAProxy's socket", func() error { _, err := os.Stat(path); return err })
		}
	}
	return p
}

// HAProxyVersion is the version of the HAProxy under test, such as "2.6.12".
func HAProxyVersion(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(HAProxyPath(t), "-v").Output()
	if err != nil {
		t.Fatalf("haproxy -v: %v", err)
	}
	f := strings.Fields(string(out)) // "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - …"
	if len(f) < 3 {
		t.Fatalf("haproxy -v printed %q", out)
	}
	version, _, _ := strings.Cut(f[2], "-")
	return version
}

func (p *Process) waitFor(t testing.TB, what string, check func() error) {
	t.Helper()
	err := Poll(Patience, func() error {
		if err := check(); err == nil || p.Running() {
			return err
		}
		return nil // it died: nothing to wait for
	})
	if !p.Running() {
		err = errors.Join(errors.New("the process ended"), p.err)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, p.Output())
	}
}

func lookup(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is not installed: run 'make setup', or as root 'apt-get install %s'", program, program)
	}
	return path
}

// output keeps the end of what a process writes.
type output struct {
	mu  sync.Mutex
	buf []byte
}

const maxOutput = 256 << 10

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, b...)
	if over := len(o.buf) - maxOutput; over > 0 {
		o.buf = append(o.buf[:0], o.buf[over:]...)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf)
}

// Buffer is a bytes.Buffer for several goroutines, such as a log that a test reads while it is written.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Must ends the test with an error, if there is one. It is for steps whose success is not what the test proves.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// binaryKey is a key of 128 bytes as HAProxy prints it.
var binaryKey = regexp.MustCompile(` key=([0-9A-F]{256}) `)

// AskHAProxy sends one command to a socket of HAProxy's runtime API. The answer has all keys of tables as text.
func AskHAProxy(socket, command string) (string, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return binaryKey.ReplaceAllStringFunc(string(answer), func(text string) string {
		key, _ := hex.DecodeString(binaryKey.FindStringSubmatch(text)[1])
		return " key=" + strings.TrimRight(string(key), "\x00") + " "
	}), err
}
