package spoa

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
)

const (
	// startsEvery is how often starts are reported: a message says what was counted in
	// the time since the one before.
	startsEvery = time.Second
	// startShards divide the users, so that requests which start at once seldom wait for
	// each other, and maxStarted bounds the users of a shard: 4096 in all, of whom a
	// report of 200 KiB tells.
	startShards = 16
	maxStarted  = 256
	// maxStartedClasses bounds the verbs and operation classes of a user in one report: 8
	// verbs and the 64 classes that a limit file may have.
	maxStartedClasses = 72
	// reportWithin is how long after a second its reports are sent, at most.
	reportWithin = 700 * time.Millisecond
)

// starts counts the requests that start here, of every user and class, limited or not,
// and knows who has how many in progress: for people who look before they set a limit.
// Nothing is decided by it.
//
// It is bounded. While no more users come than there is room for, every count is exact.
// Of more, those with most are kept (space-saving, Metwally et al. 2005): whoever comes
// new takes the place of the user with least, and inherits their count as an upper bound
// of what they may have had before. What is reported is what was counted since, so that
// no number is above the truth. Totals by class and tier are exact in any case: they are
// a metric's, sluice_requests_started_total.
//
// It is safe for concurrent use.
type starts struct {
	seed   maphash.Seed
	shards [startShards]startShard
}

type startShard struct {
	mu    sync.Mutex
	index map[string]int // of entries, by user
	// entries has room for maxStarted; spare is the same after a report is made.
	entries, spare []started
	cursor         int   // where leastOf stopped
	least          int64 // weight that some users have, and that few are below
}

// started is what is known of one user.
type started struct {
	user      string
	classes   []bus.StartedClass // verbs, and operation classes where requests have one
	count     int64              // requests since the user took the place
	inherited int64              // of who had the place before: the user may have had so many more
	near      bool               // the user was refused, or asked about because credit did not suffice
	active    int64              // requests in progress that were asked about, by HAProxy's table
	inCredit  int64              // requests in progress since the user has credit, asked about or not
}

// inProgress is how many requests the user has in progress.
func (s *started) inProgress() int64 {
	// Those asked about while the user had credit are in both counts, and there are hardly any others: a sum would be
	// nearly twice the truth.
	return max(s.active, s.inCredit)
}

// weight is by what the user with least is found. Who has requests in progress stays
// before others of as many starts, and who is near a limit before all who are not.
func (s *started) weight() int64 {
	weight := s.count + s.inherited + s.inProgress()
	// Whoever is near a limit is who people look for, however little they have started.
	if s.near {
		weight += nearWeight
	}
	return weight
}

// nearWeight is more than anybody starts in a second.
const nearWeight = 1 << 40

func newStarts() *starts {
	s := &starts{seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].index = make(map[string]int)
	}
	return s
}

func (s *starts) shardOf(user string) *startShard {
	return &s.shards[maphash.String(s.seed, user)%startShards]
}

// countStart counts a request of a verb and an operation class, "" if it has none. It does
// not allocate for a user who is known.
func (s *starts) countStart(user, verb, op string) { s.countStarts(user, verb, op, 1) }

// countStarts counts n requests; "" is a verb that is not known.
func (s *starts) countStarts(user, verb, op string, n int64) {
	sh := s.shardOf(user)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entryOf(user)
	e.count += n
	e.addClass(verb, n)
	e.addClass(op, n)
}

// nearLimit notes that a user is near a limit, or beyond it.
func (s *starts) nearLimit(user string) {
	sh := s.shardOf(user)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// Also of a user who has started none: whoever is refused each time is who people look for.
	sh.entryOf(user).near = true
}

func (s *started) addClass(class string, n int64) { s.classes = addStarts(s.classes, class, n) }

// addStarts adds requests of a class, "" if they have none. Classes beyond those that a report
// may have are left out.
func addStarts(classes []bus.StartedClass, class string, n int64) []bus.StartedClass {
	// Who has no operation class counts for the verb alone.
	if class == "" {
		return classes
	}
	for i := range classes {
		if classes[i].Class == class {
			classes[i].Starts += n
			return classes
		}
	}
	// Left out of the classes only: the sum of all requests has them.
	if len(classes) == maxStartedClasses {
		return classes
	}
	return append(classes, bus.StartedClass{Class: class, Starts: n})
}

// progress takes how many requests a user has in progress that were asked about.
func (s *starts) progress(user string, active int64) {
	s.setProgress(user, active, func(e *started) { e.active = active })
}

// inCredit takes how many a user has in progress of those since they have credit.
func (s *starts) inCredit(user string, active int64) {
	s.setProgress(user, active, func(e *started) { e.inCredit = active })
}

// setProgress changes the entry of a user who is known, or who has requests in progress.
func (s *starts) setProgress(user string, active int64, change func(*started)) {
	sh := s.shardOf(user)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// That nothing is in progress of somebody unknown is no reason to drive out somebody who is known.
	if _, known := sh.index[user]; known || active > 0 {
		change(sh.entryOf(user))
	}
}

// restarted says that HAProxy has begun anew, with nothing in progress of which it tells.
func (s *starts) restarted() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for j := range sh.entries {
			sh.entries[j].active, sh.entries[j].inCredit = 0, 0
		}
		sh.mu.Unlock()
	}
}

// entryOf is the user's; mu is held.
func (sh *startShard) entryOf(user string) *started {
	if i, ok := sh.index[user]; ok {
		return &sh.entries[i]
	}
	i := len(sh.entries)
	// Space-saving: while there is room every count is exact. Then the one with least goes, and the new
	// one inherits its count as what they may have had.
	if i < maxStarted {
		sh.entries = slices.Grow(sh.entries, 1)[:i+1]
		sh.entries[i] = started{user: user, classes: sh.entries[i].classes[:0]}
	} else {
		i = sh.leastOf()
		delete(sh.index, sh.entries[i].user)
		sh.entries[i] = started{user: user, classes: sh.entries[i].classes[:0], inherited: sh.entries[i].weight() % nearWeight}
	}
	sh.index[user] = i
	return &sh.entries[i]
}

// leastOf is the index of a user with least.
func (sh *startShard) leastOf() int {
	at := 0
	// To look through all costs less than to keep them in order with each request, and is seldom needed: of random
	// names nearly all have as little, and the cursor goes from one to the next.
	for range sh.entries {
		sh.cursor = (sh.cursor + 1) % len(sh.entries)
		switch w := sh.entries[sh.cursor].weight(); {
		// As little as the least at the last full look, which few are below.
		case w <= sh.least:
			return sh.cursor
		case w < sh.entries[at].weight():
			at = sh.cursor
		}
	}
	sh.least = sh.entries[at].weight()
	return at
}

// takeReports appends what was counted since the last call, and begins anew. Users with
// requests in progress stay. The first ones of the reports are of users near a limit: it
// says of how many.
func (s *starts) takeReports(reports []bus.Started) (_ []bus.Started, near int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		// Two arrays in turns: requests go on in the other one while this one is read, and nothing is allocated each second.
		taken := sh.entries
		sh.entries, sh.spare = sh.spare[:0], taken
		sh.least = 0
		clear(sh.index)
		for j := range taken {
			// Who has requests in progress is in the next report too, also if they start none.
			if was := &taken[j]; was.inProgress() > 0 {
				e := sh.entryOf(was.user)
				e.active, e.inCredit = was.active, was.inCredit
			}
		}
		sh.mu.Unlock()
		// Only this call touches spare, and it is called by one goroutine.
		for j := range taken {
			e := &taken[j]
			reports = append(reports, bus.Started{User: e.user, Active: int(e.inProgress()), Classes: append([]bus.StartedClass(nil), e.classes...), Starts: e.count})
			// Swapped to the front: of more users than a bucket has room for these must be told.
			if last := len(reports) - 1; e.near {
				reports[near], reports[last] = reports[last], reports[near]
				near++
			}
		}
	}
	return reports, near
}
