package main

import (
	"bytes"
	"context"
	"errors"
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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/api/apitest"
	"github.com/sluice-qos/sluice/internal/proctest"
)

func TestNearest(t *testing.T) {
	limit := func(name string, used, most int64) api.Limit {
		return api.Limit{Name: name, Max: most, Mode: "enforce", Used: used}
	}
	window := func(name string, length, used, last, most int64) api.Limit {
		return api.Limit{Name: name, Max: most, Window: length, Mode: "enforce", Used: used, Last: &last}
	}
	for _, tt := range []struct {
		name string
		user api.User
		want *nearest
	}{
		{"who has no limit is near none", api.User{}, nil},
		{"the largest part, not the largest number", api.User{Limits: []api.Limit{limit("GET", 10, 100), limit("concurrent", 1, 2)}},
			&nearest{"concurrent", "enforce", 1, 2, 0.5}},
		{"the first of equal ones", api.User{Limits: []api.Limit{limit("*", 5, 10), limit("GET", 1, 2)}}, &nearest{"*", "enforce", 5, 10, 0.5}},
		{"of a second the full one before counts, too", api.User{Limits: []api.Limit{window("GET", 1, 1, 9, 10), window("PUT", 1, 5, 0, 10)}},
			&nearest{"GET", "enforce", 9, 10, 0.9}},
		{"of a longer window it does not", api.User{Limits: []api.Limit{window("GET/hour", 3600, 1, 9, 10), window("PUT", 1, 5, 0, 10)}},
			&nearest{"PUT", "enforce", 5, 10, 0.5}},
		{"the limit that refuses comes first", api.User{Limits: []api.Limit{limit("GET", 10, 10), limit("concurrent", 4, 5)},
			Why: []api.Why{{Limit: "concurrent", Mode: "enforce"}}}, &nearest{"concurrent", "enforce", 4, 5, 0.8}},
		{"a dry run refuses nobody", api.User{Limits: []api.Limit{limit("GET", 10, 10), limit("concurrent", 4, 5)},
			Why: []api.Why{{Limit: "concurrent", Mode: "dry-run"}}}, &nearest{"GET", "enforce", 10, 10, 1}},
		{"a limit of nothing is full", api.User{Limits: []api.Limit{limit("GET", 0, 0)}}, &nearest{"GET", "enforce", 0, 0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, nearestOf(tt.user)); diff != "" {
				t.Errorf("nearestOf(%+v) (-want +got):\n%s", tt.user, diff)
			}
		})
	}
}

// The list for people: units, and no sign of a comment.
func TestTopForPeople(t *testing.T) {
	p := &picture{Users: apitest.Cluster().List, Ranked: []ranked{{Summary: apitest.Cluster().List.Users[0], Nearest: &nearest{"GET", "enforce", 80, 100, 0.8}}}}
	p.Sort, p.Leading, p.Dropped = api.ByRate, false, 3
	p.Ranked[0].Seen = apitest.Noon.Add(-200 * time.Second)
	want := `2026-11-20T12:00:00Z  polygen one, following, limits version 0123456789ab, users seen: 12 (forgotten, because there were too many: 3), by rate
user   tier  state  rate/s  in progress      down    up  nearest  used   seen
alice  pro   ok       80.0            3  1.5MiB/s  0B/s  GET       80%  3m20s`
	if diff := cmp.Diff(want, strings.Join(table(p, true, 0), "\n")); diff != "" {
		t.Errorf("table() (-want +got):\n%s", diff)
	}
}

// A screen is drawn over the one before, and never is larger than the terminal.
func TestScreen(t *testing.T) {
	p := &picture{Users: api.Users{From: api.From{Polygen: "one", Version: "v", Time: apitest.Noon}, Sort: api.ByUp}}
	for _, name := range []string{"a", "a-long-name-of-somebody", "日本語日本語日本語", "d"} {
		p.Ranked = append(p.Ranked, ranked{Summary: api.Summary{Name: api.Name{User: name}, Tier: "t", State: api.OK, Seen: apitest.Noon}})
	}
	columns, rows := 70, 6
	var out bytes.Buffer
	s := &screen{w: &out, size: func() (int, int) { return columns, rows }}
	drawn := func(what string, draw error, want string) {
		t.Helper()
		if diff := cmp.Diff(want, out.String()); diff != "" || draw != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", what, draw, diff)
		}
		out.Reset()
	}
	drawn("the first scrolls what was there away, and the last row stays free", s.show(p), strings.Repeat("\n", 5)+
		"\x1b[H\x1b[K2026-11-20T12:00:00Z  polygen one, following, limits version v, users…\n"+
		"\x1b[Kuser      tier  state  rate/s  in progress  down    up  nearest  used…\n"+
		"\x1b[Ka         t     ok        0.0            0  0B/s  0B/s  -           -…\n"+
		"\x1b[Ka-long-…  t     ok        0.0            0  0B/s  0B/s  -           -…\n"+
		"\x1b[K日本語…   t     ok        0.0            0  0B/s  0B/s  -           -…\n\x1b[J")
	columns, rows = 20, 4
	small := "\x1b[H\x1b[K2026-11-20T12:00:00…\n\x1b[Kuser      tier  sta…\n\x1b[Ka         t     ok …\n\x1b[J"
	drawn("a terminal that became smaller", s.show(p), small)
	s.redraw()
	drawn("the same again", nil, small)
	rows = 3
	const lost = "\x1b[H\x1b[K2026-11-20T12:00:00…\n\x1b[Kno answer since 202…\n\x1b[J"
	if err := s.lost(apitest.Noon, errors.New("nothing listens")); err != nil || !strings.HasPrefix(out.String(), lost) {
		t.Errorf("while polygen is away: %v, %q, want the time and since when", err, &out)
	}
	out.Reset()
	s.redraw()
	drawn("and again", nil, lost)
	rows = 1
	drawn("one row", s.show(p), "\x1b[H\x1b[J")
	drawn("the end", s.end(), "\r\x1b[K")
	s.redraw()
	drawn("nothing comes after it", nil, "")
}

// What listens is none that has lists.
func TestLiveAsksSomethingElse(t *testing.T) {
	const hint = ": name the address of a polygen's admin API with --admin"
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"an older polygen", 404, "404 page not found\n", `what listens at ADDR is no polygen, or an older one without this API (it answers "404 Not Found")` + hint},
		{"a page", 200, "<html>\x1b[2J", `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"other JSON", 200, "{}", `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"polygen's in another form", 200, `{"polygen":"one","limits":{},"users":[3]}`, `what listens at ADDR is no polygen (it answers "200 OK")` + hint},
		{"an error of polygen's", 400, `{"error":"no\u001b[1m"}`, `ask ADDR: "no\x1b[1m"`},
		{"headers for the terminal", 0, "HTTP/1.1 200 OK\r\nSet\x1b[2J\r\n\r\n", `ask ADDR: `},
	} {
		for _, command := range [][]string{{"top"}, {"watch", "bob"}} {
			t.Run(tt.name+"/"+command[0], func(t *testing.T) {
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
				var out, errs bytes.Buffer
				code := run(append(command, "--admin", server.Listener.Addr().String()), &out, &errs)
				want := "sluice " + command[0] + ": " + strings.ReplaceAll(tt.want, "ADDR", server.Listener.Addr().String())
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

// A list may not lead the question about a user elsewhere.
func TestTopAsksOnlyAboutUsers(t *testing.T) {
	f := apitest.Cluster()
	f.List.Users[2].Href = "/api/v1/instances#\u009b"
	server := apitest.Serve(f)
	defer server.Close()
	var out, errs bytes.Buffer
	code := run([]string{"top", "--once", "--admin", server.Listener.Addr().String()}, &out, &errs)
	if code != 1 || out.Len() > 0 || !strings.Contains(errs.String(), `(a user is at "/api/v1/instances#\u009b")`) {
		t.Errorf("it ended with %d, printed %q and %q, want 1 and the address", code, &out, &errs)
	}
}

// In a pipe an outage is told once, and its end; there is no list meanwhile.
func TestTopOutageInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		gone, asked := errors.New("nothing listens"), 0
		answers := []error{nil, nil, gone, gone, nil, gone, nil}
		p := &picture{Users: apitest.Cluster().List}
		ask := func(context.Context) (*picture, error) {
			asked++
			if asked > len(answers) {
				stop()
				return nil, ctx.Err()
			}
			return p, answers[asked-1]
		}
		var out, errs bytes.Buffer
		if err := (&top{Interval: 3 * time.Second}).follow(ctx, ask, &tables{w: &out, errs: &errs}); err != nil {
			t.Errorf("follow() = %v, want nil after Ctrl-C", err)
		}
		if n := strings.Count(out.String(), "# 2026"); n != 4 {
			t.Errorf("%d lists, want 4:\n%s", n, &out)
		}
		want := `sluice top: no answer since 2000-01-01T00:00:03Z: nothing listens
sluice top: there are answers again, after 9s
sluice top: no answer since 2000-01-01T00:00:12Z: nothing listens
sluice top: there are answers again, after 6s
`
		if diff := cmp.Diff(want, errs.String()); diff != "" {
			t.Errorf("standard error (-want +got):\n%s", diff)
		}
	})
}

// Nobody reads: top ends.
func TestTopEndsWithItsPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	ask := func(context.Context) (*picture, error) { return &picture{}, nil }
	if err := (&top{Interval: time.Hour}).follow(t.Context(), ask, &tables{w: w, errs: io.Discard}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("follow() = %v, want a broken pipe", err)
	}
}

// window is a terminal that a program runs in.
type window struct {
	keyboard *os.File
	screen   *buffer
	ended    chan error
	cmd      *exec.Cmd
}

// inTerminal starts sluice as a shell in a terminal of that size does.
func inTerminal(t *testing.T, size unix.Winsize, args ...string) *window {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil { // unlocks the other end: pts(4)
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	term := &window{keyboard: master, screen: &buffer{}, ended: make(chan error, 1), cmd: exec.Command("sluice", args...)}
	term.resize(t, size)
	term.cmd.Env = append(os.Environ(), "TERM=xterm", "GORACE=atexit_sleep_ms=0")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	if err := unix.IoctlSetWinsize(int(term.keyboard.Fd()), unix.TIOCSWINSZ, &size); err != nil {
		t.Fatal(err)
	}
}

// await waits for a screen, the last one, that has all of the words.
func (term *window) await(t *testing.T, words ...string) string {
	t.Helper()
	var last string
	proctest.Eventually(t, fmt.Sprintf("the screen has %q", words), func() error {
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

func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.9:0") // whose ports other tests leave alone
	if err != nil {
		t.Fatal(err)
	}
	polygen := httptest.NewUnstartedServer(apitest.Handler(apitest.Cluster()))
	polygen.Listener.Close()
	polygen.Listener = l
	polygen.Start()
	defer func() { polygen.Close() }()
	addr := l.Addr().String()
	term := inTerminal(t, unix.Winsize{Row: 30, Col: 200}, "top", "--admin", addr, "--interval", "100ms")
	got := term.await(t, "polygen one, leading", `"carol\x20d"@uploads  free   throttled`, "1.5MiB/s")
	text := strings.NewReplacer("\x1b[K", "", "\r\n", "\n", "\x1b[J", "").Replace(got)
	if err := apitest.PrintableOnly(text); err != nil {
		t.Error(err)
	}
	if n := strings.Count(text, "\n"); n != 2+len(apitest.Cluster().List.Users) {
		t.Errorf("the screen has %d lines, want two and one for each user:\n%s", n, text)
	}

	term.resize(t, unix.Winsize{Row: 5, Col: 40})
	proctest.Eventually(t, "the list fits", func() error {
		if s := term.await(t, "polygen"); strings.Contains(s, "~AB") || strings.Contains(s, "limits version") {
			return fmt.Errorf("the screen is %q", s)
		}
		return nil
	})
	term.resize(t, unix.Winsize{Row: 30, Col: 200})

	polygen.Close()
	term.await(t, "no answer since 20", "nothing listens at "+addr, "polygen one, leading", "throttled")
	proctest.Eventually(t, "the port is free", func() error {
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

	if _, err := term.keyboard.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	select {
	case err := <-term.ended:
		if all := term.screen.String(); err != nil || !strings.HasSuffix(all, "\r\x1b[K") {
			t.Errorf("it ended with %v and %q, want the cursor on an empty line", err, all[max(len(all)-100, 0):])
		}
	case <-time.After(proctest.Patience):
		t.Fatal("it does not end with Ctrl-C")
	}
}
