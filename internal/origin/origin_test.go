package origin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnswers(t *testing.T) {
	tests := []struct {
		name, method, path, body string
		status                   int
		length                   int    // of the answer's body; -1: not looked at
		want                     string // what the answer's body is, if not empty
	}{
		{"bytes", "GET", "/bytes/1000", "", 200, 1000, ""},
		{"no bytes", "GET", "/bytes/0", "", 200, 0, ""},
		{"bytes with a unit", "GET", "/bytes/3KiB", "", 200, 3072, ""},
		{"more than one block", "GET", "/bytes/1MiB", "", 200, 1 << 20, ""},
		{"a length that is no multiple of a block", "GET", "/bytes/65537", "", 200, 65537, ""},
		{"HEAD has a length and no body", "HEAD", "/bytes/10MiB", "", 200, 0, ""},
		{"too many bytes", "GET", "/bytes/2GiB", "", 400, -1, ""},
		{"bytes that overflow", "GET", "/bytes/18014398509481985KiB", "", 400, -1, ""},
		{"negative bytes", "GET", "/bytes/-1", "", 400, -1, ""},
		{"bytes that are no number", "GET", "/bytes/x", "", 400, -1, ""},
		{"sleep", "GET", "/sleep/1", "", 200, -1, "slept 1 ms\n"},
		{"too long a sleep", "GET", "/sleep/60001", "", 400, -1, ""},
		{"a negative sleep", "GET", "/sleep/-1", "", 400, -1, ""},
		{"any other path", "GET", "/a/b", "", 200, -1, "hello /a/b\n"},
		{"another method is like GET", "DELETE", "/a", "", 200, -1, "hello /a\n"},
		{"POST answers the size", "POST", "/x", "12345", 200, -1, "5\n"},
		{"PUT answers the size", "PUT", "/bytes/7", strings.Repeat("x", 70000), 200, -1, "70000\n"},
		{"PUT of nothing", "PUT", "/x", "", 200, -1, "0\n"},
	}
	s := httptest.NewServer(New())
	defer s.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// An io.Reader of unknown type makes the client send chunks.
			req, err := http.NewRequest(tt.method, s.URL+tt.path, io.MultiReader(strings.NewReader(tt.body)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status {
				t.Errorf("%s %s = %d %q, want %d", tt.method, tt.path, resp.StatusCode, body, tt.status)
			}
			if tt.length >= 0 && len(body) != tt.length {
				t.Errorf("%s %s answered %d bytes, want %d", tt.method, tt.path, len(body), tt.length)
			}
			if tt.want != "" && string(body) != tt.want {
				t.Errorf("%s %s answered %q, want %q", tt.method, tt.path, body, tt.want)
			}
			if tt.method == "HEAD" && resp.ContentLength != 10<<20 {
				t.Errorf("%s %s announced %d bytes, want %d", tt.method, tt.path, resp.ContentLength, 10<<20)
			}
		})
	}
}

func TestUploadsAreBounded(t *testing.T) {
	r := httptest.NewRequest("PUT", "/", io.LimitReader(zeros{}, MaxBytes+1))
	w := httptest.NewRecorder()
	New().ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("PUT of MaxBytes+1 = %d, want %d", w.Code, http.StatusRequestEntityTooLarge)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestCounts(t *testing.T) {
	o := New()
	o.MaxUsers = 2
	s := httptest.NewServer(o)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	left := make(chan error)
	for _, user := range []string{"alice", "alice", "bob", "carol"} {
		go func() { left <- get(ctx, s, user, "/sleep/60000") }()
		if user == "carol" {
			break // beyond MaxUsers
		}
		testkit.Eventually(t, "the request begins", func() error {
			if o.UserCounts(user).Active == 0 {
				return errors.New("not yet")
			}
			return nil
		})
	}
	active := func(want int64) func() error {
		return func() error {
			if got := o.Counts().Active; got != want {
				return fmt.Errorf("Counts().Active = %d, want %d", got, want)
			}
			return nil
		}
	}
	testkit.Eventually(t, "four in progress", active(4))
	for user, want := range map[string]int64{"alice": 2, "bob": 1, "carol": 0, "nobody": 0} {
		testkit.Eventually(t, "UserCounts("+user+")", func() error { // counted after all are
			if got := o.UserCounts(user); got != (Counts{Active: want, MaxActive: want}) {
				return fmt.Errorf("%+v, want %d active", got, want)
			}
			return nil
		})
	}
	cancel() // the clients go away
	for range 4 {
		if err := <-left; err == nil {
			t.Error("a request was answered before its time")
		}
	}
	testkit.Eventually(t, "none in progress", active(0))
	if err := get(t.Context(), s, "alice", "/"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all served", func() error {
		if got, want := o.Counts(), (Counts{Served: 5, MaxActive: 4}); got != want {
			return fmt.Errorf("Counts() = %+v, want %+v", got, want)
		}
		return nil
	})
	if got, want := o.UserCounts("alice"), (Counts{Served: 3, MaxActive: 2}); got != want {
		t.Errorf("UserCounts(alice) = %+v, want %+v", got, want)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Serve(ctx, l) }()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /sleep/60000 HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("GET / = %v, %v, want 200", resp, err)
	}
	testkit.Eventually(t, "the long request begins", func() error {
		if c := o.Counts(); c.Served != 1 || c.Active != 1 {
			return fmt.Errorf("Counts() = %+v, want one served and one active", c)
		}
		return nil
	})
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	case <-time.After(MaxSleep / 2):
		t.Fatal("Serve did not return although a request in progress outlasts the test")
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the listener still accepts after Serve has returned")
	}
}

func TestServeReturnsTheListenersError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New().Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve(closed listener) = %v, want %v", err, net.ErrClosed)
	}
}

func get(ctx context.Context, s *httptest.Server, user, path string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set(UserHeader, user)
	resp, err := s.Client().Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
