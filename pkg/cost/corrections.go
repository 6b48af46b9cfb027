package cost

import (
	"math"
	"slices"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// presentSecond stands for the second in which a correction is sent.
const presentSecond = math.MinInt64

type correctionOf struct {
	user, unit string
	second     int64 // the first one that is in the same windows as the charge, or presentSecond
}

type correction struct {
	correctionOf
	costs  []limits.Cost
	change int64
}

// corrections are those that wait to be sent, in the order in which they came up.
type corrections struct {
	max     int
	waiting map[correctionOf]*correction
	order   []*correction
	// The second in which they were folded last. 0: not since all of them were sent.
	folded  int64
	dropped uint64
}

func newCorrections(most int) corrections {
	return corrections{max: most, waiting: make(map[correctionOf]*correction)}
}

func (c *corrections) length() int { return len(c.order) }

// hasRoom reports whether there is room for a change of every unit of some needs in a second.
func (c *corrections) hasRoom(now int64, user string, needs []Need, second int64) bool {
	c.makeRoom(now, len(needs))
	room := c.max - len(c.order)
	for of := range units(needs) {
		if c.waiting[correctionOf{user, of[0].Cost.Unit, latestStart(costsOf(of), second)}] == nil {
			room--
		}
	}
	return room >= 0
}

func (c *corrections) makeRoom(now int64, n int) {
	// Windows end with full seconds, and a second fold within one would find nothing.
	if len(c.order)+n > c.max && c.folded != now {
		c.fold(now)
	}
}

// add adds a change, unless there is no room for it.
func (c *corrections) add(now int64, of correctionOf, costs []limits.Cost, change int64) {
	c.makeRoom(now, 1)
	for second := of.second; ; costs = costs[1:] {
		if len(costs) == 0 {
			return
		}
		of.second = latestStart(costs, second)
		// A refund has to be added to its charge, whether that was folded meanwhile or not. By itself it could be
		// sent first, to a pool that has nothing to give back yet.
		if w := c.waiting[of]; w != nil {
			w.change, w.costs = w.change+change, costs
			return
		}
		if c.folded == 0 || needed(costs[0], second, now) {
			break
		}
	}
	if len(c.order) >= c.max {
		c.dropped++
		return
	}
	w := &correction{correctionOf: of, costs: costs, change: change}
	c.waiting[of] = w
	c.order = append(c.order, w)
}

// fold makes room: it takes the windows that need not hear of a correction any more out of it,
// and sums the corrections that then have the same windows. Each is left with the start of one
// of the last two windows of some length, or is of the present second: a user has eleven of a
// unit at most, however long the pools are lost.
func (c *corrections) fold(now int64) {
	c.folded = now
	kept := c.order[:0]
	for _, w := range c.order {
		// Longer windows are needed longer.
		n := slices.IndexFunc(w.costs, func(cost limits.Cost) bool { return needed(cost, w.second, now) })
		if n == 0 && w.change != 0 {
			kept = append(kept, w)
			continue
		}
		delete(c.waiting, w.correctionOf)
		if n < 0 || w.change == 0 {
			continue
		}
		w.costs = w.costs[n:]
		w.second = latestStart(w.costs, w.second)
		if other := c.waiting[w.correctionOf]; other != nil {
			other.change += w.change
			continue
		}
		c.waiting[w.correctionOf] = w
		kept = append(kept, w)
	}
	clear(c.order[len(kept):])
	c.order = kept
}

// needed reports whether the pools of a limit still need to hear of a change in a second: until
// the window after that of the change is over, which may begin with a debt.
func needed(c limits.Cost, second, now int64) bool {
	return second == presentSecond || second >= c.Previous(now)
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

// take hands out as many as there is room for, and removes them. A change that is too large for
// one ask leaves a rest.
func (c *corrections) take(room int, use func(*correction, int64)) {
	n := 0
	for n < len(c.order) && (room > 0 || c.order[n].change == 0) {
		w := c.order[n]
		if w.takePart(use) {
			room--
		}
		if w.change == 0 {
			delete(c.waiting, w.correctionOf)
			n++
		}
	}
	left := copy(c.order, c.order[n:])
	// Else what was taken stays reachable from the array.
	clear(c.order[left:])
	if c.order = c.order[:left]; left == 0 {
		c.folded = 0
	}
}

// takeOf hands out what waits for the pools that a request needs, while there is room, and
// returns how much is left of it. It finds those of windows that began last, or before that:
// all that were just folded. The older ones go first, for a window begins with the debt of the one
// before. What is handed out stays behind as a correction of nothing, until take removes it.
func (c *corrections) takeOf(user string, needs []Need, now int64, room int, use func(*correction, int64)) (left int) {
	for of := range units(needs) {
		seconds := make([]int64, 0, 2*len(of)+1)
		for _, n := range of {
			seconds = append(seconds, n.Cost.Previous(now), n.Cost.WindowStart(now))
		}
		slices.Sort(seconds)
		for _, second := range append(seconds, presentSecond) {
			if w := c.waiting[correctionOf{user, of[0].Cost.Unit, second}]; w != nil && room > 0 && w.takePart(use) {
				room--
			}
		}
	}
	return room
}

// takePart hands out as much as one ask may have, and reports whether that is anything.
func (w *correction) takePart(use func(*correction, int64)) bool {
	part := max(-limits.MaxCost, min(w.change, limits.MaxCost))
	if part == 0 {
		return false
	}
	w.change -= part
	use(w, part)
	return true
}
