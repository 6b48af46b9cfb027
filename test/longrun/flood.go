package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

const (
	floodUsers    = 10_000 // users who each ask for less than their limits
	floodHot      = 8      // users of "hot" and of "minute" who each ask for far more
	newName       = "name-"
	sources       = 16 // addresses that connections come from
	floodPatience = 2 * time.Second
	stormPatience = 60 * time.Second
	slicePlanned  = 1_000_000 // requests that are planned at a time
	maxFailures   = 1000      // lines about failed requests of one flood
)

// floodLimits is what the cluster limits. "minute" has no credit, so agents are asked about each of its requests.
const floodLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 20}, concurrent: 50}
  hot: {requests: {GET: 100}}
  minute: {requests: {GET: {minute: 6000}}}
users:
  "hot-*": hot
  "minute-*": minute
`

// overloadScenario offers two instances, with the shipped --max-wait, more requests and connections than they serve. Calm users must be
// answered in time nevertheless, and users above their limits must have all of them afterwards.
func overloadScenario(seed uint64, d time.Duration, rate float64, connections int) (*scenario, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil { // Go raised the limit as far as possible
		return nil, err
	}
	// Two slices of a flood overlap. The origin and the calm users need some, too.
	spare := int(min(files.Cur, 1<<20)) - 4000
	calm := history.Limit{Class: "GET", Requests: map[string]int{"second": 20}, Concurrent: 50}
	s := &scenario{
		kind: "overload", seed: seed, store: "single", instances: 2, polygens: 1, maxWait: 20 * time.Millisecond, limits: floodLimits, floodRate: rate,
		plan: schedule.Overload(d, min(4000, spare/4), min(connections, spare)),
		users: []user{
			{name: "calm", does: steady, kinds: one, rate: 10, method: "GET", limit: calm, within: time.Second},
			{name: "minute-calm", does: steady, kinds: one, rate: 10, method: "GET", limit: perMinute("GET", 6000), within: time.Second},
			{name: "calm-new", does: steady, kinds: []string{kindNew}, rate: 10, method: "GET", limit: calm, within: patience / 10},
			{name: "hot-calm", does: steady, kinds: one, rate: 200, method: "GET", limit: perSecond("GET", 100)},
		},
		silent: []user{{limit: calm}},
		// Twice what docs/capacity.md says of the users that an agent counts one by one, and of HAProxy the buffers of all connections.
		memory: map[string]float64{"agent": 500, "haproxy": 512, "polygen": 256, "redis": 256},
	}
	for i := range floodHot {
		s.silent = append(s.silent,
			user{name: fmt.Sprintf("hot-%d", i), limit: perSecond("GET", 100)},
			user{name: fmt.Sprintf("minute-%d", i), limit: perMinute("GET", 6000)})
	}
	return s, nil
}

// flood is clients who do not wait for each other.
type flood struct {
	rate     float64
	conns    int  // at most to each instance
	ahead    bool // all of them are opened before anything is sent
	patience time.Duration
}

// floodUser draws who sends.
func (s *scenario) floodUser(random *rand.Rand) (kind string, number uint64) {
	if s.kind == "chaos" {
		return "crowd-", random.Uint64N(crowdUsers)
	}
	switch n := random.Uint64N(10); {
	case n < 5:
		return "hot-", random.Uint64N(floodHot)
	case n < 8:
		return "user-", random.Uint64N(floodUsers)
	case n < 9:
		return "minute-", random.Uint64N(floodHot)
	}
	return newName, random.Uint64()
}

// outcome counts what became of a flood's requests.
type outcome struct {
	mu                                                 sync.Mutex
	offered, admitted, refused, gaveUp, unsent, failed int
}

// flood begins a flood, and returns what waits for its end.
func (r *runner) flood(f flood, d time.Duration) (end func() error, err error) {
	var o outcome
	deadline := d
	if f.ahead {
		deadline += f.patience // the requests of all connections are waited for
	}
	ctx, cancel := context.WithTimeout(r.ctx, deadline)
	slice := min(d, time.Duration(slicePlanned/f.rate*float64(time.Second)))
	slices := int((d + slice - 1) / slice)
	failed := make(chan error, slices)
	var all sync.WaitGroup
	for i := range slices {
		all.Go(func() {
			if clock.Sleep(ctx, time.Duration(i)*slice) {
				failed <- r.floodSlice(ctx, f, &o, uint64(i), min(slice, d-time.Duration(i)*slice))
			}
		})
	}
	return func() error {
		all.Wait()
		cancel()
		r.origin.writeCrowd()
		close(failed)
		r.say("flood: %d offered, %d admitted, %d refused, %d without an answer in time, %d without a connection, %d failed", o.offered, o.admitted, o.refused, o.gaveUp, o.unsent, o.failed)
		for err := range failed {
			if err != nil {
				return err
			}
		}
		if f.ahead && o.unsent > o.offered/100 {
			return fmt.Errorf("%d of %d connections could not be opened", o.unsent, o.offered)
		}
		return nil
	}, nil
}

func (r *runner) floodSlice(ctx context.Context, f flood, o *outcome, number uint64, d time.Duration) error {
	targets, err := load.Spread("even", r.world.c.Addresses()...)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(r.seed, number))
	var headers []byte
	s := load.Spec{
		Targets: targets, Rate: f.rate, Duration: d, Arrivals: load.Poisson, Seed: r.seed + number,
		Conns: f.conns, Sources: sources, Timeout: f.patience, Settled: func(_, _ string, result load.Result) { o.settled(r, result) },
		Requests: func(int) load.Request {
			kind, number := r.floodUser(random)
			headers = append(append(headers[:0], "X-User: "...), kind...)
			headers = append(strconv.AppendUint(headers, number, 10), "\r\n"+headerSent+": "...)
			headers = append(strconv.AppendInt(headers, time.Now().UnixNano(), 10), "\r\n"...)
			return load.Request{Headers: headers}
		},
	}
	if f.ahead {
		s.Ahead = f.conns
	}
	if report, err := load.Run(ctx, s); report == nil {
		return err
	}
	return nil // otherwise an error is that the time was over
}

func (o *outcome) settled(r *runner, result load.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offered++
	switch {
	case result.Failure == load.TimedOut:
		o.gaveUp++
	case result.Failure == load.Dropped, result.Failure == load.NoConnect:
		o.unsent++
	case result.Admitted() && result.Failure == load.Answered:
		o.admitted++
	case result.Refused() && result.Failure == load.Answered:
		o.refused++
	default:
		if o.failed++; o.failed <= maxFailures {
			r.history.Write(history.Request{
				User: "flood", Kind: "flood", Method: "GET", Path: "/", Instance: int(result.Target), ID: fmt.Sprintf("flood-%d-%d", result.Sent, o.failed),
				Sent: time.Unix(0, result.Sent), Done: time.Unix(0, result.Received), Status: int(result.Status), Error: result.Failure.String(),
			})
		}
	}
}
