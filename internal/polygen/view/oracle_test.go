package view

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
)

// whole is a look at every user at once.
func (v *View) whole(at time.Time) *Look {
	l := v.Look(at)
	for l.More(1 + len(v.slots)) {
	}
	return l
}

// Top is what Look.Top returns, found in the plainest way.
func (v *View) Top(at time.Time, by api.Sort, n int) []api.Summary {
	all := v.recent(at.UnixNano(), len(v.records))
	if by != api.ByRecent {
		measure := map[api.Sort]func(api.Summary) float64{
			api.ByRate:       func(s api.Summary) float64 { return s.Rate },
			api.ByRefused:    func(s api.Summary) float64 { return s.Refused },
			api.ByConcurrent: func(s api.Summary) float64 { return float64(s.InProgress) },
			api.ByDown:       func(s api.Summary) float64 { return float64(s.Down) },
			api.ByUp:         func(s api.Summary) float64 { return float64(s.Up) },
		}[by]
		slices.SortFunc(all, func(a, b api.Summary) int {
			return measured{measure(a), &record{key: a.User}}.compare(measured{measure(b), &record{key: b.User}})
		})
	}
	return all[:min(n, len(all))]
}
