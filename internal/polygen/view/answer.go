package view

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// lately is how long a throttle is shown after its end. Most throttles of a second begin late in it: a reader who looks once a
// second would miss them.
const lately = int64(time.Second)

// The names of the limits that are neither of request rates nor of costs.
const (
	concurrent    = "concurrent"
	bandwidthDown = "bandwidth.down"
	bandwidthUp   = "bandwidth.up"
)

// summary is one row of a list. A throttle counts if it was in force after since.
func (v *View) summary(now, since int64, r *record) api.Summary {
	v.adoptLimits(r)
	state, why := r.state(now, since)
	started, refused := r.rates(now)
	active, moved := r.progressAndBytes(now)
	return api.Summary{
		Name: api.NameOfKey(r.key), Tier: r.limits.Tier, Known: r.known, State: state, Rate: r.requestRate(now), InProgress: active,
		Down: moved[bandwidth.Down], Up: moved[bandwidth.Up], Seen: answerTime(r.seen), Near: nearestLimit(r.limitsOf(now, started), why), Started: started, Refused: refused[limits.All],
	}
}

// User returns what is known of a wire key, without From and without origins. A user without a report uses nothing.
func (v *View) User(at time.Time, key string) api.User {
	return v.userSince(at.UnixNano(), at.UnixNano(), key)
}

// UserLately is User, except that a throttle counts if it was in force within the last second.
func (v *View) UserLately(at time.Time, key string) api.User {
	return v.userSince(at.UnixNano(), at.UnixNano()-lately, key)
}

func (v *View) userSince(now, since int64, key string) api.User {
	r := v.lookUp(key)
	out := api.User{Name: api.NameOfKey(key), Tier: r.limits.Tier, Group: r.limits.Group, Known: r.known, Instances: []api.Place{}, Decisions: []api.Decision{}}
	out.Started, out.Refused = r.rates(now)
	if r.seen != 0 {
		seen := answerTime(r.seen)
		out.Seen = &seen
	}
	out.State, out.Why = r.state(now, since)
	active, moved := r.progressAndBytes(now)
	out.InProgress, out.Down, out.Up = active, moved[bandwidth.Down], moved[bandwidth.Up]
	out.Limits = r.limitsOf(now, out.Started)
	for i := range r.places {
		if p := &r.places[i]; p.fresh(now) {
			out.Instances = append(out.Instances, p.answer(now))
		}
	}
	slices.SortFunc(out.Instances, func(a, b api.Place) int { return cmp.Compare(a.Instance, b.Instance) })
	for _, d := range slices.Backward(r.decisions) {
		out.Decisions = append(out.Decisions, d.answer())
	}
	return out
}

// RequestRate is the requests per second of a wire key, as in api.Summary.
func (v *View) RequestRate(at time.Time, key string) float64 {
	return v.lookUp(key).requestRate(at.UnixNano())
}

// state says whether a user is refused now, or was by a throttle or a spent limit that ended after since, and why.
func (r *record) state(now, since int64) (api.State, []api.Why) {
	state, why := api.OK, []api.Why{}
	add := func(y api.Why, refused api.State) {
		if why = append(why, y); y.Mode == limits.Enforce.String() {
			state = refused
		}
	}
	for l := range r.limits.Rates() {
		w := r.find(l.Class, l.Window, false)
		if l.Max == 0 || w == nil || w.throttledUntil <= since {
			continue
		}
		// A higher limit that came after the throttle ends it, unless as much is used. Use below the old limit means
		// nothing: instances give back tokens, and the throttle holds all the same.
		if l.Burst == 0 && l.Max > w.throttleMax && w.at(w.throttled).Charged < int64(l.Max) {
			continue
		}
		until := answerTime(w.throttledUntil)
		add(api.Why{Limit: l.Name(), Reason: api.RequestRate, Cause: tableCause(api.Throttle, l.Mode), Mode: l.Mode.String(), Since: answerTime(w.throttledAt), Until: &until}, api.Throttled)
	}
	slices.SortFunc(why, func(a, b api.Why) int { return cmp.Compare(a.Limit, b.Limit) })
	for c := range r.limits.Costs() {
		second := now / int64(time.Second)
		for _, second := range [...]int64{second, c.WindowStart(second) - 1} {
			in := r.charged(second, c)
			begin, end := c.Bounds(second)
			if c.Max == 0 || in.Charged < c.Max || end*int64(time.Second) <= since {
				continue
			}
			until := answerTime(end * int64(time.Second))
			// A limit that was lowered is reached since some time in this window.
			spentAt := max(in.spentAt, begin*int64(time.Second))
			add(api.Why{Limit: c.Name(), Reason: api.Cost, Mode: c.Mode.String(), Since: answerTime(spentAt), Until: &until}, api.Spent)
			break
		}
	}
	if r.blockedSince != 0 && r.limits.Concurrent > 0 {
		mode := r.limits.ConcurrentMode
		add(api.Why{Limit: concurrent, Reason: api.ConcurrentRequests, Cause: tableCause(api.Block, mode), Mode: mode.String(), Since: answerTime(r.blockedSince)}, api.Blocked)
	}
	for name, mode := range r.denials() {
		add(api.Why{Limit: name, Reason: api.LimitZero, Mode: mode.String()}, api.Denied)
	}
	return state, why
}

// denials are the names of the limits that are 0, with their modes.
func (r *record) denials() iter.Seq2[string, limits.Mode] {
	return func(yield func(string, limits.Mode) bool) {
		for l := range r.limits.Rates() {
			if l.Max == 0 && !yield(l.Name(), l.Mode) {
				return
			}
		}
		for c := range r.limits.Costs() {
			if c.Max == 0 && !yield(c.Name(), c.Mode) {
				return
			}
		}
	}
}

func (r *record) limitsOf(now int64, started map[string]float64) []api.Limit {
	all := []api.Limit{}
	active, moved := r.progressAndBytes(now)
	for l := range r.limits.Rates() {
		w := r.find(l.Class, l.Window, false)
		used, last := w.counts(now)
		if l.Window == limits.Second {
			// The pool counts no request by credit and is reported near the limit only. Reported starts include the
			// pool's, so the larger number counts, not the sum.
			starts := int64(math.Round(started[l.Class]))
			used, last = max(used, starts), max(last, starts)
		}
		limit := api.Limit{Name: l.Name(), Max: int64(l.Max), Burst: l.Burst, Mode: l.Mode.String(), Used: used, Last: &last}
		length, resets := present(l.Bounds(now / int64(time.Second)))
		if limit.Window = length; l.Window >= limits.Day {
			left := max(0, limit.Max-used)
			limit.Left, limit.Resets = &left, &resets
		}
		all = append(all, limit)
	}
	for c := range r.limits.Costs() {
		all = append(all, r.costOf(now, c))
	}
	if max := r.limits.Concurrent; max > 0 {
		all = append(all, api.Limit{Name: concurrent, Max: int64(max), Mode: r.limits.ConcurrentMode.String(), Except: r.limits.Except(), Used: int64(active)})
	}
	if max := r.limits.Bandwidth.Down; max > 0 {
		all = append(all, api.Limit{Name: bandwidthDown, Max: max, Mode: limits.Enforce.String(), Used: moved[bandwidth.Down]})
	}
	if max := r.limits.Bandwidth.Up; max > 0 {
		all = append(all, api.Limit{Name: bandwidthUp, Max: max, Mode: limits.Enforce.String(), Used: moved[bandwidth.Up]})
	}
	return all
}

func (r *record) costOf(now int64, c limits.Cost) api.Limit {
	second := now / int64(time.Second)
	used, last := r.charged(second, c).Charged, r.charged(c.Previous(second), c).Charged
	left := max(0, c.Max-used)
	length, resets := present(c.Bounds(second))
	return api.Limit{Name: c.Name(), Unit: c.Unit, Max: c.Max, Window: length, Mode: c.Mode.String(), Used: used, Last: &last, Left: &left, Resets: &resets}
}

// present is the length of a window in seconds, and its end.
func present(begin, end int64) (length int64, resets time.Time) {
	return end - begin, time.Unix(end, 0).UTC()
}

// rates are the user's requests per second that started and that were refused, by verb and operation class, and all together by
// limits.All; nil if there were none lately.
func (r *record) rates(now int64) (started, refused map[string]float64) {
	add := func(rates *map[string]float64, class string, rate float64) {
		if rate == 0 {
			return
		}
		if *rates == nil {
			*rates = map[string]float64{}
		}
		(*rates)[class] += rate
	}
	for i := range r.places {
		p := &r.places[i]
		if !isFresh(now, p.startsAt) {
			continue
		}
		for _, c := range append([]ClassRates{{limits.All, p.rates}}, p.classes...) {
			add(&started, c.Class, c.Started)
			add(&refused, c.Class, c.Refused)
		}
	}
	return started, refused
}

// requestRate is the larger of two rates: the requests per second that were admitted, limited or not, and those of the limit
// that counts most, in the last full second or over the last minute or hour.
func (r *record) requestRate(now int64) float64 {
	most := 0.0
	for i := range r.places {
		if p := &r.places[i]; isFresh(now, p.startsAt) {
			most += p.rates.Started
		}
	}
	for i := range r.windows {
		w := &r.windows[i]
		// The mean of a day says nothing of now.
		if w.isCost || w.window >= limits.Day {
			continue
		}
		count, last := w.counts(now)
		rate := float64(last)
		if length := w.window.Seconds(); length > 1 {
			// A sliding window: of the last one the part that reaches back a whole window from now.
			passed := float64(now)/float64(time.Second) - float64(now/int64(time.Second)/length*length)
			rate = (float64(count) + rate*(1-passed/float64(length))) / float64(length)
		}
		most = max(most, rate)
	}
	return most
}

// refusedRate is the requests per second that were refused.
func (r *record) refusedRate(now int64) (sum float64) {
	for i := range r.places {
		if p := &r.places[i]; isFresh(now, p.startsAt) {
			sum += p.rates.Refused
		}
	}
	return sum
}

// progressAndBytes is the user's requests in progress, and bytes per second by direction.
func (r *record) progressAndBytes(now int64) (active int, moved [2]int64) {
	for i := range r.places {
		p := &r.places[i]
		active += p.inProgress(now)
		if isFresh(now, p.demandAt) {
			for d := range moved {
				moved[d] += p.moved[d]
			}
		}
	}
	return active, moved
}

func (p *place) answer(now int64) api.Place {
	out := api.Place{Instance: strings.ToValidUTF8(p.instance, "\ufffd"), InProgress: p.inProgress(now)}
	if isFresh(now, p.progressAt) {
		out.Slots = p.slots
	}
	if isFresh(now, p.demandAt) {
		out.Down, out.Up = p.moved[bandwidth.Down], p.moved[bandwidth.Up]
		out.DownShare, out.UpShare = p.share[bandwidth.Down], p.share[bandwidth.Up]
	}
	return out
}

func (d decision) answer() api.Decision {
	out := api.Decision{Time: answerTime(d.at), Kind: d.kind, Limit: concurrent, Reason: api.ConcurrentRequests, Cause: tableCause(d.kind, d.mode), Mode: d.mode.String(), Count: d.count}
	if d.kind == api.Throttle {
		out.Limit, out.Reason = limits.RateName(d.class, d.window), api.RequestRate
	}
	return out
}

// tableCause is the cause of the refusals that HAProxy's tables bring about after a decision.
func tableCause(kind api.Kind, mode limits.Mode) cause.Cause {
	switch {
	case mode != limits.Enforce:
		return ""
	case kind == api.Throttle:
		return cause.ThrottleTable
	case kind == api.Block:
		return cause.BlockTable
	}
	return ""
}

// nearestLimit is the limit that the user is refused for, by these reasons, otherwise the one with the largest part used; nil
// without limits. Of a limit per second the last full second counts, unless the present one has reached the limit already.
func nearestLimit(all []api.Limit, why []api.Why) *api.Near {
	var most float64
	var nearest *api.Near
	for _, limit := range all {
		// The total of the present second has tokens that agents hold and no request has used. Once it is the whole limit,
		// the next request is refused all the same.
		if limit.Last != nil && limit.Window == 1 && limit.Used < limit.Max {
			limit.Used = *limit.Last
		}
		part := float64(limit.Used) / float64(max(1, limit.Max))
		// A blocked user may be nearer to another limit meanwhile.
		if slices.ContainsFunc(why, func(y api.Why) bool { return y.Limit == limit.Name && y.Mode == limits.Enforce.String() }) {
			part = math.Inf(1)
		}
		if nearest == nil || part > most {
			most = part
			nearest = &api.Near{Limit: limit.Name, Max: limit.Max, Used: limit.Used, Window: limit.Window, Mode: limit.Mode}
		}
	}
	return nearest
}

// answerTime is a time for people: UTC, to the millisecond.
func answerTime(ns int64) time.Time { return time.Unix(0, ns).UTC().Truncate(time.Millisecond) }
