package spoa

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

const (
	scaleLimit  = 100 // requests per second of each user
	scaleLimits = `version: 1
default_tier: free
tiers: {free: {requests: {GET: 100}, concurrent: 20, bandwidth: {down: 10MiB}}}
`
	scaleExponent = 1.1
	scaleShards   = 16

	scaleIdle    = 5 * time.Second  // nobody asks
	scaleWarm    = 5 * time.Second  // questions that are not counted
	scaleMeasure = 15 * time.Second // those that are
)

// BenchmarkScale shows what a fleet costs: agents in this process, each with its own connections
// to a Redis Cluster of six processes, and one polygen. No HAProxy runs: the benchmark asks the
// questions and tells what is in progress, as if HAProxy had no credit and refused nobody by
// itself. All sizes of the fleet have the same questions, of users as they are in life: a few send most.
// Agents wait for Redis as long as it takes, so that a busy machine does not make another load of it.
//
// SLUICE_SCALE_AGENTS (10,100,400), SLUICE_SCALE_RATE (200 questions a second) and
// SLUICE_SCALE_USERS (1000000) change that. Two cores have no room for more: agents that lose Redis
// for want of a processor go on alone, cost nothing, and are not exact.
func BenchmarkScale(b *testing.B) {
	rate, users := scaleNumber(b, "SLUICE_SCALE_RATE", 200), scaleNumber(b, "SLUICE_SCALE_USERS", 1_000_000)
	for range b.N {
		var results []scaleResult
		for _, n := range scaleSizes(b, "10,100,400") {
			results = append(results, runScale(b, n, zipfLoad(rate, users)))
			fmt.Printf("\nA fleet: %d questions a second in all, of %d users, Zipf %v, who may have %d requests/s, 20 in progress and 10 MiB/s each;\n", rate, users, scaleExponent, scaleLimit)
			printScale(results)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// scaleSizes are the numbers of agents to measure.
func scaleSizes(b *testing.B, byDefault string) (sizes []int) {
	text := os.Getenv("SLUICE_SCALE_AGENTS")
	if text == "" {
		text = byDefault
	}
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 2 {
			b.Fatalf("SLUICE_SCALE_AGENTS=%s: want numbers from 2 on, with commas between them", text)
		}
		sizes = append(sizes, n)
	}
	return sizes
}

func scaleNumber(b *testing.B, variable string, byDefault uint64) uint64 {
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < 2 {
		b.Fatalf("%s=%s: want a number from 2 on", variable, text)
	}
	return n
}

// scaleResult is what a fleet of one size cost.
type scaleResult struct {
	agents          int
	idle, load      counts
	asked, admitted int     // of all questions
	worst           float64 // second of any user: admitted ÷ limit
}

func runScale(b *testing.B, n int, l scaleLoad) (r scaleResult) {
	// The whole of a size ends before the next one begins.
	b.Run(fmt.Sprint("agents=", n), func(b *testing.B) {
		redis, _ := proctest.RedisCluster(b)
		polygen := startScalePolygen(b, redis, l.limits)
		f := startFleet(b, n, bus.Options{Addresses: redis, Cluster: true, Shards: scaleShards, Timeout: 5 * time.Second})
		time.Sleep(2 * time.Second) // all have heard of each other
		before := count(b, f, polygen, redis)
		time.Sleep(scaleIdle)
		r = scaleResult{agents: n, idle: count(b, f, polygen, redis).minus(before)}

		offered := make(chan *load.Report, 1)
		go func() { offered <- f.offer(l, scaleWarm+scaleMeasure) }()
		time.Sleep(scaleWarm)
		before = count(b, f, polygen, redis)
		time.Sleep(scaleMeasure - 500*time.Millisecond) // the load is still on
		r.load = count(b, f, polygen, redis).minus(before)
		r.judge(<-offered, l.limit)
		f.stop()
	})
	return r
}

// judge compares what was admitted of each user in each whole second with the limit.
func (r *scaleResult) judge(report *load.Report, limit int) {
	r.asked, r.admitted = len(report.Results), len(report.Admitted().Results)
	byUser := make(map[int32][]load.Result)
	for _, x := range report.Results {
		byUser[x.User] = append(byUser[x.User], x)
	}
	for _, results := range byUser {
		if len(results) > limit { // no second of the others can have more
			one := *report
			one.Results = results
			r.worst = max(r.worst, one.Ratios(limit, 2*time.Millisecond).Max)
		}
	}
}

func startScalePolygen(b *testing.B, redis []string, limits string) *cluster.Polygen {
	dir := b.TempDir()
	command, file := filepath.Join(dir, "polygen"), filepath.Join(dir, "limits.yaml")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", command, "github.com/sluice-qos/sluice/cmd/polygen").CombinedOutput(); err != nil {
		b.Fatalf("build polygen: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(limits), 0o600); err != nil {
		b.Fatal(err)
	}
	p := &cluster.Polygen{Admin: proctest.FreeAddr(b)}
	p.Process = proctest.Start(b, nil, command, "--limits", file, "--redis", strings.Join(redis, ","), "--redis-shards", fmt.Sprint(scaleShards), "--admin", p.Admin)
	proctest.Eventually(b, "polygen leads", func() error {
		leads, err := cluster.ReadMetric(p.Admin, "sluice_polygen_leading")
		if err == nil && leads != 1 {
			err = errors.New("it does not")
		}
		return err
	})
	return p
}

// figure is one row of the table.
type figure struct {
	name   string
	digits int
	of     func(c *counts, agents float64) float64
}

var figures = []figure{
	{"Redis: calls/s", 0, func(c *counts, _ float64) float64 { return c.allCalls() / c.seconds }},
	{"heartbeats, % of these", 0, func(c *counts, _ float64) float64 { return 100 * c.calls["register"] / c.allCalls() }},
	{"µs per script", 0, func(c *counts, _ float64) float64 { return c.redis().scriptMicroseconds / c.redis().scripts }},
	{"messages published/s", 0, func(c *counts, _ float64) float64 { return c.redis().publishes / c.seconds }},
	{"µs per publish", 0, func(c *counts, _ float64) float64 { return c.redis().publishMicros / c.redis().publishes }},
	{"kB/s in", 0, func(c *counts, _ float64) float64 { return c.redis().in / 1e3 / c.seconds }},
	{"kB/s out", 0, func(c *counts, _ float64) float64 { return c.redis().out / 1e3 / c.seconds }},
	{"kB/s to each agent", 2, func(c *counts, agents float64) float64 { return (c.redis().out - c.read) / 1e3 / c.seconds / agents }},
	{"ms from a hint's decision to an agent, p99", 1, func(c *counts, _ float64) float64 { return 1e3 * c.delays.quantile(.99) }},
	{"ms of polygen's loop, p99", 1, func(c *counts, _ float64) float64 { return 1e3 * c.loops.quantile(.99) }},
	{"entries of usage to polygen/s", 0, func(c *counts, _ float64) float64 { return c.usage / c.seconds }},
	{"kB/s to polygen", 0, func(c *counts, _ float64) float64 { return c.read / 1e3 / c.seconds }},
	{"CPU %: busiest master", 1, func(c *counts, _ float64) float64 { return percent(c, c.nodes[c.busiest()].cpu) }},
	{"second master", 1, func(c *counts, _ float64) float64 { return percent(c, c.nodes[(c.busiest()+1)%3].cpu) }},
	{"third master", 1, func(c *counts, _ float64) float64 { return percent(c, c.nodes[(c.busiest()+2)%3].cpu) }},
	{"three replicas", 1, func(c *counts, _ float64) float64 { return percent(c, c.nodes[3].cpu+c.nodes[4].cpu+c.nodes[5].cpu) }},
	{"polygen", 1, func(c *counts, _ float64) float64 { return percent(c, c.polygen) }},
	{"all agents", 1, func(c *counts, _ float64) float64 { return percent(c, c.agents) }},
	{"MB of memory: each agent", 1, func(c *counts, agents float64) float64 { return c.memory[0] / 1e6 / agents }},
	{"polygen", 0, func(c *counts, _ float64) float64 { return c.memory[1] / 1e6 }},
	{"verdicts timed out", 0, func(c *counts, _ float64) float64 { return c.timeouts }},
	{"Redis lost", 0, func(c *counts, _ float64) float64 { return c.losses }},
	{"calls failed", 0, func(c *counts, _ float64) float64 { return c.failed }},
}

func percent(c *counts, cpu float64) float64 { return 100 * cpu / c.seconds }

// busiest is the index of the master with the most CPU.
func (c *counts) busiest() (most int) {
	for i := range 3 {
		if c.nodes[i].cpu > c.nodes[most].cpu {
			most = i
		}
	}
	return most
}

func printScale(results []scaleResult) {
	fmt.Printf("Redis Cluster of 3 masters and 3 replicas, %d shards. Without questions → with them; × is the growth per doubling of the\n"+
		"number of agents: 1 stays, 2 is linear. µs are those of INFO commandstats. The agents' CPU has the load generator's in it.\n", scaleShards)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	row := func(name string, cell func(r *scaleResult) string) {
		fmt.Fprint(w, name, "\t")
		for i := range results {
			fmt.Fprint(w, cell(&results[i]), "\t")
		}
	}
	row("agents", func(r *scaleResult) string { return fmt.Sprint(r.agents) })
	for i := 1; i < len(results); i++ {
		fmt.Fprintf(w, "× %d to %d\t", results[i-1].agents, results[i].agents)
	}
	fmt.Fprintln(w)
	for _, f := range slices.Concat(figures, operations(results)) {
		row(f.name, func(r *scaleResult) string {
			return fmt.Sprintf("%.*f → %.*f", f.digits, f.of(&r.idle, float64(r.agents)), f.digits, f.of(&r.load, float64(r.agents)))
		})
		for i := 1; i < len(results); i++ {
			fmt.Fprintf(w, "%s\t", f.growth(&results[i-1], &results[i]))
		}
		fmt.Fprintln(w)
	}
	row("questions/s", func(r *scaleResult) string {
		return fmt.Sprintf("%.0f", float64(r.asked)/(scaleWarm+scaleMeasure).Seconds())
	})
	fmt.Fprintln(w)
	row("of these admitted, %", func(r *scaleResult) string { return fmt.Sprintf("%.1f", 100*float64(r.admitted)/float64(r.asked)) })
	fmt.Fprintln(w)
	row("worst second ÷ limit", func(r *scaleResult) string { return fmt.Sprintf("%.3f", r.worst) })
	fmt.Fprintln(w)
}

// operations are the calls of Redis that there are more than one of in a second.
func operations(results []scaleResult) (all []figure) {
	last := results[len(results)-1].load
	for _, op := range slices.Sorted(maps.Keys(last.calls)) {
		if last.calls[op] > last.seconds {
			all = append(all, figure{"calls/s: " + op, 0, func(c *counts, _ float64) float64 { return c.calls[op] / c.seconds }})
		}
	}
	return all
}

// growth is by how much the figure grows if the number of agents doubles.
func (f *figure) growth(small, large *scaleResult) string {
	doublings := math.Log2(float64(large.agents) / float64(small.agents))
	of := func(then, now *counts) string {
		ratio := f.of(now, float64(large.agents)) / f.of(then, float64(small.agents))
		if math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio == 0 {
			return "–"
		}
		return fmt.Sprintf("%.2f", math.Pow(ratio, 1/doublings))
	}
	return of(&small.idle, &large.idle) + " → " + of(&small.load, &large.load)
}
