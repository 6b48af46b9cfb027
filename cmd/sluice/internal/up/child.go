package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// runUntil keeps HAProxy running until ctx ends. It fails when HAProxy does.
func (p *process) runUntil(ctx context.Context) error {
	// HAProxy whose agent was never there has no credit to go by, and would limit nobody meanwhile.
	for !p.wait() {
		if !daemon.Sleep(ctx, pollEvery) {
			return nil
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
	// An instance whose HAProxy has ended serves nobody. All of it ends, rather than to go on with
	// the others as if nothing had happened: people who run this watch a terminal.
	select {
	case <-ended:
		return fmt.Errorf("haproxy at %s ended: %w\n%s", p.address, exitOf(exit), last)
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	// SIGTERM ends HAProxy at once. One that hangs does not hear it, and would hold its port.
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
		// It was not asked to end, so even this needs to be said.
		return errors.New("exit status 0")
	}
	return err
}

type tail struct {
	to io.Writer

	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	// HAProxy says last why it ends. What it said before has gone to the terminal.
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
