package redisbus

import (
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// The keys of everything that Sluice keeps in Redis. docs/keys.md says of each which type it
// has, how long it lives, who writes it, who reads it and what it holds; tests hold that
// table to what is in Redis.
//
// A user's shard stands in braces, Redis Cluster's hash tags: keys that one script touches
// must lie in one slot.
const (
	clusterTag   = "cluster"
	instancesKey = "sluice:{cluster}:instances"
	shardsKey    = "sluice:{cluster}:shards"
	leaderKey    = "sluice:{cluster}:leader"
	limitsKey    = "sluice:limits"
	overridesKey = "sluice:{cluster}:overrides"
)

// A Channel is a channel of Redis, as metrics and docs/keys.md name it.
type Channel string

// The channels that Subscribe can listen to, and the one of SubscribeOwn.
const (
	PoliciesChannel  Channel = "sluice:policies"
	OwnChannel       Channel = "sluice:policies:<instance>"
	InstancesChannel Channel = "sluice:instances"
)

// The channels of each shard, about its users: see SubscribeReports.
const (
	UsageChannel    Channel = "sluice:{<n>}:usage"
	ProgressChannel Channel = "sluice:{<n>}:progress"
	DemandChannel   Channel = "sluice:{<n>}:demand"
	StartsChannel   Channel = "sluice:{<n>}:starts"
)

func (c Channel) ofShard(shard int) string {
	return strings.Replace(string(c), "<n>", strconv.Itoa(shard), 1)
}

func ownChannel(instance string) string { return string(PoliciesChannel) + ":" + instance }

const (
	// requestsSpare is how long the pool of a window is kept after the window, so that late
	// reports find it; a second longer if its newest field came early. A pool of costs is kept so
	// long after the next window, which reads its debt.
	requestsSpare = 11 * time.Second

	// windowParts divide the users of a window longer than a second.
	windowParts = 64

	// heardTTL is how long a call may be repeated, or be late, without counting twice.
	// It is counted from the agent's last call to the shard.
	heardTTL = time.Hour

	// slotsTTL is counted from the last write of any instance: agents with requests in
	// progress write more often.
	slotsTTL = 30 * time.Second

	// slotsFresh is how long after its last write an instance counts as live without a look.
	slotsFresh = time.Second

	// aliveTimeout is how long an instance may be silent in a shard, which hears of it twice
	// a second in a cluster of any size: what a dead instance held is free to others within 2 s.
	aliveTimeout = Lapse + BeatEvery

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
	// Made for each hash of each call, so it is not put together by a format.
	b := make([]byte, 0, 48)
	b = append(b, "sluice:{"...)
	b = strconv.AppendInt(b, int64(shard), 10)
	b = append(b, "}:requests:"...)
	if w != limits.Second {
		b = append(append(b, w.String()...), ':')
		b = append(strconv.AppendInt(b, int64(part), 10), ':')
	}
	return string(strconv.AppendInt(b, second, 10))
}

func burstKey(shard int, field string) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:burst:" + field
}

// heardKey is the key of the last call's number. The kind is that of the script.
func heardKey(shard int, kind, instance, session string) string {
	// Several scripts hear of the calls, each of its own: the number of one says nothing about the others'. Nor do those of an
	// earlier agent of the same name: it had another session.
	return "sluice:{" + strconv.Itoa(shard) + "}:heard:" + kind + ":" + instance + ":" + session
}

// costKey is the key of the pools of costs in a window that begins at a second.
func costKey(shard, part int, w limits.Window, second int64) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:cost:" + w.String() + ":" + strconv.Itoa(part) + ":" + strconv.FormatInt(second, 10)
}

// slotsPrefix is what comes before the user's name in the key of a user's slots.
func slotsPrefix(shard int) string {
	return "sluice:{" + strconv.Itoa(shard) + "}:slots:"
}

func aliveKey(shard int) string { return "sluice:{" + strconv.Itoa(shard) + "}:alive" }

// eventsKey is the key of the reports of what started and ended in a second: of a shard's users,
// or with clusterTag of tiers.
func eventsKey(tag string, second int64) string {
	return "sluice:{" + tag + "}:events:" + strconv.FormatInt(second, 10) + ":reports"
}

func eventPartOf(user string) int {
	// Other bits than those of ShardOf, or a shard would have some of the parts only.
	return int(xxhash.Sum64String(user) >> 32 % eventParts)
}

// ShardOf is the shard of all of a user's pools, from 0 on.
func (b *Bus) ShardOf(user string) int {
	// Nearly everywhere, and it is asked of each user of each call.
	if b.shards == 1 {
		return 0
	}
	return int(xxhash.Sum64String(user) % uint64(b.shards))
}

func partOf(user string, w limits.Window) int {
	if w == limits.Second {
		return 0
	}
	// Other bits than those of ShardOf: with the same ones, a shard would have only some of
	// the parts.
	return int(xxhash.Sum64String(user) >> 32 % windowParts)
}
