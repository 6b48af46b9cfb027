package parts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const lease = 2 * time.Second

func TestSet(t *testing.T) {
	s := SetOf(0, 5, 63, 64, -1)
	if got := s.Numbers(); !slices.Equal(got, []int{0, 5, 63}) || s.Len() != 3 || !s.Has(63) || s.Has(1) {
		t.Errorf("SetOf = %v, want 0, 5 and 63", got)
	}
	if All.Len() != Count {
		t.Errorf("All has %d parts, want %d", All.Len(), Count)
	}
}

// What was given back in a message that comes late, when the part was taken again, is not given back.
func TestALateMessageGivesNothingBack(t *testing.T) {
	r, now := redis{heard: map[string]time.Time{}, numbers: map[string]int64{}}, time.Unix(1000, 0)
	d := New(lease, 1)
	d.TakeAnswer(now, r.ask(now, "a", d.NextAsk(now), false))
	d.TakeAnswer(now, r.ask(now, "a", d.NextAsk(now), false))
	d.TakeAnswer(now, Answer{Held: All, Polygens: []string{"a", "b"}, Leader: "a"})
	late := d.NextAsk(now) // gives half of them back to b, which ends meanwhile
	if late.GiveBack.Len() != Count/2 {
		t.Fatalf("it gives back %v, want half", late.GiveBack.Numbers())
	}
	d.TakeAnswer(now, r.ask(now, "a", d.NextAsk(now), false))
	d.TakeAnswer(now, r.ask(now, "a", d.NextAsk(now), false))
	held := d.DecidedParts(now)
	r.ask(now, "a", late, false)
	if got := r.ask(now, "b", Ask{Number: 1, Take: Count, Wanted: All.Numbers()}, false); got.Held&held != 0 {
		t.Errorf("b has the parts %v, about which a decides", (got.Held & held).Numbers())
	}
}

// redis does what scripts/lead.lua does.
type redis struct {
	holder  [Count]string
	until   [Count]time.Time
	heard   map[string]time.Time
	numbers map[string]int64
	leader  string
	leads   time.Time // until when
}

func (r *redis) ask(now time.Time, name string, a Ask, resigns bool) (out Answer) {
	if last, ok := r.numbers[name]; ok && last >= a.Number {
		return Answer{}
	}
	if r.leader != "" && !now.Before(r.leads) {
		r.leader = ""
	}
	switch {
	case resigns && r.leader == name:
		r.leader = ""
	case !resigns && (r.leader == "" || r.leader == name):
		r.leader, r.leads = name, now.Add(lease)
	}
	for p := range r.holder {
		if r.holder[p] != "" && !now.Before(r.until[p]) {
			r.holder[p] = ""
		}
		if r.holder[p] == name && (resigns || a.GiveBack.Has(p)) {
			r.holder[p] = ""
		}
	}
	for _, p := range a.Wanted {
		if r.holder[p] == "" && a.Take > 0 {
			r.holder[p], a.Take = name, a.Take-1
		}
	}
	for p := range r.holder {
		switch r.holder[p] {
		case name:
			r.until[p], out.Held = now.Add(lease), out.Held|SetOf(p)
		case "":
			out.Free |= SetOf(p)
		}
	}
	r.numbers[name] = a.Number
	if resigns {
		delete(r.heard, name)
		return Answer{}
	}
	r.heard[name] = now
	for other, at := range r.heard {
		if now.Sub(at) >= lease {
			delete(r.heard, other)
			delete(r.numbers, other)
			continue
		}
		out.Polygens = append(out.Polygens, other)
	}
	out.Leader = r.leader
	return out
}

// polygen is one of a simulated cluster. It asks every half second, waits for an answer for a quarter, and asks once
// more if it should.
type polygen struct {
	name     string
	division *Division
	next     time.Time // when it asks
	paused   time.Time // until when it stands still
	dead     bool
	answer   func(now time.Time) // of the ask under way; nil for none
	answerAt time.Time
	patience time.Time
}

type message struct {
	at  time.Time
	run func(now time.Time)
}

// cluster is a simulated one, in steps of 10 ms.
type cluster struct {
	now      time.Time
	shards   Shards
	redis    redis
	polygens []*polygen
	wire     []message
	delay    func() time.Duration // of a message; negative: it is lost
}

func newCluster(delay func() time.Duration) *cluster {
	return &cluster{now: time.Unix(1000, 0), shards: 1, redis: redis{heard: map[string]time.Time{}, numbers: map[string]int64{}}, delay: delay}
}

func (c *cluster) join() *polygen {
	p := &polygen{name: fmt.Sprint("p", len(c.polygens)), division: New(lease, c.shards), next: c.now}
	c.polygens = append(c.polygens, p)
	return p
}

func (c *cluster) send(p *polygen) {
	ask, sent := p.division.NextAsk(c.now), c.now
	p.answer, p.patience, p.next = nil, c.now.Add(250*time.Millisecond), c.now.Add(500*time.Millisecond)
	there := c.delay()
	if there < 0 {
		return
	}
	c.wire = append(c.wire, message{c.now.Add(there), func(now time.Time) {
		answer := c.redis.ask(now, p.name, ask, false)
		back := c.delay()
		if back < 0 || ask.Number != p.division.number || p.dead {
			return
		}
		p.answerAt = now.Add(back)
		p.answer = func(time.Time) {
			if p.division.TakeAnswer(sent, answer) {
				p.next = c.now
			}
		}
	}})
}

func (c *cluster) step() {
	c.now = c.now.Add(10 * time.Millisecond)
	for i := 0; i < len(c.wire); i++ {
		if m := c.wire[i]; !m.at.After(c.now) {
			c.wire = slices.Delete(c.wire, i, i+1)
			i--
			m.run(c.now)
		}
	}
	for _, p := range c.polygens {
		switch {
		case p.dead || c.now.Before(p.paused):
		case p.answer != nil && !p.answerAt.After(c.now) && !c.now.After(p.patience):
			take := p.answer
			p.answer = nil
			take(c.now)
		case !c.now.Before(p.next):
			c.send(p)
		}
	}
}

func (c *cluster) run(d time.Duration) {
	for range d / (10 * time.Millisecond) {
		c.step()
	}
}

// deciders is how many decide for each part, those that stand still among them: they may go on at any moment.
func (c *cluster) deciders() (n [Count]int) {
	for _, p := range c.polygens {
		if !p.dead {
			for _, part := range p.division.DecidedParts(c.now).Numbers() {
				n[part]++
			}
		}
	}
	return n
}

func (c *cluster) alive() (n int) {
	for _, p := range c.polygens {
		if !p.dead {
			n++
		}
	}
	return n
}

// Whatever is lost, late or stands still, no two decide about one part; and once all is well again for three seconds
// each part has one, fairly divided.
func TestNeverTwoDeciders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bad := true
		delays := rapid.SampledFrom([]time.Duration{0, 0, 0, 10 * time.Millisecond, 200 * time.Millisecond, 700 * time.Millisecond, 3 * time.Second, -1})
		c := newCluster(func() time.Duration {
			if !bad {
				return 0
			}
			return delays.Draw(t, "delay")
		})
		c.shards = rapid.SampledFrom([]Shards{1, 3, 16, 64, 100}).Draw(t, "shards")
		c.join()
		for range rapid.IntRange(1, 12).Draw(t, "incidents") {
			p := c.polygens[rapid.IntRange(0, len(c.polygens)-1).Draw(t, "polygen")]
			switch rapid.SampledFrom([]string{"join", "die", "pause", "resign", "nothing"}).Draw(t, "incident") {
			case "join":
				if len(c.polygens) < 8 {
					c.join()
				}
			case "die":
				p.dead = c.alive() > 1
			case "resign":
				if !p.dead && c.alive() > 1 {
					c.redis.ask(c.now, p.name, p.division.DropAll(), true)
					p.dead = true
				}
			case "pause":
				p.paused = c.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "pause")) * time.Millisecond)
			}
			for range rapid.IntRange(1, 150).Draw(t, "steps") {
				c.step()
				if n := c.deciders(); slices.Max(n[:]) > 1 {
					t.Fatalf("deciders of each part: %v", n)
				}
			}
		}
		bad, c.wire = false, nil
		for _, p := range c.polygens {
			p.paused = time.Time{}
		}
		for range 300 {
			c.step()
		}
		most := (Count + c.alive() - 1) / c.alive()
		if n := c.deciders(); slices.Min(n[:]) != 1 || slices.Max(n[:]) != 1 {
			t.Fatalf("after three good seconds deciders of each part: %v", n)
		}
		for _, p := range c.polygens {
			if held := p.division.DecidedParts(c.now).Len(); !p.dead && held > most {
				t.Fatalf("%s of %d has %d parts, want %d at most", p.name, c.alive(), held, most)
			}
		}
	})
}

// One that joins or dies moves its parts only, within three seconds.
func TestOnlyItsPartsMove(t *testing.T) {
	c := newCluster(func() time.Duration { return 0 })
	held := func() (sets []Set) {
		for _, p := range c.polygens {
			sets = append(sets, p.division.DecidedParts(c.now))
		}
		return sets
	}
	c.join()
	c.join()
	c.run(3 * time.Second)
	two := held()
	third := c.join()
	c.run(3 * time.Second)
	three := held()
	for i := range two {
		if three[i]&^two[i] != 0 || three[i].Len() < 21 {
			t.Errorf("polygen %d of two had %v, of three %v", i, two[i].Numbers(), three[i].Numbers())
		}
	}
	third.dead = true
	c.run(3 * time.Second)
	for i, after := range held()[:2] {
		if three[i]&^after != 0 || after.Len() != Count/2 {
			t.Errorf("polygen %d had %v, and %v after another one died", i, three[i].Numbers(), after.Numbers())
		}
	}
}
