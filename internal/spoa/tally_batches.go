package spoa

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxGrown is of how many users starts are told after a read: as many as it has room for.
	maxGrown = startShards * maxStarted
	// maxTallyBatches bounds what waits to be told; one and the next is what there should be.
	maxTallyBatches = 4
)

// tallyBatches has starts told of what was read, evenly over the time that it took to come
// up: a graph of each second would else show the reads, not the requests. One goroutine
// reads, and another one gives.
type tallyBatches struct {
	starts     *starts
	grown      []grownUser // in this read
	leastGrown int64       // who grew by no more is not among them
	lastRead   time.Time   // when the last one began

	mu    sync.Mutex
	ready []tallyBatch // what starts are not told yet
}

// A tallyBatch is what was read at once: what users started in the span before at.
type tallyBatch struct {
	at    time.Time
	span  time.Duration
	users []grownUser
	kinds []tallyKind
}

// grownUser is a user whose counters grew, and by how much for each kind of request.
type grownUser struct {
	user        string
	total       int64
	grew, given []uint32
}

// addGrown notes how much the counters of a user grew in this read, all together by
// total. Only those who grew most are kept, for starts have no room for more.
func (b *tallyBatches) addGrown(user string, total int64, before, read []uint32) {
	// Below the least of those who are kept already: nearly all of a large table, who cost no memory then.
	if total <= b.leastGrown {
		return
	}
	grew := make([]uint32, 2*len(read))
	for k := range read {
		grew[k] = read[k] - before[k]
	}
	b.grown = append(b.grown, grownUser{user: user, total: total, grew: grew[:len(read)], given: grew[len(read):]})
	// Sorted only when there are twice as many as are kept: each user is sorted once or twice then.
	if len(b.grown) == 2*maxGrown {
		b.keepMost()
		b.leastGrown = b.grown[maxGrown-1].total
	}
}

// keepMost leaves those who grew most.
func (b *tallyBatches) keepMost() {
	slices.SortFunc(b.grown, func(x, y grownUser) int {
		return cmp.Or(cmp.Compare(y.total, x.total), strings.Compare(x.user, y.user))
	})
	if len(b.grown) > maxGrown {
		// So that their memory is not held.
		clear(b.grown[maxGrown:])
		b.grown = b.grown[:maxGrown]
	}
}

// endRead makes a batch of what was read.
func (b *tallyBatches) endRead(now time.Time, kinds []tallyKind) {
	b.keepMost()
	span := tallyEvery
	// How long the next read will take is not known; the one before is the best guess.
	if !b.lastRead.IsZero() {
		span = now.Sub(b.lastRead)
	}
	b.lastRead = now
	b.mu.Lock()
	defer b.mu.Unlock()
	// Beyond the bound nobody takes what is given, as while Redis is lost. People look at it, and nothing
	// is decided by it.
	if len(b.grown) > 0 && len(b.ready) < maxTallyBatches {
		b.ready = append(b.ready, tallyBatch{at: now, span: span, users: b.grown, kinds: kinds})
	}
	b.grown, b.leastGrown = nil, 0
}

// giveStarts tells starts what has come up until now.
func (b *tallyBatches) giveStarts(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = slices.DeleteFunc(b.ready, func(batch tallyBatch) bool {
		part := 1.0
		// A clock that was set back gives nothing, and takes nothing back.
		if passed := now.Sub(batch.at); passed < batch.span {
			part = max(0, passed.Seconds()/batch.span.Seconds())
		}
		for i := range batch.users {
			batch.users[i].givePart(b.starts, batch.kinds, part)
		}
		return part == 1
	})
}

// givePart tells starts of a part of what the user started, less what they were told before:
// with part 1 all of it was told exactly once.
func (u *grownUser) givePart(s *starts, kinds []tallyKind, part float64) {
	for k, n := range u.grew {
		if due := uint32(float64(n) * part); due > u.given[k] {
			s.countStarts(u.user, kinds[k].verb, kinds[k].operation, int64(due-u.given[k]))
			u.given[k] = due
		}
	}
}
