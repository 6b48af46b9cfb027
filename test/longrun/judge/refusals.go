package judge

import (
	"math"
	"net/http"
	"slices"
	"sort"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// refused reports whether a limit of the user's refused a request, and which kind of it.
func refused(r *history.Request) (by Property, yes bool) {
	switch {
	case r.Reason == "concurrent-requests":
		return RefusedInProgress, true
	case r.Reason == "cost":
		return RefusedCost, true
	case r.Reason == "request-rate", r.Reason == "" && r.Status == http.StatusTooManyRequests:
		return RefusedRate, true
	}
	return 0, false
}

// failed reports whether a request has no whole answer though its client waited for one.
func failed(r *history.Request) bool {
	return !r.GivenUp && r.Reason == "" && (r.Status == 0 || r.Status >= http.StatusInternalServerError || r.Error != "")
}

// cutWithin is how long before the end of an answer that was cut the cause lies.
const cutWithin = time.Second

// judgeAnswers tells of each request whether it failed, and of those that must be answered in time how long they waited.
func (t *trial) judgeAnswers(a *account) {
	for _, r := range a.requests {
		o := Observation{Property: Failed, User: r.User, Instance: r.Instance, Begin: r.Sent, End: r.Done}
		if r.Within > 0 && !r.GivenUp {
			waited := o
			waited.Property, waited.Count, waited.Limit = Waited, r.Done.Sub(r.Sent).Seconds(), r.Within.Seconds()
			t.tell(waited)
		}
		if failed(r) {
			o.Count = 1
		}
		// The cause of an answer that was cut lies near its end.
		if cut := r.Done.Add(-cutWithin); r.Status != 0 && cut.After(o.Begin) {
			o.Begin = cut
		}
		t.tell(o)
	}
}

// possible is everything of a user that may have counted when a request was refused: all requests but refused ones, also
// those that were given up or failed.
type possible struct {
	sent, over []time.Time // each sorted
	windows    map[rate]map[int64][]time.Time
	rates      []rate
}

func (t *trial) possibleOf(a *account) possible {
	p := possible{windows: map[rate]map[int64][]time.Time{}, rates: rates(a.versions)}
	for _, r := range p.rates {
		p.windows[r] = map[int64][]time.Time{}
	}
	known := map[string]bool{}
	add := func(method string, sent, decided, over time.Time) {
		p.sent, p.over = append(p.sent, sent), append(p.over, over)
		for _, r := range p.rates {
			if !r.counts(method) {
				continue
			}
			for i := r.index(sent.Add(-slack)); i <= r.index(decided.Add(slack)); i++ {
				p.windows[r][i] = append(p.windows[r][i], sent)
			}
		}
	}
	for _, r := range a.requests {
		known[r.ID] = true
		if _, yes := refused(r); yes {
			continue
		}
		decided, over := r.Done, r.Done
		if arrival := t.arrivals[r.ID]; arrival != nil {
			decided = arrival.At
			if arrival.Ended.After(over) {
				over = arrival.Ended
			}
		}
		add(r.Method, r.Sent, decided, over)
	}
	for _, x := range a.admitted {
		if !known[x.id] {
			add(x.method, x.sent, x.at, x.over)
		}
	}
	sortTimes(p.sent)
	sortTimes(p.over)
	for _, byIndex := range p.windows {
		for _, times := range byIndex {
			sortTimes(times)
		}
	}
	return p
}

func sortTimes(times []time.Time) { slices.SortFunc(times, time.Time.Compare) }

// until counts the times that are not after one.
func until(times []time.Time, at time.Time) int {
	return sort.Search(len(times), func(i int) bool { return times[i].After(at) })
}

// judgeRefusals tells of each refusal how much of the limit may have been used.
func (t *trial) judgeRefusals(a *account) {
	p := t.possibleOf(a)
	for _, r := range a.requests {
		by, yes := refused(r)
		if !yes || by == RefusedCost { // see judgeCostRefusals
			continue
		}
		o := Observation{Property: by, User: a.user, Instance: r.Instance, Begin: r.Sent, End: r.Done, Limit: math.Inf(1)}
		versions := inForce(a.versions, r.Sent, r.Done)
		if by == RefusedRate {
			for _, limit := range p.rates {
				t.nearest(&o, p, r, limit, least(versions, requestsOf(limit)))
			}
		} else {
			o.What, o.Limit = "requests in progress", least(versions, concurrentOf)
			o.Count = float64(until(p.sent, r.Done.Add(slack)) - until(p.over, r.Sent.Add(-settle)))
		}
		t.tell(o)
	}
}

// nearest takes the limit that was used most when a request was refused.
func (t *trial) nearest(o *Observation, p possible, r *history.Request, by rate, limit float64) {
	if !by.counts(r.Method) || math.IsInf(limit, 1) {
		return
	}
	for i := by.index(r.Sent.Add(-slack)); i <= by.index(r.Done.Add(slack)); i++ {
		used := float64(until(p.windows[by][i], r.Done.Add(slack)))
		if used/limit >= o.Value() {
			o.Count, o.Limit, o.What = used, limit, by.class+" requests in a "+by.window
		}
	}
}
