package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

type scenario struct {
	kind        string // chaos, soak or overload
	seed        uint64
	store       string // one of schedule.Stores
	instances   int
	polygens    int
	maxWait     time.Duration // of the agents
	race        bool          // build the commands with the race detector
	faults      bool          // links between parts, and clocks that can be set
	plan        schedule.Plan
	limits      string        // the limit file
	otherLimits string        // that replaces it for a while
	users       []user        // who send
	others      []user        // whose limits otherLimits changes
	silent      []user        // who send in a flood only, and all others
	strangers   float64       // requests a second of users whose names are new each time
	steadyRate  float64       // requests a second of steady load; 0 is none
	settle      time.Duration // until all of steady load's users were there
	memory      map[string]float64
}

type behaviour string

const (
	steady   behaviour = "steady"   // requests at a rate
	bursts   behaviour = "bursts"   // as many as three seconds have, at once
	closed   behaviour = "closed"   // clients that each have one request at a time
	sockets  behaviour = "sockets"  // clients that each have one websocket at a time
	transfer behaviour = "transfer" // clients that each have one download or upload at a time
)

// user is a user with clients, and their limits.
type user struct {
	name   string
	does   behaviour
	kinds  []string // how they connect, in turn: see client.go
	rate   float64  // requests a second of steady, and of bursts on average
	n      int      // clients of the others
	method string
	limit  history.Limit
	within time.Duration // in which answers must come; 0 is any time
}

var (
	one   = []string{kindKeepAlive}
	three = []string{kindKeepAlive, kindNew, kindHTTP2}
)

func perSecond(class string, n int) history.Limit {
	return history.Limit{Class: class, Requests: map[string]int{"second": n}}
}

func perMinute(class string, n int) history.Limit {
	return history.Limit{Class: class, Requests: map[string]int{"minute": n}}
}

// chaosLimits is what the cluster limits; chaosUsers says the same for the judge.
const chaosLimits = `version: 1
default_tier: free
classes:
  CHAT: {methods: [POST], path_prefix: /v1/chat/completions}
  PRICED: {methods: [GET], path_prefix: /cost/}
costs:
  tokens: {classes: [CHAT], estimate: {json: max_tokens, default: 20}, actual: {json: usage.total_tokens}}
  credits: {classes: [PRICED], estimate: {header: X-Chaos-Estimate, default: 4}, actual: {header: X-Cost}}
tiers:
  free: {requests: {GET: 60, PUT: 30}, concurrent: 20}
  hot: {requests: {GET: 40}}
  all: {requests: {"*": 30}}
  bursting: {requests: {GET: {second: 20, burst: 40}}}
  minutes: {requests: {GET: {minute: 240}}}
  busy: {concurrent: 6}
  waiting: {concurrent: 6, over_limit: {concurrent: wait 2s}}
  sockets: {concurrent: 4}
  wide: {bandwidth: {down: 4MiB, up: 2MiB}}
  crowd: {requests: {GET: 5000}}
  talking: {costs: {tokens: {minute: 2000}}}
  spending: {costs: {credits: {second: 40}}}
users:
  "hot-*": hot
  "all-*": all
  "burst-*": bursting
  "minute-*": minutes
  "busy-*": busy
  "wait-*": waiting
  "socket-*": sockets
  "wide-*": wide
  "crowd-*": crowd
  "talk-*": talking
  "cheap-*": spending
  "dear-*": spending
`

// free is the default tier.
var free = []history.Limit{
	{Class: "GET", Requests: map[string]int{"second": 60}, Concurrent: 20},
	{Class: "PUT", Requests: map[string]int{"second": 30}, Concurrent: 20},
}

// chaosUsers offer some 480 requests a second.
var chaosUsers = []user{
	{name: "cold-0", does: steady, kinds: one, rate: 5, method: "GET", limit: free[0]},
	{name: "cold-1", does: steady, kinds: []string{kindNew}, rate: 4, method: "GET", limit: free[0]},
	{name: "cold-2", does: steady, kinds: []string{kindHTTP2}, rate: 5, method: "GET", limit: free[0]},
	{name: "cold-3", does: steady, kinds: one, rate: 3, method: "PUT", limit: free[1]},
	{name: "hot-0", does: steady, kinds: one, rate: 100, method: "GET", limit: perSecond("GET", 40)},
	{name: "hot-1", does: steady, kinds: three, rate: 60, method: "GET", limit: perSecond("GET", 40)},
	{name: "hot-2", does: steady, kinds: []string{kindHTTP2}, rate: 50, method: "GET", limit: perSecond("GET", 40)},
	{name: "all-0", does: steady, kinds: three, rate: 45, method: "GET", limit: perSecond("*", 30)},
	{name: "burst-0", does: bursts, kinds: one, rate: 20, method: "GET", limit: history.Limit{Class: "GET", Requests: map[string]int{"second": 20}, Burst: 40}},
	{name: "minute-0", does: steady, kinds: one, rate: 10, method: "GET", limit: perMinute("GET", 240)},
	{name: "busy-0", does: closed, kinds: three, n: 12, limit: history.Limit{Concurrent: 6}},
	{name: "wait-0", does: closed, kinds: one, n: 10, limit: history.Limit{Concurrent: 6, Wait: 2 * time.Second}},
	{name: "socket-0", does: sockets, n: 7, limit: history.Limit{Concurrent: 4}},
	// Each of these announces twice the cost, or half.
	{name: "talk-0", does: bursts, kinds: []string{kindStream}, rate: 17, method: "POST", limit: history.Limit{Costs: map[string]int{"minute": 2000}}},
	{name: "cheap-0", does: steady, kinds: []string{kindCheap}, rate: 40, method: "GET", limit: history.Limit{Costs: map[string]int{"second": 40}}},
	{name: "dear-0", does: steady, kinds: []string{kindDear}, rate: 20, method: "GET", limit: history.Limit{Costs: map[string]int{"second": 40}, Debt: true}},
	{name: "wide-0", does: transfer, kinds: []string{kindDownload, kindUpload, kindHTTP2}, n: 5, limit: history.Limit{Down: 4 << 20, Up: 2 << 20}},
}

// crowdUsers is how many users a flood has in a chaos run.
const crowdUsers = 8

func chaosScenario(seed uint64, store string, d time.Duration) *scenario {
	s := &scenario{
		kind: "chaos", seed: seed, store: store, instances: schedule.Instances, polygens: schedule.Polygens, faults: true, maxWait: 60 * time.Millisecond,
		plan: schedule.Chaos(seed, store, d), limits: chaosLimits, users: chaosUsers, strangers: 10,
		otherLimits: strings.NewReplacer("hot: {requests: {GET: 40}}", "hot: {requests: {GET: 25}}", "busy: {concurrent: 6}", "busy: {concurrent: 4}").Replace(chaosLimits),
	}
	for _, u := range chaosUsers {
		switch u.name[:3] {
		case "hot":
			u.limit = perSecond("GET", 25)
			s.others = append(s.others, u)
		case "bus":
			u.limit.Concurrent = 4
			s.others = append(s.others, u)
		}
	}
	for _, l := range free {
		s.silent = append(s.silent, user{limit: l})
	}
	for i := range crowdUsers {
		s.silent = append(s.silent, user{name: fmt.Sprintf("crowd-%d", i), limit: perSecond("GET", 5000)})
	}
	return s
}

func (r *runner) writeLimits(all []user) {
	now := time.Now()
	for _, u := range all {
		l := u.limit
		l.User, l.From = u.name, now
		r.history.Write(l)
	}
}
