package spoa

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// tallyHearers are told what a read found; nil ones are not.
type tallyHearers struct {
	// natives is told how many requests a user has in progress by HAProxy's table of credit,
	// those included that were asked about, and the bytes that requests of theirs ever moved,
	// by direction: of everyone who has some in progress or was admitted since, at each
	// read, and once of who was not any more.
	natives func([]nativeCount)
	// inherited is told how many requests users have in progress from whom another agent has
	// taken their credit back, in the first read of a process that is older than this agent.
	inherited func(user string, n int)
	// present is told about once a minute of users who have requests by credit.
	present func(user string)
	// absent is told about once a minute, after a complete read, which process it was of, when
	// it began, and who was in it.
	absent func(process uint64, began time.Time, shown func(user string) bool)
}

// nativeCount is what HAProxy's table of credit says of a user.
type nativeCount struct {
	user       string
	of         *limits.Limits
	inProgress int
	bytes      [2]int64 // that requests of theirs ever moved, by direction
}

// untoldCounts are what the hearers and the metrics are to be told next.
type untoldCounts struct {
	natives []nativeCount
	since   time.Time // when the first of them was read
	sums    tierSums
}

// tierSums are requests of users of one tier, most of whom follow each other.
type tierSums struct {
	tier   string
	all    int64
	byKind []int64
}

// countGrowth counts what is new in the counters of a user, and remembers them.
func (t *tallies) countGrowth(user, tier string, before, read []uint32) {
	// Requests are in progress, but none has begun since.
	if slices.Equal(before, read) {
		return
	}
	for k := range read {
		// HAProxy had forgotten the entry, and began another from 0.
		if read[k] < before[k] {
			clear(before)
			break
		}
	}
	t.batches.addGrown(user, t.sumByTier(tier, before, read), before, read)
	copy(before, read)
}

// sumByTier counts the requests that a user of a tier has started since.
func (t *tallies) sumByTier(tier string, before, read []uint32) (all int64) {
	s := &t.untold.sums
	// Entries of one tier follow each other mostly, so that a counter is looked up once for many users.
	if s.tier != tier {
		t.flushSums()
		s.tier = tier
	}
	for k := range read {
		n := int64(read[k] - before[k])
		s.byKind[k] += n
		all += n
	}
	s.all += all
	return all
}

func (u *untoldCounts) add(c nativeCount) {
	// The oldest of them says how long all have waited.
	if len(u.natives) == 0 {
		u.since = time.Now()
	}
	u.natives = append(u.natives, c)
}

// flushUntold tells natives and the metrics what has come up.
func (t *tallies) flushUntold() {
	u := &t.untold
	if t.hearers.natives != nil && len(u.natives) > 0 {
		t.hearers.natives(u.natives)
	}
	// The array is used again, and must not keep names.
	clear(u.natives)
	u.natives = u.natives[:0]
	t.flushSums()
}

// flushSums tells the metrics what users of one tier have started.
func (t *tallies) flushSums() {
	s := &t.untold.sums
	if s.all == 0 {
		return
	}
	t.metrics.credited.Add(float64(s.all))
	t.metrics.byTier.add(outcome(s.tier, "credit", ""), s.all)
	for k, n := range s.byKind {
		// Kinds that did not grow would become series that are 0 for ever.
		if kind := t.memory.layout.kinds[k]; n > 0 {
			t.metrics.started.add(series{s.tier, kind.verb, kind.operation}, n)
		}
	}
	s.all = 0
	clear(s.byKind)
}
