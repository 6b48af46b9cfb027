package cost_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/internal/history"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The histories in testdata tell of one user, alice, who may have so many tokens in each
// minute. They are written by the very code that ships; when messages arrive is the test's.

const words = `
An instance is one HAProxy and its agent. User alice may have 1000 tokens in each minute, over all instances.
A request's estimate is charged to the minute when it starts. When it has ended, HAProxy sends a correction.`

const twoInstances = `
    clients ──▶ HAProxy a ──▶ agent a ──┐
                                        ├──▶ pool (Redis)
    clients ──▶ HAProxy b ──▶ agent b ──┘
`

var perMinute = []limits.Cost{{Unit: "tokens", Window: limits.Minute, Max: 1000}}

type story struct {
	*history.Book
	t     *testing.T
	redis *redis
}

type party struct {
	*story
	*cost.Agent
	name  string
	waits map[*cost.Waiting]string
}

func tell(t *testing.T, title, about string) (*story, *party, *party) {
	s := &story{Book: history.New(t, title, twoInstances, about, words), t: t, redis: newRedis()}
	var both []*party
	for i, name := range []string{"agent a", "agent b"} {
		p := &party{story: s, Agent: cost.NewAgent(cost.Config{}), name: name, waits: map[*cost.Waiting]string{}}
		p.Cluster(2, i)
		both = append(both, p)
	}
	return s, both[0], both[1]
}

// clock begins with a minute.
func (s *story) clock() time.Time { return time.Unix(start, 0).Add(s.Now()) }

func (s *story) at(seconds float64) { s.At(time.Duration(seconds * float64(time.Second))) }

func (p *party) request(name string, estimate int64) {
	v, w := p.Start(p.clock(), "alice", needs(perMinute, estimate))
	what := "lets it wait"
	if w != nil {
		p.waits[w] = name
	} else {
		what = outcome(v)
	}
	p.Tell(p.name, "is asked about %s, which may cost %d: it %s", name, estimate, what)
}

func outcome(v cost.Verdict) string {
	switch {
	case v.Allowed:
		return fmt.Sprintf("admits it, as of second %d", v.Second-start)
	case v.Cause == "estimate-too-large":
		return "refuses it, for it costs more than the whole limit"
	}
	return fmt.Sprintf("refuses it until second %d (%s)", v.End()-start, v.Cause)
}

func (p *party) settle(name string, second, charged, actual int64) {
	p.Tell("HAProxy "+p.name[len("agent "):], "says that %s, which was charged %d in second %d, has cost %d", name, charged, second, actual)
	p.Settle(p.clock(), "alice", start+second, actual-charged, perMinute)
}

func (p *party) send() []cost.Ask {
	asks := p.Collect(p.clock(), true, nil)
	for _, a := range asks {
		what := "asks for"
		if a.Forced {
			what = "corrects"
		}
		p.Tell(p.name, "sends batch %d to the pool: it %s %+d in the minute from second %d on", a.Seq, what, a.Entries[0].Change, a.Entries[0].Start-start)
	}
	p.decide()
	return asks
}

func (p *party) hear(asks []cost.Ask) []cost.Grant {
	known := p.redis.heard[p.Agent].Seq >= asks[0].Seq
	grants := p.redis.call(p.Agent, asks)
	for _, g := range grants {
		what := "refuses it:"
		switch {
		case known && g.Granted:
			what = "has heard this batch before, changes nothing, and says again that it granted it:"
		case known:
			what = "has heard this batch before, changes nothing, and says again that it refused it:"
		case g.Granted:
			what = "counts it:"
		}
		p.Tell("the pool", "%s that minute has %d of 1000", what, g.Totals[0])
	}
	return grants
}

func (p *party) answer(asks []cost.Ask, grants []cost.Grant) {
	for i, a := range asks {
		p.Reply(p.clock(), a, grants[i])
	}
	p.decide()
}

func (p *party) lose(asks []cost.Ask) {
	for _, a := range asks {
		p.Fail(p.clock(), a)
	}
	p.Tell(p.name, "gets no answer")
}

func (p *party) flush() {
	if asks := p.send(); len(asks) > 0 {
		p.answer(asks, p.hear(asks))
	}
}

func (p *party) decide() {
	for _, w := range p.TakeOutput().Decided {
		p.Tell(p.name, "decides %s: it %s", p.waits[w], outcome(w.Verdict))
		delete(p.waits, w)
	}
}

func (p *party) timeout(name string) {
	for w, n := range p.waits {
		if n == name {
			p.Tell(p.name, "lets %s wait no longer: it %s", name, outcome(p.Timeout(p.clock(), w)))
			delete(p.waits, w)
		}
	}
}

func (p *party) loses(lost bool) {
	what := "takes Redis for lost"
	if !lost {
		what = "finds Redis again"
	}
	p.Tell(p.name, "%s", what)
	p.Lost(p.clock(), lost)
	p.decide()
}

func TestHistories(t *testing.T) {
	t.Run("reserve and settle", reserveAndSettle)
	t.Run("lost answers", lostAnswers)
	t.Run("lost Redis", lostRedis)
}

func reserveAndSettle(t *testing.T) {
	s, a, b := tell(t, "Reserve, then settle", `
This history shows how a limit of what requests cost is kept and used. What a request may cost is reserved
when it starts. What it did not cost goes back to the minute in which it was charged, and can be used from either
instance. What a request costs beyond its estimate is paid by the present minute, and then by the next one.`)
	s.Part("The minute has 1000 tokens.")
	s.at(10)
	a.request("request 1", 600)
	a.flush()
	b.request("request 2", 300)
	b.flush()
	s.Part("Nothing is left for request 3. For a moment the agent does not ask about as much again.")
	s.at(12)
	a.request("request 3", 300)
	a.flush()
	s.at(12.010)
	a.request("request 4", 300)
	s.Part("Request 1 has cost 200. The rest can be used at once where it came back, and elsewhere.")
	s.at(15)
	a.settle("request 1", 10, 600, 200)
	a.request("request 5", 300)
	a.flush()
	b.request("request 6", 200)
	b.flush()
	s.Part("Request 2 costs more than was estimated. What the minute has too much, the next one begins with.")
	s.at(40)
	b.settle("request 2", 10, 300, 450)
	b.flush()
	s.at(60)
	a.request("request 7", 900)
	a.flush()
	a.request("request 8", 850)
	a.flush()
	s.Part("A refund of the minute before changes that one alone.")
	s.at(61)
	b.settle("request 6", 15, 200, 50)
	b.flush()
	s.Check("reserve-and-settle")
}

func lostAnswers(t *testing.T) {
	s, a, b := tell(t, "Answers that are lost", `
This history shows that nothing is charged twice, and that nothing stays reserved for a request that does not run. A
batch that got no answer is sent again as it was, and Redis, which remembers its number and what it granted, says so again.`)
	s.Part("The answer to the first batch is lost, and request 1 waits in vain.")
	s.at(1)
	a.request("request 1", 600)
	asks := a.send()
	a.hear(asks)
	a.lose(asks)
	s.at(1.020)
	a.timeout("request 1")
	s.Part("The request was refused, and its charge is granted. It goes back.")
	s.at(1.030)
	a.flush()
	a.flush()
	s.Part("A batch that was not heard is heard when it comes again, and not when it arrives late.")
	s.at(2)
	b.request("request 2", 700)
	late := b.send()
	b.lose(late)
	s.at(2.010)
	b.flush()
	b.hear(late)
	s.Check("lost-answers")
}

func lostRedis(t *testing.T) {
	s, a, b := tell(t, "Redis is lost, and found again", `
This history shows what agents do without Redis. Nothing waits for it. Each agent charges up to its part of the limit, 500 of
1000, by itself. What was charged is told when Redis is back.`)
	s.Part("Request 2 waits when Redis is lost.")
	s.at(1)
	a.request("request 1", 300)
	a.flush()
	a.request("request 2", 150)
	asks := a.send()
	s.at(1.1)
	a.lose(asks)
	a.loses(true)
	b.loses(true)
	s.Part("Each agent goes on by itself.")
	s.at(2)
	a.request("request 3", 100)
	b.request("request 4", 500)
	b.request("request 5", 1)
	b.settle("request 4", 2, 500, 400)
	b.request("request 6", 100)
	s.Part("Redis is back.")
	s.at(5)
	a.loses(false)
	b.loses(false)
	a.flush()
	a.flush()
	b.flush()
	b.request("request 7", 50)
	b.flush()
	s.Check("lost-redis")
}
