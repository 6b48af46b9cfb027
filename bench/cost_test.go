package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// cheapOrigin answers from HAProxy itself, so that the origin is not what is
// measured.
const cheapOrigin = cheapFrontend + `    http-request return status 200 content-type text/plain string "hello world, these are some sixty-four bytes of an object body..."
`

// cheapFrontend is that of an origin whose answer comes next.
const cheapFrontend = `
global
    nbthread 1
defaults
    mode http
    timeout client 60s
    timeout connect 5s
    timeout server 60s
frontend origin
    bind "${BIND}"
`

// plainProxy is the HAProxy that Sluice is compared with: a reverse proxy as
// people write it, with HAProxy's own defaults for buffers and all else.
const plainProxy = `
global
    log stdout format raw daemon
    .if defined(THREADS)
    nbthread "${THREADS-1}"
    .endif
defaults
    mode http
    log global
    option httplog
    option dontlog-normal
    timeout client 60s
    timeout connect 5s
    timeout server 60s
frontend http
    bind "${BIND}"
    option forwardfor
    default_backend origin
backend origin
    server origin "${ORIGIN}"
`

// costLimits are limits of the size that people set. No user comes near them:
// 64 connections whose requests take turns among 1000 users and more.
var costLimits = []struct{ name, text string }{
	{"rate", `requests: {GET: 100, "*": 200}`},
	{"rate, in progress", `requests: {GET: 100, "*": 200}, concurrent: 50`},
	{"rate, in progress, bandwidth", `requests: {GET: 100, "*": 200}, concurrent: 50, bandwidth: {down: 10MiB, up: 5MiB}`},
}

// A costCase is one comparison of plain HAProxies with clusters of as many
// instances.
type costCase struct {
	instances, users int
	pinned           bool // HAProxies: one thread each, on a processor of their own
}

func (c costCase) String() string {
	return fmt.Sprintf("%d × HAProxy, %d users, %s", c.instances, c.users, map[bool]string{
		true:  "one thread each, all on one processor, everything else on the other",
		false: "threads as HAProxy chooses, nothing pinned",
	}[c.pinned])
}

const (
	costConnections = 64
	costSlice       = 100 * time.Millisecond
	costCycles      = 40 // how often all variants take turns
)

// BenchmarkLoadCost compares HAProxy with Sluice, for users below their limits,
// with a plain HAProxy that has its own default buffers.
func BenchmarkLoadCost(b *testing.B) {
	for range b.N {
		fmt.Printf("\nCost: HAProxy %s, keep-alive, 64-byte objects, users in turn; %d connections, or one client that asks again at once.\n"+
			"Plain HAProxy and Sluice take turns in slices of %v, %d times each: medians of the differences and ratios within\n"+
			"each turn, and between what the middle half of them lies\n", testkit.HAProxyVersion(b), costConnections, costSlice, costCycles)
		for _, c := range []costCase{
			{instances: 1, users: 1000, pinned: true},
			{instances: 1, users: 50_000, pinned: true},
			{instances: 2, users: 1000, pinned: true},
			{instances: 2, users: 50_000, pinned: true},
			{instances: 1, users: 1000},
			{instances: 2, users: 50_000},
		} {
			// A case of its own ends its processes before the next one starts.
			b.Run("case", func(b *testing.B) { compareCost(b, c) })
		}
	}
}

// A variant is one of the set-ups that take turns.
type variant struct {
	name            string
	proxies, agents []*testkit.Process
	others          []*testkit.Process // polygen and Redis
	cluster         *cluster.Cluster   // nil: plain HAProxy
	busy, single    *load.Slicer
	turns           []turn
	singleTurns     []load.Slice
	met             int         // requests before anything was measured
	notOK           map[int]int // answers by status, although all users are below their limits
	answers         int         // of all turns
	questions       float64     // that the agents were asked meanwhile
}

// A turn is what one slice of a variant measured.
type turn struct {
	rate                  float64 // requests per second
	proxy, agent, control float64 // CPU µs per request
}

func compareCost(b *testing.B, c costCase) {
	origin := testkit.FreeAddr(b)
	file := filepath.Join(b.TempDir(), "origin.cfg")
	if err := os.WriteFile(file, []byte(cheapOrigin), 0o644); err != nil {
		b.Fatal(err)
	}
	originProcess := testkit.HAProxy(b, file, origin, "BIND="+origin)

	variants := []*variant{plainVariant(b, c, origin)}
	for _, l := range costLimits {
		threads := 1
		if !c.pinned {
			threads = runtime.NumCPU()
		}
		s := cluster.Start(b, cluster.Options{Instances: c.instances, MaxWait: shippedWait, Origin: origin, Threads: threads,
			Limits: "version: 1\ndefault_tier: free\ntiers: {free: {" + l.text + "}}\n"})
		v := &variant{name: l.name, notOK: make(map[int]int), cluster: s, others: []*testkit.Process{s.Redis, s.Polygens[0].Process}}
		for _, in := range s.Instances {
			v.proxies, v.agents = append(v.proxies, in.HAProxy), append(v.agents, in.Agent)
		}
		v.connect(b, s.Addresses(), c.users)
		variants = append(variants, v)
	}
	if c.pinned {
		pin(b, originProcess.Pid(), 1)
		for _, v := range variants {
			for _, p := range v.proxies {
				pin(b, p.Pid(), 0)
			}
			for _, p := range slices.Concat(v.agents, v.others) {
				pin(b, p.Pid(), 1)
			}
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pin(b, 0, 1)
		defer unpin(b)
	}

	meet(b, variants, c.users*c.instances)
	for _, v := range variants {
		v.questions = -v.asked(b)
	}
	takeTurns(variants, func(v *variant) { v.turn(b) })
	for _, v := range variants {
		v.questions += v.asked(b)
	}
	takeTurns(variants, func(v *variant) { v.singleTurn(b) })

	rows := [][]string{{"limits", "requests/s", "of plain", "HAProxy CPU µs/request", "more than plain", "questions a request", "agent µs", "Redis, polygen µs",
		"one client p50 µs", "more", "p99 µs", "more", "not 200"}}
	plain := variants[0]
	for _, v := range variants {
		paired := func(of func(v *variant, i int) float64, combine func(mine, plains float64) float64) []float64 {
			values := make([]float64, costCycles)
			for i := range values {
				values[i] = combine(of(v, i), of(plain, i))
			}
			return values
		}
		mine := func(mine, _ float64) float64 { return mine }
		ratio := func(mine, plains float64) float64 { return mine / plains }
		less := func(mine, plains float64) float64 { return mine - plains }
		rate := func(v *variant, i int) float64 { return v.turns[i].rate }
		proxy := func(v *variant, i int) float64 { return v.turns[i].proxy }
		agent := func(v *variant, i int) float64 { return v.turns[i].agent }
		control := func(v *variant, i int) float64 { return v.turns[i].control }
		p50 := func(v *variant, i int) float64 { return micros(v.singleTurns[i].Quantile(0.5)) }
		p99 := func(v *variant, i int) float64 { return micros(v.singleTurns[i].Quantile(0.99)) }
		if v == plain {
			rows = append(rows, []string{"plain", median("%.0f", paired(rate, mine)), "", median("%.1f", paired(proxy, mine)), "", "", "", "",
				median("%.0f", paired(p50, mine)), "", median("%.0f", paired(p99, mine)), "", ""})
			continue
		}
		rows = append(rows, []string{v.name, median("%.0f", paired(rate, mine)), middle("%.2f", paired(rate, ratio)),
			median("%.1f", paired(proxy, mine)), middle("%+.1f", paired(proxy, less)),
			fmt.Sprintf("%.4f", v.questions/float64(v.answers)), median("%.1f", paired(agent, mine)), median("%.1f", paired(control, mine)),
			median("%.0f", paired(p50, mine)), middle("%+.0f", paired(p50, less)),
			median("%.0f", paired(p99, mine)), middle("%+.0f", paired(p99, less)), strings.TrimPrefix(fmt.Sprint(v.notOK), "map")})
	}
	printTable("Cost, "+c.String(), rows)
}

// takeTurns lets all variants run once in each cycle, in alternating order, so
// that none always finds the machine as the same other one left it.
func takeTurns(variants []*variant, run func(v *variant)) {
	for cycle := range costCycles {
		order := slices.Clone(variants)
		if cycle%2 == 1 {
			slices.Reverse(order)
		}
		for _, v := range order {
			run(v)
		}
	}
}

func plainVariant(b *testing.B, c costCase, origin string) *variant {
	file := filepath.Join(b.TempDir(), "plain.cfg")
	if err := os.WriteFile(file, []byte(plainProxy), 0o644); err != nil {
		b.Fatal(err)
	}
	v := &variant{notOK: make(map[int]int)}
	var addresses []string
	for range c.instances {
		a := testkit.FreeAddr(b)
		env := []string{"BIND=" + a, "ORIGIN=" + origin}
		if c.pinned {
			env = append(env, "THREADS=1")
		}
		v.proxies = append(v.proxies, testkit.HAProxy(b, file, a, env...))
		addresses = append(addresses, a)
	}
	v.connect(b, addresses, c.users)
	return v
}

// connect opens the connections of the clients, who name so many users in turn.
func (v *variant) connect(b *testing.B, addresses []string, users int) {
	requests := make([]load.Request, users)
	for i := range requests {
		requests[i].Headers = []byte("X-User: user-" + strconv.Itoa(i) + "\r\n")
	}
	var err error
	if v.busy, err = newSlicer(addresses, costConnections, requests); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(v.busy.Close)
	if v.single, err = newSlicer(addresses[:1], 1, requests); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(v.single.Close)
}

// meet opens the connections, and has every user make a request at about each instance, until one request of a hundred at
// most is asked about, as is the first one of ten minutes: that is not what a user costs from then on. After a storm of so many
// first requests this takes up to half a minute. The variants take turns, lest a connection be closed because it was idle.
func meet(b *testing.B, variants []*variant, requests int) {
	const slices, longest = 5, 60 // of a round, and rounds
	settled := 0
	for round := 0; settled < len(variants) && round < longest; round++ {
		settled = 0
		for _, v := range variants {
			asked, answers := -v.asked(b), 0
			for range slices {
				answers += v.slice(b, v.busy).Answers
			}
			asked += v.asked(b)
			v.met += answers
			if v.met >= requests && asked <= float64(answers)/100 {
				settled++
			}
			v.notOK = make(map[int]int)
		}
	}
}

// asked is how many questions the agents of a variant have had so far.
func (v *variant) asked(b *testing.B) float64 {
	if v.cluster == nil {
		return 0
	}
	return sum(b, v.cluster, "sluice_requests_total", "verdict=") - sum(b, v.cluster, "sluice_requests_total", `verdict="credit"`)
}

// turn is one slice of all connections.
func (v *variant) turn(b *testing.B) {
	proxy, agent, control := cpu(b, v.proxies), cpu(b, v.agents), cpu(b, v.others)
	s := v.slice(b, v.busy)
	used := func(before time.Duration, of []*testkit.Process) float64 {
		return micros(cpu(b, of)-before) / float64(s.Answers)
	}
	v.answers += s.Answers
	v.turns = append(v.turns, turn{
		rate:  float64(s.Answers) / s.Elapsed.Seconds(),
		proxy: used(proxy, v.proxies), agent: used(agent, v.agents), control: used(control, v.others),
	})
}

// singleTurn is one slice of a single client.
func (v *variant) singleTurn(b *testing.B) {
	v.singleTurns = append(v.singleTurns, v.slice(b, v.single))
}

// newSlicer makes a load on so many connections to all addresses together.
func newSlicer(addresses []string, connections int, requests []load.Request) (*load.Slicer, error) {
	targets, err := load.Spread("even", addresses...)
	if err != nil {
		return nil, err
	}
	return load.NewSlicer(load.Spec{Targets: targets, Conns: connections / len(addresses), Requests: func(i int) load.Request { return requests[i%len(requests)] }})
}

func (v *variant) slice(b *testing.B, s *load.Slicer) load.Slice {
	r, err := s.Run(b.Context(), costSlice)
	if err != nil || len(r.Failures) > 0 {
		b.Fatalf("%v failed: %v", r.Failures, err)
	}
	for status, n := range r.Others {
		v.notOK[status] += n
	}
	return r
}

// cpu is the processor time that processes have used together.
func cpu(b *testing.B, of []*testkit.Process) time.Duration {
	var sum time.Duration
	for _, p := range of {
		used, err := p.CPU()
		if err != nil {
			b.Fatal(err)
		}
		sum += used
	}
	return sum
}

// pin keeps all threads of a process on one processor; process 0 is the thread
// that calls.
func pin(b *testing.B, pid, processor int) {
	threads := []int{0}
	if pid != 0 {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			b.Fatal(err)
		}
		threads = threads[:0]
		for _, e := range entries {
			id, err := strconv.Atoi(e.Name())
			if err != nil {
				b.Fatal(err)
			}
			threads = append(threads, id)
		}
	}
	var set unix.CPUSet
	set.Set(processor)
	for _, id := range threads {
		if err := unix.SchedSetaffinity(id, &set); err != nil {
			b.Fatalf("sched_setaffinity: %v", err)
		}
	}
}

// unpin lets the calling thread run on every processor again.
func unpin(b *testing.B) {
	var set unix.CPUSet
	for i := range runtime.NumCPU() {
		set.Set(i)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		b.Errorf("sched_setaffinity: %v", err)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

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
