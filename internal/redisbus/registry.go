package redisbus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Registry is the list of the instances of a cluster.
type Registry struct {
	Instances []string  // sorted; shared, so nobody may change it
	Now       time.Time // Redis' clock, to the microsecond

	// Versions has, by instance, the version of the limits that it enforces. An instance
	// that does not enforce any yet is not in it. Only Instances reads the versions: of
	// others it is nil.
	Versions map[string]string

	// Problems has, by instance, why it does not fully work. An instance that does is not
	// in it. Only Instances reads the problems: of others it is nil.
	Problems map[string]string
}

const (
	// versionsKey has, for each instance, the version of the limits that it enforces.
	versionsKey = "sluice:{cluster}:versions"

	// problemsKey has, for each instance that does not fully work, why.
	problemsKey = "sluice:{cluster}:problems"

	// epochKey has the epoch: it names the present membership.
	epochKey = "sluice:{cluster}:epoch"

	// BeatEvery is how often an instance registers.
	BeatEvery = 250 * time.Millisecond

	// Lapse is for how long an instance may be silent before it is gone.
	Lapse = 6 * BeatEvery

	maxProblem = 100 // bounds what is told of a problem, in bytes
)

// registryKeys are those of scripts/registry.lua.
var registryKeys = []string{instancesKey, shardsKey, epochKey, versionsKey, problemsKey}

// Register is an instance's heartbeat. An instance calls it before it serves, and then
// every BeatEvery, with the version of the limits that it enforces ("" for none yet)
// and its problem ("" for none), of which the first 100 bytes are kept. Register drops the
// instances that have been silent for Lapse, and tells all subscribers of
// InstancesChannel when the membership changed. Time in which no instance was heard does not
// count, unless the instance is new: then Redis stood still, or all machines did. It fails
// with ErrShards while processes with another number of shards are there.
//
// In a cluster that does not change, what it costs Redis does not depend on the number of
// instances: names are sent only to those whose epoch is another.
func (b *Bus) Register(ctx context.Context, instance, version, problem string) (r Registry, err error) {
	// It is for people, and kept for each instance. The cut may be within a rune.
	if len(problem) > maxProblem {
		problem = strings.ToValidUTF8(problem[:maxProblem], "")
	}
	err = b.callRedis(ctx, "register", "register instance", func(ctx context.Context) (err error) {
		r, err = b.changeRegistry(ctx, "register", instance, version, problem)
		return err
	})
	return r, err
}

// Leave takes an instance out of the registry without waiting for its lapse. Its slots are its own until its shards
// have not heard of it for a while, for its HAProxy goes on with its requests.
func (b *Bus) Leave(ctx context.Context, instance string) error {
	return b.callRedis(ctx, "leave", "leave instance", func(ctx context.Context) error {
		_, err := b.changeRegistry(ctx, "leave", instance, "", "")
		return err
	})
}

// Instances lists the instances without being one, with their versions and problems, and
// drops those that have been silent, as Register does: if none is heard at all, after twice
// their lapse.
// It costs Redis the more, the more instances there are.
func (b *Bus) Instances(ctx context.Context) (r Registry, err error) {
	err = b.callRedis(ctx, "list", "list instance", func(ctx context.Context) (err error) {
		if r, err = b.changeRegistry(ctx, "list", "", "", ""); err != nil {
			return err
		}
		// Read only here, for the API: heartbeats would cost the more, the more instances there are.
		pipe := b.client.Pipeline()
		versions, problems := pipe.HGetAll(ctx, versionsKey), pipe.HGetAll(ctx, problemsKey)
		if _, err = pipe.Exec(ctx); err != nil {
			return err
		}
		r.Versions, r.Problems = r.saidBy(versions), r.saidBy(problems)
		return nil
	})
	if err != nil {
		return Registry{}, err
	}
	return r, nil
}

// saidBy is what a hash has of the instances.
func (r Registry) saidBy(hash *redis.MapStringStringCmd) map[string]string {
	all := hash.Val()
	of := make(map[string]string, len(all))
	// Of those in the list alone: the hash was read later, and may have others.
	for _, name := range r.Instances {
		if said := all[name]; said != "" {
			of[name] = said
		}
	}
	return of
}

func (b *Bus) changeRegistry(ctx context.Context, action, instance, version, problem string) (Registry, error) {
	known := b.membership.known()
	// The word of a call is no other call's: an epoch that Redis makes once more after it has forgotten some is another.
	replies, err := b.evalScripts(ctx, call{
		script: registryScript,
		keys:   registryKeys,
		args: []any{action, instance, version, b.shards, Lapse.Milliseconds(), registryTTL.Milliseconds(), problem,
			shardsTTL.Milliseconds(), known.epoch, b.session + "." + strconv.FormatInt(b.calls.Add(1), 36)},
	})
	if err != nil {
		return Registry{}, err
	}
	reply, ok := replies[0].([]any)
	if !ok || len(reply) < 3 {
		return Registry{}, &replyError{replies[0]}
	}
	// Nothing was done then: users would be in other shards than where the others look for them.
	if err := b.checkShards(reply[0]); err != nil {
		return Registry{}, err
	}
	now, ok := readTime(reply[1:])
	words, ok2 := readTexts(reply[3:])
	// A list that is half understood would have instances gone that are not.
	if !ok || !ok2 || len(words) == 0 {
		return Registry{}, &replyError{reply}
	}
	// Names follow if the caller knows another epoch. Redis has them by when they were heard.
	if epoch, names := words[0], words[1:]; epoch == "" || epoch != known.epoch {
		slices.Sort(names)
		known = members{epoch, names}
	}
	b.membership.replace(known, now)
	return Registry{Instances: known.instances, Now: now}, nil
}

func readTexts(reply []any) (texts []string, ok bool) {
	texts = make([]string, len(reply))
	for i, value := range reply {
		if texts[i], ok = value.(string); !ok {
			return nil, false
		}
	}
	return texts, true
}

func (b *Bus) checkShards(inForce any) error {
	if inForce != strconv.Itoa(b.shards) {
		return fmt.Errorf("%w: others use %v, this one %d", ErrShards, inForce, b.shards)
	}
	return nil
}
