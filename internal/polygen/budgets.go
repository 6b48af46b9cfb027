package polygen

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/polygen/view"
)

// budgetCollector looks at all users who were charged when Prometheus asks the polygen that leads.
type budgetCollector struct {
	p    *Polygen
	near *prometheus.Desc
}

func newBudgetCollector(p *Polygen) *budgetCollector {
	return &budgetCollector{p, prometheus.NewDesc("sluice_users_near_budget",
		"Users who have used 80 % or more of what their requests may cost in a day, by tier and unit, by the polygen that leads; limits in a dry run aside. Beyond 200 tiers the tier is other.",
		[]string{"tier", "unit"}, nil)}
}

// MetricType is the type of the metric.
func (c *budgetCollector) MetricType() string { return "gauge" }

// Describe sends what the metric is.
func (c *budgetCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.near }

// Collect sends how many users are near their budgets now.
func (c *budgetCollector) Collect(ch chan<- prometheus.Metric) {
	// Without Redis it knows only what was, as with users' series. A standby would count each user again.
	if c.p.cutOff() != nil || !c.p.leads() {
		return
	}
	s := c.p.lockDashboard()
	look := s.view.BeginBudgets(c.p.clock.Now())
	s.finish(look)
	s.mu.Unlock()
	near, tiers := map[view.TierUnit]int{}, map[string]bool{}
	// The same tiers at each scrape, whoever has spent what.
	for _, of := range slices.SortedFunc(maps.Keys(look.Near), func(a, b view.TierUnit) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Unit, b.Unit))
	}) {
		counted := of
		if !tiers[of.Tier] && len(tiers) >= maxCountedTiers {
			counted.Tier = otherTier
		} else {
			tiers[of.Tier] = true
		}
		near[counted] += look.Near[of]
	}
	for of, n := range near {
		ch <- prometheus.MustNewConstMetric(c.near, prometheus.GaugeValue, float64(n), of.Tier, of.Unit)
	}
}

// recallWithin is how long Redis has to tell what a user was charged.
const recallWithin = 125 * time.Millisecond

// recallCosts reads from Redis what a user was charged who is asked about, by wire key.
//
// A polygen that was restarted has heard nothing yet of who spent a day's budget in the morning, and one that hears
// of a change every 32nd of a limit knows about what was charged, and not exactly.
func (p *Polygen) recallCosts(key string) {
	l := p.set.Load().User(key)
	if !l.LimitsCosts() || p.cutOff() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recallWithin)
	defer cancel()
	began := p.clock.Now()
	pools, err := p.options.Bus.Charges(ctx, key, l.Costs(), began.Unix())
	// The answer is given by what was heard: that is better than an error.
	if err != nil {
		p.options.Logger.Debug("costs not read", slog.Any("error", err))
		return
	}
	s := p.lockDashboard()
	s.view.Recalled(began, p.clock.Now(), key, pools)
	s.mu.Unlock()
}
