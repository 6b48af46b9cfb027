package api

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Who is a user who is asked about.
type Who struct {
	User  string
	IsKey bool // User is the user's key, not the name
}

// Key is the user's wire key.
func (w Who) Key() string {
	if w.IsKey {
		return w.User
	}
	return limits.KeyOf(w.User)
}

// Name is the user as answers show them.
func (w Who) Name() Name {
	if w.IsKey {
		return NameOfKey(w.User)
	}
	return NameOfUser(w.User)
}

// Question is what a stream of live answers is about.
type Question struct {
	Sort  Sort
	N     int    // users in the list; 1 to MaxTop
	User  string // one user to tell more of; "" for none
	IsKey bool   // User is the user's key, not the name
}

// Key is the wire key of the user who is asked for.
func (q Question) Key() string {
	if q.IsKey {
		return q.User
	}
	return limits.Key(q.User)
}

// MaxLimited is the most users of a live answer who are throttled or blocked.
const MaxLimited = 100

// Live is an answer of /api/v1/live. A user is throttled or spent here, and a limit reached, if
// that was so within the last second.
type Live struct {
	From
	Totals    Totals     `json:"totals"`
	Sort      Sort       `json:"sort"`
	Units     []string   `json:"units,omitempty"` // what requests cost, as in Users
	Users     []Summary  `json:"users"`           // those with most first
	Limited   []Summary  `json:"limited"`         // those throttled, blocked or spent, at most MaxLimited, with most requests per second first
	Instances []Instance `json:"instances"`       // sorted by name
	User      *User      `json:"user,omitempty"`  // the user of the Question
}

// Totals are sums over all known users.
type Totals struct {
	Users      int     `json:"users"`       // users heard of in the last 2 s
	Rate       float64 `json:"rate"`        // requests per second that were admitted
	Refused    float64 `json:"refused"`     // requests per second that were refused
	InProgress int     `json:"in_progress"` // requests
	Down       int64   `json:"down"`        // bytes per second
	Up         int64   `json:"up"`          // bytes per second
	Throttled  int     `json:"throttled"`   // users
	Blocked    int     `json:"blocked"`     // users
	Spent      int     `json:"spent"`       // users with nothing left of a limit of costs
	Seen       int     `json:"seen"`        // known users
	Dropped    uint64  `json:"dropped"`     // users forgotten because there were too many
	Capacity   int     `json:"capacity"`    // users who can be known at a time
}

// Near is the limit that a user is nearest to.
type Near struct {
	Limit  string `json:"limit"` // the name of a Limit
	Max    int64  `json:"max"`
	Used   int64  `json:"used"`             // of a limit per second: in the last full second, or in the present one once that has reached the limit; otherwise now
	Window int64  `json:"window,omitempty"` // of requests and costs: its length in seconds
	Mode   string `json:"mode"`
}

// History is the answer of /api/v1/history/{user}: what the user used in the last seconds.
// All lists are of one length; null is a second that was missed, or in which there was
// no such limit.
type History struct {
	From
	Name
	Begin      int64         `json:"begin"` // the first second, since the epoch
	Step       int64         `json:"step"`  // seconds from one to the next
	Limits     []LimitSeries `json:"limits"`
	InProgress []*int64      `json:"in_progress"` // requests
	Down       []*int64      `json:"down"`        // bytes per second
	Up         []*int64      `json:"up"`          // bytes per second
}

// LimitSeries is a limit and its use in each second.
type LimitSeries struct {
	Name   string   `json:"name"`
	Max    int64    `json:"max"`
	Window int64    `json:"window,omitempty"` // of requests and costs: its length in seconds
	Mode   string   `json:"mode"`
	Used   []*int64 `json:"used"` // of requests and costs: in the window that the second is in, until its end
}

// EventKind is what an Event tells of.
type EventKind string

// The kinds of events. Each is also the name of the event in the stream.
const (
	ThrottleEvent EventKind = "throttle" // a request limit was reached: refused until its window ends
	BlockEvent    EventKind = "block"    // the requests in progress reached their limit
	UnblockEvent  EventKind = "unblock"  // the requests in progress fell below their limit
	LimitsEvent   EventKind = "limits"   // other limits are in force
	OverrideEvent EventKind = "override" // an operator set, or took back, limits of a user
	LostEvent     EventKind = "lost"     // events were left out, because this reader is too slow
)

// EventKinds are the kinds that a reader can ask for. LostEvent comes in any case.
var EventKinds = []EventKind{ThrottleEvent, BlockEvent, UnblockEvent, LimitsEvent, OverrideEvent}

// Event is one of the stream /api/v1/policies. What does not apply is absent.
type Event struct {
	Time    time.Time  `json:"time"`
	Kind    EventKind  `json:"kind"`
	*Name              // the user; nil for events about no single user
	Limit   string     `json:"limit,omitempty"` // the name of a Limit
	Reason  Reason     `json:"reason,omitempty"`
	Max     int64      `json:"max,omitempty"`     // the limit that was reached
	Until   *time.Time `json:"until,omitempty"`   // when it ends by itself
	Mode    string     `json:"mode,omitempty"`    // enforce, or dry-run: it changes nothing
	Version string     `json:"version,omitempty"` // of limits
	Note    string     `json:"note,omitempty"`    // of override: in words, what was done and why
	Count   int        `json:"count,omitempty"`   // of lost: events
}

// Filter is what a reader of events wants.
type Filter struct {
	User  string      // "" is all events
	IsKey bool        // User is the user's key, not the name
	Kinds []EventKind // none are all
}

// Passes reports whether an event is wanted.
func (f Filter) Passes(e *Event) bool {
	if len(f.Kinds) > 0 && !slices.Contains(f.Kinds, e.Kind) {
		return false
	}
	return f.User == "" || e.Name != nil && e.User == f.User
}

// ByKey is the filter with the user's key in place of the name: events have keys only.
func (f Filter) ByKey() Filter {
	if f.User != "" && !f.IsKey {
		f.User, f.IsKey = limits.KeyOf(f.User), true
	}
	return f
}

// Message is one event of a stream. It is encoded once, for all who read it.
type Message struct {
	Event string
	Value any

	once sync.Once
	json []byte
}

// JSON is the value in JSON, which has no line ends. It is safe for concurrent use.
func (m *Message) JSON() []byte {
	m.once.Do(func() { m.json, _ = json.Marshal(m.Value) }) // the types above can be encoded
	return m.json
}

// NameOf is the user of a wire key, for events.
func NameOf(key string) *Name {
	n := NameOfKey(key)
	return &n
}
