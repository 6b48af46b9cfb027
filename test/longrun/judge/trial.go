package judge

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// Times that the judge assumes.
const (
	// slack is by how much the clock that decided a request may differ from the history's: a process may use the time that it
	// read before it had to wait for a processor.
	slack = 10 * time.Millisecond
	// follow is how long it takes until all instances have new limits: polygen notices them within a second, and agents within
	// another (docs/operations.md). The third second is for leases of the old limits.
	follow = 3 * time.Second
	// settle is how long a user may be refused after their requests in progress fell below the limit.
	settle = time.Second
	// correct is how long after a request the correction of its charge may be on its way: HAProxy and agents collect corrections
	// for 5 ms each. This is for a machine on which everything runs at once.
	correct = 300 * time.Millisecond
	// aftermath is how long after a fault something inexact counts as its consequence.
	aftermath = 30 * time.Second
)

// admission is a request that came to the origin. It was decided between sent and at, and was certainly in progress
// from at to over, if that is later.
type admission struct {
	id, method     string
	sent, at, over time.Time
	cost           int64 // what its answer said; 0: nothing
}

type account struct {
	user     string
	versions []version
	admitted []admission        // by at
	requests []*history.Request // by sent
	crowd    []history.Crowd
	moved    [2][]movement // bytes received by clients, and by the origin
}

// trial is a history in the order in which it is judged.
type trial struct {
	history   *history.History
	instances int
	accounts  []*account // by user
	arrivals  map[string]*history.Arrival
	defaults  []version
	tell      func(Observation)
	bound     func(*Observation) float64 // what is allowed of it
}

func newTrial(h *history.History) *trial {
	t := &trial{history: h, instances: max(1, h.Run.Instances), arrivals: map[string]*history.Arrival{}}
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
	}
	for id, a := range t.arrivals {
		of(a.User).admitted = append(of(a.User).admitted, admissionOf(a, requests[id]))
	}
	for _, c := range h.Crowds {
		of(c.User).crowd = append(of(c.User).crowd, c)
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
	x := admission{id: a.ID, method: a.Method, sent: a.At.Add(-unknownSent), at: a.At, over: a.Ended, cost: a.Cost}
	if r != nil {
		x.sent = r.Sent
		if r.Done.Before(a.Ended) || a.Ended.IsZero() {
			x.over = r.Done
		}
	}
	return x
}
