package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

// Users of steady load. When the run has settled each was there, so that new names make nothing grow afterwards.
const (
	presentUsers = 10_000 // at a time
	allUsers     = 20_000
	turns        = 10 // after which all were there
	fewUsers     = 5  // who ask for twice their limit, and as many without credit
)

// soakScenario serves steady load while limits change and HAProxies are reloaded each minute.
func soakScenario(seed uint64, d, settle time.Duration, rate float64) *scenario {
	s := &scenario{
		kind: "soak", seed: seed, store: "single", instances: schedule.Instances, polygens: schedule.Polygens, maxWait: 60 * time.Millisecond,
		plan: schedule.Soak(d), steadyRate: rate, settle: settle,
	}
	text := func(pro int) string {
		return fmt.Sprintf(`version: 1
default_tier: free
tiers:
  free: {requests: {GET: 20}, concurrent: 10}
  pro: {requests: {GET: %d}, concurrent: 20}
  hot: {requests: {GET: %.0f}}
  minute: {requests: {GET: {minute: %.0f}}}
users:
  "user-*7": pro
  "hot-*": hot
  "minute-*": minute
`, pro, max(1, rate/20/fewUsers/2), max(1, 2*60*rate/20/fewUsers))
	}
	s.limits, s.otherLimits = text(50), text(51)
	return s
}

// userAt is one of the users of a turn, chosen by a random number.
func userAt(turn int, random uint64) string {
	return fmt.Sprintf("user-%d", (uint64(turn*allUsers/turns)+random>>32*presentUsers>>32)%allUsers)
}

// hotUsers is the kind of steady load's users who may be refused.
const hotUsers = "hot"

// steadyRequest draws a request of a turn: a twentieth is of the few users of each kind.
func steadyRequest(turn int, random *rand.Rand) load.Request {
	user, kind := "", ""
	switch random.Uint64N(20) {
	case 0:
		user, kind = fmt.Sprintf("hot-%d", random.Uint64N(fewUsers)), hotUsers
	case 1:
		user, kind = fmt.Sprintf("minute-%d", random.Uint64N(fewUsers)), "minute"
	default:
		user, kind = userAt(turn, random.Uint64()), "cold"
	}
	return load.Request{Headers: []byte("X-User: " + user + "\r\n"), User: kind}
}

// steadyLoad counts what became of steady load's requests since it was last asked.
type steadyLoad struct {
	mu      sync.Mutex
	latency load.Distribution
	counts  map[string]float64
}

// sendSteadily sends steady load until ctx ends, a minute at a time.
func (r *runner) sendSteadily(ctx context.Context) error {
	targets, err := load.Spread("even", r.world.c.Addresses()...)
	if err != nil {
		return err
	}
	begun := time.Now()
	for minute := uint64(0); ctx.Err() == nil; minute++ {
		random := rand.New(rand.NewPCG(r.seed, minute))
		var next load.Request
		asked := -1
		_, err := load.Run(ctx, load.Spec{
			Targets: targets, Rate: r.steadyRate, Duration: time.Minute, Arrivals: load.Poisson, Seed: r.seed + minute,
			Requests: func(i int) load.Request {
				if i != asked { // a request that waits is asked for again
					asked, next = i, steadyRequest(int(time.Since(begun)*turns/r.settle), random)
				}
				return next
			},
			Settled: func(kind, reason string, result load.Result) {
				r.steady.settled(kind, reason, result)
				r.clients.note(int(result.Status), result.Failure == load.Answered)
			},
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (s *steadyLoad) settled(kind, reason string, result load.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["requests"]++
	switch {
	case result.Refused() && kind == hotUsers:
		s.counts["refused"]++
	case result.Refused():
		s.counts["refused below their limits"]++
		s.counts[fmt.Sprintf("refused below their limits: %s users at haproxy-%d, %s", kind, result.Target, cmp.Or(reason, fmt.Sprint(result.Status)))]++
	case !result.Admitted() || result.Failure != load.Answered:
		s.counts["failed"]++
	default:
		s.latency = append(s.latency, time.Duration(result.Answered-result.Sent))
	}
}
