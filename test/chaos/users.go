package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/chaos/history"
)

// limitFile is what the cluster limits; users says the same for the judge.
const limitFile = `version: 1
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

// otherLimitFile replaces it for a while: "hot" and "busy" have other limits.
var otherLimitFile = strings.NewReplacer("hot: {requests: {GET: 40}}", "hot: {requests: {GET: 25}}", "busy: {concurrent: 6}", "busy: {concurrent: 4}").Replace(limitFile)

// behaviour is what the clients of a user do.
type behaviour string

const (
	steady   behaviour = "steady"   // requests at a rate
	bursts   behaviour = "bursts"   // as many as three seconds have, at once
	closed   behaviour = "closed"   // clients that each have one request at a time
	sockets  behaviour = "sockets"  // clients that each have one websocket at a time
	transfer behaviour = "transfer" // clients that each have one download or upload at a time
)

// user is one, their clients, and what they may do.
type user struct {
	name   string
	does   behaviour
	kinds  []string // how they connect, in turn: see client.go
	rate   float64  // requests a second of steady, and of bursts on average
	n      int      // clients of the others
	method string
	limit  history.Limit
}

func perSecond(class string, n int) history.Limit {
	return history.Limit{Class: class, Requests: map[string]int{"second": n}}
}

// free is the tier of whom the file does not name.
var free = []history.Limit{
	{Class: "GET", Requests: map[string]int{"second": 60}, Concurrent: 20},
	{Class: "PUT", Requests: map[string]int{"second": 30}, Concurrent: 20},
}

var (
	one   = []string{kindKeepAlive}
	three = []string{kindKeepAlive, kindNew, kindHTTP2}
)

// users are all but those who are new each time. Offered are some 480 requests a second.
var users = []user{
	{"cold-0", steady, one, 5, 0, "GET", free[0]},
	{"cold-1", steady, []string{kindNew}, 4, 0, "GET", free[0]},
	{"cold-2", steady, []string{kindHTTP2}, 5, 0, "GET", free[0]},
	{"cold-3", steady, one, 3, 0, "PUT", free[1]},
	{"hot-0", steady, one, 100, 0, "GET", perSecond("GET", 40)},
	{"hot-1", steady, three, 60, 0, "GET", perSecond("GET", 40)},
	{"hot-2", steady, []string{kindHTTP2}, 50, 0, "GET", perSecond("GET", 40)},
	{"all-0", steady, three, 45, 0, "GET", perSecond("*", 30)},
	{"burst-0", bursts, one, 20, 0, "GET", history.Limit{Class: "GET", Requests: map[string]int{"second": 20}, Burst: 40}},
	{"minute-0", steady, one, 10, 0, "GET", history.Limit{Class: "GET", Requests: map[string]int{"minute": 240}}},
	{"busy-0", closed, three, 0, 12, "GET", history.Limit{Concurrent: 6}},
	{"wait-0", closed, one, 0, 10, "GET", history.Limit{Concurrent: 6, Wait: 2 * time.Second}},
	{"socket-0", sockets, nil, 0, 7, "GET", history.Limit{Concurrent: 4}},
	// Each of these asks for more than it may: twice as much as it costs, or half.
	{"talk-0", bursts, []string{kindStream}, 17, 0, "POST", history.Limit{Costs: map[string]int{"minute": 2000}}},
	{"cheap-0", steady, []string{kindCheap}, 40, 0, "GET", history.Limit{Costs: map[string]int{"second": 40}}},
	{"dear-0", steady, []string{kindDear}, 20, 0, "GET", history.Limit{Costs: map[string]int{"second": 40}, Debt: true}},
	{"wide-0", transfer, []string{kindDownload, kindUpload, kindHTTP2}, 0, 5, "GET", history.Limit{Down: 4 << 20, Up: 2 << 20}},
}

// randomNames is how many requests a second come from users whose names were never seen before.
const randomNames = 10

// otherUsers have the limits of otherLimitFile.
var otherUsers = func() []user {
	var others []user
	for _, u := range users {
		switch u.name[:3] {
		case "hot":
			u.limit = perSecond("GET", 25)
		case "bus":
			u.limit.Concurrent = 4
		default:
			continue // the same as before
		}
		others = append(others, u)
	}
	return others
}()

// others are users who come now and then.
func others() (all []user) {
	for _, l := range free {
		all = append(all, user{limit: l})
	}
	for i := range crowdUsers {
		all = append(all, user{name: fmt.Sprintf("crowd-%d", i), limit: perSecond("GET", 5000)})
	}
	return all
}

// crowdUsers is how many users an overload has.
const crowdUsers = 8

// isAmong reports whether a user's name begins with one of these, or there are none.
func isAmong(beginnings []string, name string) bool {
	return len(beginnings) == 0 || slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(name, b) })
}

// CheckUsers returns an error that names the users if one of these begins no user's name.
func CheckUsers(beginnings []string) error {
	var names []string
	for _, u := range users {
		names = append(names, u.name)
	}
	for _, b := range beginnings {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, b) }) {
			return fmt.Errorf("no user's name begins with %q; the users are %s", b, strings.Join(names, ", "))
		}
	}
	return nil
}

// writeLimits writes down what the limit file says from a time on.
func (r *runner) writeLimits(of []user, from time.Time) {
	for _, u := range of {
		l := u.limit
		l.User, l.From = u.name, from
		history.Write(r.history, l)
	}
}
