package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// demoArgs are a command line on ports that no other test has.
func demoArgs(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{"demo", "--listen", testkit.FreeAddrs(t, 2), "--admin", testkit.FreeAddr(t), "--haproxy", testkit.HAProxyPath(t)}, more...)
}

// All of the demo, shortened: what it says before and after, and that everything has ended. It takes so much of
// a machine that nothing runs beside it.
func TestDemo(t *testing.T) {
	d := startSluice(t, demoArgs(t, "--duration", "6s")...)
	var children []int
	testkit.Eventually(t, "it has begun", func() error {
		if !strings.Contains(d.stdout.String(), "quiet: ") {
			return fmt.Errorf("it printed %q", d.stdout)
		}
		children = d.children(t)
		return nil
	})
	if len(children) != 2 {
		t.Errorf("children = %v, want two HAProxies", children)
	}
	if code := d.wait(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	d.leavesNothing(t, children)
	out := d.stdout.String()
	for _, want := range []string{
		`(?m)^\d+ s: there are no limits, and the one who asks most gets most$`,
		`(?m)^  noisy: \d+/s answered`,
		// How many is the machine's business. The table is there only if something was refused.
		`(?m)^  quiet, without +\d+ % +0 % +\d+ % `,
		`(?m)^  quiet, with +\d+ % +\d+ % +\d+ % `,
		`(?m)^  noisy, without +\d+ % +0 % +\d+ % `,
		`(?m)^  noisy, with +\d+ % +\d+ % +\d+ % `,
		`Next, with limits of your own:\n  sluice up --(help|limits /etc/sluice/limits.yaml)\n$`, // which this machine may have
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("it printed no %q", want)
		}
	}
	if e := d.stderr.String(); e != "" {
		t.Errorf("standard error = %q, want none", e)
	}
}

// In a terminal it draws, without colors where they are not wanted, and Ctrl-C ends it early.
func TestDemoInATerminal(t *testing.T) {
	args, tmp := demoArgs(t), shortTempDir(t)
	t.Setenv("TMPDIR", tmp)
	t.Setenv("NO_COLOR", "1")
	term := inTerminal(t, unix.Winsize{Col: 80, Row: 24}, args...)
	screen := term.await(t, "noisy asks 400/s", "quiet asks 20/s", "█", "without limits", "http://127.0.0.1:")
	children := childrenOf(t, term.cmd.Process.Pid)
	if len(children) != 2 {
		t.Errorf("children = %v, want two HAProxies", children)
	}
	if lines := strings.Split(screen, "\n"); len(lines) > 24 {
		t.Errorf("%d lines, want no more than there are rows:\n%s", len(lines), screen)
	}
	term.interrupt(t)
	all := term.screen.String()
	if strings.Contains(all, "\x1b[1m") || strings.Contains(all, "\x1b[3") {
		t.Error("there are colors in spite of NO_COLOR")
	}
	if !strings.HasSuffix(all, "Ended before there were limits.\r\n") {
		t.Errorf("the last lines are %q", all[max(len(all)-200, 0):])
	}
	nothingLeft(t, tmp, children)
}

// What it cannot do is told before anything starts.
func TestDemoRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--duration 1s": "sluice: demo: --duration=1s: want 4s or more\n",
		"--haproxy /no": "sluice demo: exec: \"/no\": stat /no: no such file or directory: install HAProxy",
	} {
		d := startSluice(t, demoArgs(t, strings.Fields(args)...)...)
		if code := d.wait(t); code == 0 || !strings.Contains(d.stderr.String(), want) {
			t.Errorf("sluice demo %s: exit code %d, %q, want %q", args, code, d.stderr, want)
		}
		d.leavesNothing(t, nil)
	}
}
