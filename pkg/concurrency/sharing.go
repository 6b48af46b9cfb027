package concurrency

import (
	"slices"
	"time"
)

const (
	// nearPercent of the limit in progress make a user's slots worth sharing by demand.
	nearPercent = 70
	// demandSpan is how long a refusal says that an instance wants more.
	demandSpan = 500 * time.Millisecond
	// Unchanged shares are sent again after shareAgain, and hold for shareFor. Slots that do
	// not divide evenly change hands after shareAgain too: sooner would be a message for each
	// user and tick, for nothing.
	shareAgain = time.Second
	shareFor   = 3 * time.Second
	// othersAgain is how often the instances hear of a division in which they have no share: one of them may have begun to
	// hold slots, in its HAProxy.
	othersAgain = 1500 * time.Millisecond
)

// A Sharing is how a user's slots are best divided among the instances. One without shares tells instances that were
// not given any that they have 0.
type Sharing struct {
	User   string
	Until  time.Time
	Shares []Share // of those that want any; sorted by instance
	// Before are the instances that had a share in the division before, sorted: those that are not in Shares must hear that
	// theirs has ended.
	Before []string
	Others bool // all other instances should hear that they have none
}

// Concerned are the instances that the shares are for, sorted: those that have one, and those that had.
func (s *Sharing) Concerned() []string {
	concerned := slices.Clone(s.Before)
	for _, share := range s.Shares {
		concerned = append(concerned, share.Instance)
	}
	slices.Sort(concerned)
	return slices.Compact(concerned)
}

// shareSlots divides the slots of a user near the limit. Instances that have not
// reported get none, and report when they hear of it.
func (w *Watch) shareSlots(u *watched, at time.Time) {
	now := w.coreTime(at)
	// Far from the limit the even part is never reached, and shares would be messages for nothing.
	near := 100*u.active() >= nearPercent*u.limit.Max || u.refusedSince(now-int64(demandSpan))
	if w.instances < 2 || len(u.Reports) == 0 || u.limit.Max == 0 || !near {
		// Everybody who asks finds slots.
		return
	}
	demands := make([]Demand, 0, len(u.Reports))
	for instance, i := range u.Reports {
		want := i.active
		if now-i.refusedAt < int64(demandSpan) {
			// Nobody knows how much more would come.
			want = u.limit.Max
		}
		demands = append(demands, Demand{Instance: instance, Slots: want})
	}
	if now-u.dealtAt >= int64(shareAgain) {
		// In between the credits stay as they are, so equal demands have equal shares.
		u.dealtAt = now
		for instance, slots := range u.withheld {
			if u.Reports[instance] != nil {
				u.credits[instance] += slots
			}
		}
	}
	var s []Share
	s, u.withheld = shares(u.limit.Max, demands, u.credits)
	// Unchanged ones are repeated before they run out.
	if slices.Equal(s, u.shared) && now-u.sharedAt < int64(shareAgain) {
		return
	}
	sharing := Sharing{User: u.name, Until: at.Add(shareFor), Shares: s}
	for _, share := range u.shared {
		sharing.Before = append(sharing.Before, share.Instance)
	}
	if now-u.othersAt >= int64(othersAgain) {
		u.othersAt, sharing.Others = now, true
	}
	u.shared, u.sharedAt = s, now
	w.sharings = append(w.sharings, sharing)
}

func (u *watched) refusedSince(t int64) bool {
	for _, i := range u.Reports {
		if i.refusedAt > t {
			return true
		}
	}
	return false
}
