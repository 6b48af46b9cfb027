package haproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/negasus/haproxy-spoe-go/action"
	"github.com/negasus/haproxy-spoe-go/agent"
	"github.com/negasus/haproxy-spoe-go/logger"
	"github.com/negasus/haproxy-spoe-go/request"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// patientChecks is for agents on a machine that is busy with other tests.
var patientChecks = fmt.Sprintf("SLUICE_CHECK_TIMEOUT=%dms", proctest.Patience.Milliseconds())

// question is the user who was asked about, and the class of the request.
type question struct{ User, Class string }

// heard is a whole message to the agent: "start-message" or "wait-message".
type heard struct {
	User, Class, Message string
	Tracked, Active      int64
	Op                   string // "" if there was none
	Log                  bool   // what remains is asked for
}

// told is a message with what it says of the user's credit. A number that is not
// there is -1.
type told struct {
	heard
	Classes      string
	Spent, Drawn int64
	Lapsed       int64
	Here, Places int64
	Shares       bool
	Units        string
	Costs        [2]string // "" of those that the request does not say
	ID           int64     // -1 if there was none
}

// vars are the variables that the agent answers with.
type vars map[string]any

// spoeAgent answers every message as told, and keeps the messages.
type spoeAgent struct {
	mu     sync.Mutex
	heard  []heard
	told   []told // the same messages
	faults []string
	answer func(told) vars // nil: all are allowed
	conns  map[net.Conn]bool
	l      net.Listener
}

// verdict is a refusal as the agent's variables say it.
type verdict struct {
	reason, class string
	limit, retry  uint32
	window        uint32 // not sent if 0
}

func (a *spoeAgent) handle(r *request.Request) {
	h, answer := a.note(r)
	if answer == nil {
		return
	}
	for name, value := range answer(h) {
		r.Actions.SetVar(action.ScopeTransaction, name, value)
	}
}

// note keeps the message and returns who decides about it.
func (a *spoeAgent) note(r *request.Request) (h told, answer func(told) vars) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.Message = "start-message"
	m, err := r.Messages.GetByName(h.Message)
	if err != nil {
		h.Message = "wait-message"
		m, err = r.Messages.GetByName(h.Message)
	}
	if err != nil {
		a.faults = append(a.faults, err.Error())
		return h, nil
	}
	for name, to := range map[string]*string{"user": &h.User, "class": &h.Class} {
		v, _ := m.KV.Get(name)
		text, ok := v.(string)
		if !ok {
			a.faults = append(a.faults, fmt.Sprintf("argument %s is a %T (%v), want text", name, v, v))
		}
		*to = text
	}
	switch op, ok := m.KV.Get("op"); op := op.(type) {
	case string:
		h.Op = op
		if op == "" {
			a.faults = append(a.faults, "argument op is empty, want none")
		}
	default:
		if op != nil || !ok {
			a.faults = append(a.faults, fmt.Sprintf("argument op is a %T (%v), there: %t; want text or null", op, op, ok))
		}
	}
	for name, to := range map[string]*int64{"tracked": &h.Tracked, "active": &h.Active} {
		v, _ := m.KV.Get(name)
		n, ok := v.(int64)
		if !ok {
			a.faults = append(a.faults, fmt.Sprintf("argument %s is a %T (%v), want an int64", name, v, v))
		}
		*to = n
	}
	switch log, there := m.KV.Get("log"); log := log.(type) {
	case bool:
		h.Log = log
	default:
		if there {
			a.faults = append(a.faults, fmt.Sprintf("argument log is a %T (%v), want a boolean or none", log, log))
		}
	}
	if classes, there := m.KV.Get("classes"); there {
		h.Classes, _ = classes.(string)
	}
	if shares, there := m.KV.Get("shares"); there {
		h.Shares, _ = shares.(bool)
	}
	for name, to := range map[string]*string{"units": &h.Units, "cost_0": &h.Costs[0], "cost_1": &h.Costs[1]} {
		v, _ := m.KV.Get(name)
		text, ok := v.(string)
		if v != nil && !ok {
			a.faults = append(a.faults, fmt.Sprintf("argument %s is a %T (%v), want text or none", name, v, v))
		}
		*to = text
	}
	for name, to := range map[string]*int64{"spent": &h.Spent, "drawn": &h.Drawn, "lapsed": &h.Lapsed, "here": &h.Here, "places": &h.Places, "id": &h.ID} {
		v, _ := m.KV.Get(name)
		n, ok := v.(int64)
		if !ok {
			n = -1
			if v != nil {
				a.faults = append(a.faults, fmt.Sprintf("argument %s is a %T (%v), want an int64 or none", name, v, v))
			}
		}
		*to = n
	}
	a.heard, a.told = append(a.heard, h.heard), append(a.told, h)
	return h, a.answer
}

// answerWith decides about the messages from now on.
func (a *spoeAgent) answerWith(f func(heard) vars) {
	a.answerTold(func(q told) vars { return f(q.heard) })
}

// answerTold is answerWith, by what the messages say of credit besides.
func (a *spoeAgent) answerTold(f func(told) vars) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

// refuseWith decides about the questions from now on; a nil verdict allows.
func (a *spoeAgent) refuseWith(f func(question) *verdict) {
	a.answerWith(func(h heard) vars {
		v := f(question{h.User, h.Class})
		if v == nil {
			return nil
		}
		answer := vars{"reason": v.reason, "class": v.class, "limit": v.limit, "retry": v.retry}
		if v.window > 0 {
			answer["window"] = v.window
		}
		return answer
	})
}

// takeHeard returns the messages since the last call.
func (a *spoeAgent) takeHeard(t testing.TB) []heard {
	t.Helper()
	var heard []heard
	for _, q := range a.takeTold(t) {
		heard = append(heard, q.heard)
	}
	return heard
}

// takeTold returns the messages since the last call, whole.
func (a *spoeAgent) takeTold(t testing.TB) []told {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.faults {
		t.Errorf("agent: %s", f)
	}
	told := a.told
	a.heard, a.told, a.faults = nil, nil, nil
	return told
}

// takeAsked returns the questions since the last call.
func (a *spoeAgent) takeAsked(t testing.TB) []question {
	t.Helper()
	var asked []question
	for _, h := range a.takeHeard(t) {
		asked = append(asked, question{h.User, h.Class})
	}
	return asked
}

// listen answers on a unix socket until the test or the agent ends.
func (a *spoeAgent) listen(t testing.TB, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.l, a.conns = l, map[net.Conn]bool{}
	a.mu.Unlock()
	t.Cleanup(func() { l.Close() })
	go func() { _ = agent.New(a.handle, logger.NewNop()).Serve(mortal{l, a}) }() // ends with the listener
}

// die closes every socket at once, as a killed agent does.
func (a *spoeAgent) die() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.l.Close()
	for conn := range a.conns {
		_ = conn.Close()
	}
}

// mortal is a listener whose connections the agent knows.
type mortal struct {
	net.Listener
	a *spoeAgent
}

func (m mortal) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	if err == nil {
		m.a.mu.Lock()
		m.a.conns[conn] = true
		m.a.mu.Unlock()
	}
	return conn, err
}

// rig is the shipped configuration in a real HAProxy between a test's client,
// its agent and its origin.
type rig struct {
	*spoeAgent
	proc  *proctest.Process
	addr  string
	stats string
	dir   string
	env   []string // of HAProxy

	mu   sync.Mutex
	seen []*http.Request // by the origin
}

// setup changes how a rig is started.
type setup struct {
	Config
	noAgent bool
	beside  bool             // the lines of Beside in a configuration of somebody's own
	serve   http.HandlerFunc // the origin; nil: answers "origin" once it has the body
	edit    func(cfg string) string
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	// Short, unlike t.TempDir(): a unix socket's path has 107 bytes at most.
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{spoeAgent: &spoeAgent{}, dir: dir, stats: filepath.Join(dir, "stats.sock")}

	if s.serve == nil {
		s.serve = func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.Copy(io.Discard, q.Body)
			r.mu.Lock()
			r.seen = append(r.seen, q)
			r.mu.Unlock()
			fmt.Fprint(w, "origin")
		}
	}
	origin := httptest.NewServer(s.serve)
	t.Cleanup(origin.Close)

	c := s.Config
	if c.Origin == "" {
		c.Origin = origin.Listener.Addr().String()
	}
	c.Stats = r.stats
	if c.Runtime == "" {
		c.Runtime = filepath.Join(dir, "runtime.sock")
	}
	c.SPOE = "unix@" + filepath.Join(dir, "spoa.sock")
	if c.Peer == "" {
		c.Peer = "unix@" + filepath.Join(dir, "peer.sock")
	}
	if c.Bind == "" {
		r.addr = proctest.FreeAddr(t)
		c.Bind = r.addr
	}
	if c.VerdictTimeout == 0 {
		c.VerdictTimeout = proctest.Patience
	}
	// Of two values of a variable the later one counts; an empty one, and 0, leave the default.
	c.Env = slices.DeleteFunc(append([]string{patientChecks}, c.Env...), func(v string) bool {
		return strings.HasSuffix(v, "=") || strings.HasSuffix(v, "=0")
	})
	if c.Threads == 0 {
		c.Threads = 1
	}
	if !s.noAgent {
		r.listen(t, filepath.Join(dir, "spoa.sock"))
	}
	write := Write
	if s.beside {
		write = writeBeside
	}
	file, env, err := write(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	if s.edit != nil {
		cfg, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edited := s.edit(string(cfg))
		if edited == string(cfg) {
			t.Fatal("the test's edit of haproxy.cfg changed nothing")
		}
		if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.env = env
	r.proc = proctest.HAProxy(t, file, r.addr, env...)
	return r
}

// takeSeen returns the requests that reached the origin since the last call.
func (r *rig) takeSeen() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// answer is a response that has been read.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// send writes raw requests over one connection, all at once, and reads an
// answer to each.
func (r *rig) send(t testing.TB, raw ...string) []answer {
	t.Helper()
	conn := dial(t, "tcp", r.addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Join(raw, "")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	var out []answer
	for i := range raw {
		method, _, _ := strings.Cut(raw[i], " ")
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("answer %d of %d to %.200q: %v", i+1, len(raw), raw[i], err)
		}
		out = append(out, read(t, resp))
	}
	return out
}

// get sends one GET of / with these header lines.
func (r *rig) get(t testing.TB, header ...string) answer {
	t.Helper()
	return r.send(t, httpGET("/", header...))[0]
}

// httpGET is an HTTP/1.1 request.
func httpGET(target string, header ...string) string { return httpRequest("GET", target, header...) }

func httpRequest(method, target string, header ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: example.com\r\n", method, target)
	for _, h := range header {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

func read(t testing.TB, resp *http.Response) answer {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// dial connects once there is a listener: HAProxy binds its sockets one by one.
func dial(t testing.TB, network, addr string) net.Conn {
	t.Helper()
	var conn net.Conn
	proctest.Eventually(t, "dial "+addr, func() (err error) {
		conn, err = net.Dial(network, addr)
		return err
	})
	_ = conn.SetDeadline(time.Now().Add(proctest.Patience))
	return conn
}

// cli sends one command to the stats socket, which stands in for what the
// agent teaches through the peers protocol.
func (r *rig) cli(t testing.TB, command string) string {
	t.Helper()
	conn := dial(t, "unix", r.stats)
	defer conn.Close()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(out))
}

// teach sets an entry of a table.
func (r *rig) teach(t testing.TB, table, key string, until time.Time, limit int) {
	t.Helper()
	command := fmt.Sprintf("set table sluice/%s key %s data.gpt0 %d data.gpc0 %d", table, key, until.Unix(), limit)
	if out := r.cli(t, command); out != "" {
		t.Fatalf("%s: %s", command, out)
	}
}

// teachWindow sets an entry of table throttle with its window.
func (r *rig) teachWindow(t testing.TB, key string, until time.Time, limit, window int) {
	t.Helper()
	command := fmt.Sprintf("set table sluice/throttle key %s data.gpt0 %d data.gpc0 %d data.gpc1 %d", key, until.Unix(), limit, window)
	if out := r.cli(t, command); out != "" {
		t.Fatalf("%s: %s", command, out)
	}
}

// versionAtLeast reports whether the HAProxy under test is at least major.minor.
func versionAtLeast(t testing.TB, major, minor int) bool {
	t.Helper()
	var gotMajor, gotMinor int
	v := proctest.HAProxyVersion(t)
	if _, err := fmt.Sscanf(v, "%d.%d", &gotMajor, &gotMinor); err != nil {
		t.Fatalf("HAProxy version %q: %v", v, err)
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
