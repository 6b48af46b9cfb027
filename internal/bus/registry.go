package bus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Registry is the list of the instances of a cluster.
type Registry struct {
	Instances []string  // sorted
	Now       time.Time // Redis' clock, to the microsecond

	// Versions has, by instance, the version of the limits that it enforces. An instance
	// that does not enforce any yet is not in it.
	Versions map[string]string

	// Problems has, by instance, why it does not fully work. An instance that does is not
	// in it. It is nil in events of Subscribe, whose messages have no problems.
	Problems map[string]string
}

// addInstance takes one instance of a reply or message.
func (r *Registry) addInstance(instance, version string) {
	r.Instances = append(r.Instances, instance)
	if version == "" {
		return
	}
	if r.Versions == nil {
		r.Versions = make(map[string]string)
	}
	r.Versions[instance] = version
}

// addProblem takes the problem of one instance of a reply, "" for none.
func (r *Registry) addProblem(instance, problem string) {
	if r.Problems == nil {
		r.Problems = make(map[string]string) // also without a problem: nil is unknown
	}
	if problem != "" {
		r.Problems[instance] = problem
	}
}

func (r Registry) sorted() Registry {
	slices.Sort(r.Instances)
	return r
}

// versionsKey has, for each instance, the version of the limits that it enforces.
const versionsKey = "sluice:{cluster}:versions"

// problemsKey has, for each instance that does not fully work, why.
const problemsKey = "sluice:{cluster}:problems"

// maxProblem bounds what is told of a problem, in bytes.
const maxProblem = 100

// Register is an instance's heartbeat. An instance calls it before it serves, and then
// every 250 ms, with the version of the limits that it enforces ("" for none yet) and its
// problem ("" for none), of which the first 100 bytes are kept. Register drops the
// instances that have been silent for 1.5 s, and tells all subscribers of InstancesChannel
// when the membership changed. Time in which no instance was heard does not count, unless
// the instance is new: then Redis stood still, or all machines did. A change of version or problem is told only in answers of
// Register and Instances. It fails with ErrShards while processes with another number of
// shards are there.
func (b *Bus) Register(ctx context.Context, instance, version, problem string) (Registry, error) {
	if len(problem) > maxProblem {
		problem = strings.ToValidUTF8(problem[:maxProblem], "") // the cut may be within a rune
	}
	return b.registry(ctx, "register", instance, version, problem)
}

// Leave takes an instance out of the registry without waiting for its lapse.
func (b *Bus) Leave(ctx context.Context, instance string) error {
	_, err := b.registry(ctx, "leave", instance, "", "")
	return err
}

// Instances lists the instances without being one, and drops those that have
// been silent, as Register does: if none is heard at all, after 3 s.
func (b *Bus) Instances(ctx context.Context) (Registry, error) {
	return b.registry(ctx, "list", "", "", "")
}

func (b *Bus) registry(ctx context.Context, action, instance, version, problem string) (r Registry, err error) {
	err = b.callRedis(ctx, action, action+" instance", func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, call{
			script: registryScript,
			keys:   []string{instancesKey, shardsKey, versionsKey, problemsKey},
			args:   []any{action, instance, version, b.shards, instanceTimeout.Milliseconds(), registryTTL.Milliseconds(), problem, shardsTTL.Milliseconds()},
		})
		if err != nil {
			return err
		}
		reply, ok := replies[0].([]any)
		if !ok || len(reply) < 3 {
			return &replyError{replies[0]}
		}
		if err := b.checkShards(reply[0]); err != nil {
			return err
		}
		if r.Now, ok = readTime(reply[1:]); !ok {
			return &replyError{reply}
		}
		for rest := reply[3:]; len(rest) > 0; rest = rest[3:] {
			if len(rest) < 3 {
				return &replyError{reply}
			}
			name, ok1 := rest[0].(string)
			version, ok2 := rest[1].(string)
			problem, ok3 := rest[2].(string)
			if !ok1 || !ok2 || !ok3 {
				return &replyError{reply}
			}
			r.addInstance(name, version)
			r.addProblem(name, problem)
		}
		return nil
	})
	if err != nil {
		return Registry{}, err
	}
	return r.sorted(), nil
}

// checkShards compares the number of shards in force with this process's.
func (b *Bus) checkShards(inForce any) error {
	if inForce != strconv.Itoa(b.shards) {
		return fmt.Errorf("%w: others use %v, this one %d", ErrShards, inForce, b.shards)
	}
	return nil
}
