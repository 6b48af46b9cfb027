package judge

import (
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// Windows counts the seconds of users in which an order was looked for.
type Windows struct {
	Orderly int // there is one
	Excused int // a fault of that second allows more
	Plain   int // nobody was refused or near a limit: any order will do
	Unknown int // not found within the bound of steps
	Illegal int // there is none
}

// maxRates is how many limits per second of one user fit into a state.
const maxRates = 8

// pool is what a user has left in a second: the state of the sequential model.
type pool struct {
	used       [maxRates]int32 // of each limit of requests
	inProgress int32
}

type action int

const (
	admit action = iota
	end
	refuse
)

// event is what a request did to the pool at one instant between two times.
type event struct {
	action     action
	counts     [maxRates]bool // against which limits; none of an admission that may belong to another second
	holds      bool           // a place in progress
	call, done time.Time
}

// second is one second of a user: what happened in it, and the pool that it has to fit into.
type second struct {
	begin    time.Time
	rates    []rate
	room     [maxRates]float64 // at most
	enough   [maxRates]float64 // of which a user may be refused
	others   [maxRates]int32   // may have counted, too, and explain a refusal
	places   float64
	held     int32 // places, at the beginning
	events   []event
	refusals int
}

// judgeOrder looks, in each second of a user, for an order in which every admission found room in the pool and every refusal a
// pool of which enough was used, and which does not contradict when clients sent and were answered.
func (t *trial) judgeOrder(a *account, sum *Windows) {
	for _, s := range t.secondsOf(a) {
		o := Observation{Property: Linear, User: a.user, Instance: -1, What: "seconds without an order", Begin: s.begin, End: s.begin.Add(time.Second)}
		switch {
		case s.plain():
			sum.Plain++
			continue
		case t.excused(&o):
			sum.Excused++
			continue
		}
		switch s.check(t.Steps) {
		case porcupine.Ok:
			sum.Orderly++
		case porcupine.Unknown:
			sum.Unknown++
		case porcupine.Illegal:
			sum.Illegal++
			o.Count = 1
		}
		t.tell(o)
	}
}

// secondsOf divides a user's requests into the seconds in which anything came or was refused. What may have been decided in either of
// two counts in neither, so that each second is judged by itself.
func (t *trial) secondsOf(a *account) []*second {
	var all []*second
	byIndex := map[int64]*second{}
	of := func(at time.Time) *second {
		i := at.Unix()
		if byIndex[i] == nil {
			byIndex[i] = t.newSecond(a, time.Unix(i, 0).UTC())
			all = append(all, byIndex[i])
		}
		return byIndex[i]
	}
	var came, over []time.Time // of those that held a place
	for _, x := range a.admitted {
		s := of(x.at)
		e := event{action: admit, holds: x.over.After(x.at), call: x.sent, done: x.at}
		if within(s.begin, x.sent.Add(-t.Slack), x.at.Add(t.Slack)) {
			e.counts = s.counting(x.method)
		}
		s.events = append(s.events, e)
		if e.holds {
			came, over = append(came, x.at), append(over, x.over)
			last := of(x.over)
			last.events = append(last.events, event{action: end, call: x.over, done: x.over})
		}
	}
	for _, r := range a.requests {
		if by, yes := refused(r); !yes || by != RefusedRate || !onlySeconds(a.versions, r.Method) {
			continue
		}
		if s := of(r.Sent); within(s.begin, r.Sent.Add(-t.Slack), r.Done.Add(t.Slack)) && s.refusals < maxRefusals {
			s.refusals++
			s.events = append(s.events, event{action: refuse, counts: s.counting(r.Method), call: r.Sent, done: r.Done})
		}
	}
	sortTimes(over)
	for _, s := range all {
		before := s.begin.Add(-1)
		s.held = int32(until(came, before) - until(over, before))
	}
	t.addOthers(a, byIndex)
	return all
}

// addOthers notes requests that may have been decided in several seconds, or not at all.
func (t *trial) addOthers(a *account, byIndex map[int64]*second) {
	for _, r := range a.requests {
		arrival := t.arrivals[r.ID]
		if _, yes := refused(r); yes || arrival != nil && within(r.Sent.Truncate(time.Second), r.Sent.Add(-t.Slack), arrival.At.Add(t.Slack)) {
			continue
		}
		for i := r.Sent.Add(-t.Slack).Unix(); i <= r.Done.Add(t.Slack).Unix(); i++ {
			if s := byIndex[i]; s != nil {
				for k, yes := range s.counting(r.Method) {
					if yes {
						s.others[k]++
					}
				}
			}
		}
	}
}

// maxRefusals bounds those that are looked at in a second.
const maxRefusals = 100

// within reports whether all between two times is in the second that begins so.
func within(begin, from, to time.Time) bool {
	return !from.Before(begin) && to.Before(begin.Add(time.Second))
}

// onlySeconds reports whether no longer window could have refused a request with this method.
func onlySeconds(all []version, method string) bool {
	for _, r := range rates(all) {
		if r.window != "second" && r.counts(method) {
			return false
		}
	}
	return true
}

func (t *trial) newSecond(a *account, begin time.Time) *second {
	s := &second{begin: begin}
	versions := inForce(a.versions, begin, begin.Add(time.Second), t.Follow)
	for _, r := range rates(versions) {
		if r.window != "second" || len(s.rates) == maxRates {
			continue
		}
		k := len(s.rates)
		s.room[k] = most(versions, withBurst(r))
		s.enough[k] = math.Floor(least(versions, requestsOf(r)) * normal.refusedRate.of(t.instances))
		s.rates = append(s.rates, r)
	}
	// A lowered limit ends nobody's requests: judgeInProgress knows who came under which.
	if s.places = math.Inf(1); len(versions) == 1 {
		s.places = most(versions, concurrentOf)
	}
	return s
}

func (s *second) counting(method string) (counts [maxRates]bool) {
	for k, r := range s.rates {
		counts[k] = r.counts(method)
	}
	return counts
}

// plain reports whether nothing can be wrong in any order.
func (s *second) plain() bool {
	total := pool{inProgress: s.held}
	for _, e := range s.events {
		if e.action == admit {
			total = total.admit(e)
		}
	}
	return s.refusals == 0 && s.fits(total)
}

func (s *second) fits(p pool) bool {
	for k := range s.rates {
		if float64(p.used[k]) > s.room[k] {
			return false
		}
	}
	return float64(p.inProgress) <= s.places
}

func (p pool) admit(e event) pool {
	for k, yes := range e.counts {
		if yes {
			p.used[k]++
		}
	}
	if e.holds {
		p.inProgress++
	}
	return p
}

// step is the sequential model: what an event does to a pool, and whether it can.
func (s *second) step(p pool, e event) (bool, pool) {
	switch e.action {
	case admit:
		p = p.admit(e)
		return s.fits(p), p
	case end:
		p.inProgress--
		return true, p
	}
	limited := false
	for k, yes := range e.counts {
		if yes && float64(p.used[k]+s.others[k]) >= s.enough[k] {
			return true, p
		}
		limited = limited || yes
	}
	return !limited, p // who has no limit is judged elsewhere
}

// check looks for an order, for a number of steps at most.
func (s *second) check(steps int) porcupine.CheckResult {
	var used [maxRates]int
	for _, e := range s.events {
		for k, yes := range e.counts {
			if yes && e.action == admit {
				used[k]++
			}
		}
	}
	for k := range s.rates {
		if float64(used[k]) > s.room[k] { // more than fit in whatever order: no need to try them all
			return porcupine.Illegal
		}
	}
	operations := make([]porcupine.Operation, len(s.events))
	for i, e := range s.events {
		operations[i] = porcupine.Operation{ClientId: i, Input: e, Call: e.call.UnixNano(), Return: e.done.UnixNano()}
	}
	taken := 0
	ok := porcupine.CheckOperations(porcupine.Model{
		Init: func() any { return pool{inProgress: s.held} },
		Step: func(state, input, _ any) (bool, any) {
			if taken++; taken > steps {
				return false, state
			}
			return s.step(state.(pool), input.(event))
		},
	}, operations)
	switch {
	case ok:
		return porcupine.Ok
	case taken > steps:
		return porcupine.Unknown
	}
	return porcupine.Illegal
}
