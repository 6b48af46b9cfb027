package judge

import (
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// Drain is how long a reloaded HAProxy goes on in a run. Behind a link its agent does not see the end, and counts its requests.
const Drain = 10 * time.Second

// How long it takes to notice that a part is away: an agent, by two checks of HAProxy; Redis, by 0.1 s without an answer and the
// wait of the last question, and as long again where processes wait for a processor.
const (
	agentUnnoticed = time.Second
	redisUnnoticed = 400 * time.Millisecond
)

// Parts of a limit below which users may be refused.
var (
	anything    = &part{}
	evenPart    = &part{even: 1}
	quarterPart = &part{even: .25}
)

// Effects of parts that are away or late.
var (
	// Without its agent a HAProxy admits an even part, and the other HAProxies the whole limit until they drop the agent from the
	// list; its slots are free to others although its requests go on, and so is its share of the bandwidth. Users with credit, a
	// quarter of an even part, are refused beyond it until HAProxy notices. Costs are known to the agent alone.
	agentAway = effect{
		requests: plus(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded,
		refusedRate: quarterPart, refusedInProgress: quarterPart, refusedCost: anything, unnoticed: agentUnnoticed, alone: true, recovery: 5 * time.Second,
	}
	agentReset = effect{
		requests: plus(1), byDefault: true, inProgress: plus(1), bytes: plus(1), costs: unbounded,
		refusedRate: quarterPart, refusedInProgress: quarterPart, refusedCost: anything, unnoticed: agentUnnoticed, alone: true, recovery: 2 * time.Second,
	}
	agentRestarted = effect{
		inProgress: plus(1), bytes: double, costs: unbounded,
		refusedRate: evenPart, refusedInProgress: evenPart, refusedCost: anything, recovery: 5 * time.Second,
	}
	agentLate = effect{
		requests: plus(.1), byDefault: true, inProgress: plus(1), costs: unbounded,
		refusedRate: anything, refusedInProgress: anything, refusedCost: anything, waits: part{whole: 10}, recovery: 2 * time.Second,
	}
	agentSlow = effect{
		requests: plus(1), byDefault: true, inProgress: plus(1), bytes: plus(1), costs: unbounded,
		refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: 2 * time.Second,
	}
	agentNoFiles = effect{
		requests: unbounded, inProgress: unbounded, byDefault: true, costs: unbounded,
		refusedRate: quarterPart, refusedInProgress: quarterPart, refusedCost: anything, alone: true, recovery: 2 * time.Second,
	}

	haproxyEnded = effect{bytes: plus(1), refusedCost: anything, fails: itsOwn, forgets: true, recovery: time.Second}
	haproxyStops = effect{bytes: double, refusedRate: evenPart, refusedCost: anything, fails: itsOwn, recovery: time.Second}
	haproxyFull  = effect{
		requests: plus(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded,
		refusedRate: quarterPart, refusedInProgress: anything, refusedCost: anything, fails: itsOwn, recovery: 2 * time.Second,
	}
	haproxyReloaded = effect{
		requests: plus(.25), bytes: double, refusedInProgress: anything, refusedCost: anything, recovery: 2 * time.Second, drains: Drain + 2*time.Second,
	}

	// Without Redis each instance has an even part by itself; a replica takes over within five seconds.
	redisAway = effect{
		requests: perEach, inProgress: perEach, bytes: plus(1), costs: perEach,
		refusedRate: evenPart, refusedInProgress: evenPart, refusedCost: anything, unnoticed: redisUnnoticed, recovery: 5 * time.Second,
	}
	redisRefuses = redisAway.noticed().recovers(2 * time.Second)
	redisEmptied = effect{requests: double, inProgress: double, costs: double, refusedRate: anything, refusedCost: anything, recovery: 2 * time.Second}
	nodesSlow    = effect{
		requests: perEach, inProgress: perEach, bytes: plus(1), costs: perEach,
		refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: 5 * time.Second,
	}

	// Of one agent's link to Redis: the others drop the agent after 1.5 s, and share the whole limit next to its part.
	linkCut = effect{
		requests: double, inProgress: double, bytes: plus(1), costs: double,
		refusedRate: evenPart, refusedInProgress: evenPart, refusedCost: anything, unnoticed: redisUnnoticed, recovery: 5 * time.Second,
	}
	linkSlow = effect{
		requests: double, inProgress: double, costs: double,
		refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: time.Second,
	}
	linkReset = effect{
		requests: double, inProgress: double, costs: double,
		refusedRate: evenPart, refusedInProgress: evenPart, refusedCost: anything, recovery: time.Second,
	}

	polygenAway = effect{bytes: plus(1), refusedInProgress: anything, recovery: 3 * time.Second}
	// Without the peers session blocks lapse, and shares do not come; each question says what is in progress.
	peersAway = effect{bytes: double, refusedInProgress: anything, recovery: time.Second}
	// A correction that is late or lost leaves the estimate charged until the window ends.
	correctionsAway = effect{costs: double, refusedCost: anything, recovery: 3 * time.Second}
)

var (
	links     = []string{history.Partition, history.Slow, history.Reset}
	processes = []string{history.Kill, history.Stop, history.Restart}
	clocks    = []string{history.ClockStep}
)

// allowances is what each fault allows. The first row about a fault counts; part "" is any. docs/failures.md has the same in words.
var allowances = []allowance{
	{[]string{history.Kill, history.Stop}, "agent", agentAway},
	{[]string{history.Restart}, "agent", agentRestarted},
	{[]string{history.NoFiles}, "agent", agentNoFiles},
	{[]string{history.Overload, history.Storm}, "", agentLate},

	{[]string{history.Kill, history.Restart}, "haproxy", haproxyEnded},
	{[]string{history.Stop}, "haproxy", haproxyStops},
	{[]string{history.NoFiles}, "haproxy", haproxyFull},
	{[]string{history.Reload}, "haproxy", haproxyReloaded},

	{append(processes, history.Failover), "redis", redisAway},
	{[]string{history.NoMemory, history.FullDisk, history.NoFiles}, "redis", redisRefuses},
	{[]string{history.Flush}, "redis", redisEmptied},
	{processes, "sentinel", effect{}},

	{[]string{history.Partition}, "all→redis", redisAway},
	{[]string{history.Slow}, "all→redis", nodesSlow},
	{[]string{history.Reset}, "all→redis", linkReset},
	{[]string{history.Partition}, "nodes→redis", redisAway},
	{[]string{history.Slow}, "nodes→redis", redisAway.noticed()},
	{[]string{history.Reset}, "nodes→redis", effect{}},
	{links, "replica→master", effect{}},
	{links, "all→sentinel", effect{}},
	{[]string{history.Partition}, "agent→redis", linkCut},
	{[]string{history.Slow}, "agent→redis", linkSlow},
	{[]string{history.Reset}, "agent→redis", linkReset},
	{links, "polygen→redis", polygenAway},
	{[]string{history.Partition}, "haproxy→agent", agentAway},
	{[]string{history.Slow}, "haproxy→agent", agentSlow},
	{[]string{history.Reset}, "haproxy→agent", agentReset},
	{links, "haproxy→agent costs", correctionsAway},
	{links, "agent→haproxy peers", peersAway},
	{links, "agent→haproxy runtime", effect{recovery: time.Second}},
	{[]string{history.Partition}, "haproxy→origin", effect{bytes: unbounded, refusedCost: anything, fails: itsOwn, recovery: time.Second}},
	{[]string{history.Slow}, "haproxy→origin", effect{bytes: unbounded, refusedCost: anything, recovery: time.Second}},
	{[]string{history.Reset}, "haproxy→origin", effect{refusedCost: anything, fails: itsOwn, recovery: time.Second}},

	{append(processes, history.NoFiles), "polygen", polygenAway},
	{[]string{history.NeverReads}, "", effect{}},
	{[]string{history.Replace}, "limits", effect{recovery: 3 * time.Second}},
	{[]string{history.Break, history.Empty}, "limits", effect{}},

	{clocks, "redis", effect{requests: double, inProgress: double, costs: double, refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: 6 * time.Second}},
	{clocks, "haproxy", effect{requests: plus(1), refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: 6 * time.Second}},

	{[]string{history.Machine}, "", effect{
		requests: perEach, inProgress: perEach, bytes: unbounded, costs: perEach, waits: unbounded, fails: everybodys,
		refusedRate: anything, refusedInProgress: anything, refusedCost: anything, recovery: 2 * time.Second,
	}},
}
