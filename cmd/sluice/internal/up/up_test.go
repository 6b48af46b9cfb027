package up

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// TestMain overlooks the one goroutine that outlives a pool of connections to a Redis
// that was not there: it sees within a second that the pool is closed.
func TestMain(m *testing.M) {
	// HAProxies inherit it. On a busy machine an agent that answers a check late is taken for dead, and
	// requests pass without it.
	if err := os.Setenv("SLUICE_CHECK_TIMEOUT", strconv.Itoa(int(testkit.Patience.Milliseconds()))+"ms"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const fiveGets = `version: 1
default_tier: free
tiers: {free: {requests: {GET: 5}}, staff: {}}
users: {staff: staff}
`

// machine is a Run in this process.
type machine struct {
	Options
	stop   context.CancelFunc
	ended  chan struct{}
	err    error // valid once ended
	stdout *testkit.Buffer
	client *http.Client
}

// start starts Run with the options that change sets.
func start(t *testing.T, change func(*Options)) *machine {
	t.Helper()
	dir := t.TempDir()
	stdout, stderr := &testkit.Buffer{}, &testkit.Buffer{}
	m := &machine{
		Options: Options{
			Limits: filepath.Join(dir, "limits.yaml"), Listen: testkit.FreeAddr(t), Instances: 1, Identify: "header:X-User",
			Admin: testkit.FreeAddr(t), HAProxy: testkit.HAProxyPath(t), Refuse: 429,
			MaxWait:      10 * time.Second, // a slow machine must not make HAProxy let requests pass
			StartTimeout: testkit.Patience,
			Stdout:       stdout, Stderr: stderr, Logger: slog.New(slog.NewTextHandler(stderr, nil)),
		},
		ended:  make(chan struct{}),
		stdout: stdout,
		client: &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{}},
	}
	m.write(t, fiveGets)
	if change != nil {
		change(&m.Options)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.stop = cancel
	go func() {
		defer close(m.ended)
		m.err = Run(ctx, m.Options)
	}()
	t.Cleanup(func() {
		m.client.CloseIdleConnections()
		cancel()
		m.wait(t)
		if t.Failed() {
			t.Logf("up wrote:\n%s", stderr)
		}
	})
	return m
}

func (m *machine) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-m.ended:
	case <-time.After(testkit.Patience):
		t.Fatalf("Run did not end within %v", testkit.Patience)
	}
	return m.err
}

func (m *machine) awaitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "up is ready", func() error {
		select {
		case <-m.ended:
			t.Fatalf("Run() = %v before it was ready", m.err)
		default:
		}
		if !strings.HasPrefix(m.stdout.String(), "ready") {
			return fmt.Errorf("it printed %q", m.stdout)
		}
		return nil
	})
}

func (m *machine) write(t *testing.T, limits string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(m.Limits, []byte(limits), 0o600))
}

// get asks an address for a path, with the headers that have a value.
func (m *machine) get(t *testing.T, address, path string, headers map[string]string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	testkit.Must(t, err)
	for name, value := range headers {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	res, err := m.client.Do(r)
	testkit.Must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res.StatusCode, string(b)
}

// metric is the text of a sample's value, "" if there is none.
func (m *machine) metric(t *testing.T, sample string) string {
	t.Helper()
	_, text := m.get(t, m.Admin, "/metrics", nil)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Requests with spoiled credentials share one user's limit, whatever name the client adds to
// them; those with credentials that are read have their own, however their letters are written.
func TestCredentialsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	m := start(t, func(o *Options) {
		o.Identify = "auto"
		limits := `version: 1
default_tier: free
unreadable: tight
tiers: {free: {requests: {"*": {hour: 4}}}, tight: {requests: {"*": {hour: 2}}}}
`
		testkit.Must(t, os.WriteFile(o.Limits, []byte(limits), 0o600))
	})
	m.awaitReady(t)
	basic := func(name string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":x")) }
	for _, tt := range []struct {
		name    string
		request func(i int) (target, authorization string)
		want    int // how many of 20 are allowed
	}{
		{"case of a Basic name", func(i int) (string, string) {
			name := []byte("abcdefgh")
			for bit := range name {
				if i>>bit&1 == 1 {
					name[bit] ^= 0x20
				}
			}
			return "/bytes/1", basic(string(name))
		}, 4},
		{"a parameter of S3's beside a token", func(i int) (string, string) {
			return fmt.Sprintf("/bytes/1?AWSAccessKeyId=random%d", i), "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJjYXJvbCJ9."
		}, 4},
		{"unreadable, and each with another name", func(i int) (string, string) {
			return fmt.Sprintf("/bytes/1?x-amz-credential=random%d", i), []string{"", "Basic\t" + basic("bob")[6:], "Digest x", "AWS4-HMAC-SHA256Credential=A/1"}[i%4]
		}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			allowed := 0
			for i := range 20 {
				target, authorization := tt.request(i)
				status, _ := m.get(t, m.Listen, target, map[string]string{"Authorization": authorization, "X-User": fmt.Sprintf("random%d", i)})
				if status == 200 {
					allowed++
				}
			}
			if allowed != tt.want {
				t.Errorf("%d of 20 requests were allowed, want %d", allowed, tt.want)
			}
		})
	}
	if got, _ := strconv.Atoi(m.metric(t, `sluice_unreadable_requests_total{instance="instance-1"}`)); got < 2 || got > 20 {
		t.Errorf("sluice_unreadable_requests_total = %d, want those that the agent was asked about", got)
	}
}

// With --unreadable deny nobody counts a request whose credentials are spoiled.
func TestUnreadableDenied(t *testing.T) {
	t.Parallel()
	m := start(t, func(o *Options) { o.Identify, o.Unreadable = "basic", "deny" })
	m.awaitReady(t)
	if status, _ := m.get(t, m.Listen, "/bytes/1", map[string]string{"Authorization": "Basic !"}); status != http.StatusBadRequest {
		t.Errorf("GET with spoiled credentials = %d, want 400", status)
	}
}

// A user whom the chain never finds is told of when the file names them.
func TestWarnsOfCapitalLetters(t *testing.T) {
	t.Parallel()
	log := &testkit.Buffer{}
	m := start(t, func(o *Options) {
		o.Identify = "basic,ip"
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	warned := func(first string) {
		t.Helper()
		testkit.Eventually(t, "a warning of "+first, func() error {
			if !strings.Contains(log.String(), "identify=basic,ip first="+first+" users=1") {
				return fmt.Errorf("the log is %q", log)
			}
			return nil
		})
	}
	m.awaitReady(t)
	if text := log.String(); strings.Contains(text, "capital") {
		t.Errorf("the log is %q, want no warning", text)
	}
	m.write(t, strings.Replace(fiveGets, "staff: staff", "Staff: staff", 1))
	warned("Staff")
}

// script writes a program that answers -v as the real HAProxy does, and runs
// the given shell lines otherwise.
func script(t *testing.T, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "haproxy")
	text := "#!/bin/sh\nreal='" + testkit.HAProxyPath(t) + "'\n[ \"$1\" = -v ] && exec \"$real\" -v\n" + lines + "\n"
	syscall.ForkLock.RLock() // what a child of another test has open for writing cannot be run
	err := os.WriteFile(path, []byte(text), 0o700)
	syscall.ForkLock.RUnlock()
	testkit.Must(t, err)
	return path
}

// pidIn is the process id that a script has written to a file.
func pidIn(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	testkit.Must(t, err)
	return pid
}

func TestHAProxyThatFailsEndsUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, lines, want string
	}{
		{"with an error", "echo '[ALERT] out of luck' >&2; exit 3", "ended: exit status 3\n[ALERT] out of luck"},
		{"without one", "echo good bye", "ended: exit status 0\ngood bye"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := start(t, func(o *Options) { o.HAProxy = script(t, tt.lines) })
			want := "haproxy at " + m.Listen + " " + tt.want
			if err := m.wait(t); err == nil || err.Error() != want {
				t.Errorf("Run() = %v, want %s", err, want)
			}
			if out := m.stdout.String(); out != "" {
				t.Errorf("standard output = %q, want nothing", out)
			}
		})
	}
}

func TestHAProxyThatDiesEndsUp(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	m := start(t, func(o *Options) { o.HAProxy = script(t, "echo $$ > "+file+"; exec \"$real\" \"$@\"") })
	m.awaitReady(t)
	pid := pidIn(t, file)
	testkit.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	want := "haproxy at " + m.Listen + " ended: signal: killed\n"
	if err := m.wait(t); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Run() = %v, want %s…", err, want)
	}
}

// HAProxy is asked to end, not killed.
func TestHAProxyIsStoppedInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := start(t, func(o *Options) {
		o.HAProxy = script(t, "trap ': > "+dir+"/asked; exit' TERM; : > "+dir+"/runs; while :; do sleep 0.1; done")
	})
	testkit.Eventually(t, "the program runs", func() error {
		_, err := os.Stat(dir + "/runs")
		return err
	})
	m.stop()
	if err := m.wait(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if _, err := os.Stat(dir + "/asked"); err != nil {
		t.Errorf("the program was not asked to end: %v", err)
	}
}

// A HAProxy that does not listen to SIGTERM is killed.
func TestHAProxyThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	m := start(t, func(o *Options) {
		o.HAProxy = script(t, "trap '' TERM; echo $$ > "+file+"; while :; do sleep 0.1; done")
	})
	testkit.Eventually(t, "the program runs", func() error {
		text, err := os.ReadFile(file)
		if err == nil && len(text) == 0 {
			err = errors.New("no process id yet")
		}
		return err
	})
	m.stop()
	if err := m.wait(t); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	pid := pidIn(t, file)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("kill(%d, 0) = %v, want no such process", pid, err)
	}
}

func TestRedisThatIsNotThere(t *testing.T) {
	t.Parallel()
	redis := testkit.FreeAddr(t)
	m := start(t, func(o *Options) { o.Redis, o.StartTimeout = redis, 10*time.Second })
	err := m.wait(t)
	want := "not ready within 10s: polygen: redis cannot be reached: "
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), redis+": ") {
		t.Errorf("Run() = %v, want %s… and why", err, want)
	}
}

// Nobody else reaches the Redis of this process: it is a socket in a folder that only
// this process's user can open, and it wants a password that nobody else has.
func TestEmbeddedRedisIsForNobodyElse(t *testing.T) {
	dir, err := os.MkdirTemp("", "up") // short, for unix sockets
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	m := start(t, nil)
	m.awaitReady(t)
	found, err := filepath.Glob(dir + "/sluice-*/redis.sock")
	if err != nil || len(found) != 1 {
		t.Fatalf("the sockets of Redis are %q, %v, want one", found, err)
	}
	if info, err := os.Stat(filepath.Dir(found[0])); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its folder has mode %v, %v, want 0700", info.Mode(), err)
	}
	conn, err := net.Dial("unix", found[0])
	testkit.Must(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	fmt.Fprint(conn, "*3\r\n$3\r\nSET\r\n$13\r\nsluice:limits\r\n$1\r\nx\r\n")
	reply := make([]byte, 64)
	if n, err := conn.Read(reply); err != nil || !strings.HasPrefix(string(reply[:n]), "-NOAUTH ") {
		t.Errorf("SET without a password is answered %q, %v, want NOAUTH", reply[:n], err)
	}
}
