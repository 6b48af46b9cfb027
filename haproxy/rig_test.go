package haproxy

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/negasus/haproxy-spoe-go/action"
	"github.com/negasus/haproxy-spoe-go/agent"
	"github.com/negasus/haproxy-spoe-go/logger"
	"github.com/negasus/haproxy-spoe-go/message"
	"github.com/negasus/haproxy-spoe-go/request"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// patientChecks is for agents on a machine that is busy with other tests.
var patientChecks = fmt.Sprintf("SLUICE_CHECK_TIMEOUT=%dms", testkit.Patience.Milliseconds())

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
	mu      sync.Mutex
	told    []told
	faults  []string
	answers map[string]func(told) vars // by user; they come before answer
	answer  func(told) vars            // nil: all are allowed
	before  func(told) vars            // of requests whose bodies say what they cost, before these are there; nil: all are asked about again, and not told of
	conns   map[net.Conn]bool
	l       net.Listener
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
	arg(a, m, "user", &h.User, true)
	arg(a, m, "class", &h.Class, true)
	arg(a, m, "tracked", &h.Tracked, true)
	arg(a, m, "active", &h.Active, true)
	if op, there := m.KV.Get("op"); op == "" || !there {
		a.faults = append(a.faults, fmt.Sprintf("argument op is %v, there: %t; want text or null", op, there))
	}
	for name, to := range map[string]*string{"op": &h.Op, "classes": &h.Classes, "units": &h.Units, "cost_0": &h.Costs[0], "cost_1": &h.Costs[1]} {
		arg(a, m, name, to, false)
	}
	arg(a, m, "log", &h.Log, false)
	arg(a, m, "shares", &h.Shares, false)
	for name, to := range map[string]*int64{"spent": &h.Spent, "drawn": &h.Drawn, "lapsed": &h.Lapsed, "here": &h.Here, "places": &h.Places, "id": &h.ID} {
		*to = -1
		arg(a, m, name, to, false)
	}
	var later int64
	if arg(a, m, "later", &later, false); later == 1 && a.before == nil {
		return h, func(told) vars { return vars{"charge": uint32(1)} }
	}
	a.told = append(a.told, h)
	if later == 1 {
		return h, a.before
	}
	if answer, ok := a.answers[h.User]; ok {
		return h, answer
	}
	return h, a.answer
}

// arg reads an argument of a message. It may be null, or not there, unless it is required.
func arg[T any](a *spoeAgent, m *message.Message, name string, to *T, required bool) {
	v, _ := m.KV.Get(name)
	got, ok := v.(T)
	switch {
	case ok:
		*to = got
	case v != nil || required:
		a.faults = append(a.faults, fmt.Sprintf("argument %s is a %T (%v), want a %T", name, v, v, *to))
	}
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
	return a.take(t, func(told) bool { return true })
}

// toldOf is takeTold of one user.
func (a *spoeAgent) toldOf(t testing.TB, user string) []told {
	t.Helper()
	return a.take(t, func(q told) bool { return q.User == user })
}

func (a *spoeAgent) take(t testing.TB, wanted func(told) bool) (taken []told) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.faults {
		t.Errorf("agent: %s", f)
	}
	a.faults = nil
	a.told = slices.DeleteFunc(a.told, func(q told) bool {
		if wanted(q) {
			taken = append(taken, q)
			return true
		}
		return false
	})
	return taken
}

// answerFor decides about the messages of one user from now on. Nil has answerWith decide again.
func (a *spoeAgent) answerFor(user string, f func(told) vars) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers == nil {
		a.answers = map[string]func(told) vars{}
	}
	a.answers[user] = f
	if f == nil {
		delete(a.answers, user)
	}
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
	if a.l == nil {
		return
	}
	_ = a.l.Close()
	for conn := range a.conns {
		_ = conn.Close()
	}
	a.l = nil
}

// down has the agent die, and waits until HAProxy knows: questions before that wait for their verdict's time-out.
func (r *rig) down(t testing.TB) {
	t.Helper()
	r.die()
	testkit.Eventually(t, "the agent's server is down", func() error { return r.agentIs(t, "DOWN") })
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
	proc  *testkit.Process
	addr  string
	stats string
	dir   string
	env   []string // of HAProxy

	session session    // of the agent with HAProxy's peer
	costs   *costAgent // if requests cost something
	lives   testing.TB // whose end is that of the rig

	mu    sync.Mutex
	serve http.HandlerFunc // the origin
	seen  []*http.Request  // by the origin

	tests map[*testing.T]bool // that use it now
	alone bool                // there may be one at a time
}

// setup changes how a rig is started.
type setup struct {
	Config
	noAgent bool
	beside  bool             // the lines of Beside in a configuration of somebody's own
	serve   http.HandlerFunc // the origin; nil: answers "origin" once it has the body
	edit    func(cfg string) string
	master  bool // HAProxy runs with a master process, which reloads it
}

// with is s with another origin.
func (s setup) with(serve http.HandlerFunc) setup {
	s.serve = serve
	return s
}

// rigs are those that tests share, by configuration. They run until the package's last test has ended.
var rigs = struct {
	sync.Mutex
	changed  *sync.Cond // a test has let go of a rig
	byConfig map[string]*rig

	ending sync.Mutex
	ends   []func()
}{byConfig: map[string]*rig{}}

// started is how many HAProxies were started.
var started atomic.Int32

func TestMain(m *testing.M) {
	rigs.changed = sync.NewCond(&rigs)
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // they wait for clocks more than they work
	status := m.Run()
	for _, end := range slices.Backward(rigs.ends) {
		end()
	}
	if testing.Verbose() {
		fmt.Printf("%d HAProxies started\n", started.Load())
	}
	os.Exit(status)
}

// usual is the configuration of tests that need nothing special: as shipped, but for what a limit file, an operator's rules
// and an environment add for the tests that look at it.
var usual = setup{Config: Config{
	Env:     []string{"SLUICE_THREADS=2", "SLUICE_RETRY_JITTER=1", "SLUICE_WAIT_TIMEOUT=" + longestWait},
	Classes: []limits.Class{{Name: "LIST", Any: []limits.Match{{Query: []string{"list"}}}}, {Name: longestClass, Any: []limits.Match{{PathPrefix: "/long"}}}},
	Exempt:  exempted,
}, edit: withDoors}

var longestClass = strings.Repeat("C", 32)

// fitted are files that a limit file with one class needs, for names in a header.
var fitted = setup{Config: Config{Env: []string{"SLUICE_THREADS=4"}, Identify: "header:X-User", Fitted: true, Exempt: exempted, CreditClasses: []string{"*"}}, edit: func(cfg string) string { return telling(withDoors(cfg)) }}

// creditOff has the agent asked about every request.
var creditOff = setup{Config: Config{Identify: "header:X-User", Env: []string{"SLUICE_THREADS=2", "SLUICE_CREDIT=off"}}}

// usualBeside are the lines in a configuration of somebody's own.
var usualBeside = setup{beside: true, Config: Config{
	Identify: "header:X-User", Fitted: true, Bandwidth: true, Env: []string{"SLUICE_THREADS=2", "SLUICE_RATELIMIT=all"}, Costs: units,
}, edit: func(cfg string) string {
	return strings.Replace(cfg, "    http-request deny if refused\n", "    http-request deny if refused\n"+operatorsRules, 1)
}}

// operatorsRules refuse a path, believe a proxy, and choose the form of refusals.
const operatorsRules = `    http-request set-src req.hdr(x-forwarded-for,-1) if { src 10.0.0.0/8 }
    http-request deny deny_status 403 if { path /own }
    http-request set-var(txn.sluice_refuse_status) req.fhdr(X-Status) if { req.fhdr(X-Status) -m found }
    http-request set-var(txn.sluice_refuse_status) int(429) if { req.fhdr(X-Status) 429i }
    http-request set-var(txn.sluice_refuse_body) req.fhdr(X-Body) if { req.fhdr(X-Body) -m found }
`

// withDoors adds a listener whose clients say their address in the PROXY protocol, and rules of an operator's where haproxy.cfg
// says that they go.
func withDoors(cfg string) string {
	const bind, rules = `    bind "${SLUICE_BIND-127.0.0.1:8080}"`, "    # Rules of your own go here."
	cfg = strings.Replace(cfg, bind, bind+"\n    bind \"unix@${SLUICE_TEST_DIR-.}/proxy.sock\" accept-proxy", 1)
	return strings.Replace(cfg, rules, operatorsRules+"\n"+rules, 1)
}

// lasting is a test whose cleanups wait for the end of the package's last test.
type lasting struct{ testing.TB }

func (lasting) Cleanup(f func()) {
	rigs.ending.Lock()
	defer rigs.ending.Unlock()
	rigs.ends = append(rigs.ends, f)
}

func (lasting) Failed() bool { return false }

// shared returns a rig that tests with the same configuration use one after the other. Its tables are empty and its agent allows everything. A
// parallel test uses one shared rig at a time.
func shared(t *testing.T, s setup) *rig {
	t.Helper()
	return use(t, s, true)
}

// joined returns a rig that several tests use at a time. It is as the others left it: each test has users of its own, whom it names in answerFor and toldOf,
// and all have the same origin.
func joined(t *testing.T, s setup) *rig {
	t.Helper()
	return use(t, s, false)
}

func use(t *testing.T, s setup, alone bool) *rig {
	t.Helper()
	cfg, err := Render(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	if s.edit != nil {
		cfg = s.edit(cfg)
	}
	key := fmt.Sprintf("%v %+v %s", s.beside, s.Config, cfg)
	rigs.Lock()
	defer rigs.Unlock()
	others := func() int {
		n := 0
		if r := rigs.byConfig[key]; r != nil {
			for test := range r.tests {
				if test != t {
					n++
				}
			}
		}
		return n
	}
	for others() > 0 && (alone || rigs.byConfig[key].alone) {
		rigs.changed.Wait()
	}
	r := rigs.byConfig[key]
	known := r != nil && r.tests[t]
	switch {
	case r == nil || !r.proc.Running():
		r = newRig(lasting{t}, s)
		r.tests = map[*testing.T]bool{}
		rigs.byConfig[key] = r
	case others() == 0:
		r.alone, r.tests[t] = true, true // nobody joins meanwhile
		rigs.Unlock()
		r.reset(t, s)
		rigs.Lock()
	}
	r.alone, r.tests[t] = alone, true
	rigs.changed.Broadcast()
	if !known {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("output of HAProxy:\n%s", r.proc.Output())
			}
			rigs.Lock()
			defer rigs.Unlock()
			delete(r.tests, t)
			rigs.changed.Broadcast()
		})
	}
	return r
}

// reset makes a rig as good as new.
func (r *rig) reset(t *testing.T, s setup) {
	t.Helper()
	r.serving(nil)
	r.spoeAgent.mu.Lock()
	dead := r.l == nil
	r.told, r.faults, r.answers, r.answer = nil, nil, nil, nil
	r.spoeAgent.mu.Unlock()
	r.streamsBecome(t, 0)
	switch {
	case s.noAgent:
		r.down(t)
	case dead:
		r.listen(lasting{t}, filepath.Join(r.dir, "spoa.sock"))
		testkit.Eventually(t, "the agent's server is up", func() error { return r.agentIs(t, "UP") })
	}
	if slices.Contains(r.env, accessLog) {
		r.get(t, "X-User: the-last-line")
		testkit.Eventually(t, "the line of the last request", func() error {
			if !strings.Contains(r.proc.Output(), "the-last-line") {
				return errors.New("not yet")
			}
			return nil
		})
		r.takeTold(t)
	}
	if r.costs != nil && !s.noAgent {
		r.resetCosts(t)
	}
	r.proc.ClearOutput()
	r.answerTold(nil)
	r.takeTold(t)
	for table := range strings.Lines(r.cli(t, "show table")) {
		if name, ok := strings.CutPrefix(table, "# table: "); ok {
			name, _, _ = strings.Cut(name, ",")
			r.cli(t, "clear table "+name)
		}
	}
	r.takeSeen()
	r.serving(s.serve)
}

// serving has another origin.
func (r *rig) serving(serve http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serve = serve
}

// accessLog is the setting that has HAProxy write one.
const accessLog = "SLUICE_ACCESS_LOG=json"

// ServeHTTP is the origin.
func (r *rig) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	serve := r.serve
	r.mu.Unlock()
	if serve != nil {
		serve(w, q)
		return
	}
	_, _ = io.Copy(io.Discard, q.Body)
	r.mu.Lock()
	r.seen = append(r.seen, q)
	r.mu.Unlock()
	fmt.Fprint(w, "origin")
}

// secondsExpire is for how long HAProxy keeps entries of seconds: tests that count in them may be slower.
var secondsExpire = regexp.MustCompile(`(table type string len \d+ size 1m expire )\d+[sm]`)

// lastOf is the value of a variable of an environment.
func lastOf(env []string, name string) (value string) {
	for _, v := range env {
		if of, ok := strings.CutPrefix(v, name+"="); ok {
			value = of
		}
	}
	return value
}

// newRig starts a rig of the test's own.
func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	// Short, unlike t.TempDir(): a unix socket's path has 107 bytes at most.
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{spoeAgent: &spoeAgent{}, dir: dir, stats: filepath.Join(dir, "stats.sock"), serve: s.serve, lives: t}
	origin := httptest.NewServer(r)
	t.Cleanup(origin.Close)

	c := s.Config
	r.addr = testkit.FreeAddr(t)
	// Of two values of a variable the later one counts.
	c.Env = slices.DeleteFunc(append([]string{
		patientChecks, "SLUICE_TEST_DIR=" + dir, "SLUICE_BIND=" + r.addr, "SLUICE_ORIGIN=" + origin.Listener.Addr().String(), "SLUICE_STATS=" + r.stats,
		"SLUICE_SPOE=unix@" + filepath.Join(dir, "spoa.sock"), "SLUICE_PEER=unix@" + filepath.Join(dir, "peer.sock"),
		"SLUICE_COSTS=unix@" + filepath.Join(dir, "costs.sock"), "SLUICE_RUNTIME=" + filepath.Join(dir, "runtime.sock"),
		"SLUICE_VERDICT_TIMEOUT=1m", "SLUICE_THREADS=1",
	}, c.Env...), func(v string) bool { return strings.HasSuffix(v, "=") || strings.HasSuffix(v, "=0") })
	if !s.noAgent {
		r.listen(t, filepath.Join(dir, "spoa.sock"))
		if len(c.Costs) > 0 {
			r.costs = &costAgent{path: strings.TrimPrefix(lastOf(c.Env, "SLUICE_COSTS"), "unix@")}
			r.costs.listen(t)
		}
	}
	write := Write
	if s.beside {
		write = writeBeside(t)
	}
	file, env, err := write(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	cfg := secondsExpire.ReplaceAllString(readFile(t, file), "${1}1m")
	if s.edit != nil {
		edited := s.edit(cfg)
		if edited == cfg {
			t.Fatal("the test's edit of haproxy.cfg changed nothing")
		}
		cfg = edited
	}
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	r.env = env
	started.Add(1)
	if s.master {
		r.proc = testkit.Start(t, env, testkit.HAProxyPath(t), "-W", "-f", file)
		dial(t, "tcp", r.addr).Close()
	} else {
		r.proc = testkit.HAProxy(t, file, r.addr, env...)
	}
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
	return sendTo(t, "tcp", r.addr, raw...)
}

// sendFrom sends a request of a client with an address of its own, by the listener that withDoors opens.
func (r *rig) sendFrom(t testing.TB, address, raw string) answer {
	t.Helper()
	return sendTo(t, "unix", filepath.Join(r.dir, "proxy.sock"), from(address, raw))[0]
}

func sendTo(t testing.TB, network, addr string, raw ...string) []answer {
	t.Helper()
	conn := dial(t, network, addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Join(raw, "")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	var out []answer
	for i := range raw {
		request := raw[i]
		if strings.HasPrefix(request, "PROXY ") {
			_, request, _ = strings.Cut(request, "\n")
		}
		method, _, _ := strings.Cut(request, " ")
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
	testkit.Eventually(t, "dial "+addr, func() (err error) {
		conn, err = net.Dial(network, addr)
		return err
	})
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	return conn
}

// exchange is a connection over which a test writes and reads step by step. It ends with the test.
type exchange struct {
	net.Conn
	t  testing.TB
	in *bufio.Reader
}

// begin opens one and sends a request, or its beginning.
func (r *rig) begin(t testing.TB, raw string) *exchange {
	t.Helper()
	e := &exchange{dial(t, "tcp", r.addr), t, nil}
	e.in = bufio.NewReader(e.Conn)
	t.Cleanup(func() { e.Close() })
	e.write(raw)
	return e
}

func (e *exchange) write(raw string) {
	e.t.Helper()
	if _, err := io.WriteString(e.Conn, raw); err != nil {
		e.t.Fatal(err)
	}
}

// response is an answer, once its fields are there.
func (e *exchange) response() *http.Response {
	e.t.Helper()
	resp, err := http.ReadResponse(e.in, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp
}

// answer is a whole answer.
func (e *exchange) answer() answer {
	e.t.Helper()
	return read(e.t, e.response())
}

// load sends requests over n connections until a time, and calls with each answer and when its request was sent. The clients have these
// addresses, by the listener that withDoors opens, or else none of their own.
func (r *rig) load(t testing.TB, n int, until time.Time, address, request func(i int) string, with func(i int, sent time.Time, a answer)) {
	t.Helper()
	var mu sync.Mutex
	var clients sync.WaitGroup
	for i := range n {
		network, addr, first := "tcp", r.addr, ""
		if address != nil {
			network, addr, first = "unix", filepath.Join(r.dir, "proxy.sock"), from(address(i), "")
		}
		conn := dial(t, network, addr)
		clients.Go(func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for sent := time.Now(); sent.Before(until); sent = time.Now() {
				_, _ = io.WriteString(conn, first+request(i))
				first = ""
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				mu.Lock()
				with(i, sent, answer{resp.StatusCode, resp.Header, string(body)})
				mu.Unlock()
			}
		})
	}
	clients.Wait()
}

// cli sends one command to the stats socket, which stands in for what the
// agent teaches through the peers protocol.
func (r *rig) cli(t testing.TB, command string) string {
	t.Helper()
	return order(t, r.stats, command)
}

// order sends one command to a socket, once it is there: HAProxy may serve clients before.
func order(t testing.TB, socket, command string) (out string) {
	t.Helper()
	testkit.Eventually(t, command, func() (err error) {
		out, err = testkit.AskHAProxy(socket, command)
		return err
	})
	return strings.TrimSpace(out)
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
	v := testkit.HAProxyVersion(t)
	if _, err := fmt.Sscanf(v, "%d.%d", &gotMajor, &gotMinor); err != nil {
		t.Fatalf("HAProxy version %q: %v", v, err)
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
