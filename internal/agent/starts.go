package agent

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// startsEvery is how often starts are reported: a message says what was counted in
	// the time since the one before.
	startsEvery = time.Second
	// maxReported bounds the users that a report names: a message of 200 KiB.
	maxReported = 4096
	// maxStarted bounds the users whose starts are counted by name between two reports: more than
	// an agent can be asked about in a second.
	maxStarted = 1 << 16
	// maxStartedClasses bounds the verbs and operation classes of a user in one report: 8
	// verbs and the 64 classes that a limit file may have.
	maxStartedClasses = 72
	// reportWithin is how long after a second its reports are sent, at most.
	reportWithin = 400 * time.Millisecond
)

// starts counts the requests that start here or are refused, of every user and class, limited or not,
// and remembers how many each user has in progress: for people who look before they set a limit.
// Nothing is decided by it. Users beyond maxStarted are not counted by name; totals by class and
// tier include them: they are a metric's, sluice_requests_started_total.
//
// It is safe for concurrent use.
type starts struct {
	mu    sync.Mutex
	users map[string]*started
}

type started struct {
	classes  []redisbus.StartedClass // verbs, and operation classes where requests have one
	count    int64                   // requests since the last report
	refused  int64                   // and those that were refused
	near     bool                    // the user was refused, or asked about because credit did not suffice
	active   int64                   // requests in progress that were asked about, by HAProxy's table
	inCredit int64                   // requests in progress since the user has credit, asked about or not
}

func (s *started) inProgress() int64 {
	// Those asked about while the user had credit are in both counts, and there are hardly any others: a sum would be
	// nearly twice the truth.
	return max(s.active, s.inCredit)
}

func newStarts() *starts { return &starts{users: make(map[string]*started)} }

// countStart counts a request of a verb and an operation class, "" if it has none. It does
// not allocate for a user who is known.
func (s *starts) countStart(user, verb, op string) { s.count(user, verb, op, 1, 0) }

// count counts requests that started, and that were refused; "" is a verb that is not known.
func (s *starts) count(user, verb, op string, starts, refused int64) {
	s.change(user, true, func(e *started) {
		e.near = e.near || refused > 0
		e.count += starts
		e.refused += refused
		e.classes = addCounts(e.classes, verb, op, starts, refused)
	})
}

// nearLimit notes that a user is near a limit, or beyond it.
func (s *starts) nearLimit(user string) {
	// Also for a user who has started none: people look for users who are refused each time.
	s.change(user, true, func(e *started) { e.near = true })
}

// progress takes how many requests a user has in progress that were asked about.
func (s *starts) progress(user string, active int64) {
	s.change(user, active > 0, func(e *started) { e.active = active })
}

// inCredit takes how many a user has in progress of those since the user has credit.
func (s *starts) inCredit(user string, active int64) {
	s.change(user, active > 0, func(e *started) { e.inCredit = active })
}

// change changes what is known of a user. A user who is not known gets an entry if add is
// true and there is room.
func (s *starts) change(user string, add bool, how func(*started)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.users[user]
	if e == nil {
		if !add || len(s.users) >= maxStarted {
			return
		}
		e = &started{}
		s.users[user] = e
	}
	how(e)
}

// restarted says that HAProxy has begun again, with nothing in progress.
func (s *starts) restarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.users {
		e.active, e.inCredit = 0, 0
	}
}

// A secondOfStarts is what has started in a second.
type secondOfStarts map[string]*startedReport

type startedReport struct {
	near bool
	redisbus.Started
}

// take returns what was counted since the last call. Users with requests in progress are in the next report too.
func (s *starts) take() secondOfStarts {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := make(secondOfStarts, len(s.users))
	for user, e := range s.users {
		taken[user] = &startedReport{e.near, redisbus.Started{User: user, Active: int(e.inProgress()), Starts: e.count, Refused: e.refused, Classes: e.classes}}
		if e.inProgress() == 0 {
			delete(s.users, user)
			continue
		}
		*e = started{active: e.active, inCredit: e.inCredit}
	}
	return taken
}

// add counts more requests of a user that started, and that were refused.
func (s secondOfStarts) add(user, verb, op string, starts, refused int64) {
	e := s[user]
	if e == nil {
		if len(s) >= maxStarted {
			return
		}
		e = &startedReport{Started: redisbus.Started{User: user}}
		s[user] = e
	}
	e.near = e.near || refused > 0
	e.Starts += starts
	e.Refused += refused
	e.Classes = addCounts(e.Classes, verb, op, starts, refused)
}

// sorted are the reports: of users near a limit first, then of those with most.
func (s secondOfStarts) sorted() []redisbus.Started {
	all := make([]startedReport, 0, len(s))
	for _, r := range s {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b startedReport) int {
		if a.near != b.near {
			return map[bool]int{true: -1, false: 1}[a.near]
		}
		return cmp.Or(cmp.Compare(b.Starts+int64(b.Active), a.Starts+int64(a.Active)), strings.Compare(a.User, b.User))
	})
	reports := make([]redisbus.Started, len(all))
	for i := range all {
		reports[i] = all[i].Started
	}
	return reports
}

// addCounts adds admitted and refused requests of a verb and an operation class, "" if they have none. Classes beyond
// those that a report may have are left out.
func addCounts(classes []redisbus.StartedClass, verb, op string, starts, refused int64) []redisbus.StartedClass {
	for _, class := range [...]string{verb, op} {
		i := slices.IndexFunc(classes, func(c redisbus.StartedClass) bool { return c.Class == class })
		switch {
		// A request without an operation class counts for the verb alone.
		case class == "":
		case i >= 0:
			classes[i].Starts += starts
			classes[i].Refused += refused
		// Left out of the classes only: the sum of all requests has them.
		case len(classes) < maxStartedClasses:
			classes = append(classes, redisbus.StartedClass{Class: class, Starts: starts, Refused: refused})
		}
	}
	return classes
}
