package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/longrun/judge"
)

// part is a process that faults happen to. It is started again, so what it is changes.
type part struct {
	name    string
	clock   func(seconds int64) error // of programs in C
	process func() *testkit.Process
	start   func()

	mu    sync.Mutex // start, process and admin
	admin string     // address of the admin API; "" if the process has none
	away  bool       // it was ended by a fault, and is not there again yet
	frail bool       // a fault may end it: a replica ends itself when it cannot write to its disk
}

// pids are the process and those that it has started, as a HAProxy has workers.
func (p *part) pids() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pidsLocked()
}

func (p *part) pidsLocked() []int {
	pid := p.process().Pid()
	pids := []int{pid}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for field := range strings.FieldsSeq(string(text)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

func (p *part) signal(s syscall.Signal) {
	for _, pid := range p.pids() {
		_ = syscall.Kill(pid, s)
	}
}

// end ends the process, at once or in order.
func (p *part) end(kill bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = true
	if kill {
		// The workers too: one that outlives its master for a moment goes on accepting.
		for _, pid := range p.pidsLocked() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		p.process().Kill()
		return
	}
	p.process().Stop()
}

func (p *part) again() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := attempt(p.start)
	p.away = err != nil
	return err
}

// mayEnd says whether the process may end by itself from now on. If it has, and may not any more, it is started again.
func (p *part) mayEnd(frail bool) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frail = frail; !frail && !p.process().Running() {
		err = attempt(p.start)
		p.away = err != nil
	}
	return err
}

func (p *part) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process().Output()
}

// adminAddr is the address of the process' admin API, which changes with each start.
func (p *part) adminAddr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admin
}

func (p *part) crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.away && !p.frail && !p.process().Running()
}

// limitFiles allows the process a few file descriptors more than it has open. undo lifts the limit.
func (p *part) limitFiles(more int64) (undo func() error, err error) {
	type before struct {
		pid   int
		limit unix.Rlimit
	}
	var all []before
	undo = func() error {
		for _, b := range all {
			// One that has ended needs nothing.
			_ = unix.Prlimit(b.pid, unix.RLIMIT_NOFILE, &b.limit, nil)
		}
		return nil
	}
	for _, pid := range p.pids() {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return undo, err
		}
		b := before{pid: pid}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &b.limit); err != nil {
			return undo, err
		}
		all = append(all, b)
		few := unix.Rlimit{Cur: uint64(int64(len(open)) + more), Max: b.limit.Max}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			return undo, err
		}
	}
	return undo, nil
}

// world is a cluster with its links, parts and limit file.
type world struct {
	scenario *scenario

	t     *Scene
	store *store
	c     *cluster.Cluster
	links map[string]*testkit.Link
	parts map[string]*part
	clock clocks
}

// lineName is the name of the schedule for a line of internal/testkit/cluster.
func lineName(line string) string {
	what, of, _ := strings.Cut(line, " of ")
	var i int
	if _, err := fmt.Sscanf(of, "polygen-%d", &i); err == nil {
		return fmt.Sprintf("polygen-%d→redis", i-1)
	}
	_, _ = fmt.Sscanf(of, "instance-%d", &i)
	agent, haproxy := fmt.Sprintf("agent-%d", i-1), fmt.Sprintf("haproxy-%d", i-1)
	switch what {
	case "spoe":
		return haproxy + "→" + agent
	case "costs":
		return haproxy + "→" + agent + " costs"
	case "origin":
		return haproxy + "→origin"
	case "redis":
		return agent + "→redis"
	}
	return agent + "→" + haproxy + " " + what
}

func startWorld(t *Scene, s *scenario, origin string) (*world, error) {
	w := &world{t: t, scenario: s, links: map[string]*testkit.Link{}, parts: map[string]*part{}}
	o := cluster.Options{
		Instances: s.instances, Polygens: s.polygens, Limits: s.limits, MaxWait: s.maxWait, Master: true, Origin: origin,
		Env: []string{"GORACE=halt_on_error=1"}, EnvOf: w.env, SPOAArgs: []string{"--drain", judge.Drain.String()},
	}
	if s.race {
		o.Built = filepath.Join(t.dir, "commands")
		if _, err := run("go", "build", "-race", "-trimpath", "-o", o.Built+"/", "github.com/sluice-qos/sluice/cmd/..."); err != nil {
			return nil, err
		}
	}
	if s.faults {
		var err error
		if w.clock, err = newClocks(t.dir); err != nil {
			return nil, err
		}
		o.Line = w.line
	}
	err := attempt(func() {
		w.store = startStore(t, s.store)
		w.links = w.store.links
		o.Redis, o.SPOAArgs, o.PolygenArgs = strings.Join(w.store.addrs, ","), append(o.SPOAArgs, w.store.args...), w.store.args
		w.c = cluster.Start(t, o)
	})
	if err == nil {
		w.addParts()
	}
	return w, err
}

func (w *world) line(name, to string) string {
	if strings.HasPrefix(name, "redis ") && w.store.kind != "single" {
		return to
	}
	name = lineName(name)
	if w.links[name] == nil { // a process that is started again has the links that it had
		w.links[name] = testkit.NewLink(w.t, to, 0)
	}
	return w.links[name].Addr
}

func (w *world) env(process string) (env []string) {
	if w.scenario.faults {
		var err error
		if env, err = w.clock.env(process); err != nil {
			w.t.Fatal(err)
		}
	}
	if strings.HasPrefix(process, "haproxy ") {
		env = append(env, "SLUICE_HARD_STOP="+judge.Drain.String())
	}
	return env
}

func (w *world) addParts() {
	var t testing.TB = w.t
	for i, in := range w.c.Instances {
		w.add(&part{name: fmt.Sprintf("agent-%d", i), admin: in.Admin, process: func() *testkit.Process { return in.Agent }, start: func() { in.StartAgent(t) }})
		w.add(&part{name: fmt.Sprintf("haproxy-%d", i), process: func() *testkit.Process { return in.HAProxy }, start: func() { in.StartHAProxy(t) },
			clock: func(s int64) error { return w.clock.set("haproxy of "+in.Name, s) }})
	}
	for i := range w.c.Polygens {
		p := &part{name: fmt.Sprintf("polygen-%d", i), admin: w.c.Polygens[i].Admin, process: func() *testkit.Process { return w.c.Polygens[i].Process }}
		p.start = func() { w.c.Polygens[i] = w.c.StartPolygen(t, i); p.admin = w.c.Polygens[i].Admin }
		w.add(p)
	}
	for i, n := range w.store.nodes {
		name := fmt.Sprintf("redis-%d", i)
		if w.store.kind == "single" {
			name = "redis"
		}
		w.add(&part{name: name, process: func() *testkit.Process { return n.Process }, start: func() { n.Restart(t) },
			clock: func(s int64) error { return w.clock.set("redis-"+testkit.PortOf(n.Addr), s) }})
	}
	for i, s := range w.store.sentinels {
		w.add(&part{name: fmt.Sprintf("sentinel-%d", i), process: func() *testkit.Process { return s.Process }, start: func() { s.Restart(w.t) }})
	}
}

func (w *world) add(p *part) { w.parts[p.name] = p }

// run runs a program, and returns what it prints.
func run(program string, args ...string) (string, error) {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return string(out), nil
}
