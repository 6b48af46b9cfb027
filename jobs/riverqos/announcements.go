package riverqos

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river/rivertype"
)

const (
	// maxAnnouncements bounds the queues to announce again: nobody takes them in a program
	// that does not call Run.
	maxAnnouncements = 10_000
	// maxQuietQueues is how many queues are noted before those without recent inserts are
	// forgotten. There are that many in a program with, say, a queue for each user.
	maxQuietQueues = 10_000
	// nearInserts is how long after the end of an insert another one into the same queue may
	// not be announced: twice River's FetchCooldown.
	nearInserts = 200 * time.Millisecond
)

// announcements are the queues that workers are to be told of again. River announces at
// most one insert into a queue within its FetchCooldown of 100 ms, at some time between the
// begin and the end of the insert. Workers would find the jobs of other inserts only at
// their next poll.
type announcements struct {
	mu      sync.Mutex
	queues  map[string]bool          // to announce again
	inserts map[string]*queueInserts // by queue
	work    chan struct{}            // of capacity 1: there are queues to announce
}

// queueInserts are the inserts into a queue.
type queueInserts struct {
	begun    int       // inserts that ever began
	underWay int       // inserts that have not ended
	ended    time.Time // when the last one ended
}

// active reports whether an insert now is near another one.
func (i *queueInserts) active(now time.Time) bool {
	return i.underWay > 0 || now.Sub(i.ended) < nearInserts
}

// noted is what was known of a queue's inserts when one of them began.
type noted struct {
	near  bool // another one was near
	begun int  // how many had begun, this one included
}

// beginInsert notes an insert, and its end when the returned function is called.
func (a *announcements) beginInsert(params []*rivertype.JobInsertParams) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inserts == nil {
		a.inserts = map[string]*queueInserts{}
	}
	now, began := time.Now(), map[string]noted{} // by queue
	for _, param := range params {
		if _, done := began[param.Queue]; done || param.State != rivertype.JobStateAvailable {
			continue
		}
		inserts := a.inserts[param.Queue]
		if inserts == nil {
			inserts = &queueInserts{}
			a.inserts[param.Queue] = inserts
		}
		near := inserts.active(now) // before this one counts
		inserts.begun++
		inserts.underWay++
		began[param.Queue] = noted{near, inserts.begun}
	}
	if len(a.inserts) > maxQuietQueues {
		maps.DeleteFunc(a.inserts, func(_ string, inserts *queueInserts) bool { return !inserts.active(now) })
	}
	return func() { a.endInsert(began) }
}

// endInsert notes the end of an insert. A queue into which another insert was near this
// one, or has begun since, is announced again.
func (a *announcements) endInsert(began map[string]noted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for queue, note := range began {
		inserts := a.inserts[queue]
		inserts.underWay--
		inserts.ended = time.Now()
		// Without another insert nearby, the announcement that River made is of this one.
		if !note.near && inserts.begun == note.begun || len(a.queues) >= maxAnnouncements {
			continue
		}
		if a.queues == nil {
			a.queues = map[string]bool{}
		}
		a.queues[queue] = true
		signal(a.work)
	}
}

// takeQueues removes and returns the queues to announce again.
func (a *announcements) takeQueues() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	queues := slices.Collect(maps.Keys(a.queues))
	clear(a.queues)
	return queues
}
