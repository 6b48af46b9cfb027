package bandwidth_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/test/simulation"
)

const (
	miB  = 1 << 20
	step = 5 * time.Millisecond // in which simulated bytes move
)

// A cluster is a simulated one of one user: HAProxies that hold the user's transfers to
// their shares exactly, agents that hear of them late and in lumps, and polygen.
// Agents and polygen's rule are the very code that ships.
type cluster struct {
	*simulation.Run
	limit     bandwidth.Limit
	haproxies []*haproxy
	watch     *bandwidth.Watch
	silent    bool // polygen is
	names     []string

	moved    [][2]int64 // in each step, all instances together
	sharings [][2]int   // told in each step
	problems []string
}

type haproxy struct {
	name    string
	core    *bandwidth.Agent
	down    bool     // its agent is
	share   [2]int64 // in force
	table   [2]int64 // as taught
	streams []*stream
	loops   []*loop
	active  int64
	pushed  time.Time // when the last push arrives
	moved   [2]float64
}

// A stream is a long transfer.
type stream struct {
	direction bandwidth.Direction
	cap       float64 // bytes per second that its client can do; 0: any number
	noise     float64 // by which part of it the cap varies
}

// A loop is a client of short requests, one after another.
type loop struct {
	busy, think time.Duration
	bytes       float64
	on          bool
}

func newCluster(seed uint64, instances int, limit bandwidth.Limit) *cluster {
	c := &cluster{Run: simulation.New(seed), limit: limit, watch: bandwidth.NewWatch()}
	for i := range instances {
		c.names = append(c.names, fmt.Sprint("i", i))
	}
	for i, name := range c.names {
		h := &haproxy{name: name}
		c.haproxies = append(c.haproxies, h)
		c.restart(h)
		c.After(time.Duration(i)*time.Millisecond, func() { c.tick(h) })
		c.After(time.Duration(i)*37*time.Millisecond, func() { c.pushes(h) })
	}
	c.watch.Instances(c.Now, c.names)
	c.After(0, c.decide)
	c.After(0, c.move)
	return c
}

// restart is of the agent.
func (c *cluster) restart(h *haproxy) {
	h.core = bandwidth.NewAgent(bandwidth.Config{Instance: h.name})
	h.core.Cluster(c.Now, len(c.names))
	h.down = false
}

func (c *cluster) move() {
	var sum [2]int64
	for _, h := range c.haproxies {
		for _, d := range bandwidth.Directions {
			want, share := 0.0, float64(h.share[d])
			for _, s := range h.streams {
				switch {
				case s.direction != d:
				case s.cap == 0:
					want += 1e12
				default:
					want += s.cap * (1 + s.noise*(2*c.Rand.Float64()-1)) * step.Seconds()
				}
			}
			if d == bandwidth.Down {
				for _, l := range h.loops {
					if l.on {
						want += l.bytes * float64(step) / float64(l.busy)
					}
				}
			}
			got := min(want, share*step.Seconds())
			h.moved[d] += got
			sum[d] += int64(got)
		}
	}
	c.moved = append(c.moved, sum)
	c.sharings = append(c.sharings, [2]int{})
	c.After(step, c.move)
}

// tick is the agent's.
func (c *cluster) tick(h *haproxy) {
	if !h.down {
		h.core.Tick(c.Now)
		c.pump(h)
	}
	c.After(step, func() { c.tick(h) })
}

func (c *cluster) pump(h *haproxy) {
	for _, e := range h.core.TakeOutput().TableEntries {
		h.table = e.Share // which transfers look at now and then
		c.After(time.Duration(20+c.Rand.IntN(100))*time.Millisecond, func() { h.share = h.table })
	}
	reports := h.core.Collect(c.Now, nil)
	if len(reports) == 0 {
		return
	}
	c.After(time.Millisecond+time.Duration(c.Rand.IntN(3))*time.Millisecond, func() {
		for _, r := range reports {
			c.watch.Observe(c.Now, r, c.limit.Bytes)
		}
		c.publish()
	})
}

func (c *cluster) decide() {
	c.watch.Tick(c.Now)
	c.publish()
	c.After(50*time.Millisecond, c.decide)
}

func (c *cluster) publish() {
	for _, s := range c.watch.Sharings() {
		sum := int64(0)
		for _, share := range s.Shares {
			sum += share.Bytes
		}
		if sum > c.limit.Bytes[s.Direction] {
			c.problems = append(c.problems, fmt.Sprint("shares ", s, " are more than the limit"))
		}
		if n := len(c.sharings); n > 0 {
			c.sharings[n-1][s.Direction]++
		}
		if c.silent {
			continue
		}
		concerned := s.Concerned()
		for _, h := range c.haproxies {
			c.After(time.Millisecond+time.Duration(c.Rand.IntN(3))*time.Millisecond, func() {
				if !h.down && slices.Contains(concerned, h.name) {
					h.core.Share(c.Now, s)
					c.pump(h)
				}
			})
		}
	}
}

// push has HAProxy tell its table's entry: late, and in blocks of 64 KiB.
func (c *cluster) push(h *haproxy) {
	count := bandwidth.Count{Active: h.active}
	for _, d := range bandwidth.Directions {
		count.Moved[d] = int64(h.moved[d])
		if len(h.streams) > 0 {
			count.Moved[d] -= count.Moved[d] % (16 << 10)
		}
	}
	at := c.Now.Add(time.Duration(2+c.Rand.IntN(18)) * time.Millisecond)
	if at.Before(h.pushed) {
		at = h.pushed // in order
	}
	h.pushed = at
	c.At(at, func() {
		if !h.down {
			h.core.Progress(c.Now, "alice", c.limit, bandwidth.Asked, count)
			c.pump(h)
		}
	})
}

// pushes are those of long transfers.
func (c *cluster) pushes(h *haproxy) {
	if h.active > 0 {
		c.push(h)
	}
	c.After(time.Duration(150+c.Rand.IntN(150))*time.Millisecond, func() { c.pushes(h) })
}

func (c *cluster) begin(h *haproxy) {
	if !h.down {
		if share := h.core.Start(c.Now, "alice", c.limit); h.share == [2]int64{} {
			h.share = share
		}
		c.pump(h)
	}
	h.active++
	c.push(h)
}

func (c *cluster) end(h *haproxy) {
	h.active--
	c.push(h)
}

func (c *cluster) join(i int, streams ...*stream) {
	h := c.haproxies[i]
	for _, s := range streams {
		c.begin(h)
		h.streams = append(h.streams, s)
	}
}

func (c *cluster) leave(i int) {
	h := c.haproxies[i]
	h.streams = h.streams[1:]
	c.end(h)
}

// short has a client of short requests begin.
func (c *cluster) short(i int, l *loop) {
	h := c.haproxies[i]
	h.loops = append(h.loops, l)
	var begin func()
	begin = func() {
		c.begin(h)
		l.on = true
		c.After(l.busy, func() {
			l.on = false
			c.end(h)
			c.After(l.think, begin)
		})
	}
	begin()
}

func (c *cluster) at(seconds float64, do func()) {
	c.At(simulation.Start.Add(time.Duration(seconds*float64(time.Second))), do)
}

func (c *cluster) until(seconds float64) {
	c.Until(simulation.Start.Add(time.Duration(seconds * float64(time.Second))))
}

// ratio is what all moved from one instant to another, of the limit.
func (c *cluster) ratio(d bandwidth.Direction, from, to float64) float64 {
	sum := int64(0)
	for _, moved := range c.moved[int(from/step.Seconds()):int(to/step.Seconds())] {
		sum += moved[d]
	}
	return float64(sum) / (to - from) / float64(c.limit.Bytes[d])
}

// told is how many divisions were sent.
func (c *cluster) told(from, to float64) (n int) {
	for _, told := range c.sharings[int(from/step.Seconds()):int(to/step.Seconds())] {
		n += told[0] + told[1]
	}
	return n
}
