package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// TestMain makes this test binary stand for the command: scripts, and tests
// that start "spoa", run main in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"spoa": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0") // else each process ends a second late
			return nil
		},
	})
}

// start starts an agent that has everything but HAProxy and limits.
func start(t *testing.T, redis string, env ...string) (p *testkit.Process, admin, dir string) {
	t.Helper()
	return startBy(t, []string{"spoa"}, redis, env...)
}

// startBy starts it by another command.
func startBy(t *testing.T, command []string, redis string, env ...string) (p *testkit.Process, admin, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "spoa") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	admin = testkit.FreeAddr(t)
	env = append(env, "GORACE=atexit_sleep_ms=0", "SLUICE_REDIS="+redis, "SLUICE_ADMIN="+admin,
		"SLUICE_SPOE=unix:"+filepath.Join(dir, "spoa.sock"), "SLUICE_PEER=unix:"+filepath.Join(dir, "peers.sock"))
	return testkit.Start(t, env, command[0], command[1:]...), admin, dir
}

func get(address, path string) (status int, body string, err error) {
	client := http.Client{Timeout: testkit.Patience}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// The agent is set up by its environment alone, and says what it waits for.
func TestWaitsForLimitsUntilItIsTold(t *testing.T) {
	t.Parallel()
	_, redis := testkit.Redis(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, env, instance string }{
		{"under the host's name", "SLUICE_LOG_LEVEL=info", host},
		{"under its own", "SLUICE_INSTANCE=edge-7", "edge-7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, admin, dir := start(t, redis, tt.env)
			testkit.Eventually(t, "it waits for limits", func() error {
				status, body, err := get(admin, "/-/ready")
				if err == nil && (status != 503 || body != "no limits yet: is polygen running?\n") {
					err = fmt.Errorf("GET /-/ready = %d %q", status, body)
				}
				return err
			})
			testkit.Eventually(t, "its log names it", func() error {
				if out := p.Output(); !strings.Contains(out, "no limits are published") || !strings.Contains(out, "instance="+tt.instance+" ") {
					return errors.New(out)
				}
				return nil
			})
			if status, _, err := get(admin, "/-/healthy"); status != 200 || err != nil {
				t.Errorf("GET /-/healthy = %d, %v, want 200", status, err)
			}
			// On a slow machine it may have lost Redis for a moment.
			testkit.Eventually(t, "its metrics", func() error {
				if status, body, err := get(admin, "/metrics"); status != 200 || err != nil || !strings.Contains(body, "\nsluice_redis_lost 0\n") {
					return fmt.Errorf("GET /metrics = %d, %v, want 200 and sluice_redis_lost 0 in:\n%s", status, err, body)
				}
				return nil
			})
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Errorf("it ended with %v, want exit code 0", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "spoa.sock")); err == nil {
				t.Error("its socket is left")
			}
		})
	}
}

func TestTellsSystemd(t *testing.T) {
	t.Parallel()
	testkit.TellsSystemd(t, func(redis string, env ...string) *testkit.Process {
		p, _, _ := start(t, redis, env...)
		return p
	}, "STATUS=not ready: no limits yet: is polygen running?")
}
