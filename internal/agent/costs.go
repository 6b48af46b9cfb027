package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/costfeed"
	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxCostDigits is how many digits limits.MaxCost has.
var maxCostDigits = len(strconv.Itoa(limits.MaxCost))

// askedCosts is what HAProxy says of what a request may cost. The zero one is of a
// configuration that knows of no units.
type askedCosts struct {
	units     string                     // the names that it knows, by number, with blanks between them
	estimates [limits.MaxCostUnits]int64 // by number; -1: the request itself says none
	unclear   bool                       // origins may read the path in several ways, so the request may be of any operation class
}

func readCosts(r *spop.Request) (c askedCosts) {
	var known bool
	// One argument tells for nearly all files that there is nothing more to read.
	if c.units, known = r.Arg("units"); !known {
		return askedCosts{}
	}
	_, c.unclear = r.Arg("unclear")
	for i := range c.estimates {
		text, _ := r.Arg("cost_" + strconv.Itoa(i))
		n, err := strconv.ParseUint(text, 10, 63)
		c.estimates[i] = int64(n)
		// What is no such number is none: the estimate of the file holds. HAProxy cuts what is longer than one, zeros before it as well.
		if err != nil || n > limits.MaxCost || len(text) > maxCostDigits {
			c.estimates[i] = -1
		}
	}
	return c
}

// number is HAProxy's number of a unit, or -1.
func (c *askedCosts) number(unit string) int {
	i := 0
	for name := range strings.SplitSeq(c.units, " ") {
		if name == unit && i < len(c.estimates) {
			return i
		}
		i++
	}
	return -1
}

// costs are what a request is charged, of the limits of each key: all of it or nothing.
// Who has no such limit has none.
type costs struct {
	units []unitCharge
	of    [keys]charge // by key, as needs.tokens
}

type unitCharge struct {
	unit   string
	number int // HAProxy's; -1: it cannot settle it
	amount int64
}

type charge struct {
	key   string
	needs []cost.Need

	verdict cost.Verdict // not valid while it waits
	waits   *cost.Waiting
	done    <-chan struct{} // closed when it waits no longer; nil: it does not wait
}

// costsOf is what a request is to be charged, or nil if nothing limits what it costs.
func (l *limiter) costsOf(set *limits.Set, asked question, of *limits.Limits) *costs {
	if !of.LimitsCosts() {
		return nil
	}
	// A copy that is made only here: to go through the limits has the question on the heap, where those of most
	// requests need not be.
	c, q := &costs{}, asked
	c.of[own].key = q.user
	c.add(set, &q, own, of)
	if len(c.units) == 0 {
		return nil
	}
	return c
}

func (c *costs) add(set *limits.Set, q *question, key int, of *limits.Limits) {
	for limit := range of.Costs() {
		unit := set.CostUnit(limit.Unit)
		if unit == nil || !unit.Charges(q.verb, q.op) && (!q.costs.unclear || !unit.ByOperation()) {
			continue
		}
		c.of[key].needs = append(c.of[key].needs, cost.Need{Cost: limit, Amount: c.amountOf(unit, q)})
	}
}

func (c *costs) amountOf(unit *limits.CostUnit, q *question) int64 {
	for _, u := range c.units {
		if u.unit == unit.Name {
			return u.amount
		}
	}
	u := unitCharge{unit: unit.Name, number: q.costs.number(unit.Name), amount: -1}
	if u.number >= 0 {
		u.amount = q.costs.estimates[u.number]
	}
	if u.amount < 0 {
		u.amount = unit.EstimateOf(q.verb, q.op)
		if q.costs.unclear {
			u.amount = unit.MostEstimate()
		}
	}
	c.units = append(c.units, u)
	return u.amount
}

// refusedCosts is the first of the keys whose limits of costs refuse, or -1.
func (n *needs) refusedCosts() int {
	if n.costs != nil {
		for i := range n.costs.of {
			if c := &n.costs.of[i]; c.waits == nil && !c.verdict.Allowed {
				return i
			}
		}
	}
	return -1
}

// askCosts asks for what is to be charged, until something is refused; l.mu is held.
func (l *limiter) askCosts(now time.Time, n *needs) {
	if n.costs == nil {
		return
	}
	for i := range n.costs.of {
		c := &n.costs.of[i]
		// A key without limits is no key of a shard.
		if len(c.needs) == 0 {
			c.verdict.Allowed = true
			continue
		}
		c.verdict, c.waits = l.coresOf(c.key).costs.Start(now, c.key, c.needs)
		if c.waits == nil && !c.verdict.Allowed {
			return
		}
	}
}

// timeoutCosts decides what waits no longer, unless something is refused; l.mu is held.
func (l *limiter) timeoutCosts(now time.Time, n *needs) {
	if n.costs == nil {
		return
	}
	for i := range n.costs.of {
		if c := &n.costs.of[i]; c.waits != nil && !n.refused() {
			c.verdict, c.waits = l.coresOf(c.key).costs.Timeout(now, c.waits), nil
		}
	}
}

// returnCosts gives back what was charged in vain; l.mu is held.
func (l *limiter) returnCosts(now time.Time, n *needs) {
	if n.costs == nil {
		return
	}
	for i := range n.costs.of {
		if c := &n.costs.of[i]; c.waits != nil {
			l.coresOf(c.key).costs.Abandon(now, c.waits)
		}
	}
	l.cancelCosts(now, n.costs)
}

// cancelCosts gives back what was charged; l.mu is held.
func (l *limiter) cancelCosts(now time.Time, c *costs) {
	for i := range c.of {
		if k := &c.of[i]; k.waits == nil && k.verdict.Charged {
			l.coresOf(k.key).costs.Cancel(now, k.key, k.needs, k.verdict)
		}
	}
}

// dryRefusal is the limit in a dry run that would have refused what was charged.
func (c *costs) dryRefusal() (of limits.Cost, any bool) {
	for i := range c.of {
		if limit := c.of[i].verdict.WouldRefuse; limit.Unit != "" {
			of, any = limit, true
		}
	}
	return of, any
}

// settleAt is the second that HAProxy says when it settles, and whether it is to.
func (c *costs) settleAt() (second int64, ok bool) {
	for i := range c.of {
		k := &c.of[i]
		switch {
		case len(k.needs) == 0:
		// It was admitted without being counted: a refund would be of what others were charged.
		case !k.verdict.Charged:
			return 0, false
		// The older of two: where nothing was charged in it, a refund changes at most a window that is over.
		case !ok || k.verdict.Second < second:
			second, ok = k.verdict.Second, true
		}
	}
	return second, ok
}

func (c *costs) answer(r *spop.Request) {
	second, ok := c.settleAt()
	if !ok {
		return
	}
	for _, u := range c.units {
		if u.number >= 0 {
			// One variable tells both, because each costs HAProxy as much as eight conditions.
			r.SetString("charged_"+strconv.Itoa(u.number), fmt.Sprintf("%d@%d", u.amount, second))
		}
	}
}

// hearCosts listens for what requests cost, if it can.
func (a *Agent) hearCosts() (loops []func(context.Context) error) {
	if a.settler == nil {
		return nil
	}
	l, err := daemon.Socket("costs", a.options.Costs)
	// Limits hold without it, by estimates. Most limit files have none of costs, and no request is to suffer.
	if err != nil {
		a.options.Logger.Error("what requests cost is not heard: they are charged their estimates", slog.Any("error", err))
		return nil
	}
	return append(loops, func(ctx context.Context) error { return a.settler.Run(ctx, l) })
}

// settle takes what HAProxy says that requests cost above or below what they were charged.
func (a *Agent) settle(all []costfeed.Correction) {
	set := a.limiter.inForce.set.Load()
	if set == nil {
		return
	}
	a.limiter.update(func(now time.Time) {
		for _, c := range all {
			if !a.limiter.settle(now, set, c) {
				a.metrics.correctionsIgnored.Inc()
				continue
			}
			change, of := c.Change, a.metrics.overrun
			if change < 0 {
				change, of = -change, a.metrics.refunded
			}
			of.add(series{set.User(c.User).Tier, c.Unit}, change)
		}
	})
}

// settle corrects what a user was charged. It reports whether anything limits what that costs;
// l.mu is held.
func (l *limiter) settle(now time.Time, set *limits.Set, c costfeed.Correction) (limited bool) {
	var costs []limits.Cost
	for limit := range set.User(c.User).Costs() {
		if limit.Unit == c.Unit {
			costs = append(costs, limit)
		}
	}
	if len(costs) == 0 {
		return false
	}
	l.coresOf(c.User).costs.Settle(now, c.User, c.Second, c.Change, costs)
	return true
}

func (a *Agent) countCosts(q *question, tier string, c *costs) {
	unsettled := false
	for _, u := range c.units {
		a.metrics.charged.add(series{tier, u.unit}, u.amount)
		unsettled = unsettled || u.number < 0
	}
	if !unsettled {
		return
	}
	a.metrics.unsettled.Inc()
	if skipped, now := a.unsettledLog.Allow(); now {
		a.options.Logger.Warn("what a request costs is not read here: haproxy's files were written for limits without this unit; write them again (sluice haproxy), and reload haproxy",
			slog.String("user", q.user), slog.Int("skipped", skipped))
	}
}
