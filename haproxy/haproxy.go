// Package haproxy holds the configuration files that HAProxy runs with, as
// they are shipped, and writes them into a directory with another chain of
// identify fragments between the markers. Everything else that can be set is an
// environment variable; the table at the top of haproxy.cfg says which.
//
// Nothing that a caller sets is pasted into a file unchecked: header and claim
// names are validated, and the rest travels in the environment, which HAProxy
// does not parse for words or quotes.
package haproxy

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Files holds haproxy.cfg, spoe.cfg, exempt-paths.lst, lua/*.lua and
// identify/*.cfg.
//
//go:embed haproxy.cfg spoe.cfg exempt-paths.lst lua/bandwidth.lua lua/bandwidth_clock.lua identify/*.cfg
var Files embed.FS

// Names of the peers as haproxy.cfg declares them. The agent dials LocalPeer
// and introduces itself as AgentPeer.
const (
	LocalPeer = "haproxy"
	AgentPeer = "agent"
)

// MinVersion is the oldest HAProxy that the files run on.
const MinVersion = "2.6"

// clientTimeout is haproxy.cfg's "timeout client": whoever waits longer than
// that for an answer is cut off.
const clientTimeout = time.Minute

// Buffers below HAProxy's own default do not hold what clients may send as
// headers; above 1 MiB they gain nothing.
const minBufSize, maxBufSize = 16384, 1 << 20

// The lines of haproxy.cfg between which the identify chain stands.
const (
	beginMark = "    # identify: begin\n"
	endMark   = "    # identify: end\n"
)

// Config is what Write can set. A zero field stays what the process's own
// environment says, or else the default in haproxy.cfg.
type Config struct {
	Bind           string        // SLUICE_BIND: where clients connect, such as "127.0.0.1:8080"
	Origin         string        // SLUICE_ORIGIN: the server to protect, "host:port"
	SPOE           string        // SLUICE_SPOE: where the agent answers, "unix@/path" or "host:port"
	Peer           string        // SLUICE_PEER: where HAProxy's peers listen, "127.0.0.1:port" or "unix@/path"
	Stats          string        // SLUICE_STATS: path of the stats socket; zero: none
	Identify       string        // chain for ParseIdentify; zero: "auto"
	RefuseStatus   int           // SLUICE_REFUSE_STATUS: 429 or 503
	VerdictTimeout time.Duration // SLUICE_VERDICT_TIMEOUT: whole milliseconds, at least one
	CheckTimeout   time.Duration // SLUICE_CHECK_TIMEOUT: whole milliseconds, at least one
	WaitTimeout    time.Duration // SLUICE_WAIT_TIMEOUT: whole milliseconds, above every wait of the limit file, below 60s
	HardStop       time.Duration // SLUICE_HARD_STOP: whole milliseconds, as the agent's drain time
	RetryJitter    int           // SLUICE_RETRY_JITTER: Retry-After of requests in progress is 1 to so many seconds
	OriginMaxConn  int           // SLUICE_ORIGIN_MAXCONN: requests that the origin gets at a time; zero: no bound
	BufSize        int           // SLUICE_BUFSIZE: bytes of a buffer, 16384 to 1048576
	Threads        int           // SLUICE_THREADS; zero: one per CPU
	MaxConn        int           // SLUICE_MAXCONN: client connections; zero: from the limit of open files
}

// env validates c and returns the variables that it sets.
func (c Config) env() ([]string, error) {
	var env []string
	set := func(name, value string) { env = append(env, name+"="+value) }
	for _, v := range []struct{ name, value string }{
		{"SLUICE_BIND", c.Bind},
		{"SLUICE_ORIGIN", c.Origin},
		{"SLUICE_SPOE", c.SPOE},
		{"SLUICE_PEER", c.Peer},
		{"SLUICE_STATS", c.Stats},
	} {
		if strings.ContainsAny(v.value, " \t\r\n\x00") {
			return nil, fmt.Errorf("%s %q: an address has no blanks", v.name, v.value)
		}
		if v.value != "" {
			set(v.name, v.value)
		}
	}
	switch c.RefuseStatus {
	case 0:
	case 429, 503:
		set("SLUICE_REFUSE_STATUS", strconv.Itoa(c.RefuseStatus))
	default:
		return nil, fmt.Errorf("refuse status %d: want 429 or 503", c.RefuseStatus)
	}
	for _, v := range []struct {
		name, env string
		d         time.Duration
	}{
		{"verdict timeout", "SLUICE_VERDICT_TIMEOUT", c.VerdictTimeout},
		{"check timeout", "SLUICE_CHECK_TIMEOUT", c.CheckTimeout},
		{"wait timeout", "SLUICE_WAIT_TIMEOUT", c.WaitTimeout},
		{"hard stop", "SLUICE_HARD_STOP", c.HardStop},
	} {
		if v.d != 0 && v.d < time.Millisecond {
			return nil, fmt.Errorf("%s %v: want 1ms or more", v.name, v.d)
		}
		if v.d != 0 {
			set(v.env, fmt.Sprintf("%dms", v.d.Milliseconds()))
		}
	}
	if c.WaitTimeout >= clientTimeout {
		return nil, fmt.Errorf("wait timeout %v: want less than %v", c.WaitTimeout, clientTimeout)
	}
	if c.BufSize != 0 && (c.BufSize < minBufSize || c.BufSize > maxBufSize) {
		return nil, fmt.Errorf("buffer size %d: want %d to %d", c.BufSize, minBufSize, maxBufSize)
	}
	for _, v := range []struct {
		name, env string
		n         int
	}{
		{"buffer size", "SLUICE_BUFSIZE", c.BufSize},
		{"retry jitter", "SLUICE_RETRY_JITTER", c.RetryJitter},
		{"origin's max connections", "SLUICE_ORIGIN_MAXCONN", c.OriginMaxConn},
		{"threads", "SLUICE_THREADS", c.Threads},
		{"max connections", "SLUICE_MAXCONN", c.MaxConn},
	} {
		if v.n < 0 {
			return nil, fmt.Errorf("%s %d: want 1 or more", v.name, v.n)
		}
		if v.n > 0 {
			set(v.env, strconv.Itoa(v.n))
		}
	}
	return env, nil
}

// Write renders the files into dir, which it creates if need be. It returns the
// path of haproxy.cfg and the environment that HAProxy needs besides its own.
// An error names the field of c, or the file, that is wrong.
func Write(dir string, c Config) (file string, env []string, err error) {
	if env, err = c.env(); err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	if c.Identify == "" {
		c.Identify = "auto"
	}
	chain, err := ParseIdentify(c.Identify)
	if err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	cfg, err := render(chain)
	if err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "lua"), 0o755); err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	file = filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(cfg), 0o644); err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	for _, name := range []string{"spoe.cfg", "exempt-paths.lst", "lua/bandwidth.lua", "lua/bandwidth_clock.lua"} {
		content, err := fs.ReadFile(Files, name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o644)
		}
		if err != nil {
			return "", nil, fmt.Errorf("haproxy configuration: %w", err)
		}
	}
	return file, append(env, "SLUICE_CFG_DIR="+dir), nil
}

// render is haproxy.cfg with the chain between the markers.
func render(chain []Identifier) (string, error) {
	cfg, err := fs.ReadFile(Files, "haproxy.cfg")
	if err != nil {
		return "", err
	}
	before, rest, begun := strings.Cut(string(cfg), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !begun || !ended {
		return "", errors.New("haproxy.cfg has no identify markers")
	}
	var b strings.Builder
	b.WriteString(before + beginMark)
	for _, i := range chain {
		lines, err := i.fragment()
		if err != nil {
			return "", err
		}
		b.WriteString(lines)
	}
	b.WriteString(endMark + after)
	return b.String(), nil
}
