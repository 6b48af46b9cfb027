package simulation_test

import (
	"strings"
	"time"
)

// most is how often a history is tried while it is made shorter.
const most = 1500

// shrink makes a history that fails as short as it can, and returns it with how often it was tried.
func shrink(h history) (shortest history, tries int) {
	// For the same reason: another one may be simpler, and known.
	why := reason(h.run())
	fails := func(c history) bool {
		tries++
		return tries < most && reason(c.run()) == why
	}
	for again := true; again && tries < most; {
		again = false
		for _, step := range []func(history, func(history) bool) (history, bool){dropEvents, simpler, shorter} {
			if c, better := step(h, fails); better {
				h, again = c, true
			}
		}
	}
	return h, tries
}

// reason is the first problem of a run without its numbers; "" if there is none.
func reason(w *world) string {
	if len(w.judge.problems) == 0 {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, w.judge.problems[0])
}

// dropEvents leaves out as many events as it can: halves first, single ones at last.
func dropEvents(h history, fails func(history) bool) (_ history, better bool) {
	for size := max(1, len(h.events)/2); size > 0; size /= 2 {
		for from := 0; from < len(h.events); {
			c := h
			c.events = append(append([]event(nil), h.events[:from]...), h.events[min(len(h.events), from+size):]...)
			if fails(c) {
				h, better = c, true
			} else {
				from += size
			}
		}
	}
	return h, better
}

// simpler leaves out what all events have in common: clocks that are wrong, polygens, instances, limits.
func simpler(h history, fails func(history) bool) (_ history, better bool) {
	try := func(change func(c *history)) {
		c := h
		c.events = append([]event(nil), h.events...)
		c.skews = append([]time.Duration(nil), h.skews...)
		c.users = append([]userLimits(nil), h.users...)
		if change(&c); fails(c) {
			h, better = c, true
		}
	}
	for i, d := range h.skews {
		if d != 0 {
			try(func(c *history) { c.skews[i] = 0 })
		}
	}
	if h.instances > 1 && !h.names(h.instances-1) {
		try(func(c *history) {
			c.skews = append(append([]time.Duration(nil), c.skews[:c.instances]...), c.skews[1+c.instances:]...)
			c.instances--
		})
	}
	if h.polygens > 1 {
		try(func(c *history) { c.polygens--; c.skews = c.skews[:len(c.skews)-1] })
	}
	if n := len(h.users) - 1; n > 0 {
		used := false
		for _, e := range h.events {
			used = used || e.kind == load && e.user == n
		}
		if !used {
			try(func(c *history) { c.users = c.users[:n] })
		}
	}
	for i, u := range h.users {
		if u.down > 0 {
			try(func(c *history) { c.users[i].down = 0 })
		}
		if len(u.rates) > 1 {
			try(func(c *history) { c.users[i].rates = u.rates[:1] })
		}
	}
	return h, better
}

// names reports whether an event names an instance.
func (h history) names(instance int) bool {
	for _, e := range h.events {
		switch e.kind {
		case cutPolygen, losePolygen, pausePolygen, crashPolygen, pauseRedis, emptyRedis, failover, setRedisClock:
		default:
			if e.who == instance {
				return true
			}
		}
	}
	return false
}

// shorter makes events shorter, with fewer requests, at the first instance, and earlier.
func shorter(h history, fails func(history) bool) (_ history, better bool) {
	for i := range h.events {
		for step, change := range []func(e *event){
			func(e *event) { e.n /= 2 },
			func(e *event) { e.n -= (e.n + 9) / 10 },
			func(e *event) { e.span = (e.span / 2).Truncate(time.Millisecond) },
			func(e *event) { e.work = (e.work / 2).Truncate(time.Millisecond) },
			func(e *event) { e.by = (e.by / 2).Truncate(time.Millisecond) },
		} {
			for {
				c := h
				c.events = append([]event(nil), h.events...)
				e := &c.events[i]
				if change(e); *e == h.events[i] || e.kind == load && (e.n < 1 || e.work < 1) || !fails(c) {
					break
				}
				h, better = c, true
				if step > 0 {
					break // one at a time takes long
				}
			}
		}
	}
	// All of it a second earlier.
	for len(h.events) > 0 && h.events[0].at >= 3*time.Second {
		c := h
		c.events = append([]event(nil), h.events...)
		for i := range c.events {
			c.events[i].at -= time.Second
		}
		if !fails(c) {
			break
		}
		h, better = c, true
	}
	return h, better
}
