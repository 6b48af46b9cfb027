package bandwidth

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/internal/reports"
)

const (
	// divideEvery is how often shares are computed for a demand that changes (for
	// instances that begin or end it is done at once), repeatEvery how often they are
	// sent again, and reportSpan how long a report counts.
	divideEvery = 50 * time.Millisecond
	repeatEvery = 10 * time.Second
	reportSpan  = 2 * time.Second
	// hearSpan is how long an instance may take to report a share it was given; one
	// that has another one then has missed it.
	hearSpan = 250 * time.Millisecond
	// maxWatched bounds the users that are watched. Others have the shares that
	// instances give to those of whom polygen has said nothing.
	maxWatched = 200_000
	// ShareFor is how long a share holds after its last repetition.
	ShareFor = 60 * time.Second
)

// Direction is one of a user's two limits.
type Direction int

// The directions.
const (
	Down Direction = iota // from the cluster to the user
	Up                    // from the user to the cluster
)

// Directions are both.
var Directions = [...]Direction{Down, Up}

func (d Direction) String() string {
	if d == Up {
		return "up"
	}
	return "down"
}

// A Report is what one instance says of one user. Numbers by Direction are bytes
// per second.
type Report struct {
	Instance string
	User     string
	Active   int      // requests in progress there; 0 wants nothing
	Moved    [2]int64 // as last measured
	Most     [2]int64 // that it can use; 0: any number
	Share    [2]int64 // that polygen has given it; 0: none
}

// Sharing is how a user's limit is divided.
type Sharing struct {
	User      string
	Direction Direction
	Shares    []Share // of the instances with requests in progress; sorted by instance
	// Before are the instances that had a share when the user's limit was divided last: those that
	// are not in Shares must hear that theirs has ended. Sorted.
	Before []string
}

// Concerned is whom a division concerns, sorted. The others had no share and have none: what begins
// there has the default share, whatever the division is.
func (s *Sharing) Concerned() []string {
	concerned := slices.Clone(s.Before)
	for _, share := range s.Shares {
		concerned = append(concerned, share.Instance)
	}
	slices.Sort(concerned)
	return slices.Compact(concerned)
}

// Watch is polygen's view of the users with bandwidth limits. It is not safe for
// concurrent use.
type Watch struct {
	maxUsers int // users at a time
	users    map[string]*watched
	reports  reports.ByInstance[reported, *watched]
	agenda   agenda.Agenda[*watched]
	out      []Sharing
	dropped  uint64
}

type watched struct {
	agenda.Place
	reports.Instances[reported]
	name    string
	limit   [2]int64
	sent    [2][]Share
	sentAt  [2]int64
	out     [2]int // where in Watch.out its last division is, unless that was fetched
	divided int64
	changed bool
}

type reported struct {
	Report
	last int64 // when it came
}

// NewWatch returns a watch that knows of nothing.
func NewWatch() *Watch {
	return &Watch{maxUsers: maxWatched, users: make(map[string]*watched)}
}

// Observe takes a report, and the user's limits in bytes per second by direction
// (0: not limited).
func (w *Watch) Observe(at time.Time, r Report, limit [2]int64) {
	now := at.UnixNano()
	u := w.users[r.User]
	if u == nil {
		// The end of what was not known here is no reason to know of it.
		if limit == [2]int64{} || r.Active == 0 {
			return
		}
		// Beyond the bound users have their default shares: too little or too much, but bounded.
		if len(w.users) >= w.maxUsers {
			w.dropped++
			return
		}
		u = &watched{name: r.User}
		w.users[r.User] = u
	}
	i := w.reports.Of(u, r.Instance)
	// An instance without a share, or with one that it does not need, should not wait for divideEvery.
	urgent := (i.Active == 0) != (r.Active == 0) || u.limit != limit
	u.changed = u.changed || urgent || i.Active != r.Active || i.Most != r.Most
	i.Report, i.last, u.limit = r, now, limit
	for _, d := range Directions {
		// Policies may be lost. The report says what the instance has, so no acknowledgement is needed.
		if r.Active > 0 && passed(now, u.sentAt[d], hearSpan) && u.misses(r, d) {
			u.sentAt[d], u.changed = 0, true
		}
	}
	if urgent || u.changed && passed(now, u.divided, divideEvery) {
		w.divide(u, now)
	}
	w.schedule(u, now)
}

func (w *Watch) dropReport(u *watched, instance string) {
	w.reports.Drop(u, instance)
	u.changed = true
}

func (u *watched) misses(r Report, d Direction) bool {
	for _, s := range u.sent[d] {
		if s.Instance == r.Instance {
			return s.Bytes != r.Share[d]
		}
	}
	return false
}

// Instances tells the watch which instances there are: any other one moves
// nothing, and those that are left share anew at once what it had. It costs what those moved.
func (w *Watch) Instances(at time.Time, live []string) {
	now := at.UnixNano()
	for u, gone := range w.reports.Gone(live) {
		// All of them first: else one that is gone would be given what another one had.
		for _, instance := range gone {
			w.dropReport(u, instance)
		}
		w.divide(u, now)
	}
}

// Tick divides anew what is due and drops what has not been heard of for 2 s. It
// costs what is due, and is to be called every 50 ms.
func (w *Watch) Tick(at time.Time) {
	now := at.UnixNano()
	w.agenda.Take(now, func(u *watched) {
		for instance, i := range u.Reports {
			i.last = min(i.last, now) // the clock may have been set back
			// An instance that is gone moves nothing; one that is cut off keeps its share for ShareFor.
			if passed(now, i.last, reportSpan) {
				w.dropReport(u, instance)
			}
		}
		// Whoever reports again is divided for anew. Until then the last instance has the share that it
		// ended with, for as long as its agent remembers the user, and must hear if another one begins.
		if len(u.Reports) == 0 && passed(now, u.divided, forgetSpan) {
			delete(w.users, u.name)
			return
		}
		if u.changed && passed(now, u.divided, divideEvery) || u.repeats(now) {
			w.divide(u, now)
		}
		w.schedule(u, now)
	})
}

func (u *watched) repeats(now int64) bool {
	for _, d := range Directions {
		if u.sent[d] != nil && passed(now, u.sentAt[d], repeatEvery) {
			return true
		}
	}
	return false
}

func (w *Watch) schedule(u *watched, now int64) {
	if u.changed {
		w.agenda.Put(u, u.divided+int64(divideEvery))
		return
	}
	first := now
	for _, i := range u.Reports {
		first = min(first, i.last)
	}
	// The next repetition is later than any report may stay away.
	w.agenda.Put(u, first+int64(reportSpan))
}

// Sharings returns what has been decided since the last call, sorted by user and
// direction, the last word of each, and forgets it.
func (w *Watch) Sharings() []Sharing {
	out := w.out
	w.out = nil
	slices.SortFunc(out, func(a, b Sharing) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Direction, b.Direction))
	})
	return out
}

// Dropped counts the reports that were passed over because too many users were watched.
func (w *Watch) Dropped() uint64 { return w.dropped }

// WatchedUsers is the number of users watched.
func (w *Watch) WatchedUsers() int { return len(w.users) }
