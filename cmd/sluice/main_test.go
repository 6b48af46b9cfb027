package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

// TestMain makes this test binary stand for the command: scripts, and tests
// that start "sluice", run main in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sluice": main})
}

func TestScripts(t *testing.T) {
	schema, err := filepath.Abs("../../config/limits.schema.json")
	testkit.Must(t, err)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"status": status},
		Setup: func(e *testscript.Env) error {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			e.Defer(func() { taken.Close() })
			api := apitest.Serve(apitest.Cluster())
			e.Defer(api.Close)
			e.Setenv("API", api.Listener.Addr().String()) // of a polygen
			e.Setenv("TAKEN", taken.Addr().String())      // an address that somebody listens on
			e.Setenv("FREE", testkit.FreeAddr(t))         // one that nobody listens on
			e.Setenv("TMPDIR", e.Getenv("WORK"))
			e.Setenv("SCHEMA", schema)
			e.Setenv("GORACE", "atexit_sleep_ms=0") // else each process ends a second late
			return os.WriteFile(e.Getenv("WORK")+"/good.yaml", []byte(goodLimits), 0o600)
		},
	})
}

// status is a script command: status CODE COMMAND [ARGUMENT...] runs a command
// that must end with the code.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE COMMAND [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

const goodLimits = `version: 1
default_tier: free
tiers:
  free:
    requests: {GET: 10, "*": 20}
    concurrent: 5
    bandwidth: {down: 1MiB, up: 1500}
  staff: {}
users:
  alice: staff
`
