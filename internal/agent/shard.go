package agent

import (
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// shard is one of the parts that Redis divides users into. Each has cores of its own, which know of
// no other: so a master that falls silent concerns its shards' users, and nobody else.
type shard struct {
	number int
	lanes  struct{ tokens, slots, costs laneSignals }
	reach  redisReach

	// The limiter's lock guards what follows; see limiter.coresOf.
	tokens  *ratelimit.Agent
	slots   *concurrency.Agent
	costs   *cost.Agent
	touched bool // stands in limiter.touched
}

// redisReach is what a request must know of a shard. The agent's loss decides it; it is
// read without a lock, for every request looks at it.
type redisReach struct {
	most time.Duration // that a request may ever wait for Redis
	wait atomic.Int64  // how long one waits if Redis is silent, ns
	open atomic.Bool   // it is lost and requests are not to be limited
}

const (
	maxUsers = 500_000 // that the cores of all shards know of at a time
	// maxLine bounds the requests of one user that wait in line, and maxLines those of all users. With
	// many shards it may be more: a user may have as many as one in any case.
	maxLine, maxLines = 500, 4000
	// maxCorrections bounds the corrections of costs that wait for Redis, of all shards.
	maxCorrections = 100_000
)

func newShards(n int, slots concurrency.Config) []*shard {
	shards := make([]*shard, n)
	// Of memory, so it is for all of them together; shards have about as many users each.
	slots.MaxUsers = maxUsers / n
	slots.MaxLine, slots.MaxLines = maxLine, max(maxLine, maxLines/n)
	for i := range shards {
		s := &shard{number: i, tokens: ratelimit.NewAgent(ratelimit.Config{MaxUsers: slots.MaxUsers}), slots: concurrency.NewAgent(slots),
			costs: cost.NewAgent(cost.Config{MaxUsers: slots.MaxUsers, MaxCorrections: max(1, maxCorrections/n)})}
		s.lanes.tokens, s.lanes.slots, s.lanes.costs = newLaneSignals(), newLaneSignals(), newLaneSignals()
		shards[i] = s
	}
	return shards
}

func (l *limiter) shardOf(user string) *shard {
	// Nearly everywhere: no request has to pay for a hash then.
	if len(l.shards) == 1 {
		return l.shards[0]
	}
	return l.shards[l.divide(user)]
}

// coresOf is a user's shard for whoever uses its cores: what they say then is carried out; l.mu is held.
func (l *limiter) coresOf(user string) *shard {
	s := l.shardOf(user)
	l.touch(s)
	return s
}

// allCores is every shard for whoever uses the cores of all; l.mu is held.
func (l *limiter) allCores() []*shard {
	for _, s := range l.shards {
		l.touch(s)
	}
	return l.shards
}

func (l *limiter) touch(s *shard) {
	// Noted and not looked for: a look at the output of each of 1024 shards for each request would cost more than the request.
	if !s.touched {
		s.touched = true
		l.touched = append(l.touched, s)
	}
}

// showCores has the metrics say what the cores of all shards know. It looks at each of them, so it is not for what
// happens in each shard.
func (l *limiter) showCores() {
	var all concurrency.Stats
	users, costUsers, overflowed, unsaid := 0, 0, uint64(0), uint64(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shards {
		of := s.slots.Stats()
		all.Postponed += of.Postponed
		all.Users, all.InProgress, all.InLine, all.Resting = all.Users+of.Users, all.InProgress+of.InProgress, all.InLine+of.InLine, all.Resting+of.Resting
		users += s.tokens.KnownUsers()
		costUsers += s.costs.KnownUsers()
		overflowed += s.tokens.Overflowed() + of.Overflowed + s.costs.Overflowed()
		unsaid += s.costs.Dropped()
	}
	l.metrics.users.Set(float64(users))
	l.metrics.costUsers.Set(float64(costUsers))
	l.metrics.slotUsers.Set(float64(all.Users))
	l.metrics.inProgress.Set(float64(all.InProgress))
	l.metrics.line.Set(float64(all.InLine))
	l.metrics.resting.Set(float64(all.Resting))
	// The cores count up, and a counter takes what is new.
	l.metrics.uncounted.Add(float64(overflowed - l.overflowed))
	l.overflowed = overflowed
	l.metrics.asksPostponed.Add(float64(all.Postponed - l.postponed))
	l.postponed = all.Postponed
	l.metrics.correctionsDropped.Add(float64(unsaid - l.unsaid))
	l.unsaid = unsaid
}

// waitFor is how long a request waits for the shard of its user if that is silent.
func (l *limiter) waitFor(user string) time.Duration {
	return time.Duration(l.shardOf(user).reach.wait.Load())
}

// mayHoldSlots is by shard whether this instance may hold slots that the pool does not take it to
// hold in any case: of users whom the core has forgotten it holds the portion.
func (l *limiter) mayHoldSlots() []bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	hold := make([]bool, len(l.shards))
	for i, s := range l.shards {
		hold[i] = s.slots.Stats().Users > 0
	}
	return hold
}
