package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/proctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTable(t *testing.T) {
	s := httptest.NewServer(origin.New())
	defer s.Close()
	code, out, _ := command(t.Context(), "--target", s.Listener.Addr().String(), "--rate", "200", "--duration", "200ms", "--user", "a,b", "--user", "c", "--limit", "100", "--timeout", proctest.Patience.String())
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	for _, want := range []string{
		"40 of 40 requests were due: 40 admitted, 0 refused,",
		"status    200: 40\n",
		"reasons   none\n",
		"failures  none\n",
		"all answers, from when sent",
		s.Listener.Addr().String(),
		"limit 100 a second: ",
		" 0 over the limit; 0 refused in error\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

func TestJSON(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "DELETE" || r.RequestURI != "/x?y" || r.Header.Get("X-User") == "" {
			w.WriteHeader(http.StatusTeapot)
		} else if r.Header.Get("X-User") == "bob" {
			w.Header().Set("Sluice-Reason", "request-rate")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer s.Close()
	_, out, _ := command(t.Context(), "--target", s.Listener.Addr().String(), "--rate", "200", "--duration", "100ms", "--method", "DELETE", "--path", "/x?y",
		"--user", "alice", "--user", "bob", "--limit", "10", "--arrivals", "uniform", "--json", "--timeout", proctest.Patience.String())
	var got summary
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Due != 20 || got.Admitted != 10 || got.Refused != 10 || got.Statuses[429] != 10 || got.Reasons["request-rate"] != 10 ||
		got.Targets[0].Refused != 10 || got.Ratios == nil || got.Ratios.Limit != 10 {
		t.Errorf("printed %s; want 10 admitted and 10 refused", out)
	}
}

func TestInterruptPrintsWhatThereIs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 10 {
			cancel()
		}
	}))
	defer s.Close()
	code, out, errs := command(ctx, "--target", s.Listener.Addr().String(), "--rate", "200", "--duration", "10m")
	if code != 0 || errs != "" || !strings.Contains(out, " of 120000 requests were due:") {
		t.Errorf("exit code %d, printed %q and %q; want what there is", code, out, errs)
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		want string // part of what is printed to standard error
	}{
		{"no target", nil, 2, "missing flags: --target"},
		{"another machine", []string{"--target", "192.0.2.1:80"}, 1, "not a loopback address: open-loop load does not slow down"},
		{"too high a rate", []string{"--target", "127.0.0.1:1", "--rate", "50001"}, 2, "--rate 50001: want more than 0 and at most 50000"},
		{"too long", []string{"--target", "127.0.0.1:1", "--duration", "11m"}, 2, "--duration 11m0s: want more than 0 and at most 10m0s"},
		{"a pattern there is not", []string{"--target", "127.0.0.1:1", "--pattern", "odd"}, 2, `--pattern must be one of "even","90/10","jump"`},
		{"a negative limit", []string{"--target", "127.0.0.1:1", "--limit=-1"}, 2, "--limit -1: want 1 or more"},
		{"a line break in a user", []string{"--target", "127.0.0.1:1", "--user", "a\r\nX: y"}, 2, "control characters cannot be sent"},
		{"a blank in a path", []string{"--target", "127.0.0.1:1", "--path", "/ HTTP/1.1"}, 2, "a blank ends a method or path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, _, errs := command(t.Context(), tt.args...)
			if code != tt.code || !strings.Contains(errs, tt.want) {
				t.Errorf("load %q = %d, %q; want %d, %q", tt.args, code, errs, tt.code, tt.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	code, out, _ := command(t.Context(), "--help")
	if code != 0 || !strings.Contains(out, "Usage: load") || !strings.Contains(out, "--pattern") {
		t.Errorf("load --help = %d, %q", code, out)
	}
}

func command(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}
