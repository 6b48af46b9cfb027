// Package cluster starts whole Sluice clusters for tests and benchmarks: a real
// redis-server, our own commands and real HAProxies on the shipped files, all
// as processes of their own, in front of a counting origin.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/origin"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// LongWait is how long requests may wait for their verdict where that is not tested: a
// machine that is merely slow, or whose host takes the processors away for a second or two,
// must not make a correct Sluice fail open.
const LongWait = 5 * time.Second

// Options say what to start. The zero value is one instance with limits of
// nobody.
type Options struct {
	Instances int    // 0 means 1
	Limits    string // the limit file's text
	Polygens  int    // 0 means 1
	Identify  string // "" means "header:X-User"

	// MaxWait of the agents. All of the product's time-outs follow it: HAProxy's for a verdict (10 ms more), for a check of the
	// agent (5 times as long) and for late verdicts (100 times), and the loss of Redis (5 times). 0 means LongWait. Tests of
	// what happens in time set a short one.
	MaxWait time.Duration

	// OneName gives all agents the same name, as operators do by mistake.
	OneName bool

	// Master runs HAProxy in master-worker mode, in which it can be reloaded.
	Master bool

	Rules     []string // of all instances: where haproxy.cfg says that rules of one's own go
	Beside    string   // of all instances: a haproxy.cfg of one's own, in whose frontend "web" limits hold; "" means ours
	AccessLog string   // of all instances: SLUICE_ACCESS_LOG
	Threads   int      // of each HAProxy; 0 means 1
	Origin    string   // "" means a counting one in this process
	Redis     string   // the agents' and polygens' Redis; "" means to start one
	SPOAArgs  []string // further arguments of the agents

	PolygenArgs []string // and of the polygens
	Commands    string   // the folder of another version's commands, to begin with; "" means this version's
	Built       string   // a folder in which this version's commands are already; "" means to build them
	Env         []string // of the agents and polygens, beside this process's own

	// Line returns at which address the client of a server connects, such as "spoe of instance-1" to the path of a
	// socket: that of a link. Nil means the server's own. Lines are spoe, peers, runtime, origin and redis of an instance, and
	// redis of a polygen.
	Line func(name, to string) string

	// EnvOf is what one process has in its environment besides: "haproxy of instance-1", "spoa of instance-1" or "polygen-1".
	EnvOf func(process string) []string
}

// Cluster is a running one.
type Cluster struct {
	Redis     *testkit.Process
	RedisAddr string
	Polygens  []*Polygen
	Instances []*Instance
	Origin    *origin.Origin // nil with Options.Origin

	LimitsFile string
	dir        string
	bin        string
	options    Options
	started    time.Time
}

// Settle waits until the agents of several instances may take what their HAProxies do not
// use of a second: not in the first two seconds after they joined, for an agent that
// was there before may have given it away.
func (c *Cluster) Settle() {
	if len(c.Instances) > 1 {
		time.Sleep(time.Until(c.started.Add(3 * time.Second)))
	}
}

// Polygen is one policy generator.
type Polygen struct {
	*testkit.Process
	Admin string
}

// Start starts a cluster and waits until every instance serves. The test's end
// ends it.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	o.Instances = max(1, o.Instances)
	o.Polygens = max(1, o.Polygens)
	o.Threads = max(1, o.Threads)
	if o.Identify == "" {
		o.Identify = "header:X-User"
	}
	if o.MaxWait == 0 {
		o.MaxWait = LongWait
	}
	if o.Line == nil {
		o.Line = func(_, to string) string { return to }
	}
	if o.EnvOf == nil {
		o.EnvOf = func(string) []string { return nil }
	}
	c := &Cluster{options: o, bin: o.Commands, RedisAddr: o.Redis}
	if c.bin == "" {
		c.Upgrade(t)
	}
	// Not t.TempDir: its path may be too long for a unix socket.
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.LimitsFile = filepath.Join(dir, "limits.yaml")
	c.SetLimits(t, o.Limits)

	if o.Redis == "" {
		c.Redis, c.RedisAddr = testkit.Redis(t)
	}
	if o.Origin == "" {
		c.startOrigin(t)
	}
	for i := range o.Polygens {
		c.Polygens = append(c.Polygens, c.StartPolygen(t, i))
	}
	for i := range o.Instances {
		c.Instances = append(c.Instances, c.newInstance(t, i))
	}
	for _, in := range c.Instances {
		in.StartAgent(t)
	}
	for _, in := range c.Instances {
		in.StartHAProxy(t)
	}
	for _, in := range c.Instances {
		in.AwaitReady(t)
	}
	c.started = time.Now()
	return c
}

// Upgrade has what is started from now on be of this version.
func (c *Cluster) Upgrade(t testing.TB) {
	t.Helper()
	if c.bin = c.options.Built; c.bin == "" {
		c.bin = Build(t)
	}
}

// Bin is the folder of the commands that are started from now on.
func (c *Cluster) Bin() string { return c.bin }

// Stop ends all processes before the test does.
func (c *Cluster) Stop() {
	for _, in := range c.Instances {
		in.HAProxy.Stop()
		in.Agent.Stop()
	}
	for _, p := range c.Polygens {
		p.Stop()
	}
	if c.Redis != nil {
		c.Redis.Stop()
	}
}

// Processes are all that run, by what they are called in reports: "agent-0", "redis".
func (c *Cluster) Processes() map[string]*testkit.Process {
	all := map[string]*testkit.Process{}
	if c.Redis != nil {
		all["redis"] = c.Redis
	}
	for i, in := range c.Instances {
		all[fmt.Sprintf("agent-%d", i)], all[fmt.Sprintf("haproxy-%d", i)] = in.Agent, in.HAProxy
	}
	for i, p := range c.Polygens {
		all[fmt.Sprintf("polygen-%d", i)] = p.Process
	}
	return all
}

// Addresses are where the instances' clients connect.
func (c *Cluster) Addresses() []string {
	var a []string
	for _, in := range c.Instances {
		a = append(a, in.Address)
	}
	return a
}

// SetLimits replaces the limit file.
func (c *Cluster) SetLimits(t testing.TB, text string) {
	t.Helper()
	tmp := c.LimitsFile + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, c.LimitsFile); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) startOrigin(t testing.TB) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Origin = origin.New()
	c.Origin.MaxUsers = 1000
	c.options.Origin = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Origin.Serve(ctx, l)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// StartPolygen starts the i-th policy generator.
func (c *Cluster) StartPolygen(t testing.TB, i int) *Polygen {
	t.Helper()
	p, name := &Polygen{Admin: testkit.FreeAddr(t)}, "polygen-"+strconv.Itoa(i+1)
	args := []string{"--limits", c.LimitsFile, "--redis", c.options.Line("redis of "+name, c.RedisAddr), "--admin", p.Admin, "--name", name}
	env := slices.Concat(c.options.Env, c.options.EnvOf(name))
	p.Process = testkit.Start(t, env, filepath.Join(c.bin, "polygen"), append(args, c.options.PolygenArgs...)...)
	p.Name = name
	return p
}

var built struct {
	sync.Once
	dir string
	err error
}

// Build builds the commands once for the whole test process, and returns their folder.
func Build(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		// Where `make` has put them; go test runs in the package's directory.
		module, err := exec.Command("go", "env", "GOMOD").Output()
		if err != nil {
			built.err = err
			return
		}
		built.dir = filepath.Join(filepath.Dir(strings.TrimSpace(string(module))), "bin")
		out, err := exec.Command("go", "build", "-trimpath", "-o", built.dir+"/", "github.com/sluice-qos/sluice/cmd/...").CombinedOutput()
		if err != nil {
			built.err = errors.Join(err, errors.New(string(out)))
		}
	})
	if built.err != nil {
		t.Fatalf("build the commands: %v", built.err)
	}
	return built.dir
}
