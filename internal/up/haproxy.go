package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// findHAProxy resolves the program and checks that its version is one that the
// shipped files run on.
func findHAProxy(ctx context.Context, name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: install HAProxy %s or later (Debian: apt-get install haproxy), or name it with --haproxy", err, haproxy.MinVersion)
	}
	out, err := exec.CommandContext(ctx, path, "-v").Output()
	if err != nil {
		return "", fmt.Errorf("%s -v: %w", path, err)
	}
	version, ok := parseVersion(string(out))
	if !ok {
		return "", fmt.Errorf("%s -v does not look like HAProxy's: %.100q", path, out)
	}
	if isOlder(version, haproxy.MinVersion) {
		return "", fmt.Errorf("%s is HAProxy %s: want %s or later", path, version, haproxy.MinVersion)
	}
	return path, nil
}

// parseVersion reads "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - …".
func parseVersion(out string) (string, bool) {
	fields := strings.Fields(out)
	if len(fields) < 3 || fields[1] != "version" {
		return "", false
	}
	return fields[2], true
}

// isOlder compares the first two numbers of two versions.
func isOlder(a, b string) bool {
	for i := range 2 {
		x, y := number(a, i), number(b, i)
		if x != y {
			return x < y
		}
	}
	return false
}

func number(version string, i int) int {
	parts := strings.SplitN(version, ".", i+2)
	if len(parts) <= i {
		return 0
	}
	digits := strings.TrimRightFunc(parts[i], func(r rune) bool { return r < '0' || r > '9' })
	n, _ := strconv.Atoi(digits)
	return n
}

// process is one instance's HAProxy.
type process struct {
	program string
	dir     string
	address string
	options *Options
	set     *limits.Set // for classes and who is exempt
	wait    func() bool // whether the agent serves: HAProxy starts after it
	file    string
	env     []string
}

// runUntil keeps HAProxy running until ctx ends. It fails when HAProxy does.
func (p *process) runUntil(ctx context.Context) error {
	for !p.wait() {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
	last := &tail{to: p.options.Stderr}
	cmd := exec.Command(p.program, "-db", "-f", p.file)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = last, last
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C reaches us alone, and we stop it in order
		Pdeathsig: syscall.SIGTERM, // should this process be killed
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start haproxy: %w", err)
	}
	var exit error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		exit = cmd.Wait()
	}()
	select {
	case <-ended:
		return fmt.Errorf("haproxy at %s ended: %w\n%s", p.address, exitOf(exit), last)
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(3 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
	}
	return nil
}

// exitOf names an end without an error.
func exitOf(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail passes output on and remembers the end of it.
type tail struct {
	to io.Writer

	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - 4096; over > 0 {
		t.buf = t.buf[over:]
	}
	return t.to.Write(b)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
