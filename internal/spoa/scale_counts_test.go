package spoa

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// counts are what has been counted since the processes started. Those of a span are the
// difference of two.
type counts struct {
	seconds float64
	calls   map[string]float64 // of Redis by the agents and polygen, by operation
	failed  float64            // of these, without an answer
	nodes   []nodeCounts       // the masters' first
	agents  float64            // seconds of CPU, of the fleet's HAProxies too
	polygen float64            // seconds of CPU
	memory  [2]float64         // bytes at the end: of the agents, with the load generator, and of polygen
	read    float64            // bytes that polygen has read
	usage   float64            // entries of usage that polygen was told of
	delays  bucketCounts       // from polygen's decision to the agents
	loops   bucketCounts       // of polygen

	timeouts float64 // verdicts without Redis' answer
	losses   float64 // how often an agent went on without Redis
}

// nodeCounts are those of one Redis.
type nodeCounts struct {
	cpu                         float64 // seconds
	in, out                     float64 // bytes, without replication
	scripts, scriptMicroseconds float64
	publishes, publishMicros    float64
}

var scaleBegan = time.Now()

// count reads all counters. What the reading itself costs comes before the clocks.
func count(b *testing.B, f *fleet, polygen *cluster.Polygen, redis []string) counts {
	c := counts{calls: make(map[string]float64)}
	for _, e := range f.edges {
		families, err := e.registry.Gather()
		if err != nil {
			b.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if h := m.GetHistogram(); h != nil && family.GetName() == "sluice_policy_delay_seconds" {
					for _, bucket := range h.GetBucket() {
						c.delays.add(bucket.GetUpperBound(), float64(bucket.GetCumulativeCount()))
					}
					c.delays.add(math.Inf(1), float64(h.GetSampleCount()))
				}
				if family.GetName() != "sluice_bus_requests_total" {
					continue
				}
				// Its labels are sorted: op, result.
				c.addCalls(m.GetLabel()[0].GetValue(), m.GetLabel()[1].GetValue(), m.GetCounter().GetValue())
			}
		}
		c.losses += testutil.ToFloat64(e.metrics.losses)
		c.timeouts += testutil.ToFloat64(e.metrics.timeouts)
	}
	text, err := cluster.Get(polygen.Admin, "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range polygenCalls.FindAllStringSubmatch(text, -1) {
		c.addCalls(m[1], m[2], number(b, m[3]))
	}
	for _, m := range polygenUsage.FindAllStringSubmatch(text, -1) {
		c.usage += number(b, m[1])
	}
	for _, m := range polygenLoops.FindAllStringSubmatch(text, -1) {
		c.loops.add(number(b, m[1]), number(b, m[2]))
	}
	for _, addr := range redis {
		c.nodes = append(c.nodes, countNode(b, addr))
	}
	cpu, err := polygen.CPU()
	if err != nil {
		b.Fatal(err)
	}
	c.polygen, c.read = cpu.Seconds(), bytesRead(b, polygen.Process)
	c.memory = [2]float64{resident(b, os.Getpid()), resident(b, polygen.Pid())}
	c.agents = ownCPU(b)
	c.seconds = time.Since(scaleBegan).Seconds()
	return c
}

var (
	polygenUsage = regexp.MustCompile(`(?m)^sluice_usage_entries_total (.*)$`)
	polygenLoops = regexp.MustCompile(`(?m)^sluice_polygen_loop_seconds_bucket\{le="(.*)"\} (.*)$`)
)

// bucketCounts is a histogram: it has, by upper bound, how many were not above it.
type bucketCounts map[float64]float64

func (h *bucketCounts) add(le, n float64) {
	if *h == nil {
		*h = make(bucketCounts)
	}
	(*h)[le] += n
}

func (h bucketCounts) minus(before bucketCounts) bucketCounts {
	d := make(bucketCounts)
	for le, n := range h {
		d[le] = n - before[le]
	}
	return d
}

// quantile is the bound of the bucket that it is in.
func (h bucketCounts) quantile(q float64) float64 {
	for _, le := range slices.Sorted(maps.Keys(h)) {
		if h[le] >= q*h[math.Inf(1)] {
			return le
		}
	}
	return math.NaN()
}

var polygenCalls = regexp.MustCompile(`(?m)^sluice_bus_requests_total\{op="(.*)",result="(.*)"\} (.*)$`)

func (c *counts) addCalls(op, result string, n float64) {
	c.calls[op] += n
	if result != "ok" {
		c.failed += n
	}
}

// ownCPU is how many seconds of CPU this process has used.
func ownCPU(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// bytesRead is what a process has read so far, from connections too.
func bytesRead(b *testing.B, p *proctest.Process) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.Pid()))
	if err != nil {
		b.Fatal(err)
	}
	n, _, _ := strings.Cut(strings.TrimPrefix(string(text), "rchar: "), "\n")
	return number(b, n)
}

// resident is how much memory a process has.
func resident(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	return number(b, strings.Fields(string(text))[1]) * float64(os.Getpagesize())
}

func countNode(b *testing.B, addr string) (n nodeCounts) {
	info := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(proctest.RedisCommand(b, addr, "INFO", "all")))
	for lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		info[name] = value
	}
	value := func(name string) float64 { return number(b, info[name]) }
	command := func(name string) (calls, microseconds float64) {
		_, _ = fmt.Sscanf(info["cmdstat_"+name], "calls=%g,usec=%g", &calls, &microseconds) // none: never called
		return calls, microseconds
	}
	n.cpu = value("used_cpu_sys") + value("used_cpu_user")
	n.in = value("total_net_input_bytes") - value("total_net_repl_input_bytes")
	n.out = value("total_net_output_bytes") - value("total_net_repl_output_bytes")
	n.scripts, n.scriptMicroseconds = command("evalsha")
	n.publishes, n.publishMicros = command("publish")
	own, ownMicros := command("spublish") // over channels of single agents
	n.publishes, n.publishMicros = n.publishes+own, n.publishMicros+ownMicros
	return n
}

func number(b *testing.B, text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// minus is what was counted between two readings.
func (c counts) minus(before counts) counts {
	d := counts{memory: c.memory, calls: make(map[string]float64), seconds: c.seconds - before.seconds, agents: c.agents - before.agents, polygen: c.polygen - before.polygen,
		read: c.read - before.read, usage: c.usage - before.usage, delays: c.delays.minus(before.delays), loops: c.loops.minus(before.loops), timeouts: c.timeouts - before.timeouts, failed: c.failed - before.failed, losses: c.losses - before.losses}
	for op, n := range c.calls {
		d.calls[op] = n - before.calls[op]
	}
	for i, n := range c.nodes {
		was := before.nodes[i]
		d.nodes = append(d.nodes, nodeCounts{n.cpu - was.cpu, n.in - was.in, n.out - was.out,
			n.scripts - was.scripts, n.scriptMicroseconds - was.scriptMicroseconds, n.publishes - was.publishes, n.publishMicros - was.publishMicros})
	}
	return d
}

// allCalls is how often Redis was called.
func (c counts) allCalls() (all float64) {
	for _, n := range c.calls {
		all += n
	}
	return all
}

// redis adds up what was counted of the nodes.
func (c counts) redis() (all nodeCounts) {
	for _, n := range c.nodes {
		all.cpu, all.in, all.out = all.cpu+n.cpu, all.in+n.in, all.out+n.out
		all.scripts, all.scriptMicroseconds = all.scripts+n.scripts, all.scriptMicroseconds+n.scriptMicroseconds
		all.publishes, all.publishMicros = all.publishes+n.publishes, all.publishMicros+n.publishMicros
	}
	return all
}
