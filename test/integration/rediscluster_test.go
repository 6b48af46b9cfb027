package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// redisLimit is how many requests a second everybody may send, who sends four times as many.
const redisLimit = 50

// redisShards is how many shards users are divided into on a Redis Cluster.
const redisShards = 12

// secured is Redis with TLS and users.
type secured struct{ proctest.SecureRedis }

func newSecured(t *testing.T) secured { return secured{proctest.NewSecureRedis(t)} }

// options are those of two instances, whose agents and polygen are Redis' users of deploy/redis/users.acl.
func (s secured) options(limits string, redis []string, more ...string) cluster.Options {
	as := func(user string) []string {
		return append([]string{"--redis-ca", s.CA, "--redis-cert", s.Cert, "--redis-key", s.Key, "--redis-user", user, "--redis-password", user}, more...)
	}
	return cluster.Options{Instances: 2, Limits: limits, Redis: strings.Join(redis, ","), SPOAArgs: as("sluice-agent"), PolygenArgs: as("sluice-polygen")}
}

// redisCluster is a Redis Cluster behind lines: agents, and nodes among each other, go through those of each node.
type redisCluster struct {
	t     *testing.T
	nodes []*proctest.RedisNode
	lines [][]*proctest.Link // of each node: that of its clients, and that of other nodes
	addrs []string           // for clients with TLS
	bus   *bus.Bus           // knows which shard a user is in
}

func startRedisCluster(t *testing.T, s secured, more ...string) *redisCluster {
	t.Helper()
	r := &redisCluster{t: t}
	_, r.nodes = proctest.RedisClusterOf(t, func(node int, toNodes string) []string {
		tls := proctest.FreeAddr(t)
		clients, nodes := proctest.NewLink(t, tls, 0), proctest.NewLink(t, toNodes, 0)
		r.lines, r.addrs = append(r.lines, []*proctest.Link{clients, nodes}), append(r.addrs, clients.Addr)
		return slices.Concat(s.Args, []string{"--tls-port", proctest.PortOf(tls), "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1",
			"--cluster-announce-tls-port", proctest.PortOf(clients.Addr), "--cluster-announce-bus-port", proctest.PortOf(nodes.Addr),
			// By which the lines know whose connection it is.
			"--bind-source-addr", nodeIP(node),
			"--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000"}, more)
	})
	b, err := bus.Open(bus.Options{Addresses: []string{"127.0.0.1:1"}, Shards: redisShards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	r.bus = b
	return r
}

func nodeIP(node int) string { return fmt.Sprintf("127.0.1.%d", node+1) }

// cutOff separates a node from the other nodes, and from its clients or not.
func (r *redisCluster) cutOff(node int, fromClients bool) {
	for i, lines := range r.lines {
		stops := func(ip string) bool { return ip == nodeIP(node) }
		if i == node {
			stops = func(ip string) bool { return fromClients || strings.HasPrefix(ip, "127.0.1.") }
			lines[1].Hold() // the line of the other nodes
			lines = lines[:1]
		}
		for _, line := range lines {
			line.Stop(stops)
		}
	}
}

func (r *redisCluster) heal() {
	for _, lines := range r.lines {
		for _, line := range lines {
			line.Stop(nil)
		}
	}
}

// masterOf is the node that a tag's slot was given to when the cluster was made.
func (r *redisCluster) masterOf(tag any) int {
	var slot int
	_, _ = fmt.Sscan(proctest.RedisCommand(r.t, r.nodes[0].Addr, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%v}", tag)), &slot)
	return min(slot/5461, 2)
}

// replicaOf is the replica that follows a master.
func (r *redisCluster) replicaOf(master int) *proctest.RedisNode {
	for _, n := range r.nodes {
		if strings.Contains(proctest.RedisCommand(r.t, n.Addr, "INFO", "replication"), "master_port:"+proctest.PortOf(r.addrs[master])+"\r") {
			return n
		}
	}
	r.t.Fatalf("nobody follows %s", r.addrs[master])
	return nil
}

// shardsOf names the shards of a master as /-/ready does, and a user of one of them.
func (r *redisCluster) shardsOf(master int) (names, user string) {
	var shards []string
	for shard := range redisShards {
		if r.masterOf(shard) == master {
			shards = append(shards, fmt.Sprint(shard))
		}
	}
	for i := 0; ; i++ {
		user = fmt.Sprint("user-", i)
		if slices.Contains(shards, fmt.Sprint(r.bus.ShardOf(user))) {
			break
		}
	}
	if r.masterOf("cluster") == master {
		shards = append(shards, "registry")
	}
	return strings.Join(shards, " "), user
}

// period is from when something may have begun until when it is over, at all agents.
type period struct{ from, to time.Time }

// readyWithout is what /-/ready says of an agent that goes on without some shards, "" for none.
func readyWithout(shards string) string {
	if shards == "" {
		return "ready\n"
	}
	return "ready\nredis lost: shards " + shards + "\n"
}

// awaitAgents waits until all agents pass a check of what their /-/ready says, and returns from when until when they came
// to do so.
func awaitAgents(t *testing.T, c *cluster.Cluster, check func(i int, said string) error) (came period) {
	t.Helper()
	proctest.Eventually(t, "/-/ready of all agents", func() (err error) {
		asked, some := time.Now(), false
		for i, in := range c.Instances {
			said, wrong := cluster.Get(in.Admin, "/-/ready")
			if wrong = errors.Join(wrong, check(i, said)); wrong != nil {
				err = fmt.Errorf("%s says %q: %w", in.Name, said, wrong)
			} else {
				some = true
			}
		}
		if came.to = time.Now(); !some || came.from.IsZero() {
			came.from = asked
		}
		return err
	})
	return came
}

// awaitLost waits until each agent says that it goes on without some shards, "" for none.
func awaitLost(t *testing.T, c *cluster.Cluster, shards string) period {
	t.Helper()
	return awaitAgents(t, c, func(_ int, said string) error {
		if want := readyWithout(shards); said != want {
			return fmt.Errorf("want %q", want)
		}
		return nil
	})
}

// failover is what agents say of a master that goes, and whose replica takes over by itself.
type failover struct {
	t      *testing.T
	c      *cluster.Cluster
	shards string    // of the master
	losses []float64 // by agent, before it went
	saw    []bool    // by agent, that it was without these shards and no others
}

// watchFailover is called before the master goes.
func watchFailover(t *testing.T, c *cluster.Cluster, shards string) *failover {
	f := &failover{t: t, c: c, shards: shards, saw: make([]bool, len(c.Instances))}
	for _, in := range c.Instances {
		f.losses = append(f.losses, in.Metric(t, "sluice_redis_losses_total"))
	}
	return f
}

// found waits until each agent goes on without the master.
func (f *failover) found() period {
	f.t.Helper()
	lost := make([]bool, len(f.saw)) // by agent, when it was asked before
	return awaitAgents(f.t, f.c, func(i int, said string) error {
		f.saw[i] = f.saw[i] || said == readyWithout(f.shards)
		// An agent that stands still for as long as that takes is never seen without it. What it has lost since it said
		// that it is ready, it may still be without.
		if f.saw[i] || said == readyWithout("") && lost[i] {
			return nil
		}
		lost[i] = f.c.Instances[i].Metric(f.t, "sluice_redis_losses_total") > f.losses[i]
		return fmt.Errorf("want that %q are lost", f.shards)
	})
}

// replaced waits until the replica is the master, and each agent uses it.
func (f *failover) replaced(replica *proctest.RedisNode) (came period) {
	f.t.Helper()
	proctest.Eventually(f.t, "the replica takes over", func() error {
		// First: what follows takes time. An agent that lost other shards for a moment may say so before it has happened.
		came = awaitLost(f.t, f.c, "")
		if said := proctest.RedisCommand(f.t, replica.Addr, "ROLE"); !strings.HasPrefix(said, "master") {
			return errors.New(said)
		}
		return nil
	})
	return came
}

// check checks that on a machine that kept up each agent was without the shards of the master, and no others.
func (f *failover) check(d redisDay) {
	f.t.Helper()
	if d.calm && slices.Contains(f.saw, false) {
		f.t.Errorf("agents said to be without %q alone: %v, want all of them", f.shards, f.saw)
	}
}

// awaitRole waits until a server is "master" or "slave".
func awaitRole(t *testing.T, addr, role string) {
	t.Helper()
	proctest.Eventually(t, "the Redis at "+addr, func() error {
		if said := proctest.RedisCommand(t, addr, "ROLE"); !strings.HasPrefix(said, role) {
			return fmt.Errorf("is %s, want %s", said, role)
		}
		return nil
	})
}

// redisDay is what users had while something happened to Redis.
type redisDay struct {
	t      *testing.T
	report *load.Report
	calm   bool // the machine kept up, and no agent took Redis for lost that was not
}

// throughout sends requests of users, four times as many as they may send, while something happens.
func throughout(t *testing.T, c *cluster.Cluster, losses float64, users []string, happens func()) redisDay {
	t.Helper()
	targets, err := load.Spread("even", c.Addresses()...)
	if err != nil {
		t.Fatal(err)
	}
	c.Settle()
	before := redisLosses(c)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		defer end()
		wholeSeconds(1)
		happens()
		wholeSeconds(1)
	}()
	var stalls proctest.Stalls
	go stalls.Watch(ctx)
	r, err := load.Run(ctx, load.Spec{
		Targets: targets, Rate: float64(4 * redisLimit * len(users)), Duration: proctest.Patience, Align: true,
		Requests: load.Users("GET", "/", users...), Timeout: proctest.Patience,
	})
	if r == nil {
		t.Fatal(err)
	}
	r = r.Only(func(x load.Result) bool { return x.Failure != load.Unfinished })
	checkAnswered(t, r)
	day := redisDay{t, r, true}
	if lost := redisLosses(c) - before; lost != losses || stalls.Longest() > calmStall {
		t.Logf("the machine stood still for %v, and agents lost shards %v times, want %v: up to two limits in a second are not counted as too many", stalls.Longest(), lost, losses)
		day.calm = false
	}
	return day
}

// wholeSeconds waits until so many whole seconds have passed.
func wholeSeconds(n int64) { time.Sleep(time.Until(time.Unix(time.Now().Unix()+1+n, 0))) }

// exact checks that a user never had more than a limit, but up to two limits in the seconds of some periods, and
// that they had most of it in all others.
func (d redisDay) exact(user string, limit int, least float64, but ...period) {
	d.t.Helper()
	admitted := d.report.User(user).Attribute(limit, clockSlack)
	first, last := d.report.Start.Unix(), d.report.Results[len(d.report.Results)-1].Sent/1e9
	var ratios []string
	for s := first; s < last; s++ {
		low, high := least, 1.
		// What was admitted last is told within the second after it.
		for _, between := range but {
			if s >= between.from.Unix() && s <= between.to.Unix()+1 {
				low, high = 0, 2
			}
		}
		if !d.calm {
			low, high = 0, 2
		}
		ratio := float64(admitted.At(s)) / float64(limit)
		if ratio < low || ratio > high {
			d.t.Errorf("second %d: %s had %.2f of the limit, want %.2f to %.2f", s-first, user, ratio, low, high)
		}
		ratios = append(ratios, fmt.Sprintf("%.2f", ratio))
	}
	d.t.Logf("%s had, of the limit in each second: %s", user, strings.Join(ratios, " "))
}

// exactAfter checks once more what could not be judged before, on a machine that did not keep up.
func (d redisDay) exactAfter(c *cluster.Cluster, user string, limit int) {
	d.t.Helper()
	if !d.calm {
		r := offer(d.t, c, user, "even", 4*redisLimit, 2*time.Second)
		checkAnswered(d.t, r)
		checkLimit(d.t, r, limit, 0.9)
	}
}

// A master that lives, but is cut off, is replaced by its replica: that of the registry from everybody, and another one
// from the other nodes, while agents reach it still. Users of other masters notice nothing, and its own have no more than
// the limit but in the seconds in which it goes and another one is there. No instance is taken for gone, and polygen
// leads again. The cluster has TLS, with certificates of clients, and users.
func TestMasterCutOff(t *testing.T) {
	t.Parallel()
	for name, registry := range map[string]bool{"the registry, from everybody": true, "another one, from the other nodes": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t)
			r := startRedisCluster(t, s)
			c := cluster.Start(t, s.options(limitFile(redisLimit), r.addrs, "--redis-shards", fmt.Sprint(redisShards)))
			master := r.masterOf("cluster")
			if !registry {
				master = (master + 1) % 3
			}
			replica := r.replicaOf(master)
			shards, far := r.shardsOf(master)
			_, near := r.shardsOf((master + 1) % 3)
			losses := len(strings.Fields(strings.TrimSuffix(shards, "registry")))
			var cut, healed time.Time
			var found, replaced period
			instances := map[float64]bool{}
			var over *failover
			day := throughout(t, c, float64(2*losses), []string{far, near}, func() {
				over = watchFailover(t, c, shards)
				r.cutOff(master, registry)
				cut = time.Now()
				found = over.found()
				countInstances(t, c, instances)
				replaced = over.replaced(replica)
				wholeSeconds(1)
				countInstances(t, c, instances)
				r.heal()
				healed = time.Now()
				awaitRole(t, r.nodes[master].Addr, "slave")
			})
			t.Logf("%s was cut off at second %d, found after %v, replaced after %v, and back at %d", shards, cut.Unix()-day.report.Start.Unix(),
				found.to.Sub(cut), replaced.to.Sub(cut), healed.Unix()-day.report.Start.Unix())
			over.check(day)
			day.exact(near, redisLimit, 0.9)
			day.exact(far, redisLimit, 0.4, period{cut, found.to}, replaced)
			day.exactAfter(c, far, redisLimit)
			if day.calm && !maps.Equal(instances, map[float64]bool{2: true}) {
				t.Errorf("agents took the cluster to have so many instances: %v, want 2 all the time", instances)
			}
			proctest.Eventually(t, "polygen leads", func() error { return allReady(c) })
		})
	}
}

// countInstances notes how many instances each agent knows of.
func countInstances(t *testing.T, c *cluster.Cluster, known map[float64]bool) {
	t.Helper()
	for _, in := range c.Instances {
		known[in.Metric(t, "sluice_instances")] = true
	}
}

// overriddenLimit is what bob may send by hand.
const overriddenLimit = 20

const redisDayLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 50}}
  hour: {requests: {GET: {hour: 100}}}
users: {hour: hour}
`

// hourly is how many of 150 requests more of the user with an hour's limit of 100 are admitted.
func hourly(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	r := offerOnce(t, c, "hour", "even", 150, time.Second)
	checkAnswered(t, r)
	return len(r.Admitted().Results)
}

// overrideBob sets a limit by hand, and waits until all agents have it. It returns the version of the limits with it.
func overrideBob(t *testing.T, c *cluster.Cluster) (version string) {
	t.Helper()
	before := instancesOf(t, c)[0].Version
	told(t, c.Polygens[0], "PUT", "/api/v1/overrides/bob", fmt.Sprintf(`{"for":"10m","reason":"a test","limits":{"requests":{"GET":%d}}}`, overriddenLimit))
	proctest.Eventually(t, "the agents have it", func() error {
		for _, in := range instancesOf(t, c) {
			if version = in.Version; version == before {
				return fmt.Errorf("%s has not", in.Name)
			}
		}
		return nil
	})
	return version
}

func instancesOf(t *testing.T, c *cluster.Cluster) []api.Instance {
	t.Helper()
	var list api.Instances
	if err := json.Unmarshal([]byte(told(t, c.Polygens[0], "GET", "/api/v1/instances", "")), &list); err != nil {
		t.Fatal(err)
	}
	return list.Instances
}

// keepsOverride checks that one of some servers has, and all agents work with, what overrideBob has set.
func keepsOverride(t *testing.T, c *cluster.Cluster, version string, servers ...*proctest.RedisNode) {
	t.Helper()
	proctest.Eventually(t, "the override", func() error {
		var kept []string
		for _, n := range servers {
			kept = append(kept, proctest.RedisCommand(t, n.Addr, "HGET", "sluice:overrides", "list"))
		}
		if !strings.Contains(fmt.Sprint(kept), "bob") {
			return fmt.Errorf("Redis has %q", kept)
		}
		for _, in := range instancesOf(t, c) {
			if in.Version != version || !in.Current {
				return fmt.Errorf("%s has %s, want %s", in.Name, in.Version, version)
			}
		}
		return nil
	})
}

// A whole cluster that is killed and started again, with what it had or without anything, costs two limits at most in
// the seconds in which it goes and is back. Overrides are kept by polygen, and hours by Redis, if it keeps anything.
func TestRedisClusterRestarted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, appendonly string
		hour             int // requests of an hour's limit of 100
	}{{"with persistence", "yes", 100}, {"without", "no", 200}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proctest.AwaitHour()
			s := newSecured(t)
			r := startRedisCluster(t, s, "--appendonly", tt.appendonly)
			c := cluster.Start(t, s.options(redisDayLimits, r.addrs, "--redis-shards", fmt.Sprint(redisShards)))
			version := overrideBob(t, c)
			used, losses := 0, redisLosses(c)
			proctest.Eventually(t, "an hour's limit of 100 is used", func() error {
				if used += hourly(t, c); used < 90 {
					return fmt.Errorf("%d requests were admitted", used)
				}
				return nil
			})
			var killed, started time.Time
			var found, back period
			day := throughout(t, c, 2*redisShards, []string{"alice", "bob"}, func() {
				killed = time.Now()
				for _, n := range r.nodes {
					n.Kill()
				}
				found = awaitLost(t, c, "all registry")
				wholeSeconds(1)
				started = time.Now()
				for _, n := range r.nodes {
					n.Restart(t)
				}
				back = awaitLost(t, c, "")
			})
			t.Logf("the cluster was killed at second %d, found after %v, started at %d, and used again after %v", killed.Unix()-day.report.Start.Unix(),
				found.to.Sub(killed), started.Unix()-day.report.Start.Unix(), back.to.Sub(started))
			day.exact("alice", redisLimit, 0.4, period{killed, found.to}, back)
			day.exact("bob", overriddenLimit, 0.4, period{killed, found.to}, back)
			keepsOverride(t, c, version, r.nodes...)
			day.exactAfter(c, "bob", overriddenLimit)
			more := hourly(t, c)
			t.Logf("of an hour's limit of 100, %d requests were admitted before and %d after", used, more)
			// Agents that lost Redis while they counted admitted their parts besides.
			if used+more > tt.hour && redisLosses(c)-losses == 2*redisShards {
				t.Errorf("want %d at most", tt.hour)
			}
		})
	}
}
