package spoa

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
	"github.com/sluice-qos/sluice/test/cluster"
)

const (
	detectionWarm    = 8 // seconds in which polygen learns who serves whom
	detectionSeconds = 10
	detectionFlush   = 20 * time.Millisecond // as often does an agent ask
	detectionCalls   = hotLimit - 1          // for the tokens of a pool: the first one takes two
)

// detection is a fleet whose users all come to their limits in every second.
type detection struct {
	keys, agents int
	serve        int           // agents of each key
	within       time.Duration // part of each second, from its beginning, in which the pools are spent
}

// BenchmarkScaleDetection shows how soon the agents that serve a user hear that the user's limit is
// spent, and what that costs polygen, if that happens to many users in every second. So many agents
// as it would take to ask for them need more than two cores, so the benchmark makes their calls of
// Redis in large batches, in their names, and hears what polygen tells them.
//
// The instants at which pools are spent are spread over the second, or in the worst case over its first 100 ms.
func BenchmarkScaleDetection(b *testing.B) {
	runDetections(b, []detection{
		{10_000, 10, hotServedBy, time.Second},
		{10_000, 10, hotServedBy, 100 * time.Millisecond},
		{50_000, 10, hotServedBy, time.Second},
		{50_000, 10, hotServedBy, 100 * time.Millisecond},
		{100_000, 10, hotServedBy, time.Second},
	})
}

// BenchmarkScaleAudience shows what an agent is sent if users come to their limits in every second: by
// how many they are, and how many agents serve each of them.
func BenchmarkScaleAudience(b *testing.B) {
	runDetections(b, []detection{
		{10_000, 10, hotServedBy, time.Second},
		{10_000, 40, hotServedBy, time.Second},
		{10_000, 100, hotServedBy, time.Second},
		{1000, 10, 10, time.Second},
		{1000, 40, 40, time.Second},
		{1000, 100, 100, time.Second},
	})
}

// runDetections runs those that SLUICE_DETECTION names by their numbers, or all.
func runDetections(b *testing.B, all []detection) {
	for range b.N {
		var results []*detectionResult
		for i, d := range all {
			if only := os.Getenv("SLUICE_DETECTION"); only != "" && !slices.Contains(strings.Split(only, ","), strconv.Itoa(i+1)) {
				continue
			}
			b.Run(fmt.Sprint(i+1), func(b *testing.B) { results = append(results, d.run(b)) })
			printDetections(results)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// server is one of the agents that serve a key.
func (d *detection) server(key, of int) int { return (key*hotServedBy + of%d.serve) % d.agents }

// spending is what became of a key in one second.
type spending struct {
	at     atomic.Int64 // when the pool was spent, by Redis' clock, in ns
	heard  atomic.Int64 // when the last agent heard of it
	told   atomic.Int32 // agents that have heard of it
	tokens atomic.Int32 // of the pool
}

// spender plays the agents.
type spender struct {
	detection
	bus     *bus.Bus
	users   []ratelimit.Key
	begin   int64        // the first second that is measured
	seconds [][]spending // by key
	lanes   []spenderLane
	late    atomic.Int64 // the longest time after which a call was made that was due, in ns
	failed  atomic.Int64
}

// spenderLane is what one agent has to ask for.
type spenderLane struct {
	mu     sync.Mutex
	asks   []ratelimit.Ask
	oldest time.Time // when the first of them was due
}

func (d *detection) run(b *testing.B) *detectionResult {
	redis, _ := proctest.RedisCluster(b)
	polygen := startScalePolygen(b, redis, hotLimits)
	registry := prometheus.NewRegistry()
	opened, err := bus.Open(bus.Options{Addresses: redis, Cluster: true, Shards: scaleShards, Timeout: 5 * time.Second, Registerer: registry})
	if err != nil {
		b.Fatal(err)
	}
	s := &spender{detection: *d, bus: opened, lanes: make([]spenderLane, d.agents)}
	for i := range d.keys {
		s.users = append(s.users, ratelimit.Key{Class: "GET", User: fmt.Sprintf("user-%06d", i)})
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
		opened.Close()
	}()
	s.listen(ctx, &running)
	for i := range d.agents {
		running.Go(func() { s.beat(ctx, i) })
	}
	time.Sleep(time.Second)

	s.begin = time.Now().Unix() + 1 + detectionWarm
	s.seconds = make([][]spending, detectionSeconds)
	for i := range s.seconds {
		s.seconds[i] = make([]spending, d.keys)
	}
	running.Go(func() { s.schedule(ctx) })
	for i := range d.agents {
		running.Go(func() { s.ask(ctx, i) })
		running.Go(func() { s.tellStarts(ctx, i) })
	}
	time.Sleep(time.Until(time.Unix(s.begin, 0)))
	before, heard := countDetection(b, polygen, redis), policyBytes(b, registry)
	s.late.Store(0)
	time.Sleep(time.Until(time.Unix(s.begin+detectionSeconds, 0)))
	r := &detectionResult{spender: s, counts: countDetection(b, polygen, redis).minus(before), received: policyBytes(b, registry) - heard}
	time.Sleep(time.Second) // what is under way still counts
	r.judge()
	return r
}

// listen subscribes as the agents do.
func (s *spender) listen(ctx context.Context, running *sync.WaitGroup) {
	var connected sync.WaitGroup
	for i := range s.agents {
		own, all := sync.OnceFunc(connected.Done), sync.OnceFunc(connected.Done)
		connected.Add(1)
		running.Go(func() {
			_ = s.bus.SubscribeOwn(ctx, instanceName(i), func(e bus.Event) { s.hear(e, own) })
		})
		connected.Add(1)
		running.Go(func() {
			_ = s.bus.Subscribe(ctx, []bus.Channel{bus.PoliciesChannel}, func(e bus.Event) { s.hear(e, all) })
		})
	}
	connected.Wait()
}

func instanceName(i int) string { return fmt.Sprintf("edge-%04d#abcdefgh", i) }

// hear takes what one agent was sent.
func (s *spender) hear(e bus.Event, connected func()) {
	switch e := e.(type) {
	case bus.Connected:
		connected()
	case bus.Policies:
		now := time.Now().UnixNano()
		for _, p := range e {
			if t, ok := p.(policy.Throttle); ok {
				if one := s.spending(t.Key, t.Second); one != nil {
					one.told.Add(1)
					one.heard.Store(max(now, one.heard.Load()))
				}
			}
		}
	}
}

// spending returns nil for a second that is not measured.
func (s *spender) spending(k ratelimit.Key, second int64) *spending {
	if second < s.begin || second >= s.begin+detectionSeconds {
		return nil
	}
	key, _ := strconv.Atoi(strings.TrimPrefix(k.User, "user-"))
	return &s.seconds[second-s.begin][key]
}

// beat is one agent's heartbeat.
func (s *spender) beat(ctx context.Context, agent int) {
	for ctx.Err() == nil {
		_, _ = s.bus.Register(ctx, instanceName(agent), "", "")
		time.Sleep(250 * time.Millisecond)
	}
}

// schedule gives the agents what they have to ask for: of each key at even distances until the pool is spent.
func (s *spender) schedule(ctx context.Context) {
	type due struct {
		at        time.Duration
		key, call int
	}
	var second []due
	for key := range s.keys {
		// Neighbours have neighbouring agents and are not spent one after the other.
		spent := s.within * time.Duration(key*7919%s.keys) / time.Duration(s.keys)
		for call := range detectionCalls {
			second = append(second, due{spent * time.Duration(call+1) / detectionCalls, key, call})
		}
	}
	slices.SortFunc(second, func(a, b due) int { return int(a.at - b.at) })
	for at := time.Now().Unix() + 1; at < s.begin+detectionSeconds; at++ {
		for rest := second; len(rest) > 0 && ctx.Err() == nil; {
			passed := time.Since(time.Unix(at, 0))
			n := 0
			for ; n < len(rest) && rest[n].at <= passed; n++ {
				d := rest[n]
				need := 1
				if d.call == 0 {
					need = hotLimit - detectionCalls + 1
				}
				lane := &s.lanes[s.server(d.key, int(at)*detectionCalls+d.call)]
				lane.add(ratelimit.Ask{Key: s.users[d.key], WindowStart: at, Limit: hotLimit, Need: need, Instances: hotServedBy, Untold: true}, time.Unix(at, 0).Add(d.at))
			}
			rest = rest[n:]
			time.Sleep(2 * time.Millisecond)
		}
	}
}

func (l *spenderLane) add(a ratelimit.Ask, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asks) == 0 {
		l.oldest = due
	}
	l.asks = append(l.asks, a)
}

func (l *spenderLane) take() (asks []ratelimit.Ask, oldest time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks, l.asks = l.asks, nil
	return asks, l.oldest
}

// ask makes one agent's calls, one after the other.
func (s *spender) ask(ctx context.Context, agent int) {
	time.Sleep(detectionFlush * time.Duration(agent) / time.Duration(s.agents))
	for batch := uint64(1); ctx.Err() == nil; batch++ {
		began := time.Now()
		asks, oldest := s.lanes[agent].take()
		if len(asks) > 0 {
			s.late.Store(max(s.late.Load(), int64(time.Since(oldest))))
		}
		for i := range asks {
			asks[i].Seq = batch
		}
		taken, err := s.bus.Take(ctx, instanceName(agent), asks)
		if err != nil && ctx.Err() == nil {
			s.failed.Add(1)
		}
		for i, g := range taken.Grants {
			one := s.spending(asks[i].Key, asks[i].WindowStart)
			if one == nil {
				continue
			}
			one.tokens.Add(int32(g.Tokens))
			if g.Tokens > 0 && g.Total >= hotLimit {
				one.at.Store(taken.Now.UnixNano())
			}
		}
		time.Sleep(detectionFlush - time.Since(began))
	}
}

// tellStarts tells each second whom an agent serves, as agents do; of users whom all serve in turns, every
// third second, for nobody has so many requests as there are agents.
func (s *spender) tellStarts(ctx context.Context, agent int) {
	time.Sleep(time.Second * time.Duration(agent) / time.Duration(s.agents))
	classes := []bus.StartedClass{{Class: "GET", Starts: 2}}
	var serves []int
	for key := range s.keys {
		for of := range hotServedBy {
			if s.serve == s.agents || s.server(key, of) == agent {
				serves = append(serves, key)
				break
			}
		}
	}
	for turn := 0; ctx.Err() == nil; turn++ {
		began := time.Now()
		var users []bus.Started
		for _, key := range serves {
			if s.serve <= hotServedBy || (key+agent+turn)%3 == 0 {
				users = append(users, bus.Started{User: s.users[key].User, Starts: 2, Classes: classes})
			}
		}
		_ = s.bus.Started(ctx, instanceName(agent), time.Second, users)
		time.Sleep(time.Second - time.Since(began))
	}
}

// detectionResult is what was measured.
type detectionResult struct {
	*spender
	counts   detectionCounts
	received float64   // bytes of the policies that all agents were sent
	delays   []float64 // ms from when a pool was spent until the last agent heard of it, sorted
	unheard  int       // spent pools of which not all heard that serve the key
	told     int       // agents that heard of a pool, in all
	most     float64   // tokens of any pool ÷ limit
}

func (r *detectionResult) spent() int { return len(r.delays) + r.unheard }

func (r *detectionResult) judge() {
	for _, second := range r.seconds {
		for i := range second {
			one := &second[i]
			told := int(one.told.Load())
			r.told += told
			r.most = max(r.most, float64(one.tokens.Load())/hotLimit)
			switch {
			case one.at.Load() == 0: // the calls did not come in time
			case told < hotServedBy:
				r.unheard++
			default:
				r.delays = append(r.delays, max(0, float64(one.heard.Load()-one.at.Load())/1e6))
			}
		}
	}
	slices.Sort(r.delays)
}

// delay is a quantile; of pools of which not all have heard it is endless.
func (r *detectionResult) delay(q float64) float64 {
	at := int(q * float64(r.spent()))
	if at >= len(r.delays) {
		return math.Inf(1)
	}
	return r.delays[at]
}

// detectionCounts are what has been counted since the processes started, or in a span.
type detectionCounts struct {
	seconds, polygen    float64 // the latter of CPU
	usage, starts, sent float64 // entries that polygen was told, and policies that it has sent
	dropped             float64
	redis               counts // of the nodes, of this process and the bytes that polygen has read
}

func countDetection(b *testing.B, polygen *cluster.Polygen, redis []string) (c detectionCounts) {
	text, err := cluster.Get(polygen.Admin, "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	sum := func(prefix string) (total float64) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, prefix) {
				fields := strings.Fields(line)
				total += number(b, fields[len(fields)-1])
			}
		}
		return total
	}
	c.usage, c.starts = sum("sluice_usage_entries_total"), sum("sluice_starts_entries_total")
	c.sent, c.dropped = sum("sluice_bus_policies_total"), sum("sluice_bus_dropped_total")
	for _, addr := range redis {
		c.redis.nodes = append(c.redis.nodes, countNode(b, addr))
	}
	cpu, err := polygen.CPU()
	if err != nil {
		b.Fatal(err)
	}
	c.polygen, c.redis.read, c.redis.agents = cpu.Seconds(), bytesRead(b, polygen.Process), ownCPU(b)
	c.seconds = time.Since(scaleBegan).Seconds()
	return c
}

func (c detectionCounts) minus(before detectionCounts) detectionCounts {
	return detectionCounts{c.seconds - before.seconds, c.polygen - before.polygen, c.usage - before.usage, c.starts - before.starts,
		c.sent - before.sent, c.dropped - before.dropped, c.redis.minus(before.redis)}
}

// masters is the CPU of the three masters, in seconds.
func (c *detectionCounts) masters() (cpu float64) {
	for _, n := range c.redis.nodes[:3] {
		cpu += n.cpu
	}
	return cpu
}

func policyBytes(b *testing.B, registry *prometheus.Registry) (bytes float64) {
	families, err := registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "sluice_bus_policy_bytes_total" {
			for _, m := range family.GetMetric() {
				bytes += m.GetCounter().GetValue()
			}
		}
	}
	if bytes == 0 {
		b.Error(errors.New("no policies were heard"))
	}
	return bytes
}

// detectionFigure is one row of the table.
type detectionFigure struct {
	name, format string
	of           func(r *detectionResult) any
}

func detectionFigures() []detectionFigure {
	perSecond := func(of func(c *detectionCounts) float64) func(r *detectionResult) any {
		return func(r *detectionResult) any { return of(&r.counts) / r.counts.seconds }
	}
	perUser := func(of func(c *detectionCounts) float64) func(r *detectionResult) any {
		return func(r *detectionResult) any { return 1e6 * of(&r.counts) / r.counts.seconds / float64(r.keys) }
	}
	return []detectionFigure{
		{"users", "%d", func(r *detectionResult) any { return r.keys }},
		{"spent within", "%v", func(r *detectionResult) any { return r.within }},
		{"agents", "%d", func(r *detectionResult) any { return r.agents }},
		{"of these serve each user", "%d", func(r *detectionResult) any { return r.serve }},
		{"ms until all have heard, p50", "%.1f", func(r *detectionResult) any { return r.delay(.5) }},
		{"p99", "%.1f", func(r *detectionResult) any { return r.delay(.99) }},
		{"longest", "%.1f", func(r *detectionResult) any { return r.delay(1 - 1e-9) }},
		{"tokens ÷ limit, at most", "%.3f", func(r *detectionResult) any { return r.most }},
		{"pools spent/s", "%.0f", func(r *detectionResult) any { return float64(r.spent()) / detectionSeconds }},
		{"of these not heard of, %", "%.3f", func(r *detectionResult) any { return 100 * float64(r.unheard) / float64(r.spent()) }},
		{"agents that heard of each", "%.2f", func(r *detectionResult) any { return float64(r.told) / float64(r.spent()) }},
		{"ms by which calls came late, at most", "%.0f", func(r *detectionResult) any { return float64(r.late.Load()) / 1e6 }},
		{"calls failed", "%d", func(r *detectionResult) any { return r.failed.Load() }},
		{"usage to polygen/s", "%.0f", perSecond(func(c *detectionCounts) float64 { return c.usage })},
		{"starts to polygen/s", "%.0f", perSecond(func(c *detectionCounts) float64 { return c.starts })},
		{"policies sent/s", "%.0f", perSecond(func(c *detectionCounts) float64 { return c.sent })},
		{"messages published/s", "%.0f", perSecond(func(c *detectionCounts) float64 { return c.redis.redis().publishes })},
		{"messages that polygen dropped", "%.0f", func(r *detectionResult) any { return r.counts.dropped }},
		{"kB/s to each agent", "%.2f", func(r *detectionResult) any { return r.received / 1e3 / r.counts.seconds / float64(r.agents) }},
		{"kB/s to polygen", "%.0f", perSecond(func(c *detectionCounts) float64 { return c.redis.read / 1e3 })},
		{"CPU %: polygen", "%.1f", perSecond(func(c *detectionCounts) float64 { return 100 * c.polygen })},
		{"three masters", "%.1f", perSecond(func(c *detectionCounts) float64 { return 100 * c.masters() })},
		{"three replicas", "%.1f", perSecond(func(c *detectionCounts) float64 { return 100 * (c.redis.redis().cpu - c.masters()) })},
		{"this process", "%.1f", perSecond(func(c *detectionCounts) float64 { return 100 * c.redis.agents })},
		{"CPU µs per user: polygen", "%.1f", perUser(func(c *detectionCounts) float64 { return c.polygen })},
		{"three masters", "%.1f", perUser(func(c *detectionCounts) float64 { return c.masters() })},
	}
}

// printDetections prints what was measured, one column each. A core for 100 000 users is 10 µs of each user in a second.
func printDetections(results []*detectionResult) {
	fmt.Printf("\nUsers whose limits of %d requests/s are spent in every second, by %d calls of their agents, which report their starts.\n"+
		"What polygen tells each agent is read as an agent does; what agents get as answers to their calls is not in their kB/s\n", hotLimit, detectionCalls)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	for _, f := range detectionFigures() {
		fmt.Fprint(w, f.name, "\t")
		for _, r := range results {
			fmt.Fprintf(w, f.format+"\t", f.of(r))
		}
		fmt.Fprintln(w)
	}
}
