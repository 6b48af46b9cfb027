package bus

import (
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Everything Sluice keeps in Redis, and every channel it uses. Nothing is read
// by scanning, everything expires, nothing is precious.
//
//	key                          type    TTL     writer                reader          holds
//	sluice:{<n>}:requests:<s>    hash    12 s    agents, Take          agents, Take    class|user → tokens and debts of second s
//	sluice:{<n>}:<w>:<p>:<s>     hash    w+11 s  agents, Take          agents, Take    class/w|user → the same of the window w, minute or hour, that begins at s
//	sluice:{<n>}:burst:<f>       string  1 d     agents, Take          agents, Take    of f, class|user: second, credit, before, total, next
//	sluice:{<n>}:heard:<k>:<i>   string  1 h     agent i, Take         agent i, Take   number of the last call of the kind k, take or burst
//	sluice:{<n>}:slots:<user>    hash    30 s    agents, Slots         agents, Slots   instance → held, active, seq, Redis ms of the write
//	sluice:{<n>}:moving:<i>:<u>  string  5 s     agent i, Demand       –               requests in progress of user u, bytes per second down, up
//	sluice:{<n>}:events:<s>      hash    1 min   agents, AddEvents     polygen         start|class|user, end|user → requests that started and ended in second s
//	sluice:{cluster}:events:<s>  hash    1 min   agents, AddEvents     polygen         start|class|tier, end|tier → the same of all users
//	sluice:{<t>}:events:<s>:told hash    1 min   agents, AddEvents     agents          report/part → 1, of the reports that the bucket of t, n or cluster, has
//	sluice:{cluster}:instances   zset    1 min   agents, Register      all, Register   instance → Redis ms of its last heartbeat
//	sluice:{cluster}:versions    hash    1 min   agents, Register      all, Register   instance → version of the limits that it enforces
//	sluice:{cluster}:problems    hash    1 min   agents, Register      all, Register   instance → why it does not fully work; a well one is not there
//	sluice:{cluster}:shards      string  5 s     all, Register, Lead   the same        the number of shards that all must use
//	sluice:{cluster}:leader      string  Lead's  polygen, Lead         polygen, Lead   the polygen that decides
//	sluice:limits                hash    24 h    polygen               agents          version, source of the limit file
//	sluice:overrides             hash    theirs  polygen               polygen         version, list of what was set by hand
//
//	channel            publisher          subscriber   message
//	sluice:usage       Take, in Redis     polygen      instance; second, total, class|user of each changed pool
//	sluice:progress    Slots, in Redis    polygen      instance; user, held, active, refused, limit of each user near the limit
//	sluice:demand      Demand, in Redis   polygen      instance; user, in progress, bytes per second moved, usable and given
//	sluice:starts      agents, Started    polygen      instance, span of time; user, in progress, starts in it, of each class, of every user
//	sluice:policies    polygen            agents       internal/policy's lines
//	sluice:unblock     polygen            polygen      polygen; user to let in by hand
//	sluice:confirmed   agents, Confirm    polygen      instance, time, second, class|user of a policy confirm
//	sluice:instances   Register, Leave    all          Redis' time, the instances and their limits' versions, when the instances changed
//
// <n> is the shard of a user. The braces are Redis Cluster's hash tags: keys that one
// script touches lie in one slot. <p> is one of 64 parts that users are divided into, so
// that what Redis frees at a time when an hour is over stays small: a hash of a million
// fields holds it up for a second. A burst's account is gone as soon as its credit is full:
// after 12 s and one more second for each limit's worth that is missing, a day at most.
//
// A limit over a minute or an hour costs Redis some 80 bytes for each user and class
// seen in the window, until it is over; a burst some 200 for each that is not full.
const (
	clusterTag   = "cluster"
	instancesKey = "sluice:{cluster}:instances"
	shardsKey    = "sluice:{cluster}:shards"
	leaderKey    = "sluice:{cluster}:leader"
	limitsKey    = "sluice:limits"
	overridesKey = "sluice:overrides"
)

// A Channel is a channel of Redis that Subscribe can listen to.
type Channel string

// The channels.
const (
	UsageChannel     Channel = "sluice:usage"
	ProgressChannel  Channel = "sluice:progress"
	DemandChannel    Channel = "sluice:demand"
	StartsChannel    Channel = "sluice:starts"
	PoliciesChannel  Channel = "sluice:policies"
	ConfirmedChannel Channel = "sluice:confirmed"
	UnblockChannel   Channel = "sluice:unblock"
	InstancesChannel Channel = "sluice:instances"
)

const (
	// requestsSpare is how long the pool of a window is kept after the window, so that late
	// reports find it; a second longer if its newest field came early.
	requestsSpare = 11 * time.Second

	// parts divide the users of a window longer than a second.
	parts = 64

	// heardTTL is how long a call may be repeated, or be late, without counting twice.
	// It is counted from the agent's last call to the shard.
	heardTTL = time.Hour

	// slotsTTL is counted from the last write of any instance: agents with requests in
	// progress write more often.
	slotsTTL = 30 * time.Second

	// demandTTL is counted from an instance's last report; it reports each user with
	// requests in progress every 500 ms at least.
	demandTTL = 5 * time.Second

	// slotsFresh is how long after its last write an instance counts as live although it is
	// not in the caller's list, which may be that old.
	slotsFresh = time.Second

	// lapse is how long an instance may be silent: six heartbeats of 250 ms. What a
	// dead instance held is free to others within 2 s.
	lapse = 1500 * time.Millisecond

	// registryTTL is how long the list of instances is kept when nobody is heard: much longer
	// than machines stand still, for whoever is heard first would find no others.
	registryTTL = time.Minute

	// shardsTTL is for how long after the end of the last process of a cluster another number
	// of shards is refused.
	shardsTTL = 5 * time.Second

	limitsTTL = 24 * time.Hour
)

// requestsKey is the key of the pools of a window that begins at a second. Pools of a
// limit per second are not divided into parts.
func requestsKey(shard, part int, w limits.Window, second int64) string {
	b := make([]byte, 0, 48)
	b = append(b, "sluice:{"...)
	b = strconv.AppendInt(b, int64(shard), 10)
	b = append(b, "}:"...)
	if w == limits.Second {
		b = append(b, "requests:"...)
	} else {
		b = append(append(b, w.String()...), ':')
		b = append(strconv.AppendInt(b, int64(part), 10), ':')
	}
	return string(strconv.AppendInt(b, second, 10))
}

// burstKey is the key of an account.
func burstKey(shard int, field string) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:burst:" + field
}

// heardKey is the key of the last call's number. The session tells an agent from an
// earlier one of the same name, whose numbers say nothing about this one's.
func heardKey(shard int, burst bool, instance, session string) string {
	kind := "take:"
	if burst {
		kind = "burst:"
	}
	return "sluice:{" + strconv.Itoa(shard) + "}:heard:" + kind + instance + ":" + session
}

// slotsPrefix is what comes before the user's name in the key of a user's slots.
func slotsPrefix(shard int) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:slots:"
}

func demandKey(shard int, instance, user string) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:moving:" + instance + ":" + user
}

// eventsKey is the key of what started and ended in a second: of a shard's users, or with
// clusterTag of tiers.
func eventsKey(tag string, second int64) string {
	return "sluice:{" + tag + "}:events:" + strconv.FormatInt(second, 10)
}

// reportedKey is of the reports that the bucket of a second has.
func reportedKey(tag string, second int64) string { return eventsKey(tag, second) + ":told" }

// shardOf is the shard of all of a user's pools.
func (b *Bus) shardOf(user string) int {
	// All processes must agree, also of different versions: the hash may not change.
	return int(xxhash.Sum64String(user) % uint64(b.shards))
}

// partOf is the part of all of a user's pools in a window.
func partOf(user string, w limits.Window) int {
	if w == limits.Second {
		return 0
	}
	// Other bits than those of shardOf: with the same ones, a shard would have only some of
	// the parts.
	return int(xxhash.Sum64String(user) >> 32 % parts)
}
