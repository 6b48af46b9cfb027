// Package haproxy holds the configuration files that HAProxy runs with, as
// they are shipped, and writes them into a directory with another chain of
// identify fragments between the markers, the operation classes of a limit file,
// and who is exempt in it. Everything else that can be set is an environment
// variable; the table at the top of haproxy.cfg says which.
//
// Nothing that a caller sets is pasted into a file unchecked: header and claim
// names, addresses and paths are validated, what a class looks for is escaped, and
// the rest travels in the environment, which HAProxy does not parse for words or
// quotes.
package haproxy

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Files holds haproxy.cfg, spoe.cfg, *.lst, lua/*.lua, identify/*.cfg and
// classify/*.cfg.
//
//go:embed haproxy.cfg spoe.cfg *.lst lua/bandwidth.lua lua/bandwidth_clock.lua lua/local_addresses.lua identify/*.cfg classify/*.cfg
var Files embed.FS

// written are the files that Write writes, haproxy.cfg first.
var written = []string{
	"haproxy.cfg", "spoe.cfg", "health-paths.lst", "exempt-addresses.lst", "exempt-paths.lst", "exempt-prefixes.lst",
	"lua/bandwidth.lua", "lua/bandwidth_clock.lua", "lua/local_addresses.lua",
}

// Names of the peers as haproxy.cfg declares them. The agent dials LocalPeer
// and introduces itself as AgentPeer.
const (
	LocalPeer = "haproxy"
	AgentPeer = "agent"
)

// MinVersion is the oldest HAProxy that the files run on.
const MinVersion = "2.6"

// clientTimeout is haproxy.cfg's "timeout client": a client who waits longer than
// that for an answer is cut off.
const clientTimeout = time.Minute

// Buffers below HAProxy's own default do not hold what clients may send as
// headers; above 1 MiB they gain nothing.
const minBufSize, maxBufSize = 16384, 1 << 20

// maxJitter, in seconds, is a day.
const maxJitter = 86400

// Bodies are the forms that a refusal's body can have. The first is the default:
// plain with status 429, s3 with 503.
var Bodies = []string{"auto", "plain", "problem", "s3", "none"}

// AccessLogs are the forms that a line of the access log can have.
var AccessLogs = []string{"json"}

// instanceName has nothing that HAProxy would read as more than a name.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9._:@/-]{1,200}$`)

// Unreadables are what may become of requests whose credentials cannot be read. The
// first is the default: they share the limits of limits.UnreadableKey.
var Unreadables = []string{"share", "deny"}

var endpointName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,23}$`)

// healthPaths are the lines of health-paths.lst for chains that do not read S3 requests. To an
// S3 server each path is a bucket, whose owner would not be limited.
const healthPaths = `/-/healthy
/-/ready
/health
/healthz
/livez
/readyz
`

// Config is what Write can set. A zero field stays what the process's own
// environment says, or else the default in haproxy.cfg.
type Config struct {
	Bind           string // SLUICE_BIND: where clients connect, such as "127.0.0.1:8080"
	Origin         string // SLUICE_ORIGIN: the server to protect, "host:port"
	SPOE           string // SLUICE_SPOE: where the agent answers, "unix@/path" or "127.0.0.1:port"
	Peer           string // SLUICE_PEER: where HAProxy's peers listen, "unix@/path" or "127.0.0.1:port"
	Runtime        string // SLUICE_RUNTIME: path of the socket by which the agent takes credit back
	NoCredit       bool   // SLUICE_CREDIT=off: HAProxy asks about every request
	Stats          string // SLUICE_STATS: path of the stats socket; zero: none
	Metrics        string // SLUICE_METRICS: where HAProxy's own metrics are, "127.0.0.1:8405"; zero: nowhere
	AccessLog      string // SLUICE_ACCESS_LOG: one of AccessLogs; zero: none
	Instance       string // SLUICE_INSTANCE: what the access log calls this HAProxy; zero: the host's name
	Identify       string // chain for ParseIdentify; zero: "auto"
	Classes        []limits.Class
	CreditClasses  []string      // that have tickets, as the function of this name says; nil: all requests, and every verb
	Exempt         limits.Exempt // its addresses and paths; the users are the agent's
	Addresses      limits.AddressLimits
	Fitted         bool          // leaves out what this Config does not need: the lists that Exempt has nothing for, and the like
	Bandwidth      bool          // of Fitted: somebody's bandwidth is limited; only then HAProxy can hold bodies, and before 2.7 buffers are large
	KeySecret      string        // SLUICE_KEY_SECRET: hides users' names, as limits.Secrets.Current has it; zero: names are sent
	Endpoint       string        // SLUICE_ENDPOINT: the endpoint of the limit file that this is; zero: none
	Unreadable     string        // SLUICE_UNREADABLE: one of Unreadables
	RefuseStatus   int           // SLUICE_REFUSE_STATUS: 429 or 503
	RefuseBody     string        // SLUICE_REFUSE_BODY: one of Bodies
	VerdictTimeout time.Duration // SLUICE_VERDICT_TIMEOUT: whole milliseconds, at least one
	CheckTimeout   time.Duration // SLUICE_CHECK_TIMEOUT: whole milliseconds, at least one
	WaitTimeout    time.Duration // SLUICE_WAIT_TIMEOUT: whole milliseconds, above every wait of the limit file, below 60s
	HardStop       time.Duration // SLUICE_HARD_STOP: whole milliseconds, as the agent's drain time
	RetryJitter    int           // SLUICE_RETRY_JITTER: Retry-After of requests in progress is 1 to so many seconds
	RateJitter     int           // SLUICE_RATE_JITTER: Retry-After of request rates is up to so many seconds more
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
		{"SLUICE_RUNTIME", c.Runtime},
		{"SLUICE_STATS", c.Stats},
		{"SLUICE_METRICS", c.Metrics},
	} {
		if strings.ContainsAny(v.value, " \t\r\n\x00") {
			return nil, fmt.Errorf("%s %q: an address has no blanks", v.name, v.value)
		}
		if v.value != "" {
			set(v.name, v.value)
		}
	}
	if c.NoCredit {
		set("SLUICE_CREDIT", "off")
	}
	if c.Unreadable != "" {
		if !slices.Contains(Unreadables, c.Unreadable) {
			return nil, fmt.Errorf("unreadable %q: want one of %s", c.Unreadable, strings.Join(Unreadables, ", "))
		}
		set("SLUICE_UNREADABLE", c.Unreadable)
	}
	switch c.RefuseStatus {
	case 0:
	case 429, 503:
		set("SLUICE_REFUSE_STATUS", strconv.Itoa(c.RefuseStatus))
	default:
		return nil, fmt.Errorf("refuse status %d: want 429 or 503", c.RefuseStatus)
	}
	if c.RefuseBody != "" {
		if !slices.Contains(Bodies, c.RefuseBody) {
			return nil, fmt.Errorf("refuse body %q: want one of %s", c.RefuseBody, strings.Join(Bodies, ", "))
		}
		set("SLUICE_REFUSE_BODY", c.RefuseBody)
	}
	if c.AccessLog != "" {
		if !slices.Contains(AccessLogs, c.AccessLog) {
			return nil, fmt.Errorf("access log %q: want one of %s", c.AccessLog, strings.Join(AccessLogs, ", "))
		}
		set("SLUICE_ACCESS_LOG", c.AccessLog)
	}
	if c.Instance != "" {
		if !instanceName.MatchString(c.Instance) {
			return nil, fmt.Errorf("instance %q: want 1 to 200 letters, digits and ._:@/-", c.Instance)
		}
		set("SLUICE_INSTANCE", c.Instance)
	}
	if c.KeySecret != "" {
		if _, err := limits.ParseSecrets([]byte(c.KeySecret)); err != nil {
			return nil, fmt.Errorf("key secret: %w", err)
		}
		set("SLUICE_KEY_SECRET", c.KeySecret)
	}
	if c.Endpoint != "" {
		if !endpointName.MatchString(c.Endpoint) {
			return nil, fmt.Errorf("endpoint %q: want 1 to 24 of a-z, 0-9 and -, the first not -", c.Endpoint)
		}
		set("SLUICE_ENDPOINT", c.Endpoint)
	}
	if max(c.RetryJitter, c.RateJitter) > maxJitter {
		return nil, fmt.Errorf("jitter %d: want %d or less", max(c.RetryJitter, c.RateJitter), maxJitter)
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
		{"rate jitter", "SLUICE_RATE_JITTER", c.RateJitter},
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
	file, env, err = write(dir, c)
	if err != nil {
		return "", nil, fmt.Errorf("haproxy configuration: %w", err)
	}
	return file, env, nil
}

func write(dir string, c Config) (file string, env []string, err error) {
	if env, err = c.env(); err != nil {
		return "", nil, err
	}
	files, err := c.files()
	if err != nil {
		return "", nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "lua"), 0o755); err != nil {
		return "", nil, err
	}
	for _, name := range written {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(files[name]), 0o644); err != nil {
			return "", nil, err
		}
	}
	return filepath.Join(dir, written[0]), append(env, "SLUICE_CFG_DIR="+dir), nil
}

// Render returns haproxy.cfg as Write writes it.
func Render(c Config) (string, error) {
	files, err := c.files()
	if err != nil {
		return "", fmt.Errorf("haproxy configuration: %w", err)
	}
	return files["haproxy.cfg"], nil
}

// Foreign returns what a folder holds that Write does not write, sorted: files and
// folders, and a haproxy.cfg that is another's. A folder that is not there holds none.
func Foreign(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil || name == "." || name == "lua" && e.IsDir():
			return err
		case !slices.Contains(written, filepath.ToSlash(name)) || !e.Type().IsRegular():
			found = append(found, name)
		case name == written[0]:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if ours, _ := Files.ReadFile(name); firstLine(text) != firstLine(ours) {
				found = append(found, name)
			}
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// files are the files of written by name, with what c says in place.
func (c Config) files() (map[string]string, error) {
	files := map[string]string{}
	for _, name := range written {
		text, err := fs.ReadFile(Files, name)
		if err != nil {
			return nil, err
		}
		files[name] = string(text)
	}
	identifiers, chain, err := c.chain()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(identifiers, Identifier.readsS3) {
		files["health-paths.lst"] += healthPaths
	}
	rules, err := Classify(c.Classes)
	if err != nil {
		return nil, err
	}
	cfg := files["haproxy.cfg"]
	if cfg, err = between(cfg, "identify", chain); err != nil {
		return nil, err
	}
	if cfg, err = between(cfg, "classify", rules); err != nil {
		return nil, err
	}
	if cfg, err = c.withCredit(cfg); err != nil {
		return nil, err
	}
	if cfg, err = withAddresses(cfg, c.Addresses); err != nil {
		return nil, err
	}
	if files["haproxy.cfg"], err = c.withoutNeedless(cfg, identifiers); err != nil {
		return nil, err
	}
	lists, err := exemptLists(c.Exempt)
	if err != nil {
		return nil, err
	}
	for name, lines := range lists {
		files[name] += lines
	}
	return files, nil
}

// chain is the identify chain, and its text.
func (c Config) chain() (identifiers []Identifier, text string, err error) {
	if c.Identify == "" {
		c.Identify = "auto"
	}
	if identifiers, err = ParseIdentify(c.Identify); err != nil {
		return nil, "", err
	}
	var b strings.Builder
	for _, i := range identifiers {
		lines, err := i.fragment()
		if err != nil {
			return nil, "", err
		}
		b.WriteString(lines)
	}
	return identifiers, b.String(), nil
}

// between puts lines between haproxy.cfg's marks of that name.
func between(cfg, name, lines string) (string, error) {
	begin, end := "    # "+name+": begin\n", "    # "+name+": end\n"
	before, rest, begun := strings.Cut(cfg, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("haproxy.cfg has no marks for %s", name)
	}
	return before + begin + lines + end + after, nil
}

// partOf is what stands between haproxy.cfg's marks of that name.
func partOf(cfg, name string) (string, error) {
	_, rest, begun := strings.Cut(cfg, "    # "+name+": begin\n")
	text, _, ended := strings.Cut(rest, "    # "+name+": end\n")
	if !begun || !ended {
		return "", fmt.Errorf("haproxy.cfg has no marks for %s", name)
	}
	return text, nil
}
