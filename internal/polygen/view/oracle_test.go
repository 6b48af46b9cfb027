package view

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// What a Look finds in parts, found at once and in the plainest way.

// Overview looks at every user at once: see Look.
func (v *View) Overview(at time.Time, n map[Sort]int) Overview {
	l := v.Look(at, n)
	for l.Part(v.users.len()) {
	}
	return l.Overview()
}

// Top returns the n users with most, without From.
func (v *View) Top(at time.Time, by Sort, n int) Users {
	now := at.UnixNano()
	out := Users{Sort: by, Users: []Summary{}, Seen: v.users.len(), Dropped: v.droppedUsers, Capacity: v.users.max}
	if by == ByRecent {
		for e := range v.users.all() {
			if len(out.Users) == n {
				break
			}
			out.Users = append(out.Users, v.summary(now, now, e))
		}
		return out
	}
	measure := measures[by]
	best := top[user]{n: n}
	for e := range v.users.all() {
		best.offer(measure(&e.value, now), e)
	}
	for _, e := range best.sorted() {
		out.Users = append(out.Users, v.summary(now, now, e))
	}
	return out
}

var measures = map[Sort]func(*user, int64) float64{
	ByRate:       (*user).rate,
	ByConcurrent: func(u *user, now int64) float64 { return float64(u.inProgress(now)) },
	ByDown:       func(u *user, now int64) float64 { return float64(u.moved(now, bandwidth.Down)) },
	ByUp:         func(u *user, now int64) float64 { return float64(u.moved(now, bandwidth.Up)) },
}
