package view

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Started is what an instance saw of a user in a span of time, limited or not.
type Started struct {
	Active  int           // requests in progress at the end of the span
	Starts  int64         // requests that were admitted
	Classes []ClassStarts // admitted requests of each verb and operation class
}

// ClassStarts is how many requests of a class were admitted.
type ClassStarts struct {
	Class  string
	Starts int64
}

// Started takes what an instance saw of a user in a span of time that has just ended.
func (v *View) Started(at time.Time, instance string, span time.Duration, key string, s Started) {
	// There is no rate over no time. The span comes from another process.
	if span <= 0 {
		return
	}
	now := at.UnixNano()
	p := v.reportedUser(now, key).placeOf(now, instance)
	p.startsAt, p.startsSpan, p.started = now, span, s
}

// started are the user's requests per second by verb and operation class, and of all
// together by limits.All; nil if none were started lately. It is what the instances last
// said, so a user who stops is seen for reportSpan.
func (u *user) started(now int64) map[string]float64 {
	var rates map[string]float64
	for i := range u.places {
		p := &u.places[i]
		if !isFresh(now, p.startsAt) || p.started.Starts == 0 {
			continue
		}
		// Only now: a look at all users makes no map for those who start nothing.
		if rates == nil {
			rates = make(map[string]float64, 1+len(p.started.Classes))
		}
		rates[limits.All] += p.perSecond(p.started.Starts)
		for _, c := range p.started.Classes {
			rates[c.Class] += p.perSecond(c.Starts)
		}
	}
	return rates
}

// startRate is started of all classes together.
func (u *user) startRate(now int64) float64 {
	rate := 0.0
	for i := range u.places {
		if p := &u.places[i]; isFresh(now, p.startsAt) {
			rate += p.perSecond(p.started.Starts)
		}
	}
	return rate
}

func (p *place) perSecond(starts int64) float64 { return float64(starts) / p.startsSpan.Seconds() }
