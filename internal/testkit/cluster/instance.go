package cluster

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Instance is one HAProxy and its agent.
type Instance struct {
	Name    string
	Address string // where clients connect
	Admin   string // the agent's
	Stats   string // path of HAProxy's stats socket
	SPOE    string // path of the agent's socket
	Peers   string // path of HAProxy's peers socket
	Runtime string // path of the socket of HAProxy's runtime API
	HAProxy *testkit.Process
	Agent   *testkit.Process

	cluster *Cluster
	files   haproxy.Config
	config  string
	env     []string
}

func (c *Cluster) newInstance(t testing.TB, i int) *Instance {
	t.Helper()
	dir := filepath.Join(c.dir, strconv.Itoa(i+1))
	in := &Instance{
		Name:    "instance-" + strconv.Itoa(i+1),
		Address: testkit.FreeAddr(t),
		Admin:   testkit.FreeAddr(t),
		Stats:   filepath.Join(dir, "stats.sock"),
		SPOE:    filepath.Join(dir, "spoa.sock"),
		Peers:   filepath.Join(dir, "peers.sock"),
		Runtime: filepath.Join(dir, "runtime.sock"),
		cluster: c,
	}
	set, err := limitfile.Load(c.LimitsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { // for the sockets of lines
		t.Fatal(err)
	}
	config := haproxy.ForLimits(set)
	config.Identify = c.options.Identify
	wait := c.options.MaxWait.Milliseconds()
	config.Env = []string{
		"SLUICE_INSTANCE=" + in.Name, "SLUICE_BIND=" + in.Address, "SLUICE_ORIGIN=" + in.line("origin", c.options.Origin),
		"SLUICE_SPOE=unix@" + in.line("spoe", in.SPOE), "SLUICE_PEER=unix@" + in.Peers, "SLUICE_RUNTIME=" + in.Runtime, "SLUICE_STATS=" + in.Stats,
		"SLUICE_COSTS=unix@" + in.line("costs", filepath.Join(dir, "costs.sock")), // where the agent listens by default
		// As shipped, with the shipped wait.
		fmt.Sprintf("SLUICE_VERDICT_TIMEOUT=%dms", wait+10), fmt.Sprintf("SLUICE_CHECK_TIMEOUT=%dms", 5*wait), fmt.Sprintf("SLUICE_LATE_TIMEOUT=%dms", 100*wait),
	}
	if c.options.Threads > 0 {
		config.Env = append(config.Env, fmt.Sprint("SLUICE_THREADS=", c.options.Threads))
	}
	if c.options.AccessLog != "" {
		config.Env = append(config.Env, "SLUICE_ACCESS_LOG="+c.options.AccessLog)
	}
	in.files = config
	in.WriteConfig(t)
	if c.options.Commands != "" {
		cmd := exec.Command(filepath.Join(c.bin, "sluice"), "haproxy", "--out", dir, "--force", "--limits", c.LimitsFile, "--identify", c.options.Identify)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("sluice haproxy --out: %v\n%s", err, out)
		}
	}
	if c.options.Beside != "" {
		in.limitTheirs(t, filepath.Join(dir, "theirs"))
	}
	if len(c.options.Rules) > 0 {
		in.addRules(t, c.options.Rules)
	}
	return in
}

// WriteConfig writes this version's files for HAProxy. One that runs needs a reload.
func (in *Instance) WriteConfig(t testing.TB) {
	t.Helper()
	var err error
	if in.config, in.env, err = haproxy.Write(filepath.Dir(in.SPOE), in.files); err != nil {
		t.Fatal(err)
	}
}

// limitTheirs has the command put the limits into a configuration of somebody's own, as operators do. That reads SLUICE_BIND and
// SLUICE_ORIGIN as ours does.
func (in *Instance) limitTheirs(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	in.config = filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(in.config, []byte(in.cluster.options.Beside), 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "sluice")
	in.env = append(in.env, "SLUICE_CFG_DIR="+folder)
	cmd := exec.Command(filepath.Join(in.cluster.bin, "sluice"), "haproxy", "--into", in.config, "--frontend", "web", "--write",
		"--limits", in.cluster.LimitsFile, "--identify", in.cluster.options.Identify, "--folder", folder, "--haproxy", testkit.HAProxyPath(t))
	cmd.Env = append(os.Environ(), in.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sluice haproxy --into: %v\n%s", err, out)
	}
}

// addRules writes rules into haproxy.cfg as operators do.
func (in *Instance) addRules(t testing.TB, rules []string) {
	t.Helper()
	const own = "    # Rules of your own go here."
	cfg, err := os.ReadFile(in.config)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(cfg), own)
	if !found {
		t.Fatalf("haproxy.cfg does not say %q", own)
	}
	edited := before + "    " + strings.Join(rules, "\n    ") + "\n\n" + own + after
	if err := os.WriteFile(in.config, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
}

// StartAgent starts the instance's agent, or starts it again.
func (in *Instance) StartAgent(t testing.TB) {
	t.Helper()
	name := in.Name
	if in.cluster.options.OneName {
		name = "one-name"
	}
	args := []string{
		"--instance", name, "--spoe", "unix:" + in.SPOE, "--peers", "unix:" + in.line("peers", in.Peers), "--runtime", in.line("runtime", in.Runtime),
		"--admin", in.Admin, "--redis", in.line("redis", in.cluster.RedisAddr), "--max-wait", in.cluster.options.MaxWait.String(),
	}
	env := slices.Concat(in.cluster.options.Env, in.cluster.options.EnvOf("spoa of "+in.Name))
	in.Agent = testkit.Start(t, env, filepath.Join(in.cluster.bin, "spoa"), append(args, in.cluster.options.SPOAArgs...)...)
	in.Agent.Name += " of " + in.Name
	testkit.Eventually(t, in.Name+"'s agent serves", func() error {
		if !in.Agent.Running() {
			t.Fatalf("the agent ended:\n%s", in.Agent.Output())
		}
		conn, err := net.Dial("unix", in.SPOE)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// line is the address of a server for its client in this instance.
func (in *Instance) line(what, to string) string {
	return in.cluster.options.Line(what+" of "+in.Name, to)
}

// StartHAProxy starts the instance's HAProxy, or starts it again.
func (in *Instance) StartHAProxy(t testing.TB) {
	t.Helper()
	env := slices.Concat(in.env, in.cluster.options.EnvOf("haproxy of "+in.Name))
	if in.cluster.options.Master {
		in.HAProxy = testkit.Start(t, env, testkit.HAProxyPath(t), "-W", "-db", "-f", in.config)
		testkit.Eventually(t, in.Name+"'s HAProxy accepts connections", func() error {
			conn, err := net.Dial("tcp", in.Address)
			if err == nil {
				conn.Close()
			}
			return err
		})
	} else {
		in.HAProxy = testkit.HAProxy(t, in.config, in.Address, env...)
	}
	in.HAProxy.Name = "haproxy of " + in.Name
}

// AwaitReady waits until the agent says that all of the instance works.
func (in *Instance) AwaitReady(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, in.Name+" is ready", func() error {
		_, err := Get(in.Admin, "/-/ready")
		return err
	})
}
