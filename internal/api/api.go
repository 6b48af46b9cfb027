// Package api is what polygen's admin API says, in JSON: the answers, and what can be
// asked for. The server, the page's tests and the commands that ask share it. It computes
// nothing, and knows of no daemon.
package api

import (
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The answers of the API, in JSON. Names of users are bytes of any kind; where they
// are no valid UTF-8 the bytes that are not are shown as U+FFFD, and href still names
// the user exactly.

// From says who answers. Every answer begins with it.
type From struct {
	Polygen string    `json:"polygen"` // its name
	Leading bool      `json:"leading"` // whether it leads; a standby has the one that leads answer
	Version string    `json:"version"` // of the limits that it has
	Time    time.Time `json:"time"`    // of the cluster, when it answered
	// Degraded is why it does not fully work, so that what it says may be old; absent when all is well.
	Degraded string `json:"degraded,omitempty"`
}

// Name is a user of the cluster.
type Name struct {
	User string `json:"user"` // the name, or "~…" if only its hash is known
	Href string `json:"href"` // path of what is known of the user
}

// Users is the answer of /api/v1/users.
type Users struct {
	From
	Sort     Sort      `json:"sort"`
	Units    []string  `json:"units,omitempty"` // what requests cost, by the limit file; sorted; absent if it declares none
	Users    []Summary `json:"users"`           // those with most first
	Seen     int       `json:"seen"`            // users who are known of at all
	Dropped  uint64    `json:"dropped"`         // users forgotten because there were too many
	Capacity int       `json:"capacity"`        // users who can be known of
}

// Summary is what one user uses now.
type Summary struct {
	Name
	Tier       string    `json:"tier"`
	Known      bool      `json:"known"` // the file names the user
	State      State     `json:"state"`
	Rate       float64   `json:"rate"`           // requests per second that were admitted, or of the limit that counts most of them
	Refused    float64   `json:"refused"`        // requests per second that were refused
	InProgress int       `json:"in_progress"`    // requests
	Down       int64     `json:"down"`           // bytes per second
	Up         int64     `json:"up"`             // bytes per second
	Seen       time.Time `json:"seen"`           // when the user was last heard of
	Near       *Near     `json:"near,omitempty"` // the limit that the user is nearest to; absent without limits
	Cost       *Limit    `json:"cost,omitempty"` // in lists by what requests cost: the limit of that unit with the longest window; absent otherwise

	// Started is the requests per second that were admitted, limited or not: by verb and
	// operation class, and of all together by "*". Absent if there were none lately.
	Started map[string]float64 `json:"started,omitempty"`
}

// User is the answer of /api/v1/users/{user}.
type User struct {
	From
	Name
	Tier       string     `json:"tier"`
	Group      string     `json:"group,omitempty"` // whose limits the user shares; they are not enforced yet
	Known      bool       `json:"known"`           // the file names the user; otherwise the limits are those of the default tier
	Entry      *Entry     `json:"entry,omitempty"` // what the file says of the user; absent if it does not name them, or the question gave their key
	State      State      `json:"state"`
	Why        []Why      `json:"why"` // the limits that are reached now, also those of a dry run
	Limits     []Limit    `json:"limits"`
	InProgress int        `json:"in_progress"` // requests, over all instances
	Down       int64      `json:"down"`        // bytes per second, over all instances
	Up         int64      `json:"up"`          // bytes per second, over all instances
	Instances  []Place    `json:"instances"`   // those that reported the user in the last 2 s; sorted
	Decisions  []Decision `json:"decisions"`   // the last 20, the newest first
	Seen       *time.Time `json:"seen"`        // when the user was last heard of; null: never, or too long ago

	// Started is the requests per second that were admitted, limited or not: by verb and
	// operation class, and of all together by "*". Absent if there were none lately.
	Started map[string]float64 `json:"started,omitempty"`
	Refused map[string]float64 `json:"refused,omitempty"` // the same of requests that were refused
}

// Entry is where the limit file names a user, and what it says there besides limits.
type Entry struct {
	File    string     `json:"file"` // the limit file
	Line    int        `json:"line"`
	Pattern string     `json:"pattern,omitempty"` // that the name matches; absent if the name itself is in the file
	Comment string     `json:"comment,omitempty"`
	Until   *time.Time `json:"until,omitempty"`   // when the entry's overrides end
	Then    string     `json:"then,omitempty"`    // the user's tier from then on, if it is another
	Expired bool       `json:"expired,omitempty"` // Until has passed

	Override *OverrideNote `json:"override,omitempty"` // in force over what the file says; File is "" if the file does not name the user
}

// State says whether a user is refused now.
type State string

// The states. One that a limit in a dry run would bring about is none.
const (
	OK        State = "ok"
	Throttled State = "throttled" // until the window of a request limit ends
	Blocked   State = "blocked"   // until less is in progress
	Spent     State = "spent"     // until the window of a limit of costs ends, or something is given back: what costs that unit is refused
	Denied    State = "denied"    // by a limit of 0, until the limit changes
)

// Reason is why a request is refused, in the words of the header Sluice-Reason.
type Reason string

// The reasons.
const (
	RequestRate        Reason = "request-rate"
	ConcurrentRequests Reason = "concurrent-requests"
	Cost               Reason = "cost"
	LimitZero          Reason = "denied"
)

// Why is a limit that is reached now.
type Why struct {
	Limit  string      `json:"limit"` // the name of a Limit
	Reason Reason      `json:"reason"`
	Cause  cause.Cause `json:"cause,omitempty"` // of the refusals that HAProxy makes by itself, as its access log has it; absent if it makes none
	Mode   string      `json:"mode"`            // enforce, or dry-run: nobody is refused
	Since  time.Time   `json:"since,omitzero"`  // when that was decided; absent for a limit of 0
	Until  *time.Time  `json:"until,omitempty"` // when it ends by itself; absent for a block and a limit of 0
}

// Limit is a limit and its use.
type Limit struct {
	// Name is "GET", "LIST/minute" and the like for requests, "tokens/day" for what they cost, else
	// concurrent, bandwidth.down or bandwidth.up.
	Name   string   `json:"name"`
	Unit   string   `json:"unit,omitempty"`   // of what requests cost: what is counted, such as tokens
	Max    int64    `json:"max"`              // requests, or so many of the unit, in each window; requests in progress; or bytes per second
	Window int64    `json:"window,omitempty"` // of requests and costs: its length in seconds
	Burst  int      `json:"burst,omitempty"`  // requests beyond max, from what was left unused
	Mode   string   `json:"mode"`             // enforce or dry-run
	Except []string `json:"except,omitempty"` // of requests in progress: the classes that do not count
	Used   int64    `json:"used"`             // in the present window, or now
	Last   *int64   `json:"last,omitempty"`   // of requests and costs: in the last full window
	Origin *Origin  `json:"origin,omitempty"` // where the limit comes from; absent if that cannot be told

	// Of costs, and of requests by the day and the month: what is left of max, and when the window ends. The next one begins
	// with nothing used, or of costs with a debt.
	Left   *int64     `json:"left,omitempty"`
	Resets *time.Time `json:"resets,omitempty"`
}

// Origin is where a limit file sets a limit.
type Origin struct {
	Field    string `json:"field"`    // such as requests.GET, or the mapping around it
	File     string `json:"file"`     // the limit file; "" if an override set it
	Line     int    `json:"line"`     // from 1; 0 if an override set it
	Override bool   `json:"override"` // the user's own, not the tier's
}

// Place is what one instance runs and may run of a user.
type Place struct {
	Instance   string `json:"instance"`
	InProgress int    `json:"in_progress"` // requests
	Slots      int    `json:"slots"`       // requests that it may have in progress without asking
	Down       int64  `json:"down"`        // bytes per second moved
	Up         int64  `json:"up"`
	DownShare  int64  `json:"down_share"` // share of the user's limit, in bytes per second; 0: none given
	UpShare    int64  `json:"up_share"`   // like DownShare
}

// Kind is what was decided, or seen.
type Kind string

// The kinds.
const (
	Throttle Kind = "throttle" // a request limit was reached: refused until its window ends
	Block    Kind = "block"    // the requests in progress reached their limit
	Unblock  Kind = "unblock"  // they fell below it
	Refused  Kind = "refused"  // instances refused requests for the limit of those in progress
)

// Decision is one that has to do with refusals.
type Decision struct {
	Time   time.Time   `json:"time"` // of the first request for refused
	Kind   Kind        `json:"kind"`
	Limit  string      `json:"limit"` // the name of a Limit
	Reason Reason      `json:"reason"`
	Cause  cause.Cause `json:"cause,omitempty"` // of the refusals that follow and that HAProxy makes by itself, as its access log has it; absent if it makes none
	Mode   string      `json:"mode"`            // enforce, or dry-run: it changed nothing
	Count  int         `json:"count,omitempty"` // requests, of refused
}

// UnknownUsers is the answer of /api/v1/unknown-users: users whom the limit file
// does not name, seen in the last hour.
type UnknownUsers struct {
	From
	Sort     Sort      `json:"sort"`
	Users    []Unknown `json:"users"`
	Seen     int       `json:"seen"`     // how many there are
	Dropped  uint64    `json:"dropped"`  // users forgotten because there were too many
	Capacity int       `json:"capacity"` // users who can be remembered
}

// Unknown is a user whom the file does not name.
type Unknown struct {
	Name
	Tier    string    `json:"tier"`
	First   time.Time `json:"first"`   // when the user was first heard of
	Seen    time.Time `json:"seen"`    // when the user was last heard of
	Reports uint64    `json:"reports"` // how often instances reported the user: a measure of activity
}

// Instances is the answer of /api/v1/instances.
type Instances struct {
	From
	Instances []Instance `json:"instances"` // sorted by name
}

// Instance is a HAProxy with its agent.
type Instance struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`           // of the limits that it enforces; "" for none yet
	Current bool    `json:"current"`           // they are those of the polygen that answers
	Behind  float64 `json:"behind,omitempty"`  // for how many seconds they have not been
	Problem string  `json:"problem,omitempty"` // why it does not fully work; absent when it does

	Gone *time.Time `json:"gone,omitempty"` // since when it is not heard of; told for 10 minutes
}

// MaxTop is the most users of one list.
const MaxTop = 1000

// Sort is the order of a list.
type Sort string

// The orders: those with most first.
const (
	ByRate       Sort = "rate"
	ByRefused    Sort = "refused" // most refused requests per second
	ByConcurrent Sort = "concurrent"
	ByDown       Sort = "down"
	ByUp         Sort = "up"
	ByRecent     Sort = "recent" // heard of last
	ByActive     Sort = "active" // of unknown users: reported most often
)

const byCost = "cost:"

// ByCost is the order of those who were charged most of a unit, in the longest window that each
// has a limit of. Who was charged nothing is not listed.
func ByCost(unit string) Sort { return Sort(byCost + unit) }

// CostUnit is the unit of an order by cost; of any other order it reports false.
func (s Sort) CostUnit() (unit string, ok bool) { return strings.CutPrefix(string(s), byCost) }

// NameOfUser is a user, by name.
func NameOfUser(user string) Name { return Name{User: user, Href: Path(user)} }

// NameOfKey is the user of a wire key.
func NameOfKey(key string) Name {
	href := Path(key)
	if limits.Key(key) != key { // a hash is no name
		href = PathOfKey(key)
	}
	return Name{User: key, Href: href}
}
