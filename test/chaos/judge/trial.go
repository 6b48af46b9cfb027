package judge

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/test/chaos/history"
)

// Options are what the judge takes as given. The zero value of each field is its default.
type Options struct {
	// Slack is by how much the clock by which a request was decided may differ from that of the history: a process may
	// go on with the time that it read before it was kept waiting. Default 10 ms.
	Slack time.Duration
	// Follow is how long it takes at most until all instances have new limits: polygen notices them within a second,
	// and agents within another (docs/operations.md). Default 3 s, for what was leased by the old ones.
	Follow time.Duration
	// Settle is how long a user may be refused who was at their limit of requests in progress and is no more: until
	// polygen has heard it and HAProxy is told. Default 1 s.
	Settle time.Duration
	// Correct is how long after a request is over the correction of what it was charged may be on its way: HAProxy and agents collect them for
	// 5 ms each. Default 300 ms, for a machine on which everything runs at once.
	Correct time.Duration
	// Aftermath is how long after a fault something that is not exact is taken for its consequence. Default 30 s.
	Aftermath time.Duration
	// Steps bounds the search for an order in one window. Default 200 000.
	Steps int
}

func (o Options) withDefaults() Options {
	for field, value := range map[*time.Duration]time.Duration{
		&o.Slack: 10 * time.Millisecond, &o.Follow: 3 * time.Second, &o.Settle: time.Second, &o.Correct: 300 * time.Millisecond, &o.Aftermath: 30 * time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if o.Steps == 0 {
		o.Steps = 200_000
	}
	return o
}

// admission is a request that came to the origin. It was decided between sent and at, and was certainly in progress
// from at to over, if that is later.
type admission struct {
	id, method     string
	sent, at, over time.Time
	up, down       int64
	cost           int64     // what its answer said; 0: nothing
	done           time.Time // when the client had its answer; zero if its line is missing
}

// account is all that was seen of a user.
type account struct {
	user     string
	versions []version
	admitted []admission        // by at
	requests []*history.Request // by sent
	moved    [2][]movement      // bytes received by clients, and by the origin
}

// trial is a history in the order in which it is judged.
type trial struct {
	Options
	history   *history.History
	instances int
	accounts  []*account // by user
	arrivals  map[string]*history.Arrival
	defaults  []version
	begin     time.Time // of the first request
	tell      func(Observation)
	bound     func(*Observation) float64 // what is allowed of it
	excused   func(*Observation) bool    // whether a fault allows any number of it
}

func newTrial(h *history.History, o Options) *trial {
	t := &trial{Options: o.withDefaults(), history: h, instances: max(1, h.Run.Instances), arrivals: map[string]*history.Arrival{}}
	accounts := map[string]*account{}
	of := func(user string) *account {
		if accounts[user] == nil {
			accounts[user] = &account{user: user}
		}
		return accounts[user]
	}
	byUser := map[string][]history.Limit{}
	for _, l := range h.Limits {
		byUser[l.User] = append(byUser[l.User], l)
	}
	t.defaults = versionsOf(byUser[""])
	for i := range h.Arrivals {
		// HAProxy may send a request again whose connection broke. It was admitted once.
		a := &h.Arrivals[i]
		if before := t.arrivals[a.ID]; before == nil || a.At.Before(before.At) {
			t.arrivals[a.ID] = a
		}
	}
	requests := map[string]*history.Request{}
	for i := range h.Requests {
		r := &h.Requests[i]
		requests[r.ID] = r
		of(r.User).requests = append(of(r.User).requests, r)
		if t.begin.IsZero() || r.Sent.Before(t.begin) {
			t.begin = r.Sent
		}
	}
	for id, a := range t.arrivals {
		of(a.User).admitted = append(of(a.User).admitted, admissionOf(a, requests[id]))
	}
	t.addMovements(of)
	for _, user := range slices.Sorted(maps.Keys(accounts)) {
		a := accounts[user]
		if a.versions = t.defaults; byUser[user] != nil {
			a.versions = versionsOf(byUser[user])
		}
		slices.SortFunc(a.admitted, func(a, b admission) int { return a.at.Compare(b.at) })
		slices.SortFunc(a.requests, func(a, b *history.Request) int { return a.Sent.Compare(b.Sent) })
		t.accounts = append(t.accounts, a)
	}
	return t
}

// unknownSent is how long before its arrival a request may have been sent whose client wrote no line.
const unknownSent = 10 * time.Second

func admissionOf(a *history.Arrival, r *history.Request) admission {
	x := admission{id: a.ID, method: a.Method, sent: a.At.Add(-unknownSent), at: a.At, over: a.Ended, up: a.Up, down: a.Down, cost: a.Cost}
	if r != nil {
		x.sent, x.done, x.up, x.down = r.Sent, r.Done, a.Up, r.Down
		if r.Done.Before(a.Ended) || a.Ended.IsZero() {
			x.over = r.Done
		}
	}
	return x
}
