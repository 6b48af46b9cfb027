package view

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

const (
	// maxSamples bounds the samples of a history: one a second.
	maxSamples = 300
	// historySpan is how long a history is kept after somebody wanted it.
	historySpan = 10 * int64(time.Minute)
	// MaxHistories bounds the records with a history.
	MaxHistories = 512
	// maxSeries bounds the limits of one history.
	maxSeries = 16
)

type history struct {
	wanted  int64 // in ns
	samples []sample
}

type sample struct {
	second               int64
	inProgress, down, up int64
	limits               []used
}

type used struct {
	name  string
	value int64
}

// Remember keeps the history of a user from now on, if there is a report of the user.
func (v *View) Remember(at time.Time, key string) {
	if r := v.records[key]; r != nil {
		v.keepHistory(at.UnixNano(), r, true)
	}
}

// keepHistory keeps the history of a user. One that was asked for replaces the one wanted least recently; others are kept while
// there is room.
func (v *View) keepHistory(now int64, r *record, asked bool) {
	if r.history == nil {
		if len(v.kept) >= MaxHistories {
			if !asked {
				return
			}
			oldest := slices.MinFunc(v.kept, func(a, b *record) int { return int(a.history.wanted - b.history.wanted) })
			v.kept = slices.DeleteFunc(v.kept, func(r *record) bool { return r == oldest })
			oldest.history = nil
		}
		r.history = &history{}
		v.kept = append(v.kept, r)
	}
	r.history.wanted = now
}

// Sample takes what the users with a history used in the last full second, once for each second.
func (v *View) Sample(at time.Time) {
	now := at.UnixNano()
	v.kept = slices.DeleteFunc(v.kept, func(r *record) bool {
		if now-r.history.wanted < historySpan {
			return false
		}
		r.history = nil
		return true
	})
	for _, r := range v.kept {
		v.adoptLimits(r)
		r.history.add(r.sample(now))
	}
}

func (h *history) add(s sample) {
	if n := len(h.samples); n > 0 {
		switch last := h.samples[n-1].second; {
		case s.second == last || s.second == last-1:
			return // the second was taken, or the clock was set back by a little
		case s.second < last:
			h.samples = nil // the clock was set back by much
		}
	}
	h.samples = append(h.samples, s)
	h.samples = slices.DeleteFunc(h.samples, func(old sample) bool { return old.second <= s.second-maxSamples })
}

// sample is what a user used in the last full second; of limits with longer windows, in the present window.
func (r *record) sample(now int64) sample {
	active, moved := r.progressAndBytes(now)
	s := sample{second: now/int64(time.Second) - 1, inProgress: int64(active), down: moved[bandwidth.Down], up: moved[bandwidth.Up]}
	started, _ := r.rates(now)
	all := r.limitsOf(now, started)
	for _, l := range all[:min(len(all), maxSeries)] {
		value := l.Used
		if l.Window == 1 {
			value = *l.Last
		}
		s.limits = append(s.limits, used{l.Name, value})
	}
	return s
}

// History returns what is remembered of a wire key, without From, and keeps it from now on. A history that was not kept has
// the last full second.
func (v *View) History(at time.Time, key string) api.History {
	v.Remember(at, key)
	r := v.lookUp(key)
	h := r.history
	if h == nil {
		h = &history{}
	}
	if len(h.samples) == 0 {
		h.add(r.sample(at.UnixNano()))
	}
	begin := h.samples[0].second
	length := int(h.samples[len(h.samples)-1].second-begin) + 1
	series := func(value func(sample) (int64, bool)) []*int64 {
		list := make([]*int64, length) // null where there is no sample
		for _, s := range h.samples {
			if v, ok := value(s); ok {
				list[s.second-begin] = &v
			}
		}
		return list
	}
	out := api.History{
		Name: api.NameOfKey(r.key), Begin: begin, Step: 1, Limits: []api.LimitSeries{},
		InProgress: series(func(s sample) (int64, bool) { return s.inProgress, true }),
		Down:       series(func(s sample) (int64, bool) { return s.down, true }),
		Up:         series(func(s sample) (int64, bool) { return s.up, true }),
	}
	all := r.limitsOf(at.UnixNano(), nil)
	for _, l := range all[:min(len(all), maxSeries)] {
		out.Limits = append(out.Limits, api.LimitSeries{Name: l.Name, Max: l.Max, Window: l.Window, Mode: l.Mode, Used: series(func(s sample) (int64, bool) {
			i := slices.IndexFunc(s.limits, func(u used) bool { return u.name == l.Name })
			if i < 0 {
				return 0, false
			}
			return s.limits[i].value, true
		})})
	}
	return out
}
