package main

import (
	"context"
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

	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// TestMain makes this test binary stand for the command: scripts, and tests
// that start "polygen", run main in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"polygen": main})
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

const good = "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}}}\n"

// start starts a polygen that is set up by its environment alone.
func start(t *testing.T, redis string, env ...string) (p *testkit.Process, admin, limits string) {
	t.Helper()
	limits = filepath.Join(t.TempDir(), "limits.yaml")
	write(t, limits, good)
	admin = testkit.FreeAddr(t)
	env = append(env, "GORACE=atexit_sleep_ms=0", "SLUICE_REDIS="+redis, "SLUICE_ADMIN="+admin, "SLUICE_LIMITS="+limits)
	return testkit.Start(t, env, "polygen"), admin, limits
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func ask(method, address, path string) (status int, body string, err error) {
	r, err := http.NewRequest(method, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestLeadsAndReloads(t *testing.T) {
	t.Parallel()
	_, redis := testkit.Redis(t)
	p, admin, limits := start(t, redis)
	metric := func(line string) {
		t.Helper()
		testkit.Eventually(t, line, func() error {
			_, body, err := ask("GET", admin, "/metrics")
			if err == nil && !strings.Contains(body, "\n"+line+"\n") {
				err = errors.New("it is not there")
			}
			return err
		})
	}
	metric("sluice_polygen_leading 1")
	testkit.Eventually(t, "it is ready", func() error {
		status, body, err := ask("GET", admin, "/-/ready")
		if err == nil && status != 200 {
			err = fmt.Errorf("GET /-/ready = %d %q, want 200", status, body)
		}
		return err
	})

	testkit.Must(t, p.Signal(syscall.SIGHUP))
	metric(`sluice_limits_reloads_total{result="unchanged"} 1`)

	write(t, limits, "version: 2\n")
	status, body, err := ask("POST", admin, "/-/reload")
	if status != 400 || err != nil || !strings.HasPrefix(body, limits+":1:10: ") {
		t.Errorf("POST /-/reload of a broken file = %d %q, %v, want 400 and its position", status, body, err)
	}
	testkit.Must(t, p.Signal(syscall.SIGHUP))
	testkit.Eventually(t, "the log tells of the broken file", func() error {
		if out := p.Output(); !strings.Contains(out, "reload failed: the old limits stay in force") || !strings.Contains(out, limits+":1:10: ") {
			return errors.New(out)
		}
		return nil
	})
	metric("sluice_limits_valid 0")

	write(t, limits, good)
	if status, body, err := ask("POST", admin, "/-/reload"); status != 200 || err != nil {
		t.Errorf("POST /-/reload = %d %q, %v, want 200", status, body, err)
	}
	metric("sluice_limits_valid 1")

	testkit.Must(t, p.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("it ended with %v, want exit code 0", err)
	}
}

// In containers two polygens may have one host name and be process 1 both: here they are
// one process.
func TestNamesOfOneProcessDiffer(t *testing.T) {
	t.Parallel()
	_, redis := testkit.Redis(t)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	write(t, limits, good)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	leaders := 0
	for range 2 {
		o := options{Limits: limits, Margin: 5, Admin: flags.Admin{Address: testkit.FreeAddr(t)}, Redis: flags.Redis{Redis: []string{redis}, RedisShards: 1}}
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, o, nil) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("serve() = %v, want nil", err)
			}
		}()
		testkit.Eventually(t, "it has asked for the lead", func() error {
			status, body, err := ask("GET", o.Address, "/-/ready")
			if err == nil && status != 200 {
				err = fmt.Errorf("GET /-/ready = %d %q", status, body)
			}
			return err
		})
		_, metrics, err := ask("GET", o.Address, "/metrics")
		testkit.Must(t, err)
		leaders += strings.Count(metrics, "\nsluice_polygen_leading 1\n")
	}
	if leaders != 1 {
		t.Errorf("%d lead, want one: they have two names", leaders)
	}
}

func TestTellsSystemd(t *testing.T) {
	t.Parallel()
	testkit.TellsSystemd(t, func(redis string, env ...string) *testkit.Process {
		p, _, _ := start(t, redis, env...)
		return p
	}, "STATUS=ready", "READY=1")
}
