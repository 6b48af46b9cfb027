package bench

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// cheapOrigin answers from HAProxy itself, so that the origin is not what is
// measured.
const cheapOrigin = `
global
    nbthread 1
defaults
    mode http
    timeout client 60s
    timeout connect 5s
    timeout server 60s
frontend origin
    bind "${BIND}"
    http-request return status 200 content-type text/plain string "hello world, these are some sixty-four bytes of an object body..."
`

// costPairs is how often both are measured. A machine that others use as well is
// a fifth slower in some minutes: only runs next to each other can be compared.
const costPairs = 12

// BenchmarkLoadCost compares HAProxy with Sluice, for users below their limits,
// with the same HAProxy on the same file without Sluice's rules.
func BenchmarkLoadCost(b *testing.B) {
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		b.Fatal("wrk is not installed: as root, 'apt-get install wrk'")
	}
	for range b.N {
		origin := proctest.FreeAddr(b)
		file := filepath.Join(b.TempDir(), "origin.cfg")
		if err := os.WriteFile(file, []byte(cheapOrigin), 0o644); err != nil {
			b.Fatal(err)
		}
		pin(b, proctest.HAProxy(b, file, origin, "BIND="+origin), 1)

		plain, plainAddr := plainHAProxy(b, origin)
		c := cluster.Start(b, cluster.Options{Limits: limitFile(1_000_000), MaxWait: shippedWait, Origin: origin})
		sluice, agent := c.Instances[0].HAProxy, c.Instances[0].Agent
		pin(b, plain, 0)
		pin(b, sluice, 0)
		pin(b, agent, 1)

		t := newTable("Cost: HAProxy "+proctest.HAProxyVersion(b)+fmt.Sprintf(", one thread, keep-alive, 64-byte objects; wrk, 64 connections, %d runs of 2 s of each\n", costPairs)+
			"in turn: medians, and how far the middle half of the pairs is apart. HAProxy has one processor, all others share another",
			"", "requests/s", "HAProxy CPU µs/request", "agent CPU µs/request", "p50 µs, one client", "p50 µs, 200/s")
		var plainRuns, sluiceRuns []cost
		for i := range costPairs {
			one := func() { plainRuns = append(plainRuns, closedLoop(b, wrk, plainAddr, plain, nil)) }
			other := func() { sluiceRuns = append(sluiceRuns, closedLoop(b, wrk, c.Addresses()[0], sluice, agent)) }
			if i%2 == 1 { // neither is always the one that finds the machine warm
				one, other = other, one
			}
			one()
			other()
		}
		plainOne, sluiceOne := oneClient(b, wrk, plainAddr), oneClient(b, wrk, c.Addresses()[0])
		plainQuiet, sluiceQuiet := quiet(b, plainAddr), quiet(b, c.Addresses()[0])

		ratios, more := make([]float64, costPairs), make([]float64, costPairs)
		for i := range costPairs {
			ratios[i] = sluiceRuns[i].rate / plainRuns[i].rate
			more[i] = sluiceRuns[i].proxy - plainRuns[i].proxy
		}
		t.row("plain", median("%.0f", rates(plainRuns)), median("%.1f", proxies(plainRuns)), "", micro(plainOne), micro(plainQuiet))
		t.row("Sluice", median("%.0f", rates(sluiceRuns)), median("%.1f", proxies(sluiceRuns)), median("%.1f", agents(sluiceRuns)), micro(sluiceOne), micro(sluiceQuiet))
		t.row("Sluice against plain", middle("%.2f", ratios), middle("%+.1f", more), "",
			fmt.Sprintf("%+d", (sluiceOne-plainOne).Microseconds()), fmt.Sprintf("%+d", (sluiceQuiet-plainQuiet).Microseconds()))
		c.Stop()
	}
}

// pin keeps a process on one processor.
func pin(b *testing.B, p *proctest.Process, cpu int) {
	out, err := exec.Command("taskset", "-a", "-cp", strconv.Itoa(cpu), strconv.Itoa(p.Pid())).CombinedOutput()
	if err != nil {
		b.Fatalf("taskset: %v\n%s", err, out)
	}
}

type cost struct {
	rate         float64 // requests per second
	proxy, agent float64 // CPU µs per request
}

func rates(runs []cost) []float64   { return each(runs, func(c cost) float64 { return c.rate }) }
func proxies(runs []cost) []float64 { return each(runs, func(c cost) float64 { return c.proxy }) }
func agents(runs []cost) []float64  { return each(runs, func(c cost) float64 { return c.agent }) }

func each(runs []cost, of func(cost) float64) []float64 {
	values := make([]float64, len(runs))
	for i, run := range runs {
		values[i] = of(run)
	}
	return values
}

// median writes the middle one of the values.
func median(format string, values []float64) string {
	return fmt.Sprintf(format, quantile(values, 0.5))
}

// middle writes the median, and between what the middle half of the values lies.
func middle(format string, values []float64) string {
	return fmt.Sprintf(format+" ("+format+" to "+format+")", quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75))
}

// quantile interpolates between the values around q, from 0 to 1.
func quantile(values []float64, q float64) float64 {
	values = slices.Sorted(slices.Values(values))
	at := q * float64(len(values)-1)
	low := int(at)
	high := min(low+1, len(values)-1)
	return values[low] + (at-float64(low))*(values[high]-values[low])
}

var requestsIn = regexp.MustCompile(`(\d+) requests in ([\d.]+)s`)

// closedLoop runs wrk and returns rates and CPU per request.
func closedLoop(b *testing.B, wrk, addr string, proxy, agent *proctest.Process) cost {
	cpu := func(p *proctest.Process) time.Duration {
		if p == nil {
			return 0
		}
		d, err := p.CPU()
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	proxyBefore, agentBefore := cpu(proxy), cpu(agent)
	out, err := exec.Command("taskset", "-c", "1", wrk, "-t", "1", "-c", "64", "-d", "2s", "-H", "X-User: alice", "http://"+addr+"/").CombinedOutput()
	if err != nil {
		b.Fatalf("wrk: %v\n%s", err, out)
	}
	m := requestsIn.FindSubmatch(out)
	if m == nil || strings.Contains(string(out), "Non-2xx") {
		b.Fatalf("wrk printed:\n%s", out)
	}
	n, _ := strconv.ParseFloat(string(m[1]), 64)
	seconds, _ := strconv.ParseFloat(string(m[2]), 64)
	return cost{
		rate:  n / seconds,
		proxy: (cpu(proxy) - proxyBefore).Seconds() * 1e6 / n,
		agent: (cpu(agent) - agentBefore).Seconds() * 1e6 / n,
	}
}

var medianIn = regexp.MustCompile(`50%\s+([\d.]+)(us|ms)`)

// oneClient is the median answer time that a single connection sees which asks
// again at once.
func oneClient(b *testing.B, wrk, addr string) time.Duration {
	out, err := exec.Command("taskset", "-c", "1", wrk, "-t", "1", "-c", "1", "-d", "5s", "--latency", "-H", "X-User: alice", "http://"+addr+"/").CombinedOutput()
	m := medianIn.FindSubmatch(out)
	if err != nil || m == nil {
		b.Fatalf("wrk: %v\n%s", err, out)
	}
	d, err := time.ParseDuration(string(m[1]) + string(m[2]))
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// quiet is the median answer time on an idle machine, from when a request was sent.
func quiet(b *testing.B, addr string) time.Duration {
	r, err := load.Run(b.Context(), load.Spec{
		Targets: []load.Target{{Address: addr}}, Rate: 200, Duration: 5 * time.Second, Conns: 1, Ahead: 1,
		Requests: load.Users("GET", "/", "alice"), Tick: 100 * time.Microsecond,
	})
	if err != nil {
		b.Fatal(err)
	}
	return r.Service().Quantile(0.5)
}

var sluiceRules = regexp.MustCompile(`(?m)^    (http-request |acl |filter |use_backend |default_backend |lua-).*\n`)

// plainHAProxy runs the shipped file without the rules in its frontend.
func plainHAProxy(b *testing.B, origin string) (*proctest.Process, string) {
	text, err := fs.ReadFile(haproxy.Files, "haproxy.cfg")
	if err != nil {
		b.Fatal(err)
	}
	before, frontend, ok := strings.Cut(string(text), "frontend http\n")
	frontend, after, ok2 := strings.Cut(frontend, "\nbackend origin\n")
	backend, _, ok3 := strings.Cut(after, "\nbackend origin_limited\n")
	if !ok || !ok2 || !ok3 {
		b.Fatal("haproxy.cfg is not as expected")
	}
	file := filepath.Join(b.TempDir(), "plain.cfg")
	before, _, ok4 := strings.Cut(before, "    # One Lua for each thread")
	_, peers, ok5 := strings.Cut(string(text), "\npeers sluice\n")
	peers, _, ok6 := strings.Cut(peers, "frontend http\n")
	if !ok4 || !ok5 || !ok6 {
		b.Fatal("haproxy.cfg is not as expected")
	}
	text = []byte(before + "\npeers sluice\n" + peers + "frontend http\n" + sluiceRules.ReplaceAllString(frontend, "") +
		"    default_backend origin\n\nbackend origin\n" + backend)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		b.Fatal(err)
	}
	addr := proctest.FreeAddr(b)
	p := proctest.HAProxy(b, file, addr, "SLUICE_BIND="+addr, "SLUICE_ORIGIN="+origin, "SLUICE_THREADS=1", "SLUICE_PEER="+proctest.FreeAddr(b))
	return p, addr
}
