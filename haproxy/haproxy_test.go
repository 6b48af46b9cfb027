package haproxy

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/proctest"
)

func shipped(t testing.TB, name string) string {
	t.Helper()
	b, err := fs.ReadFile(Files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// check runs haproxy -c and returns all that it says.
func check(t testing.TB, dir, file string, env ...string) string {
	t.Helper()
	cmd := exec.Command(proctest.HAProxyPath(t), "-c", "-f", file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("haproxy -c -f %s: %v", file, err)
	}
	return string(out)
}

func TestShippedFilesAreValid(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, dir, file string
		env             []string
	}{
		{"as it is", here, "haproxy.cfg", nil},
		{"from another folder", "/", filepath.Join(here, "haproxy.cfg"), []string{"SLUICE_CFG_DIR=" + here}},
		{"everything set", "/", filepath.Join(here, "haproxy.cfg"), []string{
			"SLUICE_BIND=[::1]:8080", "SLUICE_ORIGIN=127.0.0.1:1", "SLUICE_SPOE=127.0.0.1:9000", "SLUICE_PEER=unix@/p.sock",
			"SLUICE_CFG_DIR=" + here, "SLUICE_USER_HEADER=X-A", "SLUICE_JWT_CLAIM=a.b", "SLUICE_REFUSE_STATUS=503",
			"SLUICE_VERDICT_TIMEOUT=1s", "SLUICE_STATS=/s.sock", "SLUICE_THREADS=2", "SLUICE_MAXCONN=100",
			"SLUICE_CHECK_TIMEOUT=1s", "SLUICE_WAIT_TIMEOUT=1s", "SLUICE_RETRY_JITTER=1", "SLUICE_ORIGIN_MAXCONN=5", "SLUICE_HARD_STOP=1m",
			"SLUICE_BUFSIZE=32768",
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			out := check(t, row.dir, row.file, row.env...)
			if strings.TrimSpace(strings.Replace(out, "Configuration file is valid", "", 1)) != "" {
				t.Errorf("haproxy -c says %q, want nothing to say", out)
			}
		})
	}
}

func TestStartsWithoutWarnings(t *testing.T) {
	r := newRig(t, setup{})
	r.get(t)
	if out := r.proc.Output(); out != "" {
		t.Errorf("HAProxy said %q, want nothing", out)
	}
}

func TestShippedChainIsAuto(t *testing.T) {
	cfg, auto := shipped(t, "haproxy.cfg"), shipped(t, "identify/auto.cfg")
	if got := mustRender(t, []Identifier{{Kind: "auto"}}); got != cfg {
		t.Errorf("between the markers of haproxy.cfg stands something else than identify/auto.cfg (-want +got):\n%s", cmp.Diff(got, cfg))
	}
	var parts string
	for _, name := range []string{"s3", "jwt", "basic", "header", "ip"} {
		parts += shipped(t, "identify/"+name+".cfg")
	}
	if diff := cmp.Diff(parts, auto); diff != "" {
		t.Errorf("identify/auto.cfg is not s3, jwt, basic, header and ip (-want +got):\n%s", diff)
	}
}

// So fragments can be chained in any order, and never do anything else.
func TestFragmentsOnlySetVariablesOfTheNotYetFound(t *testing.T) {
	rule := regexp.MustCompile(`^    http-request set-var\(txn\.sluice_(user|s3)\) .* if !\{ var\(txn\.sluice_user\) -m len gt 0 \}( |$)`)
	for name := range kinds {
		for _, line := range strings.Split(strings.TrimSpace(shipped(t, "identify/"+name+".cfg")), "\n") {
			if line = "    " + strings.TrimSpace(line); !strings.HasPrefix(line, "    #") && !rule.MatchString(line) {
				t.Errorf("identify/%s.cfg: %s", name, line)
			}
		}
	}
}

// The table at the top of haproxy.cfg is what the file does.
func TestVariableTable(t *testing.T) {
	documented := map[string]string{}
	head, _, _ := strings.Cut(shipped(t, "haproxy.cfg"), "\nglobal\n")
	for _, m := range regexp.MustCompile(`(?m)^#   (SLUICE_[A-Z_]+) +(.+?)  `).FindAllStringSubmatch(head, -1) {
		documented[m[1]] = m[2]
	}
	used := map[string]string{}
	for _, file := range []string{"haproxy.cfg", "spoe.cfg"} {
		for _, m := range regexp.MustCompile(`\$\{(SLUICE_[A-Z_]+)-([^}]*)\}`).FindAllStringSubmatch(shipped(t, file), -1) {
			if was, ok := used[m[1]]; ok && was != m[2] {
				t.Errorf("%s has the defaults %q and %q", m[1], was, m[2])
			}
			used[m[1]] = m[2]
		}
	}
	// Only used when set: their defaults are HAProxy's.
	used["SLUICE_STATS"], used["SLUICE_THREADS"], used["SLUICE_MAXCONN"] = "none", "one per CPU", "from ulimit -n"
	if diff := cmp.Diff(used, documented); diff != "" {
		t.Errorf("variables and defaults (-used +documented):\n%s", diff)
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	file, env, err := Write(dir, Config{
		Bind: "127.0.0.1:1", Origin: "127.0.0.1:2", SPOE: "unix@/s", Peer: "127.0.0.1:3", Stats: "/stats",
		Identify: "header:X-A,ip", RefuseStatus: 503, VerdictTimeout: 20 * time.Millisecond, WaitTimeout: 5 * time.Second,
		HardStop: time.Minute, RetryJitter: 2, OriginMaxConn: 7, BufSize: 32768, Threads: 2, MaxConn: 50,
	})
	if err != nil {
		t.Fatal(err)
	}
	wantEnv := []string{
		"SLUICE_BIND=127.0.0.1:1", "SLUICE_ORIGIN=127.0.0.1:2", "SLUICE_SPOE=unix@/s", "SLUICE_PEER=127.0.0.1:3", "SLUICE_STATS=/stats",
		"SLUICE_REFUSE_STATUS=503", "SLUICE_VERDICT_TIMEOUT=20ms", "SLUICE_WAIT_TIMEOUT=5000ms", "SLUICE_HARD_STOP=60000ms",
		"SLUICE_BUFSIZE=32768", "SLUICE_RETRY_JITTER=2", "SLUICE_ORIGIN_MAXCONN=7", "SLUICE_THREADS=2", "SLUICE_MAXCONN=50", "SLUICE_CFG_DIR=" + dir,
	}
	if diff := cmp.Diff(wantEnv, env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if want := filepath.Join(dir, "haproxy.cfg"); file != want {
		t.Errorf("file = %s, want %s", file, want)
	}
	cfg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, chain, _ := strings.Cut(string(cfg), beginMark)
	chain, _, _ = strings.Cut(chain, endMark)
	want := strings.Replace(shipped(t, "identify/header.cfg"), "${SLUICE_USER_HEADER-X-User}", "X-A", 1) + shipped(t, "identify/ip.cfg")
	if diff := cmp.Diff(want, chain); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
	for _, name := range []string{"spoe.cfg", "exempt-paths.lst", "lua/bandwidth.lua", "lua/bandwidth_clock.lua"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != shipped(t, name) {
			t.Errorf("%s: %v, or not as shipped", name, err)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	for want, c := range map[string]Config{
		`haproxy configuration: SLUICE_BIND "a b": an address has no blanks`:                                               {Bind: "a b"},
		`haproxy configuration: SLUICE_STATS "/a\nb": an address has no blanks`:                                            {Stats: "/a\nb"},
		"haproxy configuration: refuse status 200: want 429 or 503":                                                        {RefuseStatus: 200},
		"haproxy configuration: verdict timeout 1µs: want 1ms or more":                                                     {VerdictTimeout: time.Microsecond},
		"haproxy configuration: wait timeout 1m0s: want less than 1m0s":                                                    {WaitTimeout: time.Minute},
		"haproxy configuration: hard stop 1µs: want 1ms or more":                                                           {HardStop: time.Microsecond},
		"haproxy configuration: retry jitter -1: want 1 or more":                                                           {RetryJitter: -1},
		"haproxy configuration: origin's max connections -1: want 1 or more":                                               {OriginMaxConn: -1},
		"haproxy configuration: buffer size 16383: want 16384 to 1048576":                                                  {BufSize: 16383},
		"haproxy configuration: threads -1: want 1 or more":                                                                {Threads: -1},
		"haproxy configuration: max connections -1: want 1 or more":                                                        {MaxConn: -1},
		`haproxy configuration: identify "x": no identifier "x"; valid are header:NAME, s3, jwt:CLAIM, basic, ip and auto`: {Identify: "x"},
		`haproxy configuration: identify "header: ": "" cannot be the parameter of header; write it like header:X-User`:    {Identify: "header: "},
	} {
		if file, _, err := Write(t.TempDir(), c); err == nil || err.Error() != want {
			t.Errorf("Write(%+v) = %q, %v, want the error %s", c, file, err, want)
		}
	}
}
