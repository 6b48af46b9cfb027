package concurrency_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/internal/history"
)

// The histories in testdata tell of one user, alice, who may have so many requests in
// progress. They are written by the very code that ships. Only what a HAProxy does, and
// when messages arrive, is the test's.

// A story is a history with its agents, their HAProxies and the pool.
type story struct {
	*history.Book
	t     *testing.T
	limit int
	pool  map[string]concurrency.Holding
	live  []string
	all   []*party
	away  bool // the pool does not answer
}

const words = `
An instance is one HAProxy and its agent. A slot is the right to have one request of alice's in progress, and
all instances together may hold as many slots as the limit. The pool in Redis knows how many each of them
holds. In an ask an agent says how many slots it wants to hold in all and how many requests it has in
progress, so that the latest ask is all that the pool needs to know.`

// A party is one instance: its agent, and what its HAProxy counts.
type party struct {
	*story
	*concurrency.Agent
	name    string // of the instance
	asked   count  // HAProxy's table of requests that were asked about
	lent    bool   // HAProxy has credit
	places  int    // as lent
	here    int    // in HAProxy's table of credit: all that came while there was some
	native  int    // of these, admitted by HAProxy itself
	old     int    // requests of a process that was replaced
	waiting []*concurrency.Waiting
}

// tell begins a story with so many instances, who have known of each other for long.
func tell(t *testing.T, limit, instances int, credit bool, title, about, diagram string) (*story, []*party) {
	s := &story{Book: history.New(t, title, diagram, about, words), t: t, limit: limit, pool: map[string]concurrency.Holding{}}
	for i := range instances {
		name := string(rune('a' + i))
		p := &party{story: s, name: name, asked: count{Process: 1}, Agent: concurrency.NewAgent(concurrency.Config{
			Instance: name, Lookup: func(string) (int, bool) { return limit, credit },
		})}
		p.Cluster(t0.Add(-time.Minute), instances, i)
		s.all, s.live = append(s.all, p), append(s.live, name)
	}
	return s, s.all
}

// at lets the agents' ticks happen, every 5 ms, up to an instant. What they send is told,
// but of asks that change nothing only how many there were.
func (s *story) at(now int) {
	vain, lost := make([]int, len(s.all)), make([]int, len(s.all))
	for at := s.Now() - s.Now()%(5*time.Millisecond) + 5*time.Millisecond; at < time.Duration(now)*time.Millisecond; at += 5 * time.Millisecond {
		s.At(at)
		for i, p := range s.all {
			p.Tick(p.clock())
			p.drain()
			asks := p.Collect(p.clock(), true, nil)
			if len(asks) > 0 && s.away {
				lost[i]++
				p.Fail(p.clock(), asks[0])
				p.drain()
				continue
			}
			if len(asks) == 1 && asks[0].Active == s.pool[p.name].Active && min(asks[0].Want, s.pool[p.name].Held+s.free()) == s.pool[p.name].Held {
				vain[i]++
				p.Reply(p.clock(), asks[0], concurrency.Take(s.pool, len(s.live), p.name, asks[0]))
				p.drain()
				continue
			}
			p.tellOf(asks)
			p.deliver(asks)
		}
	}
	for i, p := range s.all {
		if n := vain[i]; n > 0 {
			s.Tell("agent "+p.name, "has asked the pool %s more, which changed nothing", history.Times(n))
		}
		if n := lost[i]; n > 0 {
			s.Tell("agent "+p.name, "has asked the pool %s more, and got no answer", history.Times(n))
		}
	}
	s.At(time.Duration(now) * time.Millisecond)
}

// free is what the pool could hand out to who asks.
func (s *story) free() int {
	held := 0
	for _, h := range s.pool {
		held += h.Held
	}
	return max(0, s.limit-held)
}

func (s *story) clock() time.Time { return t0.Add(s.Now()) }

// seen is what HAProxy says with a question.
func (p *party) seen() (count, places) {
	if !p.lent {
		return p.asked, places{}
	}
	return p.asked, places{Lent: true, Here: p.here + 1, Places: p.places}
}

// requests come one after another, and HAProxy asks about each. Those that are refused
// wait in line, if they may.
func (p *party) requests(n int, patient bool) {
	p.t.Helper()
	allowed, refused, waiting := 0, 0, 0
	credit := ""
	if p.lent {
		credit = fmt.Sprintf(", for HAProxy counts %s of the user in its %s", history.Plural(p.here, "request"), history.Plural(p.places, "place"))
	}
	for range n {
		seen, places := p.seen()
		v, w := p.Start(p.clock(), "alice", p.limit, seen, places)
		if w == nil && !v.Allowed && patient {
			v, w = p.Hold(p.clock(), "alice", p.limit, seen, places)
		}
		switch {
		case w != nil:
			waiting++
			p.waiting = append(p.waiting, w)
			if p.lent {
				p.here++ // HAProxy counts it while it waits
			}
		case v.Allowed:
			allowed++
			p.begin(1)
			if p.lent {
				p.here++
			}
		default:
			refused++
		}
	}
	p.Tell("agent "+p.name, "is asked about %s%s: %s", history.Plural(n, "request"), credit, history.Outcome(allowed, refused, waiting))
	p.drain()
}

// begin has HAProxy track requests that were asked about, and tell of them.
func (p *party) begin(n int) {
	p.asked.Tracked += int64(n)
	p.asked.Active += int64(n)
	p.Progress(p.clock(), "alice", p.limit, p.asked)
	p.check()
}

// end has requests end that were asked about.
func (p *party) end(n int) {
	p.asked.Active -= int64(n)
	p.here = max(p.native, p.here-n)
	p.Tell("HAProxy "+p.name, "says that %s ended; of those it asked about, %d go on", history.Plural(n, "request"), p.asked.Active)
	p.Progress(p.clock(), "alice", p.limit, p.asked)
	p.drain()
}

// natively has HAProxy admit requests by itself.
func (p *party) natively(n int) {
	p.t.Helper()
	if p.here+n > p.places || !p.lent {
		p.t.Fatalf("HAProxy would not admit %d beside %d, of %d places", n, p.here, p.places)
	}
	p.here, p.native = p.here+n, p.native+n
	p.Tell("HAProxy "+p.name, "admits %s by itself: it counts %d in its %s", history.Plural(n, "request"), p.here, history.Plural(p.places, "place"))
	p.check()
}

// lend gives HAProxy places, if it can have any.
func (p *party) lend() {
	p.t.Helper()
	if !p.Lendable(p.clock(), "alice") {
		p.Tell("agent "+p.name, "can lend HAProxy no places now")
		return
	}
	p.places, p.lent = p.Lend(p.clock(), "alice"), true
	p.here = int(p.asked.Active)
	if p.here > 1 {
		p.here = 1 // HAProxy counts the request that brought them, and none of before
	}
	p.Tell("agent "+p.name, "lends HAProxy %s with its answer", history.Plural(p.places, "place"))
	p.drain()
}

// withdrawn is the answer of HAProxy's runtime API: its count of the user.
func (p *party) withdrawn() {
	p.lent = false
	p.Tell("HAProxy "+p.name, "has no places any more, and counts %d of the user", p.here)
	p.Withdrawn(p.clock(), "alice", p.here)
	p.drain()
}

// endNatively has requests end that HAProxy admitted by itself, of which it does not tell.
func (p *party) endNatively(n int) {
	p.native, p.here = p.native-n, p.here-n
	p.Tell("HAProxy "+p.name, "sees %s end that it admitted by itself, and tells nobody", history.Plural(n, "request"))
}

// giveUp has those that wait do so no longer.
func (p *party) giveUp() {
	allowed, refused := 0, 0
	for _, w := range p.waiting {
		if p.Timeout(p.clock(), w).Allowed {
			allowed++
		} else {
			refused++
		}
	}
	p.waiting = nil
	p.Tell("agent "+p.name, "lets %s wait no longer: %s", history.Plural(allowed+refused, "request"), history.Outcome(allowed, refused, 0))
	if allowed > 0 {
		p.begin(allowed)
	}
	p.drain()
}

// drain tells of what became due.
func (p *party) drain() {
	out := p.TakeOutput()
	allowed, refused := 0, 0
	for _, w := range out.Decided {
		p.waiting = slices.DeleteFunc(p.waiting, func(other *concurrency.Waiting) bool { return other == w })
		if w.Verdict.Allowed {
			allowed++
		} else {
			refused++
		}
	}
	if allowed+refused > 0 {
		p.Tell("agent "+p.name, "decides %s that waited: %s", history.Plural(allowed+refused, "request"), history.Outcome(allowed, refused, 0))
		p.begin(allowed)
	}
	for _, n := range out.TableEntries {
		what := "to ask about each of alice's requests"
		if n.Until > 0 {
			what = fmt.Sprintf("to refuse alice by itself for %d s", n.Until-p.clock().Unix())
		}
		p.Tell("agent "+p.name, "tells HAProxy %s, and to admit up to %d should nobody answer", what, n.Cap)
	}
	for range out.Withdraw {
		p.Tell("agent "+p.name, "withdraws HAProxy's places")
	}
}

func (p *party) send() []concurrency.Ask {
	asks := p.Collect(p.clock(), true, nil)
	p.tellOf(asks)
	return asks
}

func (p *party) tellOf(asks []concurrency.Ask) {
	for _, a := range asks {
		refused := ""
		if a.Refused > 0 {
			refused = fmt.Sprintf(", and has refused %d meanwhile", a.Refused)
		}
		p.Tell("agent "+p.name, "asks the pool (number %d): it wants to hold %s and has %d in progress%s", a.Seq, history.Plural(a.Want, "slot"), a.Active, refused)
	}
}

// hear is the pool's.
func (p *party) hear(asks []concurrency.Ask) []concurrency.Grant {
	var grants []concurrency.Grant
	for _, a := range asks {
		known := a.Seq <= p.pool[p.name].Seq
		g := concurrency.Take(p.pool, len(p.live), p.name, a)
		what := ""
		if known {
			what = "has heard a later ask already: it "
		}
		p.Tell("the pool", "%slets instance %s hold %d of %d slots and has %d left", what, p.name, g.Held, a.Limit, max(0, g.Free))
		grants = append(grants, g)
	}
	return grants
}

func (p *party) answer(asks []concurrency.Ask, grants []concurrency.Grant) {
	for i, a := range asks {
		p.Reply(p.clock(), a, grants[i])
	}
	p.drain()
}

func (p *party) deliver(asks []concurrency.Ask) { p.answer(asks, p.hear(asks)) }

// flush sends what is to be sent, and hears the answer at once.
func (p *party) flush() { p.deliver(p.send()) }

func (p *party) lose(asks []concurrency.Ask) {
	for _, a := range asks {
		p.Fail(p.clock(), a)
	}
	p.Tell("agent "+p.name, "gets no answer")
	p.drain()
}

// running is what runs in truth.
func (p *party) running() int { return int(p.asked.Active) + p.native + p.old }

// check fails the test if more runs than may.
func (s *story) check() {
	s.t.Helper()
	if n := s.inProgress(); n > s.limit {
		s.t.Errorf("at %v %d requests are in progress, want at most %d", s.Now(), n, s.limit)
	}
}

func (s *story) inProgress() (n int) {
	for _, p := range s.all {
		n += p.running()
	}
	return n
}

// sum tells what runs in truth, and what the agents take for the most that may.
func (s *story) sum() {
	s.t.Helper()
	s.check()
	var bounds []string
	for _, p := range s.all {
		if p.Bound("alice") < p.running() {
			s.t.Errorf("agent %s takes %d for the most, and %d are in progress", p.name, p.Bound("alice"), p.running())
		}
		bounds = append(bounds, fmt.Sprintf("agent %s counts %d", p.name, p.Bound("alice")))
	}
	s.Tell("the cluster", "has %s in progress, of at most %d; %s", history.Plural(s.inProgress(), "request"), s.limit, history.List(bounds))
}

const twoInstances = `
    clients ──▶ HAProxy a ──▶ agent a ──┐
                                        ├──▶ pool (Redis): a holding for each instance
    clients ──▶ HAProxy b ──▶ agent b ──┘
`

func TestHistories(t *testing.T) {
	t.Run("cold user", coldUser)
	t.Run("places", placesLentAndWithdrawn)
	t.Run("line", waitingInLine)
	t.Run("lost Redis", lostRedis)
	t.Run("reload", reloadedHAProxy)
	t.Run("late messages", lateMessages)
}

func coldUser(t *testing.T) {
	s, all := tell(t, 10, 2, false, "A cold user in a cluster", `
This history shows why there are never more than 10 requests in progress, the limit, and how slots go to
where they are needed. A user whom no agent knows comes to both instances with more requests than that.
The first ones wait for the pool. Near the limit each instance holds what it runs, and what ends at one of
them is given back for the other.`, twoInstances)
	a, b := all[0], all[1]
	s.Part("Eight requests come to each HAProxy.")
	s.at(100)
	a.requests(8, false)
	b.requests(8, false)
	first, second := a.send(), b.send()
	s.at(101)
	a.deliver(first)
	b.deliver(second)
	a.flush()
	b.flush()
	s.sum()
	s.Part("Three of instance a's end. Its agent has no use for the slots, and instance b asks from time to time.")
	s.at(200)
	a.end(3)
	a.flush()
	s.at(300)
	b.requests(2, false)
	b.flush()
	s.at(400)
	s.sum()
	s.Part("All end. The pool knows of nothing in progress.")
	a.end(int(a.asked.Active))
	b.end(int(b.asked.Active))
	s.at(1500)
	s.sum()
	s.Check("cold-user")
}

func placesLentAndWithdrawn(t *testing.T) {
	s, all := tell(t, 40, 2, true, "Places are lent and withdrawn", `
This history shows how HAProxy comes to admit requests without asking, and how that ends without a request
above the limit of 40. HAProxy admits requests by itself while its count of the user is within its places:
a portion of 5, which counts as held for each live instance. About a request that finds more in HAProxy's
count it asks. Then the places are withdrawn, and what they admitted counts until it has ended.`, twoInstances)
	a := all[0]
	s.Part("A first request needs no ask, for the instance holds its portion. The answer lends places.")
	s.at(100)
	a.requests(1, false)
	a.flush()
	a.lend()
	s.at(300)
	a.natively(4)
	s.sum()
	s.Part("Two more find HAProxy's count beyond the places.")
	s.at(400)
	a.requests(2, false)
	a.flush()
	s.at(401)
	a.withdrawn()
	a.flush()
	s.sum()
	s.Part("From now on HAProxy's count is read again and again, until nothing is left of what the places admitted.")
	s.at(420)
	a.endNatively(3)
	s.at(421)
	a.Withdrawn(a.clock(), "alice", a.here)
	s.Tell("HAProxy a", "counts %d now", a.here)
	a.drain()
	s.sum()
	s.at(440)
	a.end(int(a.asked.Active))
	a.endNatively(1)
	s.at(441)
	a.here = 0
	a.Withdrawn(a.clock(), "alice", 0)
	s.Tell("HAProxy a", "counts none now")
	a.drain()
	s.at(1000)
	s.sum()
	s.Check("places")
}

func waitingInLine(t *testing.T) {
	s, all := tell(t, 3, 1, false, "Requests that wait in line", `
This history shows requests that wait for a slot instead of being refused, as a tier may allow. The limit is 3
requests in progress. Those that wait are served in the order in which they came, or refused when their
deadline is over. An instance that is alone decides by itself; what it tells the pool is for polygen,
which shows it.`, `
    client 5 ─ client 4 ─▶ │ 3 in progress │ ─▶ origin
              the line
`)
	a := all[0]
	s.Part("Five requests come, for three slots.")
	s.at(100)
	a.requests(5, true)
	s.sum()
	s.Part("One request ends, and the first in line is served.")
	s.at(200)
	a.end(1)
	s.sum()
	s.Part("The other request has waited for as long as it may.")
	s.at(1100)
	a.giveUp()
	s.at(1200)
	a.end(3)
	s.at(1300)
	s.sum()
	s.Check("line")
}

func lostRedis(t *testing.T) {
	s, all := tell(t, 12, 2, false, "Redis is lost, and found again", `
This history shows what agents do without their pool. Nothing waits for it. Of a user near the limit an agent
admits what it holds, and after a second its even part of the limit: 6 of 12. When Redis is back it hears
what is in progress, and decides again.`, twoInstances)
	a, b := all[0], all[1]
	s.Part("The user is near the limit: instance a runs 8, and b 2.")
	s.at(100)
	a.requests(8, false)
	a.flush()
	a.flush()
	b.requests(2, false)
	b.flush()
	b.flush()
	s.sum()
	s.Part("Redis is gone. Nobody gets more than they hold, at first.")
	s.at(200)
	s.away = true
	b.requests(3, false)
	b.lose(b.send())
	for _, p := range all {
		p.Lost(p.clock(), true)
		s.Tell("agent "+p.name, "takes Redis for lost")
		p.drain()
	}
	s.sum()
	s.Part("After a second each agent goes by its part of 6. Instance b may have that many, and a, which has 8, gets none.")
	s.at(1300)
	a.requests(1, false)
	a.end(3)
	b.requests(4, false)
	s.sum()
	s.Part("Redis comes back. Each agent tells it what is in progress.")
	s.at(2500)
	s.away = false
	for _, p := range all {
		p.Lost(p.clock(), false)
		s.Tell("agent "+p.name, "finds Redis again")
		p.drain()
		p.flush()
	}
	s.at(3000)
	a.requests(4, false)
	a.flush()
	s.at(3100)
	s.sum()
	s.Check("lost-redis")
}

func reloadedHAProxy(t *testing.T) {
	s, all := tell(t, 10, 1, false, "HAProxy is reloaded, and its old process still has requests", `
This history shows why a reload does not break the limit of 10 requests in progress. The new process counts
from nothing, and the old one's requests go on. Nobody tells of their end, so all of them count until the
old process has ended.`, `
                ┌─ old process: 6 in progress, tells nobody of their end
    HAProxy a ──┤
                └─ new process: counts from 0 ──▶ agent a
`)
	a := all[0]
	s.Part("Six requests are in progress.")
	s.at(100)
	a.requests(6, false)
	s.sum()
	s.Part("HAProxy is reloaded: another process takes over the session with the agent.")
	s.at(1000)
	a.old, a.asked = int(a.asked.Active), count{Process: 2}
	a.Replaced(a.clock())
	s.Tell("HAProxy a", "is another process now, which counts nothing")
	a.drain()
	a.requests(6, false)
	s.sum()
	s.Part("Four of the old process's end, which nobody can know.")
	s.at(2000)
	a.old -= 4
	a.requests(1, false)
	s.sum()
	s.Part("The old process has ended, and with it its requests.")
	s.at(3000)
	a.old = 0
	a.Drained(a.clock())
	s.Tell("HAProxy a", "has ended its old process")
	a.drain()
	a.requests(2, false)
	s.sum()
	s.Check("reload")
}

func lateMessages(t *testing.T) {
	s, all := tell(t, 10, 2, false, "Messages that are late, lost and out of order", `
This history shows that messages may be late, be lost or overtake each other without a slot that is held
twice, or lost. Each ask has a number, and the pool goes by the highest: an ask that comes late changes
nothing. An answer that was lost is made good by the next ask. The limit is 10 requests in progress.`, `
    agent a ──▶ number 4: wants 7 ──────────────────────▶ pool   late: changes nothing
    agent a ──▶ number 5: wants 4 ──▶ pool
`)
	a, b := all[0], all[1]
	s.Part("The answer to the first ask is lost. The request waits for 20 ms and is admitted, for nothing that is known speaks against it.")
	s.at(100)
	a.requests(1, false)
	first := a.send()
	a.hear(first)
	s.at(120)
	a.giveUp()
	a.lose(first)
	s.Part("The next ask says all that is to be known.")
	s.at(200)
	a.requests(2, false)
	a.flush()
	s.sum()
	s.Part("Two asks overtake each other: the older one, which wants more, comes last.")
	s.at(300)
	a.requests(3, false)
	older := a.send()
	s.at(320)
	a.giveUp()
	a.lose(older)
	a.end(5)
	a.flush()
	s.at(350)
	a.hear(older)
	s.Part("The other instance finds all that is free.")
	s.at(1000)
	b.requests(9, false)
	b.flush()
	b.flush()
	s.sum()
	s.Check("late-messages")
}
