package polygen

import (
	"cmp"
	"slices"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/polygen/view"
)

// mergeOverview adds what other polygens know to what this one does: sums, and of each list those with most.
func mergeOverview(o *view.Overview, replies []*reply, n map[api.Sort]int) {
	// Sums are right, and lists have nobody twice, because each user is known to the polygen of their part alone.
	for _, r := range replies {
		addTotals(&o.Totals, r.Totals)
		for by, list := range r.Tops {
			o.Tops[by] = append(o.Tops[by], list...)
		}
		o.Limited = append(o.Limited, r.Limited...)
	}
	// Most clusters have one polygen, whose lists are sorted.
	if len(replies) == 0 {
		return
	}
	// The n with most of all are among the n with most of each.
	for by, list := range o.Tops {
		o.Tops[by] = mostOf(list, by, n[by])
	}
	o.Limited = mostOf(o.Limited, api.ByRate, api.MaxLimited)
}

func addTotals(t *api.Totals, more api.Totals) {
	t.Users += more.Users
	t.Rate += more.Rate
	t.InProgress += more.InProgress
	t.Down += more.Down
	t.Up += more.Up
	t.Throttled += more.Throttled
	t.Blocked += more.Blocked
	t.Spent += more.Spent
	t.Seen += more.Seen
	t.Dropped += more.Dropped
	t.Capacity += more.Capacity
}

// mostOf are the n users with most, those with most first.
func mostOf(list []api.Summary, by api.Sort, n int) []api.Summary {
	measure := func(s api.Summary) float64 {
		// Only lists by cost have it.
		if s.Cost != nil {
			return float64(s.Cost.Used)
		}
		switch by {
		case api.ByConcurrent:
			return float64(s.InProgress)
		case api.ByDown:
			return float64(s.Down)
		case api.ByUp:
			return float64(s.Up)
		case api.ByRecent:
			return float64(s.Seen.UnixNano())
		}
		return s.Rate
	}
	// Equal ones by name, or pages would show them in another order each second, as the answers came in.
	slices.SortStableFunc(list, func(a, b api.Summary) int {
		return cmp.Or(cmp.Compare(measure(b), measure(a)), cmp.Compare(a.Href, b.Href))
	})
	return list[:min(n, len(list))]
}

// mergeUnknown adds users whom the limit file does not name.
func mergeUnknown(out *api.UnknownUsers, replies []*reply, n int) {
	// Each user is in one part: nobody comes twice.
	for _, r := range replies {
		out.Seen, out.Dropped, out.Capacity = out.Seen+r.Unknown.Seen, out.Dropped+r.Unknown.Dropped, out.Capacity+r.Unknown.Capacity
		out.Users = append(out.Users, r.Unknown.Users...)
	}
	if len(replies) == 0 {
		return
	}
	slices.SortStableFunc(out.Users, func(a, b api.Unknown) int {
		if out.Sort == api.ByActive {
			return cmp.Or(cmp.Compare(b.Reports, a.Reports), cmp.Compare(a.Href, b.Href))
		}
		return cmp.Or(b.Seen.Compare(a.Seen), cmp.Compare(a.Href, b.Href))
	})
	out.Users = out.Users[:min(n, len(out.Users))]
}

// userIn is the user who was asked for at an index of a question.
func userIn(replies []*reply, index int) (u api.User, known bool) {
	// At most one says anything: a polygen is silent about users of other parts.
	for _, r := range replies {
		if u, known = r.Users[index]; known {
			return u, true
		}
	}
	return u, false
}

// historyIn is the history that was asked for.
func historyIn(replies []*reply) (h api.History, known bool) {
	for _, r := range replies {
		if r.History != nil {
			return *r.History, true
		}
	}
	return h, false
}
