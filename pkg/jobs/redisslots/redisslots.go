package redisslots

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/pkg/internal/gather"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

//go:embed slots.lua
var source string

var script = redis.NewScript(source)

const (
	// shards is the same in every process, for a user is to be in one of them: see shardOf.
	shards = 16
	// ttl is how long a user's slots are kept after they are over, and a user's line after
	// the last call about that user.
	ttl = 24 * time.Hour
	// most bounds the limits: Redis' numbers are exact up to there.
	most = 1 << 52
)

// New returns Slots that are kept in Redis. The client remains the caller's, to
// configure and to close. It may retry.
func New(client redis.UniversalClient) jobs.Slots {
	s := &slots{client: client}
	s.calls = gather.New(func(ctx context.Context, calls []call) ([]*redis.Cmd, error) { return s.sendAll(ctx, calls), nil })
	return jobs.Checked(s)
}

type slots struct {
	client redis.UniversalClient
	calls  *gather.Calls[call, *redis.Cmd] // for single users, which share round trips
}

func (s *slots) Acquire(ctx context.Context, c jobs.Claim, l jobs.Limits, lease time.Duration, park bool) (jobs.Verdict, error) {
	args := append(beginArguments("acquire"), c.ID, c.Holder, c.Queue, micros(lease), park, jobs.MaxParked)
	got, err := s.callForUser(ctx, c.User, withLimits(args, l)).Int64Slice()
	// What is no answer must not pass for a refusal: the job would be parked in no line.
	if err == nil && len(got) != 4 {
		err = fmt.Errorf("unexpected reply %v", got)
	}
	if err != nil {
		return jobs.Verdict{}, err
	}
	return jobs.Verdict{Granted: got[0] == 1, Running: int(got[1]), InQueue: int(got[2]), Place: int(got[3])}, nil
}

// Renew is atomic for the claims of each user.
func (s *slots) Renew(ctx context.Context, claims []jobs.Claim, lease time.Duration) (lost []jobs.Claim, err error) {
	// One call for each user: it reads all of the user's slots, and the keys of two users may be
	// in different slots of a Redis Cluster.
	byUser := map[string][]jobs.Claim{}
	for _, c := range claims {
		byUser[c.User] = append(byUser[c.User], c)
	}
	var calls []call
	var order [][]jobs.Claim // of each call
	for user, claims := range byUser {
		args := append(beginArguments("renew"), micros(lease))
		for _, c := range claims {
			args = append(args, c.ID, c.Holder)
		}
		calls, order = append(calls, call{userKeys(user), args}), append(order, claims)
	}
	replies, err := s.callAll(ctx, calls)
	if err != nil {
		return nil, err
	}
	for n, reply := range replies {
		kept, err := reply.Int64Slice()
		if err == nil && len(kept) != len(order[n]) {
			err = fmt.Errorf("unexpected reply %v", kept)
		}
		if err != nil {
			return nil, err
		}
		for i, c := range order[n] {
			if kept[i] == 0 {
				lost = append(lost, c)
			}
		}
	}
	return lost, nil
}

func (s *slots) Release(ctx context.Context, c jobs.Claim, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	return s.releaseAndReserve(ctx, c, l, reserve)
}

func (s *slots) ReserveFree(ctx context.Context, user string, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	// A claim without a job is nobody's, and releases nothing.
	return s.releaseAndReserve(ctx, jobs.Claim{Job: jobs.Job{User: user}}, l, reserve)
}

// releaseAndReserve reserves free slots, and before that releases a claim if it names a job.
func (s *slots) releaseAndReserve(ctx context.Context, c jobs.Claim, l jobs.Limits, reserve time.Duration) (reserved []jobs.Job, err error) {
	args := append(beginArguments("release"), c.ID, c.Holder, micros(reserve))
	// One call for both: nobody else may take the slot between the two.
	got, err := s.callForUser(ctx, c.User, withLimits(args, l)).StringSlice()
	if err != nil {
		return nil, err
	}
	for pair := range slices.Chunk(got, 2) {
		if len(pair) != 2 {
			return nil, fmt.Errorf("unexpected reply %.100q", got)
		}
		reserved = append(reserved, jobs.Job{User: c.User, ID: pair[0], Queue: pair[1]})
	}
	return reserved, nil
}

func (s *slots) Forget(ctx context.Context, j jobs.Job) error {
	return s.callForUser(ctx, j.User, append(beginArguments("forget"), j.ID)).Err()
}

// Waiting asks every shard, in one round trip.
func (s *slots) Waiting(ctx context.Context, after string, n int) ([]string, error) {
	calls := make([]call, shards)
	for shard := range calls {
		// n of each, for the first n of all may be in one shard.
		calls[shard] = call{[]string{waitingKey(shard)}, append(beginArguments("waiting"), after, min(n, most),
			userKey(shard, "slots", ""), userKey(shard, "line", ""), userKey(shard, "places", ""))}
	}
	replies, err := s.callAll(ctx, calls)
	if err != nil {
		return nil, err
	}
	var users []string
	for _, reply := range replies {
		part, err := reply.StringSlice()
		if err != nil {
			return nil, err
		}
		users = append(users, part...)
	}
	slices.Sort(users)
	// What is cut off comes with the next page, which begins after the last of these.
	return users[:min(n, len(users))], nil
}

func (s *slots) User(ctx context.Context, user string) (jobs.Usage, error) {
	reply, err := s.callForUser(ctx, user, beginArguments("user")).StringSlice()
	if err != nil {
		return jobs.Usage{}, err
	}
	return readUsage(user, reply)
}

// Taken is one call for each user, all in one round trip.
func (s *slots) Taken(ctx context.Context, users []string) (all []jobs.Slot, err error) {
	calls := make([]call, len(users))
	for i, user := range users {
		calls[i] = call{userKeys(user), beginArguments("slots")}
	}
	replies, err := s.callAll(ctx, calls)
	if err != nil {
		return nil, err
	}
	for i, reply := range replies {
		rows, err := reply.StringSlice()
		if err != nil {
			return nil, err
		}
		usage, err := readUsage(users[i], rows)
		if err != nil {
			return nil, err
		}
		all = append(append(all, usage.Held...), usage.Reserved...)
	}
	return all, nil
}

type call struct {
	keys []string
	args []any
}

func (s *slots) callForUser(ctx context.Context, user string, args []any) *redis.Cmd {
	reply, err := s.calls.Do(ctx, call{userKeys(user), args})
	if err != nil {
		reply = redis.NewCmd(ctx)
		reply.SetErr(err)
	}
	return reply
}

// callAll makes calls in one round trip, and returns the error of the first that failed.
func (s *slots) callAll(ctx context.Context, calls []call) ([]*redis.Cmd, error) {
	// A pipeline of nothing asks nobody, and must not pass for an answer after the context's end.
	if len(calls) == 0 {
		return nil, ctx.Err()
	}
	replies := s.sendAll(ctx, calls)
	for _, reply := range replies {
		if err := reply.Err(); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// sendAll makes calls in one round trip, and again those for which Redis did not know
// the script. Each reply has its own error.
func (s *slots) sendAll(ctx context.Context, calls []call) []*redis.Cmd {
	replies := make([]*redis.Cmd, len(calls))
	pipe := s.client.Pipeline()
	for i, c := range calls {
		replies[i] = script.EvalSha(ctx, pipe, c.keys, c.args...)
	}
	// The error of the first call that failed. The others may have been done. Of no call there is none.
	_, failed := pipe.Exec(ctx)
	for i, c := range calls {
		err := replies[i].Err()
		// Redis forgets its scripts when it restarts. A pipeline cannot send the script along where it is missing, as Run does for one call.
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			replies[i] = script.Run(ctx, s.client, c.keys, c.args...)
		} else if err == nil && replies[i].Val() == nil && failed != nil {
			// Neither an answer nor an error: the call was not sent, because the connection broke before.
			replies[i].SetErr(failed)
		}
	}
	return replies
}

func beginArguments(operation string) []any {
	// The script finds the user's name in a key by what is before it, which is equally long in all of them.
	return append(make([]any, 0, 16), operation, len(userKey(0, "slots", ""))+1, int64(ttl/time.Second))
}

func withLimits(args []any, l jobs.Limits) []any {
	args = append(args, min(l.Total, most), min(l.OfOthers(), most))
	for queue, n := range l.Queues {
		// Redis' numbers are floating point, and exact only so far.
		args = append(args, queue, min(n, l.Total, most))
	}
	return args
}

// micros rounds up: no span is 0. A century is for ever.
func micros(d time.Duration) int64 {
	// Down to nothing would be a lease that is over when it begins.
	return int64((min(d, 100*365*24*time.Hour) + time.Microsecond - 1) / time.Microsecond)
}

// shardOf is the same in all processes, whatever they are written in: the first digit of the hexadecimal SHA-1, which every
// language and shell has.
func shardOf(user string) int { return int(sha1.Sum([]byte(user))[0] >> 4) }

// hashTag names a shard in as many bytes as any other.
func hashTag(shard int) string { return "{" + strconv.Itoa(shard+100) + "}" }

func waitingKey(shard int) string { return "sluice:jobs:" + hashTag(shard) + ":waiting" }

// userKey is the same length for what begins the script's second, third or fourth key.
func userKey(shard int, what, user string) string {
	return "sluice:jobs:" + hashTag(shard) + ":" + what + ":" + user
}

func userKeys(user string) []string {
	shard := shardOf(user)
	return []string{waitingKey(shard), userKey(shard, "slots", user), userKey(shard, "line", user), userKey(shard, "places", user)}
}
