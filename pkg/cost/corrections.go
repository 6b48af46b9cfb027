package cost

import (
	"math"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// presentSecond stands for the second in which a correction is sent.
const presentSecond = math.MinInt64

// correctionOf is what corrections are summed by.
type correctionOf struct {
	user, unit string
	second     int64 // the first one that is in the same windows as the charge, or presentSecond
}

// correction is a change that the pools have still to hear of.
type correction struct {
	correctionOf
	costs  []limits.Cost
	change int64
}

// corrections are those that wait to be sent, in the order in which they came up.
type corrections struct {
	waiting map[correctionOf]*correction
	order   []*correction
	dropped uint64
}

func newCorrections() corrections {
	return corrections{waiting: make(map[correctionOf]*correction)}
}

func (c *corrections) length() int { return len(c.order) }

// add adds a change, unless there are too many corrections already.
func (c *corrections) add(of correctionOf, costs []limits.Cost, change int64, most int) {
	of.second = latestStart(costs, of.second)
	if w := c.waiting[of]; w != nil {
		w.change, w.costs = w.change+change, costs
		return
	}
	if len(c.order) >= most {
		c.dropped++
		return
	}
	w := &correction{correctionOf: of, costs: costs, change: change}
	c.waiting[of] = w
	c.order = append(c.order, w)
}

// latestStart is the start of the window that began last, of those that a second is in. Seconds
// with the same latest start are in the same windows of these limits: all of them had begun
// then, and none has ended since. The shortest window is not always that one: a day may begin
// within an hour.
func latestStart(costs []limits.Cost, second int64) int64 {
	if second == presentSecond {
		return second
	}
	latest := costs[0].WindowStart(second)
	for _, c := range costs[1:] {
		latest = max(latest, c.WindowStart(second))
	}
	return latest
}

// take removes at most so many and hands them out. A change that is too large for one ask
// leaves a rest.
func (c *corrections) take(room int, use func(*correction, int64)) {
	n := 0
	for n < len(c.order) && room > 0 {
		w := c.order[n]
		part := max(-limits.MaxCost, min(w.change, limits.MaxCost))
		if part != 0 {
			use(w, part)
			room--
		}
		if w.change -= part; w.change == 0 {
			delete(c.waiting, w.correctionOf)
			n++
		}
	}
	left := copy(c.order, c.order[n:])
	// Else what was taken stays reachable from the array.
	clear(c.order[left:])
	c.order = c.order[:left]
}
