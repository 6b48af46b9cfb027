package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

const (
	floodUsers    = 10_000 // users who each ask for less than their limits
	floodHot      = 8      // users of "hot" and of "minute" who each ask for far more
	newName       = "name-"
	sources       = 16 // addresses that connections come from
	floodPatience = 2 * time.Second
	stormFor      = 5 * time.Second
	stormPatience = 60 * time.Second
	maxFailures   = 1000 // lines about failed requests of one flood
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
func overloadScenario(seed uint64, d time.Duration, connections int) (*scenario, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil { // Go raised the limit as far as possible
		return nil, err
	}
	// HAProxies have as many connections to the origin, which is this process too. The calm users need some besides.
	spare := int(min(files.Cur, 1<<20))/2 - 1000
	calm := history.Limit{Class: "GET", Requests: map[string]int{"second": 20}, Concurrent: 50}
	s := &scenario{
		kind: "overload", seed: seed, store: "single", instances: 2, polygens: 1, maxWait: 20 * time.Millisecond, limits: floodLimits,
		plan: schedule.Overload(d, min(4000, spare/2), min(connections, spare)),
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

type outcome struct{ admitted, refused, gaveUp, unsent, failed int }

// flood keeps conns connections to each instance busy: each sends its next request when the last one is answered or given up. The function
// it returns waits for the end.
func (r *runner) flood(conns int, d time.Duration) (end func() error, err error) {
	spec, o, err := r.floodSpec(conns, floodPatience)
	if err != nil {
		return func() error { return nil }, err
	}
	slicer, err := load.NewSlicer(spec)
	if err != nil {
		return func() error { return nil }, err
	}
	done := make(chan error, 1)
	go func() {
		defer slicer.Close()
		_, err := slicer.Run(r.ctx, d)
		done <- err
	}()
	return func() error {
		err := <-done
		r.endFlood(o)
		return err
	}, nil
}

// connectAtOnce opens conns connections to all instances together, and sends one request on each.
func (r *runner) connectAtOnce(conns int) (end func() error, err error) {
	spec, o, err := r.floodSpec(conns/r.instances, stormPatience)
	if err != nil {
		return func() error { return nil }, err
	}
	spec.Ahead, spec.Rate, spec.Duration, spec.Seed = spec.Conns, float64(conns)/stormFor.Seconds(), stormFor, r.seed
	done := make(chan error, 1)
	go func() {
		_, err := load.Run(r.ctx, spec)
		done <- err
	}()
	return func() error {
		err := <-done
		r.endFlood(o)
		if o.unsent > conns/100 {
			err = errors.Join(err, fmt.Errorf("%d of %d connections could not be opened", o.unsent, conns))
		}
		return err
	}, nil
}

func (r *runner) endFlood(o *outcome) {
	r.origin.writeCrowd()
	r.say("%+v", *o)
}

// floodSpec is a load of a flood's users. Its outcome is complete after the load.
func (r *runner) floodSpec(conns int, patience time.Duration) (load.Spec, *outcome, error) {
	targets, err := load.Spread("even", r.world.c.Addresses()...)
	random := rand.New(rand.NewPCG(r.seed, uint64(time.Since(r.begun))))
	o := &outcome{}
	var headers []byte
	return load.Spec{
		Targets: targets, Conns: conns, Sources: sources, Timeout: patience,
		Settled: func(_, _ string, result load.Result) { o.settled(r, result) },
		Requests: func(int) load.Request {
			kind, number := r.floodUser(random)
			headers = append(append(headers[:0], "X-User: "...), kind...)
			headers = append(strconv.AppendUint(headers, number, 10), "\r\n"+headerSent+": "...)
			headers = append(strconv.AppendInt(headers, time.Now().UnixNano(), 10), "\r\n"...)
			return load.Request{Headers: headers}
		},
	}, o, err
}

func (o *outcome) settled(r *runner, result load.Result) {
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
