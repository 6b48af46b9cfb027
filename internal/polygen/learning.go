package polygen

import (
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
)

// learnFor is after how long all is known of the users of a part: agents tell of all their users once a second, and the
// message takes a quarter of a second at most.
const learnFor = 1250 * time.Millisecond

// learning is of which parts not all users are known yet, because this polygen has taken them over just now, or has not
// heard what is reported of them. Without parts of which it was told it knows of all.
type learning struct {
	span  time.Duration // after which all is known of a part that is heard
	until [parts.Count]time.Time
	lost  map[int]bool // the shards that are not heard
}

// begin notes parts of which nothing was heard before.
func (l *learning) begin(now time.Time, some parts.Set) {
	for _, part := range some.Numbers() {
		l.until[part] = now.Add(l.span)
	}
}

// hear takes whether what is reported of a shard's users is heard.
func (l *learning) hear(now time.Time, shards parts.Shards, e bus.Heard) {
	if l.lost == nil {
		l.lost = make(map[int]bool)
	}
	// One that is lost and not wanted any more stays: whoever wants it again hears of it first.
	if e.Lost {
		l.lost[e.Shard] = true
		return
	}
	delete(l.lost, e.Shard)
	l.begin(now, shards.Parts(e.Shard))
}

// at is of which parts not all is known.
func (l *learning) at(now time.Time, shards parts.Shards) (some parts.Set) {
	for shard := range l.lost {
		some |= shards.Parts(shard)
	}
	for part, until := range l.until {
		if now.Before(until) {
			some |= parts.SetOf(part)
		}
	}
	return some
}

// learningParts are those of this polygen of whose users it does not know all yet.
func (p *Polygen) learningParts() parts.Set {
	s := p.lockDashboard()
	defer s.mu.Unlock()
	return s.learns.at(time.Now(), s.shards) & s.kept
}
