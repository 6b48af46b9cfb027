// Package history is what a chaos run wrote down: by the origin, by the clients and of the faults. It is a
// file of JSON lines, each with its type and its record, in no order: who judges sorts by time. All times are of
// one clock, that of the process which is the clients and the origin at once.
package history

import "time"

// Run is what a run was asked for. It is the first line.
type Run struct {
	Seed      uint64
	Store     string // single, sentinel or cluster
	Instances int    // HAProxies with their agents
	Begin     time.Time
}

// Request is a client's line, when it is over.
type Request struct {
	User, Kind, Method, Path string
	Instance                 int    // which HAProxy, from 0
	ID                       string // sent to the origin in the header X-Chaos-ID, unique
	Sent, Done               time.Time
	Status                   int    // 0: no answer
	GivenUp                  bool   `json:",omitempty"` // the client ended it early, as it meant to: nobody failed it
	Error                    string `json:",omitempty"` // why there was no answer, or not all of it
	Reason                   string `json:",omitempty"` // the header Sluice-Reason
	Up, Down                 int64  // bytes of bodies that the client sent and received
	Estimate                 int64  `json:",omitempty"` // what the request said that it will cost
}

// Arrival is the origin's line: a request that was admitted, when it is over.
type Arrival struct {
	ID, User  string
	Method    string
	At, Ended time.Time
	Up, Down  int64 // bytes of bodies that the origin received and sent
	Cost      int64 `json:",omitempty"` // what its answer said that it has cost; 0: it said nothing, or was cut before
}

// Transfer is a line of each 100 ms of a long transfer, of the side that receives: how much came since the line
// before. (What was sent lies in buffers on its way, for seconds.)
type Transfer struct {
	User, ID string
	At       time.Time
	Down, Up int64
}

// Fault is something that was broken from Begin to End. Name is one of those below. Target is a part, such as "agent-0",
// "haproxy-2", "polygen-1", "redis", "redis-3", "sentinel-0", "origin" or "limits", or a link between two, such as "agent-0→redis".
// Instances are numbered as in Request. Name "machine" is nobody's fault: this process stood still.
type Fault struct {
	Name, Target, Parameter string
	Begin, End              time.Time
	Error                   string `json:",omitempty"` // what kept it from being begun or ended as meant
}

// Limit is what the limit file said of a user from a time on, of one class. 0 and nil are no limit. A user's records of a
// later time replace all those before. What is not of the class is the same in all of a user's records of a time.
type Limit struct {
	User       string         // "": each user who has no record of their own
	Class      string         // of Requests: a method, or "*"
	Requests   map[string]int // by "second", "minute" and "hour"
	Burst      int            // beside "second": so many more in a second, from what was left unused in those before
	Concurrent int            // requests in progress
	Wait       time.Duration  // for how long they wait for a slot
	Down, Up   int64          // bytes a second
	Costs      map[string]int `json:",omitempty"` // of all the user's requests that say what they cost, by "second" and "minute"
	Debt       bool           `json:",omitempty"` // requests may cost more than they say: one window may have twice the limit, and the next ones pay for it
	From       time.Time
}

// Quiet is a time in which nothing is broken any more, and the load goes on: everything has to be exact again before its end.
type Quiet struct {
	Begin, End time.Time
}

// Leak is something that is held after a quiet time although nothing runs.
type Leak struct {
	At     time.Time
	Place  string // "agent", "redis" or "haproxy"
	Holder string // the agent's or HAProxy's name, or the key in Redis
	User   string `json:",omitempty"`
	What   string // "slots", "requests in progress", "credit", …
	Count  int64
}
