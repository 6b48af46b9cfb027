package spoa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	shardedLimit = 60 // requests per second, of users that are offered a multiple of it
	shardedSlots = 6  // requests in progress

	shardedLimits = `version: 1
default_tier: rate
tiers:
  rate: {requests: {GET: 60}}
  hour: {requests: {GET: {hour: 170000}}}
  slots: {concurrent: 6}
users: {rate-*: rate, hour-*: hour, slots-*: slots}
`
	clusterShards = 12
	clusterAgents = 3

	shardedTimeout = time.Second // of a call to Redis: four times the product's
)

// shardedRig is some agents on a Redis Cluster, and users of each of its masters who ask all agents
// without a pause.
type shardedRig struct {
	t        *testing.T
	addrs    []string // without TLS, for the test itself
	secure   []string // for the agents
	nodes    []*proctest.RedisNode
	fleet    *fleet
	users    []*shardedUser
	masters  []int  // of the shards
	registry int    // the master of the registry
	stop     func() // ends the load
	stalls   atomic.Pointer[proctest.Stalls]
	silence  [6]atomic.Int64 // ns for which a node did not answer the test at most, since forgetLosses
}

// shardedUser asks for much more than their limit, at all agents.
type shardedUser struct {
	name   string
	shard  int
	master int // of their shard

	mu               sync.Mutex
	asked            map[int64]int // by cluster second
	certain          map[int64]int // admitted, by cluster second
	possible         map[int64]int // admitted, in this second or the one after it
	admitted         int           // ever
	inProgress, most int
}

func newShardedRig(t *testing.T) *shardedRig {
	r := &shardedRig{t: t}
	with := proctest.NewSecureRedis(t)
	// Nobody takes over for whoever is stopped.
	r.secure, r.addrs, r.nodes = proctest.SecureRedisCluster(t, with, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "600000")
	for node := range r.nodes {
		go r.probe(node)
	}
	r.findMasters()
	redis := bus.Options{Addresses: r.secure, Cluster: true, Shards: clusterShards, Username: "sluice-polygen", Password: "sluice-polygen", TLS: with.Client(t)}
	own := redis
	own.Timeout = proctest.Patience
	b, err := bus.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.PublishLimits(t.Context(), bus.PublishedLimits{Version: "v", File: []byte(shardedLimits)}); err != nil {
		t.Fatal(err)
	}
	for master := range 3 {
		for _, kind := range []string{"rate", "hour", "slots"} {
			for i := 0; ; i++ {
				u := &shardedUser{name: fmt.Sprintf("%s-%d", kind, i), asked: map[int64]int{}, certain: map[int64]int{}, possible: map[int64]int{}}
				if u.shard = b.ShardOf(u.name); r.masters[u.shard] == master {
					u.master = master
					r.users = append(r.users, u)
					break
				}
			}
		}
	}
	redis.Username, redis.Password, redis.Timeout = "sluice-agent", "sluice-agent", shardedTimeout
	r.fleet = startFleet(t, clusterAgents, redis)
	proctest.Eventually(t, "all agents know of each other", func() error {
		for _, e := range r.fleet.edges {
			if n := e.limiter.inForce.instances.Load(); n != clusterAgents {
				return fmt.Errorf("%s knows of %d", e.options.Instance, n)
			}
		}
		return nil
	})
	return r
}

// slotOf is the slot of the keys with a tag.
func (r *shardedRig) slotOf(tag any) (slot int) {
	_, _ = fmt.Sscan(proctest.RedisCommand(r.t, r.addrs[0], "CLUSTER", "KEYSLOT", fmt.Sprintf("{%v}", tag)), &slot)
	return slot
}

// findMasters notes to which nodes the cluster has given the shards and the registry.
func (r *shardedRig) findMasters() {
	of := func(tag any) int { return min(r.slotOf(tag)/5461, 2) }
	for shard := range clusterShards {
		r.masters = append(r.masters, of(shard))
	}
	r.registry = of("cluster")
}

// load has all users ask all agents until stop is called.
func (r *shardedRig) load() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var asking sync.WaitGroup
	for _, u := range r.users {
		for i, e := range r.fleet.edges {
			// If all agents were asked alike, their even parts would be as much as the limit: nobody could
			// tell whether they lease or go on alone.
			if i == 0 && strings.HasPrefix(u.name, "rate") {
				continue
			}
			asking.Go(func() {
				for ctx.Err() == nil {
					u.ask(e)
				}
			})
		}
	}
	r.stop = sync.OnceFunc(func() { cancel(); asking.Wait() })
	return r.stop
}

// ask asks once, and rests.
func (u *shardedUser) ask(e *edge) {
	before := e.clock.Now().Unix()
	ends, admitted := e.ask(u.name)
	u.count(before, e.clock.Now().Unix(), admitted)
	time.Sleep(8 * time.Millisecond)
	if admitted {
		u.mu.Lock()
		u.inProgress--
		u.mu.Unlock()
		ends()
	}
}

// count counts a request that was decided between two seconds.
func (u *shardedUser) count(before, after int64, admitted bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked[before]++
	if !admitted {
		return
	}
	u.admitted++
	u.inProgress++
	u.most = max(u.most, u.inProgress)
	if before == after {
		u.certain[before]++
	} else {
		u.possible[before]++
	}
}

// seconds leaves some seconds of the cluster out and waits until some more have passed, while something happens. It
// returns the first one of these and that after the last.
func (r *shardedRig) seconds(leave, n int64, happens func()) (from, to int64) {
	clock := r.fleet.edges[0].clock
	from = clock.Now().Unix() + 1 + leave
	to = from + n
	happens()
	time.Sleep(time.Unix(to, 0).Sub(clock.Now()))
	return from, to
}

// admits checks what was admitted of a user in each of some seconds, in parts of the limit, and on a machine so slow that
// they asked for less than that, of what they asked for.
func (r *shardedRig) admits(u *shardedUser, from, to int64, least, most float64) {
	r.t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for s := from; s < to; s++ {
		low, high := u.certain[s], u.certain[s]+u.possible[s]+u.possible[s-1]
		if float64(low) > most*shardedLimit || float64(high) < least*float64(min(shardedLimit, u.asked[s])) {
			r.t.Errorf("%s, of master %d: of %d requests %d to %d were admitted in second %d, want %.2f to %.2f of %d", u.name, u.master, u.asked[s], low, high, s-from, least, most, shardedLimit)
		}
	}
}

// exact checks that some users have their limits in the seconds that it waits for, which it returns, while something
// happens.
func (r *shardedRig) exact(leave, seconds int64, of func(*shardedUser) bool, happens func()) (from, to int64) {
	r.t.Helper()
	r.forgetLosses()
	from, to = r.seconds(leave, seconds, happens)
	for _, u := range r.users {
		switch {
		case !of(u) || r.lostMeanwhile(u.shard):
		case strings.HasPrefix(u.name, "rate"):
			least := 0.8
			// Who waits for Redis asks, and is admitted, less often.
			if r.slow(u.shard) {
				least = 0
			}
			r.admits(u, from, to, least, 1)
		case strings.HasPrefix(u.name, "slots"):
			u.mu.Lock()
			if u.most > shardedSlots {
				r.t.Errorf("%s, of master %d: %d requests in progress, want %d at most", u.name, u.master, u.most, shardedSlots)
			}
			u.mu.Unlock()
		}
	}
	return from, to
}

// reported checks that agents tell of some users still, within three seconds.
func (r *shardedRig) reported(of func(*shardedUser) bool) {
	r.t.Helper()
	for _, u := range r.users {
		if !of(u) {
			continue
		}
		proctest.Eventually(r.t, "the report of "+u.name, func() error {
			e := r.fleet.edges[0]
			told, err := e.bus.UserEvents(r.t.Context(), u.name, []int64{e.clock.Now().Unix() - 3})
			if err == nil && len(told[0].Classes) == 0 {
				err = errors.New("the bucket has none")
			}
			return err
		})
	}
}

// countedOnce ends the load, and checks that what was admitted of users' hours is what their pools
// have. Some tokens that a master had granted were lost when it did not answer. What agents admitted alone
// meanwhile was more than that.
func (r *shardedRig) countedOnce() {
	const lostTokens = 200
	r.t.Helper()
	r.stop()
	for _, u := range r.users {
		if !strings.HasPrefix(u.name, "hour") {
			continue
		}
		key := ratelimit.Key{Class: "GET", User: u.name, Window: limits.Hour}
		hour := r.fleet.edges[0].clock.Now().Unix() / 3600 * 3600
		proctest.Eventually(r.t, fmt.Sprintf("the pool of %s, of master %d", u.name, u.master), func() error {
			taken, err := r.fleet.edges[0].bus.Take(r.t.Context(), "test", []ratelimit.Ask{{Key: key, WindowStart: hour, Limit: 170000}})
			if err != nil {
				return err
			}
			if got := taken.Grants[0].Total; got < u.admitted || got > u.admitted+lostTokens {
				return fmt.Errorf("%d requests were admitted, and it has %d", u.admitted, got)
			}
			return nil
		})
	}
}

// lost waits until the agents have lost the shards of a master and no others, -1 for none.
func (r *shardedRig) lost(master int) {
	r.t.Helper()
	want := lost{shards: make([]bool, clusterShards)}
	for shard := range want.shards {
		want.shards[shard] = r.masters[shard] == master
	}
	want.registry = r.registry == master
	for _, e := range r.fleet.edges {
		proctest.Eventually(r.t, fmt.Sprintf("%s without master %d", e.options.Instance, master), func() error {
			if names, why := e.limiter.lostParts(); names != want.names() {
				return fmt.Errorf("lost are %q (%w), want %q", names, why, want.names())
			}
			return nil
		})
	}
}

// probe measures how long a node takes to answer, until the test ends or the node does.
func (r *shardedRig) probe(node int) {
	conn, err := net.Dial("tcp", r.addrs[node])
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(r.t.Context(), func() { conn.Close() })()
	for answer := make([]byte, 64); ; time.Sleep(20 * time.Millisecond) {
		asked := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return
		}
		if _, err := conn.Read(answer); err != nil {
			return
		}
		r.silence[node].Store(max(r.silence[node].Load(), int64(time.Since(asked))))
	}
}

// forgetLosses begins to look for losses anew.
func (r *shardedRig) forgetLosses() {
	r.stalls.Store(&proctest.Stalls{})
	go r.stalls.Load().Watch(r.t.Context())
	for node := range r.silence {
		r.silence[node].Store(0)
	}
	r.eachLink(func(k *link) { k.why = nil })
}

// lostMeanwhile reports whether an agent has lost a shard since forgetLosses. That is a failure unless the machine
// is slow: then nothing can be said of the shard's users.
func (r *shardedRig) lostMeanwhile(shard int) bool {
	r.t.Helper()
	var why error
	r.eachLink(func(k *link) {
		if k.shard.number == shard {
			why = cmp.Or(why, k.why)
		}
	})
	if why != nil && !r.slow(shard) {
		r.t.Errorf("an agent has lost shard %d, of master %d, on a machine that kept up: %v", shard, r.masters[shard], why)
	}
	return why != nil
}

// slow reports whether the machine has stood still since forgetLosses, or a shard's master or a replica had no processor.
func (r *shardedRig) slow(shard int) bool {
	stall := r.stalls.Load().Longest()
	for _, node := range []int{r.masters[shard], 3, 4, 5} {
		stall = max(stall, time.Duration(r.silence[node].Load()))
	}
	return stall >= shardedTimeout/4
}

func (r *shardedRig) eachLink(call func(*link)) {
	for _, e := range r.fleet.edges {
		for _, k := range e.exchange.links {
			k.mu.Lock()
			call(k)
			k.mu.Unlock()
		}
	}
}

// fallsBack checks what users of a lost master had, whose agents went on alone from a second on.
func (r *shardedRig) fallsBack(master int, from, to int64) {
	r.t.Helper()
	for _, u := range r.users {
		if u.master != master || !strings.HasPrefix(u.name, "rate") {
			continue
		}
		// An agent keeps a user to its part of the limit from when it has refused something: on a machine so slow that
		// it is not asked for more than the limit, it never does.
		most := 1.
		for s := from; s < to; s++ {
			u.mu.Lock()
			asked := u.asked[s]
			u.mu.Unlock()
			if asked < 3*shardedLimit {
				most = clusterAgents
			}
		}
		r.admits(u, from, from+1, 0, clusterAgents)
		r.admits(u, from+1, to, 0.5, most)
	}
}

// move moves the slot of a shard, with all its keys, to another master, as redis-cli does.
func (r *shardedRig) move(shard, to int) {
	r.t.Helper()
	slot, from := fmt.Sprint(r.slotOf(shard)), r.masters[shard]
	said := func(node int, command ...string) string {
		return strings.TrimSpace(proctest.RedisCommand(r.t, r.addrs[node], command...))
	}
	source, target := said(from, "CLUSTER", "MYID"), said(to, "CLUSTER", "MYID")
	said(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	said(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	for keys := ""; ; {
		if keys = said(from, "CLUSTER", "GETKEYSINSLOT", slot, "100"); keys == "" {
			break
		}
		moved := append([]string{"MIGRATE", "127.0.0.1", proctest.PortOf(r.secure[to]), "", "0", "5000", "KEYS"}, strings.Split(keys, "\n")...)
		if got := said(from, moved...); got != "OK" && got != "NOKEY" {
			r.t.Fatalf("keys of slot %s did not move: %s", slot, got)
		}
	}
	for _, node := range []int{to, from, 3 - to - from} {
		if got := said(node, "CLUSTER", "SETSLOT", slot, "NODE", target); got != "OK" {
			r.t.Fatalf("slot %s is not its new master's: %s", slot, got)
		}
	}
	r.masters[shard] = to
	for _, u := range r.users {
		u.master = r.masters[u.shard]
	}
}

func (r *shardedRig) signal(node int, s syscall.Signal) {
	r.t.Helper()
	if err := r.nodes[node].Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// A master that falls silent, or is killed, concerns the users of its shards, and nobody else, even if it has the
// registry; nor does it when a shard moves to another master. Redis has TLS, with certificates of clients, and the
// users of deploy/redis/users.acl.
func TestShardsFailAlone(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	r := newShardedRig(t)
	everyone := func(*shardedUser) bool { return true }
	others := func(u *shardedUser) bool { return u.master != r.registry }
	defer r.load()()
	moving := r.users[1].shard // which has a user with an hour's limit
	r.exact(1, 2, func(u *shardedUser) bool { return u.shard != moving }, func() { r.move(moving, (r.masters[moving]+1)%3) })
	r.lost(-1)

	from, to := r.exact(1, 3, others, func() { r.signal(r.registry, syscall.SIGSTOP) })
	r.fallsBack(r.registry, from, to)
	r.lost(r.registry)
	r.reported(others)
	for _, e := range r.fleet.edges {
		if n := e.limiter.inForce.instances.Load(); n != clusterAgents {
			t.Errorf("%s knows of %d instances without the registry, want %d", e.options.Instance, n, clusterAgents)
		}
	}
	r.signal(r.registry, syscall.SIGCONT)
	r.lost(-1)
	r.exact(1, 1, everyone, func() {})

	// Its replica takes over when the others have missed it for so long.
	for _, addr := range r.addrs {
		proctest.RedisCommand(t, addr, "CONFIG", "SET", "cluster-node-timeout", "1000")
	}
	r.exact(1, 1, others, func() { r.nodes[r.registry].Kill() })
	r.lost(-1)
	r.exact(1, 1, everyone, func() {})
	r.countedOnce()
}
