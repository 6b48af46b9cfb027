package view

import (
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// What a Look finds in parts, found at once and in the plainest way.

// Overview looks at every user at once: see Look.
func (v *View) Overview(at time.Time, n map[api.Sort]int) Overview {
	l := v.BeginLook(at, n)
	for l.LookAtMore(v.users.length()) {
	}
	return l.Overview()
}

// Top returns the n users with most, without From.
func (v *View) Top(at time.Time, by api.Sort, n int) api.Users {
	now := at.UnixNano()
	out := api.Users{Sort: by, Users: []api.Summary{}, Seen: v.users.length(), Dropped: v.droppedUsers, Capacity: v.users.max}
	if by == api.ByRecent {
		for e := range v.users.newestFirst() {
			if len(out.Users) == n {
				break
			}
			out.Users = append(out.Users, v.summary(now, now, e.key, &e.value))
		}
		return out
	}
	measure := measures[by]
	best := top[user]{n: n}
	for e := range v.users.newestFirst() {
		best.consider(measure(&e.value, now), e)
	}
	for _, e := range best.sorted() {
		out.Users = append(out.Users, v.summary(now, now, e.key, &e.value))
	}
	return out
}

var measures = map[api.Sort]func(*user, int64) float64{
	api.ByRate:       (*user).requestRate,
	api.ByConcurrent: func(u *user, now int64) float64 { active, _ := u.progressAndBytes(now); return float64(active) },
	api.ByDown: func(u *user, now int64) float64 {
		_, moved := u.progressAndBytes(now)
		return float64(moved[bandwidth.Down])
	},
	api.ByUp: func(u *user, now int64) float64 {
		_, moved := u.progressAndBytes(now)
		return float64(moved[bandwidth.Up])
	},
}
