package concurrency

import "time"

const (
	hotSpan    = 500 * time.Millisecond // a pool found nearly empty is so for this long
	hotPercent = 70                     // of the slots held make a pool nearly empty
	yieldSpan  = 30 * time.Millisecond  // within this others give back what they hold idle
	peakSpan   = 500 * time.Millisecond // slots are kept for the peak of the last one to two of these
	idleSpan   = 50 * time.Millisecond  // near the limit, free slots nobody takes for so long go back
)

// heat says whether a user's pool is, or may soon be, empty. The zero heat is cold.
type heat struct {
	since int64 // when the user last became hot
	until int64
}

func (h *heat) hot(now int64) bool { return now < h.until }

// markHot makes a user hot until a time, at least.
func (h *heat) markHot(now, until int64) {
	// Who stays hot has had the time to yield.
	if !h.hot(now) {
		h.since = now
	}
	h.until = max(h.until, until)
}

// yielded reports whether those who hold idle slots of a hot user have had the time to
// give them back.
func (h *heat) yielded(now int64) bool { return h.hot(now) && now-h.since >= int64(yieldSpan) }

// recovering reports whether the user was near the limit until a while ago: others may
// need the slots.
func (h *heat) recovering(now int64) bool { return now-h.until < int64(calmSpan) }

// nearlyUsed reports whether so many slots in use, or held, make a pool nearly empty.
func (q quota) nearlyUsed(slots int) bool { return 100*slots >= hotPercent*q.limit }

// peaks are the most requests in progress, in this peakSpan and the one before.
type peaks struct {
	most [2]int
	span int64 // the number of this one
}

func (p *peaks) record(now int64, n int) {
	switch span := now / int64(peakSpan); span {
	case p.span:
	case p.span + 1:
		p.most, p.span = [2]int{0, p.most[0]}, span
	// Nobody looked for longer, so that what was then does not count any more.
	default:
		p.most, p.span = [2]int{}, span
	}
	p.most[0] = max(p.most[0], n)
}

func (p *peaks) highest() int { return max(p.most[0], p.most[1]) }

// spare is how many slots are free, and since when it is so many.
type spare struct {
	slots int
	since int64
}

// unused takes how many slots are free, and reports whether some have been for so long
// that nobody seems to want them.
func (s *spare) unused(now int64, free int) bool {
	if free != s.slots || free <= 0 {
		*s = spare{slots: free, since: now}
		return false
	}
	return now-s.since >= int64(idleSpan)
}
