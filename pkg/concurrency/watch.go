package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/internal/reports"
)

const (
	// reportSpan is how long a report of an instance counts; instances repeat
	// theirs every reportEvery.
	reportSpan  = 2 * time.Second
	reportEvery = 500 * time.Millisecond
	// maxWatched bounds the users that are watched. Others are not blocked by HAProxy
	// itself, and have even shares of their slots; agents keep the limit all the same.
	maxWatched = 200_000
)

// A Report is what one instance says of one user.
type Report struct {
	Instance string
	User     string
	Active   int // requests in progress there
	Refused  int // requests refused there since its last report
	Limit    int // requests in progress that all instances together may have; 0 means not limited
}

// Watch adds up the requests in progress that the instances report, and decides
// whom to block and how slots are shared. It is polygen's view; users far below
// their limits never come before it. It is not safe for concurrent use.
type Watch struct {
	margin int
	clock
	instances int
	maxUsers  int // users at a time
	users     map[string]*watched
	agenda    agenda.Agenda[*watched]
	reports   reports.ByInstance[reported, *watched]
	dropped   uint64

	// What is to be said; of a user who flipped meanwhile, the last word.
	blocks   map[string]Limit
	unblocks map[string]struct{}
	byHand   map[string]struct{} // users whose unblock is told even if they are blocked again meanwhile
	sharings []Sharing
}

type watched struct {
	agenda.Place
	name  string
	limit Limit
	reports.Instances[reported]
	credits map[string]float64

	blocked   bool
	blockedAt int64 // when it last became so
	saidAt    int64 // when the block was last sent
	refused   int   // since it was last unblocked

	shared   []Share // as last sent
	sharedAt int64
	othersAt int64              // when all other instances last heard of it
	withheld map[string]float64 // by these shares, of each instance
	dealtAt  int64              // when that was last added to the credits
}

type reported struct {
	active    int
	refusedAt int64
	last      int64
}

// NewWatch returns a watch that knows of nothing. The margin is in per cent of
// the limit; 0 means DefaultMargin.
func NewWatch(margin int) *Watch {
	if margin <= 0 {
		margin = DefaultMargin
	}
	return &Watch{
		margin: margin, maxUsers: maxWatched, users: make(map[string]*watched),
		blocks: make(map[string]Limit), unblocks: make(map[string]struct{}), byHand: make(map[string]struct{}),
	}
}

// Observe takes a report.
func (w *Watch) Observe(at time.Time, r Report) {
	now := w.coreTime(at)
	u := w.users[r.User]
	if u == nil {
		if r.Limit <= 0 {
			return
		}
		// Fail open: agents keep the limit without polygen.
		if len(w.users) >= w.maxUsers {
			w.dropped++
			return
		}
		u = &watched{name: r.User, credits: make(map[string]float64), blockedAt: now - int64(blockGap), othersAt: now - int64(othersAgain)}
		w.users[r.User] = u
	}
	u.limit = NewLimit(r.Limit, w.margin)
	i := w.reports.Of(u, r.Instance)
	i.active, i.last = r.Active, now
	// There is demand that no number of requests in progress shows.
	if r.Refused > 0 {
		i.refusedAt = now
		u.refused += r.Refused
	}
	w.decide(u, now)
	// What it says may change the shares, which are divided with the next Tick.
	w.lookAt(u, now)
}

func (w *Watch) dropReport(u *watched, instance string) {
	w.reports.Drop(u, instance)
	delete(u.credits, instance)
}

func (u *watched) active() int {
	n := 0
	for _, i := range u.Reports {
		n += i.active
	}
	return n
}

// Instances tells the watch which instances there are. Any other one is gone, with what it had in
// progress: its users are decided about, and their slots shared, anew at once. It costs what those had.
func (w *Watch) Instances(at time.Time, live []string) {
	now := w.coreTime(at)
	w.instances = len(live)
	for u, gone := range w.reports.Gone(live) {
		for _, instance := range gone {
			w.dropReport(u, instance)
		}
		w.decide(u, now)
		// The others may have its slots.
		w.lookAt(u, now)
	}
}

// Tick repeats what is to be repeated, shares anew, and drops what has not been
// heard of for 2 s. It costs what is due, and is to be called every 100 ms.
func (w *Watch) Tick(at time.Time) {
	now := w.coreTime(at)
	// Again and again, for a call of Take looks at some thousands.
	for looked := -1; looked != 0; {
		looked = 0
		w.agenda.Take(now, func(u *watched) {
			looked++
			// Otherwise they were let in by hand, which forgets what was reported.
			if w.users[u.name] == u {
				w.look(u, at, now)
			}
		})
	}
}

func (w *Watch) look(u *watched, at time.Time, now int64) {
	for instance, i := range u.Reports {
		if now-i.last >= int64(reportSpan) {
			w.dropReport(u, instance)
		}
	}
	w.decide(u, now)
	// Messages get lost, and agents forget a block that is not repeated.
	if u.blocked && now-u.saidAt >= int64(repeatEvery) {
		w.queueBlock(u, now)
	}
	w.shareSlots(u, at)
	// With the last report gone it was unblocked above.
	if len(u.Reports) == 0 {
		delete(w.users, u.name)
		return
	}
	w.schedule(u, now)
}

// schedule has the user looked at when something is due though nobody reports.
func (w *Watch) schedule(u *watched, now int64) {
	due := u.sharedAt + int64(shareAgain)
	// Far from the limit, or alone, nothing is shared.
	if due <= now {
		due = now + int64(shareAgain)
	}
	if u.blocked {
		due = min(due, u.saidAt+int64(repeatEvery))
	} else if u.limit.blocks(false, u.active()) { // they were blocked not long ago
		due = min(due, u.blockedAt+int64(blockGap))
	}
	for _, i := range u.Reports {
		due = min(due, i.last+int64(reportSpan))
		// After the refusal has lost its meaning, the instance wants less.
		if refusal := i.refusedAt + int64(demandSpan); refusal > now {
			due = min(due, refusal)
		}
	}
	if u.dealtAt > 0 {
		// Odd slots change hands then.
		if deal := u.dealtAt + int64(shareAgain); deal > now {
			due = min(due, deal)
		}
	}
	w.lookAt(u, due)
}

// lookAt has the user looked at in the first Tick at a time, or behind it.
func (w *Watch) lookAt(u *watched, at int64) {
	// The agenda never looks too soon, which may be a tick of its own too late.
	w.agenda.Put(u, at-int64(agenda.Tick))
}

// Dropped counts the reports that were passed over because too many users were watched.
func (w *Watch) Dropped() uint64 { return w.dropped }

// WatchedUsers is the number of users watched, and how many of them are blocked.
func (w *Watch) WatchedUsers() (watched, blocked int) {
	for _, u := range w.users {
		if u.blocked {
			blocked++
		}
	}
	return len(w.users), blocked
}
