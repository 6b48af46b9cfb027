package limitfile

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// draft is Limits while a file is read: comparable, so that users with equal
// limits can share them, and copied, so that an override starts from its tier.
// A limit of zero is none.
type draft struct {
	requests       *requests // nil: none
	costs          *costs    // nil: none
	concurrent     int
	concurrentMode limits.Mode
	bandwidth      limits.Bandwidth
	wait           time.Duration
	priority       int
	jobs           *limits.Jobs // as one of drafts.jobs; nil while nothing is known of them
	mode           limits.Mode  // of all of them
}

// requests are the request limits of a draft. They never change, and equal ones
// are the same pointer (see drafts.sharedRequests).
type requests struct{ rates []limits.Rate } // sorted by class and window; a Mode may be Off

// asRates returns the rates, also of nil.
func (r *requests) asRates() []limits.Rate {
	if r == nil {
		return nil
	}
	return r.rates
}

// replaceClass returns the rates with those of a class replaced.
func (r *requests) replaceClass(class string, own []limits.Rate) []limits.Rate {
	// Cloned, because the users of the tier have the same ones.
	rates := slices.DeleteFunc(slices.Clone(r.asRates()), func(r limits.Rate) bool { return r.Class == class })
	rates = append(rates, own...)
	slices.SortFunc(rates, func(a, b limits.Rate) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Window, b.Window))
	})
	return rates
}

// drafts makes Limits and entries of drafts, the same ones for the same draft, so
// that memory grows with what differs.
type drafts struct {
	mode    limits.Mode // of the whole file
	rates   map[string]*requests
	costs   map[string]*costs
	jobs    map[string]*limits.Jobs
	limits  map[limitsKey]*limits.Limits
	ids     map[*limits.Limits]uint64 // of limits, from 1
	entries map[string]*limits.Entry
}

// limitsKey is what Limits say: a draft in which each limit has the mode that counts.
type limitsKey struct {
	tier string
	draft
	off string
}

func newDrafts() drafts {
	return drafts{
		rates: map[string]*requests{}, costs: map[string]*costs{}, jobs: map[string]*limits.Jobs{}, limits: map[limitsKey]*limits.Limits{},
		ids: map[*limits.Limits]uint64{}, entries: map[string]*limits.Entry{},
	}
}

// sharedRequests returns the one that has these rates, which are sorted.
func (ds *drafts) sharedRequests(rates []limits.Rate) *requests {
	// No limits are nil, so that drafts without any are equal.
	if len(rates) == 0 {
		return nil
	}
	// By hand, not by fmt: a file may have requests of its own for each of many users.
	var key []byte
	for _, r := range rates {
		key = append(key, r.Class...)
		key = append(key, 0, byte(r.Window), byte(r.Mode))
		key = binary.AppendUvarint(key, uint64(r.Max))
		key = binary.AppendUvarint(key, uint64(r.Burst))
	}
	shared := ds.rates[string(key)]
	if shared == nil {
		// Clipped: an append while rates were collected has left room, which would be kept.
		shared = &requests{slices.Clip(rates)}
		ds.rates[string(key)] = shared
	}
	return shared
}

// sharedJobs returns the one that says this.
func (ds *drafts) sharedJobs(j limits.Jobs) *limits.Jobs {
	// By hand, not by fmt: it is asked for each user with limits of their own, as every tier has jobs.
	key := append([]byte(j.Class), 0, byte(j.Mode), byte(j.Source))
	key = strconv.AppendBool(strconv.AppendBool(key, j.Stated), j.Queues != nil)
	key = binary.AppendVarint(key, int64(j.Total))
	for _, service := range slices.Sorted(maps.Keys(j.Queues)) {
		key = binary.AppendUvarint(append(append(key, service...), 0), uint64(j.Queues[service]))
	}
	shared := ds.jobs[string(key)]
	if shared == nil {
		shared = &j
		ds.jobs[string(key)] = shared
	}
	return shared
}

// sharedLimits returns the Limits of a draft: each limit's mode is the weakest of its own,
// the draft's and the file's, and one whose mode is off is left out.
func (ds *drafts) sharedLimits(tier string, d draft) *limits.Limits {
	scope := max(ds.mode, d.mode)
	// It is in the modes of the limits from here on: the same limits are the same, wherever their mode is from.
	d.mode = limits.Enforce
	rates, off, other := effective(d.requests.asRates(), scope, func(r *limits.Rate) *limits.Mode { return &r.Mode }, func(r limits.Rate) string { return "requests." + r.Name() })
	if other {
		d.requests = ds.sharedRequests(rates)
	}
	charged, none, other := effective(d.costs.asLimits(), scope, func(c *limits.Cost) *limits.Mode { return &c.Mode }, func(c limits.Cost) string { return "costs." + c.Name() })
	if other {
		d.costs = ds.sharedCosts(charged)
	}
	off = append(off, none...)
	if d.concurrentMode = max(scope, d.concurrentMode); d.concurrentMode == limits.Off && d.concurrent > 0 {
		off, d.concurrent = append(off, "concurrent"), 0
	}
	// A mode of no limit would keep equal limits from being shared; so below.
	if d.concurrent == 0 {
		d.concurrentMode = limits.Enforce
	}
	off = append(off, turnBandwidthOff(&d.bandwidth, scope)...)
	if d.jobs != nil {
		j, none := jobsIn(*d.jobs, scope)
		d.jobs, off = ds.sharedJobs(j), append(off, none...)
	}
	// Services are a map: without an order, equal limits would not be found equal.
	slices.Sort(off)
	key := limitsKey{tier, d, strings.Join(off, "\n")}
	l := ds.limits[key]
	if l == nil {
		l = limits.NewLimits(limits.Limits{
			Tier: tier, Concurrent: d.concurrent, ConcurrentMode: d.concurrentMode, Bandwidth: d.bandwidth, Wait: d.wait, Priority: d.priority,
		}, d.requests.asRates(), d.costs.asLimits(), d.jobs, off)
		ds.limits[key] = l
		ds.ids[l] = uint64(len(ds.ids) + 1)
	}
	return l
}

// turnBandwidthOff removes a bandwidth that its scope does not enforce, and returns its limits,
// which are off then: bandwidth has no dry run.
func turnBandwidthOff(b *limits.Bandwidth, scope limits.Mode) (off []string) {
	if scope == limits.Enforce {
		return nil
	}
	if b.Down > 0 {
		off = append(off, "bandwidth.down")
	}
	if b.Up > 0 {
		off = append(off, "bandwidth.up")
	}
	*b = limits.Bandwidth{}
	return off
}

// effective returns limits of one kind with the modes that they have in a scope, the fields of those
// that are off, and whether anything of them is other than before.
func effective[T any](all []T, scope limits.Mode, modeOf func(*T) *limits.Mode, field func(T) string) (left []T, off []string, other bool) {
	for i := range all {
		m := *modeOf(&all[i])
		other = other || max(m, scope) != m || m == limits.Off
	}
	// Nearly always, and then nothing has to be made.
	if !other {
		return all, nil, false
	}
	for _, one := range all {
		m := modeOf(&one)
		if *m = max(*m, scope); *m == limits.Off {
			off = append(off, field(one))
		} else {
			left = append(left, one)
		}
	}
	return left, off, true
}

// sharedEntry returns the entry that says this, an equal one if there is one.
func (ds *drafts) sharedEntry(e limits.Entry) *limits.Entry {
	// By number: limits that say the same are one, so that what they say need not be compared.
	key := binary.AppendUvarint(nil, ds.ids[e.Limits])
	key = binary.AppendVarint(key, e.Until)
	if e.Then != nil {
		key = binary.AppendUvarint(key, ds.ids[e.Then.Limits])
	}
	shared := ds.entries[string(key)]
	if shared == nil {
		shared = &e
		ds.entries[string(key)] = shared
	}
	return shared
}
