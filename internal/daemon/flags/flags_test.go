package flags

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestExit(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		code int
		text string
	}{
		{"nothing went wrong", nil, 0, ""},
		{"it was told to end", fmt.Errorf("subscribe: %w", context.Canceled), 0, ""},
		{"an error", errors.New("no luck"), 1, "spoa: no luck\n"},
		{"a deadline is an error", context.DeadlineExceeded, 1, "spoa: context deadline exceeded\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w strings.Builder
			if code := Exit(&w, "spoa", tt.err); code != tt.code || w.String() != tt.text {
				t.Errorf("Exit(%v) = %d and prints %q, want %d and %q", tt.err, code, w.String(), tt.code, tt.text)
			}
		})
	}
}

// line has one flag of each kind that Parse's help treats differently.
type line struct {
	Name  string `help:"A name." default:"joe" placeholder:"NAME" env:"TEST_SLUICE_NAME"`
	Level int    `help:"A level." placeholder:"N"`
	Log   `embed:""`
}

func TestParse(t *testing.T) {
	for _, name := range []string{"SLUICE_LOG_LEVEL", "SLUICE_LOG_FORMAT"} {
		t.Setenv(name, "") // restores it
		os.Unsetenv(name)
	}
	for _, tt := range []struct {
		name           string
		args           []string
		env            string
		code           int // of a line after which nothing is left to do
		done           bool
		stdout, stderr string // parts of them; "" means nothing
		want           line
	}{
		{name: "nothing is given", want: line{Name: "joe", Log: Log{LogFormat: "text"}}},
		{name: "flags are", args: []string{"--name=ann", "--level=2", "--log-level=debug", "--log-format=json"},
			want: line{Name: "ann", Level: 2, Log: Log{LogLevel: slog.LevelDebug, LogFormat: "json"}}},
		{name: "the environment is", env: "eve", want: line{Name: "eve", Log: Log{LogFormat: "text"}}},
		{name: "a flag goes before the environment", env: "eve", args: []string{"--name=ann"}, want: line{Name: "ann", Log: Log{LogFormat: "text"}}},
		{name: "help has the default", args: []string{"--help"}, done: true, stdout: "--name=NAME            A name. Default: joe. [$TEST_SLUICE_NAME]\n"},
		{name: "help has no default that there is not", args: []string{"--help"}, done: true, stdout: "--level=N              A level.\n"},
		{name: "an unknown flag", args: []string{"--nam=x"}, done: true, code: 2, stderr: "test: unknown flag --nam, did you mean \"--name\"?\nSee 'test --help'.\n"},
		{name: "an argument too many", args: []string{"x"}, done: true, code: 2, stderr: "test: unexpected argument x\nSee 'test --help'.\n"},
		{name: "a value that is none", args: []string{"--level=high"}, done: true, code: 2, stderr: "\"high\"\nSee 'test --help'.\n"},
		{name: "a level of no log", args: []string{"--log-level=loud"}, done: true, code: 2, stderr: "loud"},
		{name: "a form of no log", args: []string{"--log-format=xml"}, done: true, code: 2, stderr: `must be one of "text","json" but got "xml"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env != "" {
				t.Setenv("TEST_SLUICE_NAME", tt.env)
			}
			var got line
			var stdout, stderr bytes.Buffer
			ctx, code := Parse(&got, tt.args, &stdout, &stderr, "test", "A test.")
			if done := ctx == nil; done != tt.done || code != tt.code {
				t.Errorf("Parse(%q) is done %v with code %d, want %v with %d", tt.args, done, code, tt.done, tt.code)
			}
			if !tt.done && got != tt.want {
				t.Errorf("Parse(%q) read %+v, want %+v", tt.args, got, tt.want)
			}
			for _, out := range []struct{ name, got, want string }{
				{"output", stdout.String(), tt.stdout}, {"errors", stderr.String(), tt.stderr},
			} {
				if !strings.Contains(out.got, out.want) || out.want == "" && out.got != "" {
					t.Errorf("Parse(%q) has the %s\n%s\nwant %q", tt.args, out.name, out.got, out.want)
				}
			}
		})
	}
}

func TestLogger(t *testing.T) {
	for _, tt := range []struct {
		name string
		log  Log
		want string
	}{
		{"text", Log{LogFormat: "text", LogLevel: slog.LevelInfo}, "level=INFO msg=hello\n"},
		{"json", Log{LogFormat: "json", LogLevel: slog.LevelInfo}, `"level":"INFO","msg":"hello"}` + "\n"},
		{"a level that the line has not", Log{LogFormat: "text", LogLevel: slog.LevelWarn}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var w strings.Builder
			tt.log.Logger(&w).Info("hello")
			if got := w.String(); !strings.HasSuffix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("%+v logs %q, want …%q", tt.log, got, tt.want)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	empty, blank := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "blank")
	for file, text := range map[string]string{empty: "nothing", blank: "\nsecret\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		r    Redis
		want string
	}{
		{"no address", Redis{}, "redis: no address"},
		{"too many shards", Redis{Redis: []string{"a:1"}, RedisShards: 2000}, "redis: 2000 shards are not from 1 to 1024"},
		{"a cluster's database", Redis{Redis: []string{"a:1", "b:1"}, RedisDB: 3}, "redis: a cluster has no database 3"},
		{"two passwords", Redis{Redis: []string{"a:1"}, RedisPassword: "x", PasswordFile: blank}, "--redis-password and --redis-password-file exclude each other"},
		{"a password file that is missing", Redis{Redis: []string{"a:1"}, PasswordFile: dir + "/none"}, "--redis-password-file: open " + dir + "/none: no such file or directory"},
		{"a password file whose first line is empty", Redis{Redis: []string{"a:1"}, SentinelFile: blank}, "--redis-sentinel-password-file: " + blank + " has no password in its first line"},
		{"a certificate file that is missing", Redis{Redis: []string{"a:1"}, RedisCA: dir + "/none.pem"}, "open " + dir + "/none.pem: no such file or directory"},
		{"a certificate without its key", Redis{Redis: []string{"a:1"}, RedisCert: empty}, "--redis-cert and --redis-key: open : no such file or directory"},
		{"a certificate file without any", Redis{Redis: []string{"a:1"}, RedisCA: empty}, empty + " holds no certificate in PEM form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.r.Open(nil, nil, 0)
			if err == nil {
				b.Close()
			}
			if err == nil || err.Error() != tt.want {
				t.Errorf("%+v.Open() = %v, want %s", tt.r, err, tt.want)
			}
		})
	}
}

// Flags reach the server: a user with a password, a database, and TLS with an
// authority of one's own.
func TestOpenReachesRedis(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret\r\nof Redis\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, secure := testkit.FreeAddr(t), testkit.FreeAddr(t)
	_, port, _ := strings.Cut(secure, ":")
	testkit.RedisAt(t, plain, "--user", "sluice", "on", ">secret", "allcommands", "allkeys", "allchannels",
		"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca.File)
	for _, tt := range []struct {
		name string
		r    Redis
		want string // part of the error
	}{
		{"plainly", Redis{Redis: []string{plain}}, ""},
		{"as a user", Redis{Redis: []string{plain}, RedisUser: "sluice", RedisPassword: "secret", RedisDB: 3}, ""},
		{"with the password of a file", Redis{Redis: []string{plain}, RedisUser: "sluice", PasswordFile: password}, ""},
		{"with a wrong password", Redis{Redis: []string{plain}, RedisUser: "sluice", RedisPassword: "guess"}, "WRONGPASS"},
		{"by TLS", Redis{Redis: []string{secure}, RedisCA: ca.File, RedisCert: cert, RedisKey: key}, ""},
		{"by TLS without the certificate that it wants", Redis{Redis: []string{secure}, RedisCA: ca.File}, "certificate"},
		{"by TLS with an authority that nobody knows", Redis{Redis: []string{secure}, RedisTLS: true}, "certificate"},
		{"a database that is not there", Redis{Redis: []string{plain}, RedisDB: 99}, "DB index is out of range"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.r.Open(nil, prometheus.NewPedanticRegistry(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			check := func() error {
				_, err := b.Time(t.Context())
				return err
			}
			if tt.want == "" {
				testkit.Eventually(t, "Redis answers", check) // a slow machine may miss the bus' time-out
				return
			}
			testkit.Eventually(t, "Redis refuses", func() error {
				if err := check(); err == nil || !strings.Contains(err.Error(), tt.want) {
					return fmt.Errorf("Time() = %w, want %s", err, tt.want)
				}
				return nil
			})
		})
	}
}

func TestSignals(t *testing.T) {
	ctx, hangups, stop := Signals()
	defer stop()
	self := os.Getpid()

	if err := syscall.Kill(self, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hangups:
	case <-ctx.Done():
		t.Fatal("SIGHUP ended the context")
	case <-time.After(testkit.Patience):
		t.Fatal("SIGHUP was not heard")
	}

	if err := syscall.Kill(self, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(testkit.Patience):
		t.Fatal("SIGTERM did not end the context")
	}
}

func TestRegistryKnowsTheProcess(t *testing.T) {
	r := NewRegistry()
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}
	for _, name := range []string{"process_start_time_seconds", "go_goroutines"} {
		if n, err := testutil.GatherAndCount(r, name); n != 1 || err != nil {
			t.Errorf("GatherAndCount(%s) = %d, %v, want 1", name, n, err)
		}
	}
}
