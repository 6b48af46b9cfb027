package bandwidth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/internal/history"
)

// The histories in testdata tell of one user, alice, whose downloads are limited. They are
// written by the very code that ships. Only what a HAProxy does, and when messages arrive,
// is the test's: HAProxy tells its counters every 200 ms, and a transfer follows another
// share after 50 ms.

const (
	megabyte = 1_000_000
	pushSpan = 200 * time.Millisecond
	exactly  = 1.01 // what all may move at most, of the limit
)

// A story is a history with its agents, their HAProxies and polygen.
type story struct {
	*history.Book
	t     *testing.T
	limit bandwidth.Limit
	watch *bandwidth.Watch
	away  bool // polygen does not hear anything, nor say
	all   []*party
}

const words = `
An instance is one HAProxy and its agent. The downloads of user alice are limited in bytes per second, over all
instances together. A share is an instance's part of that limit: its HAProxy holds the downloads there to it.
Agents report what is in progress, what it moves and what it could use, and polygen divides the limit.`

// A party is one instance: its agent, and what its HAProxy moves.
type party struct {
	*story
	*bandwidth.Agent
	name      string
	deaf      bool       // what polygen says is lost on its way
	transfers []*float64 // what each one's client can do, in bytes per second; 0: any number
	active    int64
	moved     float64
	share     int64 // in force
	next      int64 // what they will follow
	nextAt    time.Duration
	old       float64 // bytes per second that a process moves which was replaced
	said      bandwidth.Report
	again     int // reports that said the same
}

// tell begins a story of a limit in MB/s with so many instances, who have known of each
// other for long. The share of those of whom polygen has said nothing is 1 MB/s.
func tell(t *testing.T, limit int64, instances int, title, about, diagram string) (*story, []*party) {
	s := &story{
		Book: history.New(t, title, diagram, about, words), t: t, watch: bandwidth.NewWatch(),
		limit: bandwidth.Limit{Bytes: [2]int64{limit * megabyte, 0}, Default: [2]int64{megabyte, 0}},
	}
	var names []string
	for i := range instances {
		name := string(rune('a' + i))
		p := &party{story: s, name: name, Agent: bandwidth.NewAgent(bandwidth.Config{Instance: name})}
		p.Cluster(t0.Add(-time.Minute), instances)
		p.TakeOutput()
		names, s.all = append(names, name), append(s.all, p)
	}
	s.watch.Instances(t0.Add(-time.Minute), names)
	return s, s.all
}

func (s *story) clock() time.Time { return t0.Add(s.Now()) }

// at lets time pass, 5 ms at a time.
func (s *story) at(now int) {
	until := time.Duration(now) * time.Millisecond
	for s.Now() < until {
		s.At(s.Now() + step)
		for _, p := range s.all {
			p.move()
			if s.Now()%pushSpan == 0 && p.active > 0 {
				p.push()
			}
			p.Tick(s.clock())
			p.drain()
		}
		if s.Now()%(50*time.Millisecond) == 0 && !s.away {
			s.watch.Tick(s.clock())
			s.publish()
		}
	}
	for _, p := range s.all {
		if p.again > 0 {
			p.Tell("agent "+p.name, "has reported the same %s more", history.Times(p.again))
			p.again = 0
		}
	}
}

// rate is what HAProxy's transfers move now.
func (p *party) rate() float64 {
	want := 0.0
	for _, most := range p.transfers {
		if *most == 0 {
			return float64(p.share)
		}
		want += *most
	}
	return min(want, float64(p.share))
}

func (p *party) move() {
	if p.next != p.share && p.Now() >= p.nextAt {
		p.share = p.next
	}
	p.moved += p.rate() * step.Seconds()
}

// push has HAProxy tell its counters.
func (p *party) push() {
	p.Progress(p.clock(), "alice", p.limit, bandwidth.Asked, bandwidth.Count{Active: p.active, Moved: [2]int64{int64(p.moved), 0}})
	p.drain()
}

// begin has a request come with a transfer, whose client can do so many MB/s; 0 is any
// number.
func (p *party) begin(most float64) *float64 {
	most *= megabyte
	share := p.Start(p.clock(), "alice", p.limit)
	if p.active == 0 {
		p.share, p.next = share[bandwidth.Down], share[bandwidth.Down]
	}
	client := ""
	if most > 0 {
		client = " by a client that can take " + mb(int64(most))
	}
	p.Tell("agent "+p.name, "is asked about a download%s, which begins with a share of %s", client, mb(share[bandwidth.Down]))
	p.transfers = append(p.transfers, &most)
	p.active++
	p.push()
	return &most
}

// end has the first so many transfers end.
func (p *party) end(n int) {
	p.transfers, p.active = p.transfers[n:], p.active-int64(n)
	p.Tell("HAProxy "+p.name, "says that %s ended, and %d go on", history.Plural(n, "download"), p.active)
	p.push()
}

func mb(n int64) string { return fmt.Sprintf("%.2f MB/s", float64(n)/megabyte) }

// drain sends what became due.
func (p *party) drain() {
	for _, e := range p.TakeOutput().TableEntries {
		share := e.Share[bandwidth.Down]
		if share != p.next {
			p.next, p.nextAt = share, p.Now()+50*time.Millisecond
			p.Tell("agent "+p.name, "sets HAProxy's share to %s", mb(share))
		}
	}
	for _, r := range p.Collect(p.clock(), nil) {
		p.tellOf(r)
		if !p.away {
			p.watch.Observe(p.clock(), r, p.limit.Bytes)
			p.publish()
		}
	}
}

// tellOf tells of a report, if it says something new.
func (p *party) tellOf(r bandwidth.Report) {
	const d = bandwidth.Down
	told := p.said
	if r.Active == told.Active && r.Share == told.Share && near(r.Most[d], told.Most[d]) && near(r.Moved[d], told.Moved[d]) {
		p.again++
		return
	}
	p.said = r
	can := "could move more"
	if r.Most[d] > 0 {
		can = "could move " + mb(r.Most[d])
	}
	if r.Active == 0 {
		p.Tell("agent "+p.name, "reports that nothing is in progress")
		return
	}
	share := "that it has no share"
	if r.Share[d] > 0 {
		share = "a share of " + mb(r.Share[d])
	}
	p.Tell("agent "+p.name, "reports %s in progress at %s that %s, and %s", history.Plural(r.Active, "download"), mb(r.Moved[d]), can, share)
}

// near is as good as the same, to a reader.
func near(a, b int64) bool { return a == b || a > 0 && b > 0 && max(a-b, b-a) < max(a, b)/50 }

// publish delivers what polygen has decided.
func (s *story) publish() {
	for _, sharing := range s.watch.Sharings() {
		sum := int64(0)
		var parts []string
		for _, share := range sharing.Shares {
			sum += share.Bytes
			parts = append(parts, fmt.Sprintf("%s for %s", mb(share.Bytes), share.Instance))
		}
		if sum > s.limit.Bytes[sharing.Direction] {
			s.t.Errorf("at %v shares add up to %d, want at most %d", s.Now(), sum, s.limit.Bytes[sharing.Direction])
		}
		s.Tell("polygen", "divides the limit: %s", history.List(parts))
		concerned := sharing.Concerned()
		for _, p := range s.all {
			if !slices.Contains(concerned, p.name) {
				continue
			}
			if p.deaf {
				s.Tell("agent "+p.name, "does not hear of it")
				continue
			}
			p.Share(s.clock(), sharing)
			p.drain()
		}
	}
}

// sum tells what all move, which must be within the limit unless more is said.
func (s *story) sum(most float64) {
	s.t.Helper()
	total := 0.0
	var parts []string
	for _, p := range s.all {
		total += p.rate() + p.old
		parts = append(parts, fmt.Sprintf("%s at %s", mb(int64(p.rate()+p.old)), p.name))
	}
	limit := float64(s.limit.Bytes[bandwidth.Down])
	if total > most*limit {
		s.t.Errorf("at %v all move %.0f, want at most %.2f of %.0f", s.Now(), total, most, limit)
	}
	s.Tell("the cluster", "moves %s, of a limit of %s: %s", mb(int64(total)), mb(int64(limit)), history.List(parts))
}

const twoSharers = `
    alice ◀── HAProxy a ◀── share ── agent a ──┐ what is in progress, moves, could move
                                               ├──▶ polygen: who gets which share
    alice ◀── HAProxy b ◀── share ── agent b ──┘
`

func TestHistories(t *testing.T) {
	t.Run("cold user", coldUser)
	t.Run("slow client", slowClient)
	t.Run("credit", lentShares)
	t.Run("lost polygen", lostPolygen)
	t.Run("reload", reloadedHAProxy)
	t.Run("lost share", lostShare)
	t.Run("new limit", newLimit)
}

func coldUser(t *testing.T) {
	s, all := tell(t, 10, 2, "A cold user in a cluster", `
This history shows how a limit of 10 MB/s comes to be divided between two instances. A user whom no agent
knows downloads at both. A download begins with the default share of 1 MB/s. Some milliseconds later
polygen divides the limit by how many downloads are in progress at each.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("Three downloads begin at instance a.")
	s.at(100)
	a.begin(0)
	a.begin(0)
	a.begin(0)
	s.at(1000)
	s.sum(exactly)
	s.Part("Another download begins at b.")
	b.begin(0)
	s.sum(1.11)
	s.at(2000)
	s.sum(exactly)
	s.Part("All of a's downloads end. What has ended counts for another 0.2 s, in case others follow.")
	a.end(3)
	s.at(3000)
	s.sum(exactly)
	s.Check("cold-user")
}

func slowClient(t *testing.T) {
	s, all := tell(t, 10, 2, "A share that cannot be used", `
This history shows that a part of the limit which one instance cannot use goes to the other. A client at
instance b can take only 2 MB/s. Its agent finds out from what HAProxy moves: b keeps that, 5 % more and
half a per cent of the limit, and a gets the rest. When the client becomes faster it moves all of its
share, and is given more step by step.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("A download begins at each instance.")
	s.at(100)
	a.begin(0)
	client := b.begin(2)
	s.at(4000)
	s.sum(exactly)
	s.Part("The client becomes faster.")
	*client = 0
	s.at(9000)
	s.sum(exactly)
	s.Check("slow-client")
}

func lentShares(t *testing.T) {
	s, all := tell(t, 10, 2, "Requests by credit", `
This history shows how bandwidth is divided when HAProxy has credit, that is, when it admits requests without
asking. These begin with the share that every instance may always have, for it stays as it is while the
credit lasts. HAProxy tells of a large body at once, in a table of its own; the agent sees small answers
when it reads the table of credit.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("The answer that brings credit to HAProxy b says its share, too.")
	s.at(100)
	b.Tell("agent b", "gives HAProxy credit, and with it a share of %s", mb(b.Lend(s.limit)[bandwidth.Down]))
	s.Part("A download at a has all of the limit.")
	a.begin(0)
	s.at(1000)
	s.sum(exactly)
	s.Part("At b small answers move 0.6 MB/s by credit. The agent reads that, and polygen leaves them room.")
	b.Tell("HAProxy b", "has moved 0.60 MB/s by credit")
	b.Lent(s.clock(), "alice", s.limit, [2]int64{600_000, 0})
	b.drain()
	s.at(2000)
	s.Part("Now it is so little that it is not worth a report: 0.02 MB/s, less than 0.5 % of the limit for both instances.")
	b.Tell("HAProxy b", "has moved 0.02 MB/s by credit")
	b.Lent(s.clock(), "alice", s.limit, [2]int64{20_000, 0})
	b.drain()
	s.at(3000)
	s.sum(exactly)
	s.Part("HAProxy b admits a download by credit. It holds that to the share, and tells of it.")
	b.share, b.next = megabyte, megabyte
	var any float64
	b.transfers, b.active = append(b.transfers, &any), 1
	b.Tell("HAProxy b", "begins a download by credit, and tells of it")
	b.Progress(s.clock(), "alice", s.limit, bandwidth.Held, bandwidth.Count{Active: 1})
	b.drain()
	s.sum(1.11)
	for now := 3200; now <= 4000; now += 200 {
		s.held(b, now)
	}
	s.sum(exactly)
	s.Check("credit")
}

// held lets time pass in which what an instance moves is by credit.
func (s *story) held(p *party, now int) {
	active := p.active
	p.active = 0 // of those that were asked about
	s.at(now)
	p.active = active
	p.Progress(s.clock(), "alice", s.limit, bandwidth.Held, bandwidth.Count{Active: active, Moved: [2]int64{int64(p.moved), 0}})
	p.drain()
}

func lostPolygen(t *testing.T) {
	s, all := tell(t, 10, 2, "Polygen is lost, and found again", `
This history shows what holds when polygen is gone, or Redis, and nobody divides the limit. Each HAProxy goes
on with its last share, for 60 s. Then each instance has the default share of 1 MB/s, until somebody
divides again.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("Three downloads begin at instance a, and one at b.")
	s.at(100)
	a.begin(0)
	a.begin(0)
	a.begin(0)
	b.begin(0)
	s.at(2000)
	s.sum(exactly)
	s.Part("Polygen is gone. Another download at b changes nothing.")
	s.away = true
	s.at(3000)
	b.begin(0)
	s.at(50_000)
	s.sum(exactly)
	s.Part("The shares end 60 s after polygen's last word.")
	s.at(70_000)
	s.sum(exactly)
	s.Part("Another polygen leads. It knows nobody, and divides among those whom it has heard.")
	s.away, s.watch = false, bandwidth.NewWatch()
	s.at(72_000)
	s.sum(exactly)
	s.Check("lost-polygen")
}

func reloadedHAProxy(t *testing.T) {
	s, all := tell(t, 10, 2, "HAProxy is reloaded, and its old process still moves", `
This history shows a time at which alice may have more than the limit. The new process has nothing
in progress. Nobody tells what the old one moves: it goes on with the share that it has, and until it has
ended alice may have the limit and that share.`, `
                ┌─ old process: moves its share, tells nobody
    HAProxy a ──┤
                └─ new process: nothing in progress ──▶ agent a ──▶ polygen
`)
	a, b := all[0], all[1]
	s.Part("A download begins at each instance.")
	s.at(100)
	a.begin(0)
	b.begin(0)
	s.at(2000)
	s.sum(exactly)
	s.Part("HAProxy a is reloaded, and its agent says at once that nothing is in progress.")
	a.old, a.transfers, a.active, a.moved = a.rate(), nil, 0, 0
	a.Restarted(s.clock())
	a.Tell("HAProxy a", "is another process now; the old one moves %s", mb(int64(a.old)))
	a.drain()
	s.at(3000)
	s.sum(1.51)
	s.Part("A download begins at the new process, and the old one ends.")
	a.begin(0)
	s.at(3500)
	a.old = 0
	a.Tell("HAProxy a", "has ended its old process")
	s.at(5000)
	s.sum(exactly)
	s.Check("reload")
}

func lostShare(t *testing.T) {
	s, all := tell(t, 10, 2, "A share that is lost on its way", `
This history shows why shares need no acknowledgement. Reports say which share the instance has. One that
has another share than it was sent 0.25 s ago has missed the message, and all are told again.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("A download begins at b.")
	s.at(100)
	b.begin(0)
	s.at(2000)
	s.sum(exactly)
	s.Part("One begins at a, and b does not hear that it has half of the limit now.")
	b.deaf = true
	a.begin(0)
	s.at(2100)
	s.sum(1.51)
	s.Part("The next message arrives.")
	b.deaf = false
	s.at(3000)
	s.sum(exactly)
	s.Check("lost-share")
}

func newLimit(t *testing.T) {
	s, all := tell(t, 10, 2, "The limit changes", `
This history shows what an edit of the limit file does to downloads in progress. A limit that becomes smaller
is kept at once: each agent makes its share smaller by itself. One that grows waits for polygen, for an
agent does not know the other instances' shares.`, twoSharers)
	a, b := all[0], all[1]
	s.Part("Three downloads begin at instance a, and one at b.")
	s.at(100)
	a.begin(0)
	a.begin(0)
	a.begin(0)
	b.begin(0)
	s.at(2000)
	s.sum(exactly)
	s.Part("The limit becomes 4 MB/s.")
	s.change(4)
	s.at(3000)
	s.sum(exactly)
	s.Part("It becomes 20 MB/s.")
	s.change(20)
	s.at(4000)
	s.sum(exactly)
	s.Check("new-limit")
}

// change tells all agents of another limit, in MB/s, before polygen divides it.
func (s *story) change(limit int64) {
	s.limit.Bytes[bandwidth.Down] = limit * megabyte
	for _, p := range s.all {
		p.Tell("agent "+p.name, "is told of the limit of %s", mb(limit*megabyte))
		p.Limits(s.clock(), func(string) bandwidth.Limit { return s.limit })
	}
	for _, p := range s.all {
		p.drain()
	}
}
