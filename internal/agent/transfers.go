package agent

import (
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
)

const (
	// transferSpan is how long requests of a user must have been in progress, without a
	// pause, to be a transfer: most requests are over by then, and their verdicts said all.
	transferSpan = 100 * time.Millisecond
	// verdictSpan is how long HAProxy's first news of a request may take from its
	// verdict on. A share that changed within it is not what the verdict said.
	verdictSpan = time.Second
	// shareIdleSpan is how long an entry is kept for a user with nothing in progress, so
	// that short requests one after another do not come and go in the table.
	shareIdleSpan = 5 * time.Second
	// shareLiftFor is how long HAProxy is told that an entry holds no longer.
	shareLiftFor = 2 * time.Second
	// sharesFor is how long a share is remembered that is not in the table.
	sharesFor = time.Minute
	// maxShares bounds the users whose shares are remembered, and those of whom
	// HAProxy's table has one: what it holds. Further ones keep what their verdicts said.
	maxShares = 200_000
)

// transfers knows which users' shares HAProxy's table is to have: those of users with
// transfers in flight. For all others a request's verdict says the share, and an entry
// would only take the room of others: a name costs nothing to make up. The limiter's
// lock guards it. See newTransfers.
type transfers struct {
	recent[transfer]
	table map[string]time.Time // who has an entry: when nothing was in progress any more; zero: something is
}

type transfer struct {
	known   bool         // whether a share is
	values  peers.Values // it
	changed time.Time    // when it last became another one
	since   time.Time    // since when something has been in progress; zero: nothing is
}

func newTransfers() transfers {
	return transfers{newRecent[transfer](sharesFor, maxShares), make(map[string]time.Time)}
}

// setShare takes a user's share, and reports whether it is to be written into the table
// now.
func (t *transfers) setShare(now time.Time, user string, values peers.Values) bool {
	f, _ := t.get(user)
	// The first share that is heard of is what the verdict has just said.
	differs := f.known && f.values != values
	if differs {
		f.changed = now
	}
	f.known, f.values = true, values
	t.put(user, f)
	// Whoever has an entry goes by it, so it must be right.
	if _, there := t.table[user]; there {
		return true
	}
	return !f.since.IsZero() && (differs || now.Sub(f.since) >= transferSpan) && t.enterTable(user)
}

// progress takes how many requests HAProxy has in progress of a user, and returns the
// share if it is to be written into the table now. lent is what HAProxy goes by with
// credit, which may be minutes old; nil: an answer has just said the share.
func (t *transfers) progress(now time.Time, user string, active int64, lent *peers.Values) (peers.Values, bool) {
	idle, there := t.table[user]
	f, known := t.get(user)
	// The entry stays for a while, so that short requests one after another do not make it come and go.
	if active == 0 {
		if there && idle.IsZero() {
			t.table[user] = now
		}
		if known && !f.since.IsZero() {
			f.since = time.Time{}
			t.put(user, f)
		}
		return peers.Values{}, false
	}
	if there {
		t.table[user] = time.Time{}
	}
	if !known {
		return peers.Values{}, false // not limited
	}
	if f.since.IsZero() {
		f.since = now
		t.put(user, f)
	}
	other := now.Sub(f.changed) < verdictSpan
	// By credit no answer said the share. What HAProxy goes by may be old, however long ago it changed.
	if lent != nil {
		other = f.values != *lent
	}
	// Most requests are over before it is worth an entry, unless their verdict has said another share.
	if there || !f.known || now.Sub(f.since) < transferSpan && !other {
		return peers.Values{}, false
	}
	return f.values, t.enterTable(user)
}

// replaced says that another HAProxy has taken over, with the table, and without the
// requests in progress.
func (t *transfers) replaced(now time.Time) {
	for user, idle := range t.table {
		// Of the new process nothing is in flight yet: the entry stays for as long as any that is idle.
		if idle.IsZero() {
			t.table[user] = now
		}
	}
}

// enterTable notes that the table has a user, if there is room.
func (t *transfers) enterTable(user string) bool {
	// Beyond the bound holds what their verdicts said.
	if len(t.table) >= maxShares {
		return false
	}
	t.table[user] = time.Time{}
	return true
}

// forget drops what is over, and returns the users whose entries are to be lifted. It
// is to be called now and then, and costs what is in the table.
func (t *transfers) forget(now time.Time) (lift []string) {
	t.recent.forget(now)
	for user, idle := range t.table {
		// Never while something is in flight: without its entry a transfer would go by what its verdict said.
		if !idle.IsZero() && now.Sub(idle) >= shareIdleSpan {
			delete(t.table, user)
			lift = append(lift, user)
		}
	}
	return lift
}
