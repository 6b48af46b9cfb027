package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// The commands name a server that is no polygen, and pass on what a polygen refuses.
func TestLiveAsksSomethingElse(t *testing.T) {
	const hint = ": name the address of a polygen's admin API with --admin"
	file := apitest.WriteFile(t, t.TempDir(), "limits.yaml", goodLimits)
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"an older polygen, or an agent", 404, "404 page not found\n", `what listens at ADDR is no polygen, or an older one without this API (it answers "404 Not Found")` + hint},
		{"a page", 200, "<html>\x1b[2J", `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"other JSON", 200, "{}", `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"polygen's in another form", 200, `{"polygen":"one","limits":{},"users":[3]}`, `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"an error of polygen's", 400, `{"error":"no\u001b[1m"}`, `ask ADDR: "no\x1b[1m"`},
		{"headers for the terminal", 0, "HTTP/1.1 200 OK\r\nSet\x1b[2J\r\n\r\n", `ask ADDR: `},
	} {
		for _, command := range [][]string{{"top"}, {"explain", "alice", "--limits", file}} {
			t.Run(command[0]+" "+tt.name, func(t *testing.T) {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if tt.status == 0 {
						conn, _, err := w.(http.Hijacker).Hijack()
						if err == nil {
							fmt.Fprint(conn, tt.body)
							conn.Close()
						}
						return
					}
					w.WriteHeader(tt.status)
					fmt.Fprint(w, tt.body)
				}))
				defer server.Close()
				address := server.Listener.Addr().String()
				var out, errs bytes.Buffer
				code := runCommand(append(command, "--admin", address), &out, &errs)
				want := "sluice " + command[0] + ": " + strings.ReplaceAll(tt.want, "ADDR", address)
				if tt.status != 0 {
					want += "\n"
				}
				if code != 1 || out.Len() > 0 || !strings.HasPrefix(errs.String(), want) || apitest.PrintableOnly(errs.String()) != nil {
					t.Errorf("it ended with %d, printed %q and %q, want 1 and %q", code, &out, &errs, want)
				}
				if tt.status != 0 && errs.String() != want {
					t.Errorf("it printed %q, want %q", &errs, want)
				}
			})
		}
	}
}

// window is a terminal that a program runs in.
type window struct {
	keyboard *os.File
	screen   *testkit.Buffer
	ended    chan error
	cmd      *exec.Cmd
}

// inTerminal starts sluice as a shell in a terminal of that size does.
func inTerminal(t *testing.T, size unix.Winsize, args ...string) *window {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	testkit.Must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)) // unlocks the other end: pts(4)
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	testkit.Must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	testkit.Must(t, err)
	defer slave.Close()
	term := &window{keyboard: master, screen: &testkit.Buffer{}, ended: make(chan error, 1), cmd: exec.Command("sluice", args...)}
	term.resize(t, size)
	term.cmd.Env = append(os.Environ(), "TERM=xterm", "GORACE=atexit_sleep_ms=0")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testkit.Must(t, term.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(term.screen, master) // ends with an error when the program has
	}()
	go func() {
		err := term.cmd.Wait()
		<-read
		term.ended <- err
	}()
	t.Cleanup(func() { _ = term.cmd.Process.Kill() })
	return term
}

func (term *window) resize(t *testing.T, size unix.Winsize) {
	t.Helper()
	testkit.Must(t, unix.IoctlSetWinsize(int(term.keyboard.Fd()), unix.TIOCSWINSZ, &size))
}

// await waits for a screen, the last one, that has all of the words.
func (term *window) await(t *testing.T, words ...string) string {
	t.Helper()
	var last string
	testkit.Eventually(t, fmt.Sprintf("the screen has %q", words), func() error {
		all := strings.Split(term.screen.String(), "\x1b[H")
		if i := len(all) - 1; strings.HasSuffix(all[i], "\x1b[J") {
			last = all[i]
		}
		for _, w := range words {
			if !strings.Contains(last, w) {
				return fmt.Errorf("the screen is %q", last)
			}
		}
		return nil
	})
	return last
}

// interrupt types Ctrl-C, and waits until the program has ended as it should.
func (term *window) interrupt(t *testing.T) {
	t.Helper()
	_, err := term.keyboard.WriteString("\x03")
	testkit.Must(t, err)
	select {
	case err := <-term.ended:
		if err != nil {
			t.Errorf("it ended with %v, want exit code 0", err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("it does not end with Ctrl-C")
	}
}

func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.9:0") // whose ports other tests leave alone
	testkit.Must(t, err)
	polygen := httptest.NewUnstartedServer(apitest.Handler(apitest.Cluster()))
	polygen.Listener.Close()
	polygen.Listener = l
	polygen.Start()
	defer func() { polygen.Close() }()
	addr := l.Addr().String()
	term := inTerminal(t, unix.Winsize{Row: 30, Col: 200}, "top", "--admin", addr, "--interval", "100ms")
	got := term.await(t, "polygen one, leading", `"carol\x20d"     free   throttled`, "1.5MiB/s")
	text := strings.NewReplacer("\x1b[K", "", "\r\n", "\n", "\x1b[J", "").Replace(got)
	if err := apitest.PrintableOnly(text); err != nil {
		t.Error(err)
	}
	if n := strings.Count(text, "\n"); n != 2+len(apitest.Cluster().List.Users) {
		t.Errorf("the screen has %d lines, want two and one for each user:\n%s", n, text)
	}

	term.resize(t, unix.Winsize{Row: 5, Col: 40})
	testkit.Eventually(t, "the list fits", func() error {
		if s := term.await(t, "polygen"); strings.Contains(s, "~AB") || strings.Contains(s, "limits version") {
			return fmt.Errorf("the screen is %q", s)
		}
		return nil
	})
	term.resize(t, unix.Winsize{Row: 30, Col: 200})

	polygen.Close()
	term.await(t, "no answer since 20", "nothing listens at "+addr, "polygen one, leading", "throttled")
	testkit.Eventually(t, "the port is free", func() error {
		l, err = net.Listen("tcp", addr)
		return err
	})
	f := apitest.Cluster()
	f.List.Polygen = "another"
	again := httptest.NewUnstartedServer(apitest.Handler(f))
	again.Listener.Close()
	again.Listener = l
	again.Start()
	defer again.Close()
	if s := term.await(t, "polygen another, leading"); strings.Contains(s, "no answer") {
		t.Errorf("the screen still is %q", s)
	}

	term.interrupt(t)
	if all := term.screen.String(); !strings.HasSuffix(all, "\r\x1b[K") {
		t.Errorf("it ended with %q, want the cursor on an empty line", all[max(len(all)-100, 0):])
	}
}
