package simulation_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	processingTimeout = 30 * time.Millisecond // of HAProxy's question
	localDelay        = 150 * time.Microsecond
)

// haproxy is one process: it asks its agent about each request, and refuses by itself whom its tables
// name. Without an agent it admits nobody, so that what the agents admit can be judged alone.
type haproxy struct {
	process
	edge     *edge
	rows     []row
	throttle map[ratelimit.Key]throttleRow
	block    []int64 // by user
	number   int64   // of this process
}

// row is what the tables active and share say of a user.
type row struct {
	concurrency.Count
	moved        float64
	movedAt      time.Time
	share        float64 // in force; each transfer is as fast as that allows
	taught       float64
	pushing      bool
	transferring int
}

type throttleRow struct {
	until   int64
	expires time.Time
}

func newHAProxy(e *edge) *haproxy {
	h := &haproxy{process: process{world: e.world, number: 100 + e.number}, edge: e}
	h.restart()
	return h
}

func (h *haproxy) restart() {
	h.life++
	h.number++
	h.rows = make([]row, len(h.world.users))
	h.throttle = make(map[ratelimit.Key]throttleRow)
	h.block = make([]int64, len(h.world.users))
}

// clock is the machine's.
func (h *haproxy) clock() time.Time { return h.world.Now.Add(h.edge.wall) }

func userName(user int) string { return fmt.Sprint("user-", user) }

// request is one of a user; then hears whether it was admitted, with which instance.
func (h *haproxy) request(user int, work time.Duration, then func(admitted bool)) {
	w := h.world
	w.steps++
	w.judge.offered()
	r := &request{user: user, work: work, haproxy: h, life: h.life, asked: w.Now, then: then}
	for _, rate := range w.users[user].rates {
		if t := h.throttle[keyOf(user, rate)]; h.clock().Unix() < t.until && w.Now.Before(t.expires) {
			r.answer(false)
			return
		}
	}
	a := h.edge.agent
	if h.block[user] > h.clock().Unix() || a == nil || !a.serving {
		r.answer(false)
		return
	}
	r.seen = h.rows[user].Count
	r.seen.Process = h.number
	h.after(processingTimeout, func() { r.answer(false) })
	a.after(localDelay, func() { a.question(r) })
}

// request is one on its way.
type request struct {
	user     int
	work     time.Duration
	haproxy  *haproxy
	life     int // of HAProxy
	asked    time.Time
	seen     concurrency.Count
	then     func(bool)
	answered bool

	slot       concurrency.Verdict
	slotWaits  *concurrency.Waiting
	token      ratelimit.Verdict
	tokenWaits *ratelimit.Waiting
	tokenAsked bool
	decided    bool
	share      [2]int64
}

// answer is HAProxy's.
func (r *request) answer(admitted bool) {
	if r.answered {
		return
	}
	r.answered = true
	h, w := r.haproxy, r.haproxy.world
	if h.life != r.life {
		return
	}
	if admitted {
		w.judge.admitted(h.edge, r)
		h.begin(r)
	}
	if r.then != nil {
		r.then(admitted)
	}
}

// begin runs a request at the origin.
func (h *haproxy) begin(r *request) {
	w, row := h.world, &h.rows[r.user]
	h.move(row)
	if row.transferring == 0 {
		row.share = float64(r.share[bandwidth.Down])
	}
	row.transferring++
	w.judge.runs(r.user, h.edge, 1)
	h.after(localDelay, func() {
		row.Tracked++
		row.Active++
		h.push(r.user)
	})
	h.after(localDelay+r.work, func() {
		h.move(row)
		row.Active--
		row.transferring--
		w.judge.runs(r.user, h.edge, -1)
		h.push(r.user)
	})
}

// move counts what was moved until now.
func (h *haproxy) move(row *row) {
	if row.transferring > 0 {
		row.moved += row.share * h.world.Now.Sub(row.movedAt).Seconds()
	}
	row.movedAt = h.world.Now
}

// push tells the agent, a little later, of what has changed.
func (h *haproxy) push(user int) {
	row := &h.rows[user]
	if row.pushing {
		return
	}
	row.pushing = true
	h.after(time.Millisecond+time.Duration(h.chance()*float64(2*time.Millisecond)), func() {
		row.pushing = false
		h.tell(user)
		if row.Active > 0 && h.world.users[user].down > 0 {
			// What goes on moving is told now and then.
			h.after(time.Duration((0.15+0.1*h.chance())*float64(time.Second)), func() { h.push(user) })
		}
	})
}

// tell tells the agent of a user.
func (h *haproxy) tell(user int) {
	a, row := h.edge.agent, &h.rows[user]
	if a == nil {
		return
	}
	h.move(row)
	count, moved := row.Count, int64(row.moved)
	a.after(localDelay, func() { a.progress(user, count, moved) })
}

// tellAll is for an agent that has come.
func (h *haproxy) tellAll() {
	for user := range h.rows {
		if h.rows[user].Tracked > 0 {
			h.tell(user)
		}
	}
}

// teachShare takes a share from the agent, for transfers in flight.
func (h *haproxy) teachShare(user int, share int64) {
	row := &h.rows[user]
	row.taught = float64(share)
	h.world.judge.users[user].taught = h.world.Now
	h.after(time.Duration((20+100*h.chance())*float64(time.Millisecond)), func() {
		h.move(row)
		row.share = row.taught
	})
}
