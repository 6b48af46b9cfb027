package simulation_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A history is all that a run depends on: who there is, and what happens to them. It is drawn
// from a seed, and whatever is left out of it leaves another history.
type history struct {
	seed      uint64
	instances int
	polygens  int
	users     []userLimits
	skews     []time.Duration // of the machines' clocks: Redis, the instances, the polygens
	roundTrip time.Duration
	events    []event
}

// userLimits are what a user may have over the whole cluster.
type userLimits struct {
	rates      []limits.Rate // of GET, a second first
	concurrent int
	down       int64 // bytes per second; 0: not limited
}

// kind is what an event is.
type kind int

// The kinds of events. Those behind load are faults.
const (
	load kind = iota
	cutAgent
	loseAgent
	slowAgent
	duplicate
	shuffle
	pauseAgent
	crashAgent
	crashInstance
	leave
	cutPolygen
	losePolygen
	pausePolygen
	crashPolygen
	pauseRedis
	emptyRedis
	failover
	setRedisClock
	setMachineClock
	kinds
)

// event is one of the history, which begins at a time and lasts for another.
type event struct {
	kind kind
	at   time.Duration // since the beginning
	span time.Duration
	who  int           // the instance or polygen
	user int           // of a load
	n    int           // requests of a load
	work time.Duration // for how long each of them is in progress
	by   time.Duration // how slow, how late, or how wrong
}

func (e event) end() time.Duration { return e.at + e.span }

// String is the event in words.
func (e event) String() string {
	at := fmt.Sprintf("%7.3f s  ", e.at.Seconds())
	span := e.span.Round(time.Millisecond)
	instance, polygen := fmt.Sprintf("instance %d", e.who), fmt.Sprintf("polygen %d", e.who)
	switch e.kind {
	case load:
		return at + fmt.Sprintf("user %d begins %d requests of %v at %s within %v", e.user, e.n, e.work, instance, span)
	case cutAgent:
		return at + fmt.Sprintf("what %s sends to Redis, and is sent, is lost for %v", instance, span)
	case loseAgent:
		return at + fmt.Sprintf("every second message that is published for %s is lost for %v", instance, span)
	case slowAgent:
		return at + fmt.Sprintf("messages between %s and Redis take %v longer for %v", instance, e.by, span)
	case duplicate:
		return at + fmt.Sprintf("what %s asks Redis arrives twice for %v, again after up to %v", instance, span, e.by)
	case shuffle:
		return at + fmt.Sprintf("messages for %s are late by up to %v each, in any order, for %v", instance, e.by, span)
	case pauseAgent:
		return at + fmt.Sprintf("the agent of %s stands still for %v", instance, span)
	case crashAgent:
		return at + fmt.Sprintf("the agent of %s is killed, and started again after %v", instance, span)
	case crashInstance:
		return at + fmt.Sprintf("%s dies with its HAProxy, and is started again after %v", instance, span)
	case leave:
		return at + fmt.Sprintf("the agent of %s ends in order, and is started again after %v", instance, span)
	case cutPolygen:
		return at + fmt.Sprintf("what %s sends to Redis, and is sent, is lost for %v", polygen, span)
	case losePolygen:
		return at + fmt.Sprintf("every second message that is published for %s is lost for %v", polygen, span)
	case pausePolygen:
		return at + fmt.Sprintf("%s stands still for %v", polygen, span)
	case crashPolygen:
		return at + fmt.Sprintf("%s is killed, and started again after %v", polygen, span)
	case pauseRedis:
		return at + fmt.Sprintf("Redis stands still for %v", span)
	case emptyRedis:
		return at + "Redis is emptied"
	case failover:
		return at + fmt.Sprintf("Redis dies, and after %v a replica is used that is %v behind", span, e.by)
	case setRedisClock:
		return at + fmt.Sprintf("the clock of Redis is set by %v", e.by)
	case setMachineClock:
		return at + fmt.Sprintf("the clock of the machine of %s is set by %v", instance, e.by)
	}
	panic("no such kind")
}

// String is the history as prose, an event a line.
func (h history) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d instances and %d polygens; %v to Redis and back.\n", h.instances, h.polygens, h.roundTrip)
	for i, u := range h.users {
		fmt.Fprintf(&s, "User %d may have", i)
		for _, r := range u.rates {
			fmt.Fprintf(&s, " %d requests per %s", r.Max, r.Window)
			if r.Burst > 0 {
				fmt.Fprintf(&s, " (%d saved up)", r.Burst)
			}
			s.WriteString(",")
		}
		fmt.Fprintf(&s, " %d in progress", u.concurrent)
		if u.down > 0 {
			fmt.Fprintf(&s, ", %d bytes/s", u.down)
		}
		s.WriteString(".\n")
	}
	for i, d := range h.skews {
		if d != 0 {
			fmt.Fprintf(&s, "The clock of %s is wrong by %v.\n", h.machine(i), d)
		}
	}
	for _, e := range h.events {
		s.WriteString(e.String() + "\n")
	}
	return s.String()
}

// machine is whose clock is one of the skews.
func (h history) machine(i int) string {
	switch {
	case i == 0:
		return "Redis"
	case i <= h.instances:
		return fmt.Sprintf("instance %d", i-1)
	}
	return fmt.Sprintf("polygen %d", i-1-h.instances)
}

// end is when nothing happens any more but what follows from the events.
func (h history) end() (end time.Duration) {
	for _, e := range h.events {
		end = max(end, e.end()+e.work)
	}
	return end
}

// draw draws a history from a seed.
func draw(seed uint64) history {
	r := rand.New(rand.NewPCG(seed, 2))
	ms := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond }
	h := history{
		seed: seed, instances: []int{1, 2, 2, 3, 3, 4, 6}[r.IntN(7)], polygens: 1 + r.IntN(2),
		roundTrip: []time.Duration{200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond}[r.IntN(4)],
	}
	// In half of them one user is at their limits everywhere, for it is there that mistakes matter.
	hot := r.IntN(2) == 0
	for range 1 + r.IntN(3) {
		h.users = append(h.users, drawLimits(r))
	}
	if hot {
		h.users = h.users[:1]
	}
	skew := []time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond, time.Hour}[r.IntN(4)]
	for range 1 + h.instances + h.polygens {
		h.skews = append(h.skews, time.Duration((2*r.Float64()-1)*float64(skew)).Truncate(time.Millisecond))
	}
	const length = 12_000 // ms
	for range 4 + r.IntN(16) {
		user := r.IntN(len(h.users))
		l := h.users[user]
		span := ms(100, 4000)
		n := int(float64(l.rates[0].Max) * span.Seconds() * []float64{0.2, 0.6, 1, 2, 5}[r.IntN(5)])
		h.events = append(h.events, event{
			kind: load, at: ms(2000, length), span: span, who: r.IntN(h.instances), user: user, n: min(max(1, n), 600),
			work: []time.Duration{ms(1, 20), ms(20, 300), ms(300, 3000)}[r.IntN(3)],
		})
	}
	for i := range h.instances {
		if hot {
			l, span := h.users[0], ms(4000, length-2000)
			n := max(2*l.rates[0].Max, 2*l.concurrent) * int(span/time.Second) / h.instances
			h.events = append(h.events, event{kind: load, at: ms(2000, 3000), span: span, who: i, n: min(max(1, n), 600), work: ms(5, 400)})
		}
	}
	if r.IntN(5) == 0 {
		h.addTransfers(r)
	}
	for range r.IntN(7) {
		e := event{kind: load + 1 + kind(r.IntN(int(kinds-load)-1)), at: ms(1500, length+2000), who: r.IntN(h.instances), span: ms(5, 3000)}
		if r.IntN(2) == 0 && e.kind != duplicate && e.kind != shuffle {
			e.span = ms(5, 200)
		}
		switch e.kind {
		case cutPolygen, losePolygen, pausePolygen, crashPolygen:
			e.who = r.IntN(h.polygens)
		case slowAgent, duplicate, shuffle:
			e.by = []time.Duration{ms(1, 8), ms(5, 60), ms(50, 600)}[r.IntN(3)]
		case failover:
			e.by, e.span = ms(0, 400), ms(300, 2500)
		case setRedisClock, setMachineClock:
			e.by, e.span = ms(-4000, 4000), 0
		case emptyRedis:
			e.span = 0
		}
		h.events = append(h.events, e)
	}
	slices.SortStableFunc(h.events, func(a, b event) int { return int(a.at - b.at) })
	return h
}

// addTransfers has a user have nothing but long transfers, and shares of theirs lost.
func (h *history) addTransfers(r *rand.Rand) {
	h.users = append(h.users, userLimits{rates: []limits.Rate{{Class: "GET", Max: 20}}, concurrent: 30, down: 1 << 20})
	at := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond }
	transfers := event{kind: load, user: len(h.users) - 1, span: time.Millisecond}
	for who := range h.instances {
		for _, begin := range []time.Duration{at(2000, 3000), at(4000, 6000)} {
			transfers.who, transfers.at, transfers.n, transfers.work = who, begin, 1+r.IntN(3), at(6000, 10_000)
			h.events = append(h.events, transfers)
		}
	}
	h.events = append(h.events, event{kind: loseAgent, at: at(3500, 4500), who: r.IntN(h.instances), span: at(1000, 3000)})
}

func drawLimits(r *rand.Rand) userLimits {
	second := []int{1, 2, 5, 20, 100}[r.IntN(5)]
	l := userLimits{rates: []limits.Rate{{Class: "GET", Max: second}}, concurrent: []int{1, 2, 3, 8, 30}[r.IntN(5)]}
	switch r.IntN(4) {
	case 0:
		l.rates = append(l.rates, limits.Rate{Class: "GET", Window: limits.Windows[1+second%4], Max: second * (2 + r.IntN(10))})
	case 1:
		l.rates[0].Burst = second * (1 + r.IntN(3))
	}
	if r.IntN(2) == 0 {
		l.down = []int64{1 << 20, 10 << 20}[r.IntN(2)]
	}
	return l
}
