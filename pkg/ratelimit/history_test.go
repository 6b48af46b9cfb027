package ratelimit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/history"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// The histories in testdata tell of one user, alice, who may send so many GETs a second.
// They are written by the very code that ships. Only what a HAProxy admits by itself, and
// when messages arrive, is the test's.

// A story is a history with its agents, their HAProxies and the pool.
type story struct {
	*history.Book
	t     *testing.T
	limit int
	pool  pools

	reserve  int           // as last told
	admitted map[int64]int // by second, by whomever
}

const words = `
An instance is one HAProxy and its agent. User alice may send so many GETs in each second, over all instances.
A token is the right to admit one of them, and the pool in Redis has as many tokens of each second as the
limit. Without credit HAProxy asks its agent about each request, and the agent takes tokens from the pool.
With credit HAProxy admits some in each second by itself: its portion, which the pool has reserved.`

// A party is one instance.
type party struct {
	*story
	*ratelimit.Agent
	name   string
	behind time.Duration // of its clock
	waits  []*ratelimit.Waiting
}

var aliceGets = ratelimit.Key{Class: "GET", User: "alice"}

// tell begins a story with so many agents, who have known of each other for long.
func tell(t *testing.T, limit, agents int, title, about, diagram string) (*story, []*party) {
	s := &story{Book: history.New(t, title, diagram, about, words), t: t, limit: limit, pool: newPools(), admitted: map[int64]int{}}
	var all []*party
	for i := range agents {
		p := s.agent(string(rune('a' + i)))
		p.Cluster(t0.Add(-10*time.Second), agents, i)
		p.Cluster(t0.Add(-time.Second), agents, i)
		all = append(all, p)
	}
	return s, all
}

func (s *story) agent(name string) *party {
	return &party{story: s, Agent: ratelimit.NewAgent(ratelimit.Config{}), name: "agent " + name}
}

// at lets agents' ticks happen, every 5 ms, up to an instant. What they send is told, but
// of asks that get nothing only how many there were.
func (s *story) at(now int, agents ...*party) {
	vain := make([]int, len(agents))
	for at := s.Now() - s.Now()%(5*time.Millisecond) + 5*time.Millisecond; at < time.Duration(now)*time.Millisecond; at += 5 * time.Millisecond {
		s.At(at)
		for i, p := range agents {
			p.Tick(p.clock())
			asks := p.Collect(p.clock(), true, nil)
			if len(asks) == 1 && asks[0].Debt+asks[0].Back == 0 && s.pool.left(asks[0]) == 0 {
				vain[i]++
				p.Reply(p.clock(), asks[0], s.pool.hear(p.Agent, s.clock(), asks)[0])
				p.drain()
				continue
			}
			p.tellOf(asks)
			p.deliver(asks...)
		}
	}
	for i, n := range vain {
		if n > 0 {
			s.Tell(agents[i].name, "has asked the pool %s more, in vain", history.Times(n))
		}
	}
	s.At(time.Duration(now) * time.Millisecond)
}

// left is what the pool of an ask could still hand out.
func (p pools) left(a ratelimit.Ask) int {
	total, known := p.totals[poolKey{a.WindowStart, a.Key}]
	if !known {
		total = a.Reserve
	}
	return max(0, a.Limit-total)
}

func (s *story) clock() time.Time { return t0.Add(s.Now()) }

// clock is the agent's.
func (p *party) clock() time.Time { return p.story.clock().Add(-p.behind) }

// requests come one after another, of which HAProxy says what credit it has.
func (p *party) requests(n int, credit ratelimit.Credit) {
	p.t.Helper()
	said := map[ratelimit.Credit]string{
		ratelimit.NoCredit: "", ratelimit.Withheld: ", for which HAProxy has no credit", ratelimit.Spent: " beyond HAProxy's credit of this second",
	}[credit]
	allowed, refused, waiting := 0, 0, 0
	for range n {
		switch v, w := p.Start(p.clock(), "alice", get(p.limit), credit); {
		case w != nil:
			waiting++
			p.waits = append(p.waits, w)
		case v.Allowed:
			allowed++
		default:
			refused++
		}
	}
	p.count(allowed)
	p.Tell(p.name, "is asked about %s%s: %s", history.Plural(n, "request"), said, history.Outcome(allowed, refused, waiting))
	p.drain()
}

func (s *story) count(n int) { s.admitted[s.clock().Unix()] += n }

// drain tells of what became due.
func (p *party) drain() {
	out := p.TakeOutput()
	allowed, refused := 0, 0
	for _, w := range out.Decided {
		if w.Verdict.Allowed {
			allowed++
		} else {
			refused++
		}
	}
	if allowed+refused > 0 {
		p.count(allowed)
		p.Tell(p.name, "decides %s that waited: %s", history.Plural(allowed+refused, "request"), history.Outcome(allowed, refused, 0))
	}
	for _, n := range out.TableEntries {
		what := "refuse alice's GETs by itself until the second ends"
		if n.Lift {
			what = "refuse them no longer by itself"
		}
		p.Tell(p.name, "tells HAProxy to %s", what)
	}
	for range out.Withdraw {
		p.Tell(p.name, "has HAProxy's credit taken back")
	}
}

// send collects what the agent sends to the pool, and tells of it.
func (p *party) send() []ratelimit.Ask {
	asks := p.Collect(p.clock(), true, nil)
	p.tellOf(asks)
	return asks
}

func (p *party) tellOf(asks []ratelimit.Ask) {
	var seconds []string
	for _, a := range asks {
		var parts []string
		if a.Need > 0 {
			parts = append(parts, fmt.Sprintf("needs %s", history.Plural(a.Need, "token")))
		}
		if a.Ahead > 0 {
			parts = append(parts, fmt.Sprintf("would like %d ahead of need", a.Ahead))
		}
		if a.Debt > 0 {
			parts = append(parts, fmt.Sprintf("has admitted %d without a token", a.Debt))
		}
		if a.Back > 0 {
			parts = append(parts, fmt.Sprintf("gives %s back", history.Plural(a.Back, "token")))
		}
		reserve := ""
		if a.Reserve != p.reserve {
			p.reserve, reserve = a.Reserve, fmt.Sprintf(", and %d are reserved for the HAProxies' portions", a.Reserve)
		}
		seconds = append(seconds, fmt.Sprintf("of second %d it %s%s", a.WindowStart-t0.Unix(), history.List(parts), reserve))
	}
	if len(asks) > 0 {
		p.Tell(p.name, "sends batch %d to the pool: %s", asks[0].Seq, strings.Join(seconds, "; "))
	}
}

// deliver has the pool hear a batch, and the agent its answer.
func (p *party) deliver(asks ...ratelimit.Ask) {
	if len(asks) == 0 {
		return
	}
	p.answer(asks, p.hear(asks))
}

// hear is the pool's.
func (p *party) hear(asks []ratelimit.Ask) []ratelimit.Grant {
	if len(asks) == 0 {
		p.t.Fatal("nothing was sent")
	}
	known := p.pool.heard[p.Agent] >= asks[0].Seq
	grants := p.pool.hear(p.Agent, p.story.clock(), asks)
	for i, g := range grants {
		what := fmt.Sprintf("hands %s to %s", history.Plural(g.Tokens, "token"), p.name)
		switch {
		case known:
			what = "has heard this batch before, and changes nothing"
		case g.Tokens == 0 && asks[i].Need+asks[i].Ahead > 0:
			what = "has nothing left for " + p.name
		case g.Tokens > 0 && asks[i].Debt > 0:
			what += fmt.Sprintf(" and counts %d more", asks[i].Debt)
		case asks[i].Debt > 0:
			what = fmt.Sprintf("counts %d more", asks[i].Debt)
		case g.Tokens == 0:
			what = fmt.Sprintf("takes %s back", history.Plural(asks[i].Back, "token"))
		}
		p.Tell("the pool", "%s: of second %d it has now handed out %d of %d", what, asks[i].WindowStart-t0.Unix(), g.Total, p.limit)
	}
	return grants
}

func (p *party) answer(asks []ratelimit.Ask, grants []ratelimit.Grant) {
	for i, a := range asks {
		p.Reply(p.clock(), a, grants[i])
	}
	p.drain()
}

// lose has a batch get no answer.
func (p *party) lose(asks []ratelimit.Ask) {
	for _, a := range asks {
		p.Fail(p.clock(), a)
	}
	p.Tell(p.name, "gets no answer")
	p.drain()
}

// flush sends what is to be sent, and hears the answer at once.
func (p *party) flush() { p.deliver(p.send()...) }

// natively has HAProxy admit requests by itself.
func (p *party) natively(n int, what string) {
	p.count(n)
	p.Tell("HAProxy "+p.name[len("agent "):], "admits %s by itself%s", history.Plural(n, "request"), what)
}

// lend gives HAProxy credit, if it can have any.
func (p *party) lend(each int) {
	p.t.Helper()
	if !p.Lendable(p.clock(), "alice", get(p.limit)) {
		p.Tell(p.name, "can give HAProxy no credit now")
		return
	}
	from := p.clock().Unix() + 1
	p.Lend(p.clock(), "alice", get(p.limit), from)
	p.Tell(p.name, "gives HAProxy credit with its answer: %d requests a second, from second %d on", each, from-t0.Unix())
}

// recalled says what HAProxy had spent when its credit was taken back.
func (p *party) recalled(sec, spent, through int) {
	p.Recalled(p.clock(), "alice", get(p.limit)[0], t0.Unix()+int64(sec), spent, t0.Unix()+int64(through))
	p.Tell(p.name, "hears that HAProxy has no credit any more, through second %d, and that %d of second %d's were spent", through, spent, sec)
	p.drain()
}

// hot is polygen's hint.
func (s *story) hot(agents ...*party) {
	s.Tell("polygen", "says that alice is hot for three seconds, at %d instances", len(agents))
	for _, p := range agents {
		p.MarkHot(p.clock(), aliceGets, p.clock().Add(3*time.Second), len(agents))
		p.drain()
	}
}

// throttle is polygen's word that the second is spent.
func (s *story) throttle(second int, agents ...*party) {
	s.Tell("polygen", "says that second %d is spent", second)
	for _, p := range agents {
		p.Throttle(p.clock(), aliceGets, t0.Unix()+int64(second), s.limit)
		p.drain()
	}
}

// sum is what was admitted in a second, which is never above the limit where so many are
// the most that may be.
func (s *story) sum(second, most int) {
	s.t.Helper()
	n := s.admitted[t0.Unix()+int64(second)]
	if n > most {
		s.t.Errorf("second %d: %d were admitted, want at most %d", second, n, most)
	}
	s.Tell("the cluster", "has admitted %s in second %d; the limit is %d", history.Plural(n, "request"), second, s.limit)
}

const twoInstances = `
    clients ──▶ HAProxy a ──▶ agent a ──┐
                                        ├──▶ pool (Redis)   polygen hears the pool's totals
    clients ──▶ HAProxy b ──▶ agent b ──┘
`

func TestHistories(t *testing.T) {
	t.Run("cold user", coldUser)
	t.Run("credit", creditGivenAndWithdrawn)
	t.Run("lost Redis", lostRedis)
	t.Run("reload", reloadedHAProxy)
	t.Run("skewed clocks", skewedClocks)
	t.Run("late messages", lateMessages)
}

func coldUser(t *testing.T) {
	s, all := tell(t, 20, 2, "A cold user in a cluster", `
This history shows why nobody gets more than the limit in the first second either. A user whom no agent
knows comes to both instances at once, with far more than the limit of 20 GETs a second. The first request
of each agent waits for the pool, the others with it. The pool begins with the HAProxies' portions handed
out (4 of 20), because a HAProxy that had credit could spend its portion without asking anybody.`, twoInstances)
	a, b := all[0], all[1]
	s.Part("Second 0 has begun a while ago. Twelve requests come to each HAProxy.")
	s.at(300)
	a.requests(12, ratelimit.Withheld)
	b.requests(12, ratelimit.Withheld)
	first, second := a.send(), b.send()
	s.at(301)
	a.deliver(first...)
	b.deliver(second...)
	s.hot(a, b)
	s.Part("An agent that finds nothing left asks the pool again now and then, for others may give something back.")
	s.at(305)
	a.requests(3, ratelimit.Withheld)
	s.throttle(0, a, b)
	s.at(1000, a, b)
	s.sum(0, 20)
	s.Part("The HAProxies refused by themselves for the rest of the second, so no agent was asked. Each agent has given its HAProxy's portion of second 1 back before that began: all of the limit is in the pool.")
	s.at(1001)
	a.requests(12, ratelimit.Withheld)
	b.requests(12, ratelimit.Withheld)
	a.flush()
	b.flush()
	a.flush()
	b.flush()
	s.at(2000, a, b)
	s.sum(1, 20)
	s.Check("cold-user")
}

func creditGivenAndWithdrawn(t *testing.T) {
	s, all := tell(t, 100, 2, "Credit is given and withdrawn", `
This history shows how HAProxy comes to admit requests without asking, and why that never breaks the limit
of 100 GETs a second. Far from the limit HAProxy admits 12 a second by itself, a portion that every agent
has reserved in the pool. When the user becomes hot, that is near the limit, the credit is taken back, so
that all of the limit can go to where the requests are.`, twoInstances)
	a, b := all[0], all[1]
	s.Part("A first request comes. Its answer brings credit, which begins with the next second.")
	s.at(400)
	a.requests(1, ratelimit.Withheld)
	a.flush()
	a.lend(12)
	s.at(1000, a, b)
	s.sum(0, 100)
	s.Part("HAProxy renews its credit in each second.")
	s.at(1500, a, b)
	a.natively(12, "")
	a.requests(1, ratelimit.Spent)
	a.flush()
	s.at(2000, a, b)
	s.sum(1, 100)
	s.Part("Now there are many requests, and polygen says so. Each instance takes its HAProxy's credit back; agent b, where alice never was, gives its portion to the pool.")
	s.at(2100, a, b)
	a.natively(12, "")
	a.requests(60, ratelimit.Spent)
	a.flush()
	s.hot(a, b)
	s.at(2102)
	a.recalled(2, 12, 5)
	b.recalled(2, 0, 5)
	a.flush()
	b.flush()
	s.at(2200)
	a.requests(40, ratelimit.Withheld)
	a.flush()
	s.at(2300)
	a.flush()
	s.at(3000, a, b)
	s.sum(2, 100)
	s.Part("While the recall lasts agent b gives its portion back ahead of each second, and agent a uses its own.")
	s.at(3100)
	a.requests(120, ratelimit.Withheld)
	a.flush()
	s.at(4000, a, b)
	s.sum(3, 100)
	s.Check("credit")
}

func lostRedis(t *testing.T) {
	s, all := tell(t, 40, 2, "Redis is lost, and found again", `
This history shows what agents do without their pool. Nothing waits for it. Of a hot user, one near the
limit, each agent admits its part of the limit by itself: 20 of 40 a second. What was admitted meanwhile is
reported when Redis is back, so that the second in which it comes back is not above the limit.`, twoInstances)
	a, b := all[0], all[1]
	s.Part("alice comes to both instances, and polygen calls the user hot.")
	s.at(100)
	a.requests(1, ratelimit.NoCredit)
	a.flush()
	b.requests(1, ratelimit.NoCredit)
	b.flush()
	s.hot(a, b)
	s.at(200)
	a.requests(8, ratelimit.NoCredit)
	lost := a.send()
	s.at(300)
	a.lose(lost)
	for _, p := range all {
		p.Lost(p.clock(), true)
		s.Tell(p.name, "takes Redis for lost")
		p.drain()
	}
	s.Part("Each agent goes on by itself.")
	s.at(1100)
	a.requests(30, ratelimit.NoCredit)
	b.requests(10, ratelimit.NoCredit)
	s.sum(1, 40)
	s.Part("Redis is back. The other agent may still have to report what it admitted in this second, so each keeps to its part until the second ends.")
	s.at(1500)
	for _, p := range all {
		p.Lost(p.clock(), false)
		s.Tell(p.name, "finds Redis again")
		p.drain()
		p.flush()
		p.flush()
	}
	b.requests(5, ratelimit.NoCredit)
	b.flush()
	s.at(2000, a, b)
	s.sum(1, 40)
	s.Part("The next second is as any other.")
	s.at(2100)
	a.requests(30, ratelimit.NoCredit)
	b.requests(30, ratelimit.NoCredit)
	a.flush()
	b.flush()
	s.at(3000, a, b)
	s.sum(2, 40)
	s.Check("lost-redis")
}

func reloadedHAProxy(t *testing.T) {
	s, all := tell(t, 100, 2, "HAProxy is reloaded, and its old process still spends", `
This history shows why a reload does not break the limit of 100 GETs a second. The new process of HAProxy
has an empty table, and says so. The old one may have credit until its second ends, and what it spent
nobody reads any more. So all of its portion counts as spent in that second, and the next second's belongs
to the new process.`, `
                ┌─ old process: still has credit, until the second ends
    HAProxy a ──┤
                └─ new process: has none ──▶ agent a ──▶ pool (Redis)
`)
	a, b := all[0], all[1]
	s.Part("HAProxy a has credit of 12 a second.")
	s.at(400)
	a.requests(1, ratelimit.Withheld)
	a.flush()
	a.lend(12)
	s.at(1200, a, b)
	a.natively(5, "")
	s.Part("HAProxy a is reloaded. Its agent takes the credit back at once, but only the new process answers.")
	s.at(1300, a, b)
	a.Reloaded(a.clock())
	s.Tell(a.name, "hears that HAProxy was reloaded")
	a.drain()
	s.at(1301)
	a.recalled(1, 0, 2)
	a.flush()
	a.natively(7, ", by its old process, which nobody hears of")
	s.at(1400, a, b)
	a.requests(80, ratelimit.Withheld)
	a.flush()
	a.flush()
	s.at(2000, a, b)
	s.sum(1, 100)
	s.Part("In the next second nothing of the old process is left: agent a has the portion.")
	s.at(2100, a, b)
	a.requests(20, ratelimit.Withheld)
	a.flush()
	s.at(3000, a, b)
	s.sum(2, 100)
	s.Check("reload")
}

func skewedClocks(t *testing.T) {
	s, all := tell(t, 10, 2, "Clocks that are 30 ms apart", `
This history shows that agents need not agree on the time to the millisecond. Agents go by the clock of
Redis, as each of them estimates it. One that is behind asks for tokens of a second that is over
elsewhere. It gets those of that second's pool and of no other, and admits nothing with them in its next
second. The limit is 10 GETs a second. Both agents expect requests, so they ask ahead of need.`, `
    agent a: ───────────────│ second 1 ──────▶
    agent b: ─────────────────│ second 1 ────▶    30 ms later
`)
	a, b := all[0], all[1]
	b.behind = 30 * time.Millisecond
	s.Part("Both have requests in second 0.")
	s.at(500)
	a.requests(2, ratelimit.NoCredit)
	a.flush()
	b.requests(2, ratelimit.NoCredit)
	b.flush()
	s.at(990, a, b)
	s.Part("Second 1 begins for agent a, and 30 ms later for agent b.")
	s.at(1010, a, b)
	a.requests(9, ratelimit.NoCredit)
	a.flush()
	b.requests(9, ratelimit.NoCredit)
	b.flush()
	s.at(1040, a, b)
	s.Part("What agent b admitted before was of second 0. Of second 1 agent a, who was first, has nearly all.")
	b.requests(9, ratelimit.NoCredit)
	b.flush()
	s.at(1100, a, b)
	s.Tell("the cluster", "has admitted %d in second 0 and %d in second 1 by an exact clock, for agent b's second 0 ended later",
		s.admitted[t0.Unix()], s.admitted[t0.Unix()+1])
	for second, total := range map[int64]int{0: 10, 1: 10} {
		if got := s.pool.totals[poolKey{t0.Unix() + second, aliceGets}]; got > total {
			t.Errorf("the pool of second %d has handed out %d, want %d at most", second, got, total)
		}
	}
	s.Check("skewed-clocks")
}

func lateMessages(t *testing.T) {
	s, all := tell(t, 10, 1, "Messages that are late, lost and repeated", `
This history shows that messages may be late, be lost or come twice without a token that is counted twice,
or not at all. Reports have the number of their batch. One that got no answer is sent again under its
number, whether the pool has heard it or not, and the pool counts it once. An answer that comes when its
second is over admits nobody. The limit is 10 GETs a second; there is another agent, which does nothing.`, `
    agent a ──▶ batch 2 ──▶ pool        heard, counted
    agent a ◀── (lost) ◀─── pool
    agent a ──▶ batch 2 ──▶ pool        heard before: nothing is counted
`)
	a := all[0]
	a.Cluster(t0.Add(-10*time.Second), 2, 0)
	a.Cluster(t0.Add(-time.Second), 2, 0)
	s.Part("The answer to the first ask is lost. The requests wait for 20 ms. Then the agent decides without the pool: of a user who is not hot, its even part of the limit may pass.")
	s.at(100)
	a.requests(2, ratelimit.NoCredit)
	asks := a.send()
	a.hear(asks)
	s.at(120)
	allowed := 0
	for _, w := range a.waits {
		if a.Timeout(a.clock(), w).Allowed {
			allowed++
		}
	}
	a.count(allowed)
	a.Tell(a.name, "gives up waiting for an answer: %s", history.Outcome(allowed, len(a.waits)-allowed, 0))
	s.at(200)
	a.lose(asks)
	s.Part("What it had to report is reported, with a number of its own.")
	report := a.send()
	a.hear(report)
	s.at(300)
	a.lose(report)
	s.Part("That answer was lost, too. The batch comes again, and changes nothing.")
	a.flush()
	s.Part("An ask for tokens gets its answer when its second is over. The tokens go back, and the requests get some of the new second.")
	s.at(900)
	a.requests(3, ratelimit.NoCredit)
	asks = a.send()
	grants := a.hear(asks)
	s.at(1050)
	s.Tell(a.name, "hears this answer only now")
	a.answer(asks, grants)
	s.at(1100, a)
	a.requests(2, ratelimit.NoCredit)
	a.flush()
	s.at(2000, a)
	s.sum(0, 10)
	s.sum(1, 10)
	s.Check("late-messages")
}
