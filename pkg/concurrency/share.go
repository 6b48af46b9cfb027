package concurrency

import (
	"cmp"
	"slices"
	"time"
)

// A Demand is how many slots one instance could use for a user.
type Demand struct {
	Instance string
	Slots    int
}

// A Share is how many of a user's slots one instance should hold.
type Share struct {
	Instance string
	Slots    int
}

// shares divides a limit among the instances that want slots: nobody gets less
// than he wants while another one gets more than he (max-min fairness), and what
// nobody wants is divided evenly, as room to grow. The shares add up to the
// limit unless nobody wants anything. Slots that do not divide evenly go, one
// each, to those with the most credit. What they withhold from each instance of its
// even part, or give beyond it, is returned too: added to the credits from time to
// time, it lets the odd slots change hands.
//
// The result is sorted by instance and does not depend on the order of demands.
func shares(limit int, demands []Demand, credits map[string]float64) (s []Share, withheld map[string]float64) {
	for _, d := range demands {
		if d.Slots > 0 {
			s = append(s, Share(d))
		}
	}
	if len(s) == 0 || limit <= 0 {
		return nil, nil
	}
	slices.SortFunc(s, func(a, b Share) int {
		return cmp.Or(cmp.Compare(a.Slots, b.Slots), cmp.Compare(a.Instance, b.Instance))
	})
	// Fill up the least demands first; who wants no more leaves the rest to the others.
	// Sorted by demand: whoever is served first wants least, so the rest's even part only grows.
	left, served := limit, 0
	for served < len(s) && s[served].Slots <= left/(len(s)-served) {
		left -= s[served].Slots
		served++
	}
	wanting := s[served:]
	for i := range wanting {
		wanting[i].Slots = 0
	}
	if len(wanting) == 0 {
		// All have what they want, and divide what is left.
		wanting = s
	}
	withheld = divide(wanting, left, credits)
	slices.SortFunc(s, func(a, b Share) int { return cmp.Compare(a.Instance, b.Instance) })
	return s, withheld
}

// divide adds slots to the shares, evenly but for those left over, and returns what it
// withholds from each.
func divide(among []Share, slots int, credits map[string]float64) map[string]float64 {
	even, odd := slots/len(among), slots%len(among)
	fair := float64(slots) / float64(len(among))
	slices.SortFunc(among, func(a, b Share) int {
		return cmp.Or(cmp.Compare(credits[b.Instance], credits[a.Instance]), cmp.Compare(a.Instance, b.Instance))
	})
	withheld := make(map[string]float64, len(among))
	for i := range among {
		got := even
		// The odd ones go to those who have waited longest for one.
		if i < odd {
			got++
		}
		among[i].Slots += got
		withheld[among[i].Instance] = fair - float64(got)
	}
	return withheld
}

// share is how many of a user's slots polygen gives this instance, for a time; then it
// is the even part again.
type share struct {
	slots int
	until int64
}

// shareOf is how many slots the instance may hold without taking them from others.
func (a *Agent) shareOf(u *user, now int64) int {
	if now < u.share.until {
		return u.share.slots
	}
	return a.evenPart(u.quota)
}

// Share takes polygen's word on how a user's slots are best divided. An instance that
// has nothing of the user lets the pool know, which else would count its portion.
func (a *Agent) Share(at time.Time, s Sharing) {
	if a.alone() {
		// All slots are this instance's.
		return
	}
	now := a.coreTime(at)
	u := a.findUser(s.User, now)
	if u == nil && a.quotaOf(s.User).portion(a.instances) > 0 {
		u = a.addUnasked(s.User, now)
	}
	if u == nil {
		return
	}
	before := a.shareOf(u, now)
	// For the instances that were not given any.
	if len(s.Shares) == 0 && u.share.slots > 0 && now < u.share.until {
		return
	}
	// An instance that is not named wants nothing, and gets nothing.
	u.share = share{until: min(s.Until.UnixNano()+a.setBack, now+int64(shareFor))}
	for _, part := range s.Shares {
		if part.Instance == a.config.Instance {
			u.share.slots = part.Slots
		}
	}
	u.heat.markHot(now, u.share.until)
	// The others hear of it too, and give back what they hold above theirs.
	if u.share.slots > before {
		u.lease.retryNow()
	}
	a.review(u, now)
}
