package overload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/chaos"
	"github.com/sluice-qos/sluice/test/cluster"
)

// Options of a run.
type Options struct {
	Seed        uint64
	Duration    time.Duration // of the flood
	Times       float64       // what it offers, in parts of what the cluster can serve
	Connections int           // that are opened at once
	Dir         string        // where it leaves what the processes wrote
	Out         io.Writer     `json:"-"` // of progress
}

const (
	instances = 2
	// MaxWait of the agents, as shipped: it is to be seen what they do when they are late.
	maxWait = 20 * time.Millisecond

	measureFor = 6 * time.Second
	calmFor    = 5 * time.Second // before and after the flood
	exactFor   = 5 * time.Second
	stormFor   = 5 * time.Second
)

// runner is a run.
type runner struct {
	Options
	scene   *chaos.Scene
	cluster *cluster.Cluster
	origin  string // its address
	report  *Report
}

// Run runs all phases.
func Run(ctx context.Context, o Options) (*Report, error) {
	dir, err := os.MkdirTemp("", "overload")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &runner{Options: o, scene: chaos.NewScene(ctx, dir), report: &Report{Options: o, Memory: map[string][]Sample{}}}
	defer r.scene.Close()
	err = chaos.Attempt(func() {
		r.origin = startOrigin(r.scene)
		r.cluster = cluster.Start(r.scene, cluster.Options{Instances: instances, Limits: limitFile, MaxWait: maxWait, Origin: r.origin, Master: true, Rules: tookRules})
		r.cluster.Settle()
	})
	if err != nil {
		return nil, err
	}
	watching, enough := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(watching) })
	err = r.phases(ctx)
	enough()
	watch.Wait()
	r.keep()
	r.report.Problems = append(r.report.Problems, r.scene.Errors()...)
	return r.report, errors.Join(err, ctx.Err())
}

// keep leaves what the processes wrote last.
func (r *runner) keep() {
	for name, p := range r.cluster.Processes() {
		if err := os.WriteFile(filepath.Join(r.Dir, name+".log"), []byte(p.Output()), 0o600); err != nil {
			r.say("%v", err)
		}
	}
}

func (r *runner) phases(ctx context.Context) error {
	if err := r.measure(ctx); err != nil {
		return err
	}
	calm := &calm{visits: map[string][]visit{}}
	calming, enough := context.WithCancel(ctx)
	defer enough()
	var visitors sync.WaitGroup
	visitors.Go(func() { calm.run(calming, r.cluster.Addresses()) })
	clock.Sleep(ctx, calmFor)
	if _, err := takeArrived(r.origin, time.Now(), time.Now()); err != nil {
		return err
	}
	err := r.overload(ctx)
	if err == nil {
		err = r.storm()
	}
	enough()
	visitors.Wait()
	for _, p := range []*Phase{&r.report.Flood, &r.report.Storm} {
		for _, kind := range calmKinds {
			p.Calm = append(p.Calm, calm.judge(kind, p.Begin, p.End))
		}
	}
	return err
}

// measure finds out how many requests a second the cluster can serve, of users whom HAProxy admits by itself. They have credit only
// after they were asked about: so what counts is the second time.
func (r *runner) measure(ctx context.Context) error {
	for range 2 {
		f, t := Flood{Targets: r.cluster.Addresses(), Seed: r.Seed, Users: "crowd", Rate: 50_000, For: measureFor, Conns: 32, Patience: patience}, &Tally{}
		if err := f.send(ctx, t); err != nil {
			return err
		}
		r.report.Capacity = float64(t.Admitted) / measureFor.Seconds()
	}
	r.say("the cluster serves %.0f requests a second", r.report.Capacity)
	return nil
}

// descriptors are how many files this process may have open. (Go raises the limit as far as it may when a program starts.)
func descriptors() (int, error) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return int(min(limit.Cur, 1<<20)), err
}

// overload offers far more than can be served, and looks at what becomes of it, and whether limits are exact again.
func (r *runner) overload(ctx context.Context) error {
	files, err := descriptors()
	if err != nil {
		return err
	}
	// Two slices of a flood overlap, and the calm need some.
	conns := min(4000, (files-1000)/(2*instances))
	f := Flood{Targets: r.cluster.Addresses(), Seed: r.Seed, Users: "all", Rate: r.Times * r.report.Capacity, For: r.Duration, Conns: conns, Patience: patience}
	p := &r.report.Flood
	p.Name, p.Begin = fmt.Sprintf("%.0f requests a second for %v on %d connections", f.Rate, r.Duration, instances*conns), time.Now()
	r.say("%s", p.Name)
	before := r.counters()
	err = f.send(ctx, &p.Tally)
	p.End = time.Now()
	r.report.Counted = r.counters()
	for name, n := range before {
		r.report.Counted[name] -= n
	}
	if err != nil || !clock.Sleep(ctx, calmFor) {
		return err
	}
	if p.Arrived, err = takeArrived(r.origin, p.Begin, p.End); err != nil {
		return err
	}
	hot := Flood{Targets: r.cluster.Addresses(), Seed: r.Seed, Users: "hot", Rate: 2 * few * float64(limitOf("hot-").requests), For: exactFor, Conns: 100, Patience: patience}
	before = r.counters()
	begun := time.Now()
	if err := hot.send(ctx, &Tally{}); err != nil {
		return err
	}
	ended := time.Now()
	r.report.CountedAfter = r.counters()
	for name, n := range before {
		r.report.CountedAfter[name] -= n
	}
	after, err := takeArrived(r.origin, begun, ended)
	r.report.After = after.Limits
	return err
}

// told are the metrics by which one sees what agents do who have too much to do.
var told = regexp.MustCompile(`^(sluice_spop_handler_seconds_bucket\{le="(0.01|0.03|0.1|\+Inf)"\}|sluice_(verdict_timeouts|redis_losses|credit_withdrawals|spop_panics|spop_refused_connections)_total|sluice_requests_total\{.*\}|sluice_refusals_total\{.*\}) (\S+)`)

// counters are those of all agents together.
func (r *runner) counters() map[string]float64 {
	sums := map[string]float64{}
	for _, in := range r.cluster.Instances {
		text, err := cluster.Get(in.Admin, "/metrics")
		if err != nil {
			r.report.Problems = append(r.report.Problems, err.Error())
		}
		for line := range strings.Lines(text) {
			if m := told.FindStringSubmatch(line); m != nil {
				n, _ := strconv.ParseFloat(m[len(m)-1], 64)
				sums[m[1]] += n
			}
		}
	}
	return sums
}

// storm opens very many connections at once, from as many processes as have file descriptors for them, and sends a request on each.
func (r *runner) storm() error {
	files, err := descriptors()
	if err != nil {
		return err
	}
	processes := (r.Connections + files - 1001) / (files - 1000)
	each := r.Connections / processes
	f := Flood{Targets: r.cluster.Addresses(), Users: "crowd", Rate: float64(each) / stormFor.Seconds(), For: stormFor, Conns: each / instances, Ahead: each / instances, Patience: calmPatience}
	p := &r.report.Storm
	p.Name, p.Begin = fmt.Sprintf("%d connections at once", r.Connections), time.Now()
	r.say("%s, of %d processes", p.Name, processes)
	var clients []*proctest.Process
	for i := range processes {
		f.Seed = r.Seed + uint64(i)
		text, err := json.Marshal(f)
		if err != nil {
			return err
		}
		err = chaos.Attempt(func() { clients = append(clients, startSelf(r.scene, "clients", string(text))) })
		if err != nil {
			return err
		}
	}
	for _, c := range clients {
		for c.Running() && clock.Sleep(r.scene.Context(), 100*time.Millisecond) {
		}
		var t Tally
		if err := json.Unmarshal([]byte(c.Output()), &t); err != nil {
			return fmt.Errorf("clients said %q: %w", c.Output(), err)
		}
		p.merge(&t)
	}
	p.End = time.Now()
	clock.Sleep(r.scene.Context(), calmFor)
	p.Arrived, err = takeArrived(r.origin, p.Begin, p.End)
	return err
}

// watch samples all processes each second, and tells each 10 s.
func (r *runner) watch(ctx context.Context) {
	ended := map[string]bool{}
	for n := 1; clock.Sleep(ctx, time.Second); n++ {
		all := r.cluster.Processes()
		var line strings.Builder
		for _, name := range slices.Sorted(maps.Keys(all)) {
			p := all[name]
			if !p.Running() && !ended[name] {
				ended[name] = true
				output := p.Output()
				r.report.Problems = append(r.report.Problems, fmt.Sprintf("%s ended by itself: %s", name, output[max(0, len(output)-4000):]))
			}
			s := Sample{At: time.Now(), MiB: cluster.MemoryOf(p.Pid()) / (1 << 20)}
			r.report.Memory[name] = append(r.report.Memory[name], s)
			fmt.Fprintf(&line, " %s %.0f", name, s.MiB)
		}
		open := r.connectionsOpen()
		r.report.Open = max(r.report.Open, open)
		if n%10 == 0 {
			r.say("%d connections, MiB:%s", open, line.String())
		}
	}
}

// connectionsOpen are those of clients of all HAProxies.
func (r *runner) connectionsOpen() (sum int) {
	for _, in := range r.cluster.Instances {
		text, err := in.Tell("show info")
		if err != nil {
			continue // a HAProxy that has too much to do answers late
		}
		if _, rest, found := strings.Cut(text, "\nCurrConns: "); found {
			var n int
			_, _ = fmt.Sscan(rest, &n)
			sum += n
		}
	}
	return sum
}

func (r *runner) say(format string, args ...any) {
	fmt.Fprintf(r.Out, time.Now().UTC().Format("15:04:05")+"  "+format+"\n", args...)
}
