package judge

import (
	"time"

	"github.com/sluice-qos/sluice/test/chaos/history"
)

// The rows of docs/failures.md that the table below names, by their first cells.
const (
	agentDead      = "agent dead or stopped"
	agentRestarted = "agent ended or restarted in order, of several instances"
	agentLate      = "agent overloaded"
	agentNoFiles   = "fewer file descriptors than HAProxy's connections"
	joins          = "a second instance joins one that was alone, whose HAProxy has all of each limit"
	haproxyDead    = "HAProxy dead or restarted"
	haproxyAlone   = "HAProxy dead or restarted while its agent is away"
	haproxyNoFiles = "HAProxy has no file descriptors left"
	haproxyStands  = "HAProxy stands still, stopped or with its machine"
	haproxyCredit  = "HAProxy reloaded, of its credit"
	haproxyReload  = "HAProxy reloaded"
	runtimeSocket  = "HAProxy's runtime socket missing, refused, or without an answer"
	correctionLost = "corrections are lost between HAProxy and the agent"
	shareLost      = "share of a user lost on its way, or the HAProxy that has it restarted"
	redisDead      = "Redis dead or stopped"
	redisFull      = "Redis takes no writes or no connections: `maxmemory` is reached, its disk is full, or it has no file descriptors left"
	redisEmptied   = "Redis emptied or restarted"
	redisSilent    = "Redis silent for 20 to 100 ms, which is not yet a loss"
	redisSlow      = "Redis slow (round trips above 20 ms)"
	redisStands    = "Redis, or the whole machine, stands still for more than a second"
	redisClock     = "Redis' clock set back, or a failover to one whose clock is wrong"
	machineClock   = "the clock of a machine, not of Redis', set by seconds"
	mastersApart   = "a master cut off from the other nodes, which agents still reach"
	redisRegistry  = "the master that has the registry of instances (`{cluster}`)"
	sentinels      = "the master that Sentinels watch is killed, or stopped and goes on as if it were the master"
	answerLost     = "one answer of Redis lost"
	polygenDead    = "polygen dead or stopped"
	polygenCutOff  = "a polygen stands still, is cut off, or its messages to Redis are lost, late or come twice"
	limitsOlder    = "an instance with older limits than the others"
	limitsBroken   = "limit file, or one of its users files, broken, empty or gone"
	neverRead      = "who never reads an answer of the admin API"
)

const notOurs = "what is broken is not Sluice's"

// Drain is for how long a HAProxy goes on that was reloaded in a run, and its agent counts what it had: behind a link it does not see its end.
const Drain = 10 * time.Second

// How long it takes until it is noticed that an agent or Redis is away: two checks of the agent by the clocks of a run, three times as long as the
// shipped ones; and 0.1 s without an answer of Redis, with the wait of who asked last.
const (
	agentUnnoticed = time.Second
	redisUnnoticed = 200 * time.Millisecond
)

// allowances is what each fault allows. The first row that is about a fault counts; part "" is any.
//
// While an agent is away its HAProxy admits its even part, and the others all of the limit until it is dropped from the list;
// its slots are free to others although what has them goes on, and so is its part of the bandwidth. A user who had
// credit, a quarter of an even part, is refused beyond it until HAProxy has found the agent gone. Limits of costs only the agent knows: without
// it, or if it is late, HAProxy lets pass what comes. What was corrected on a way that broke stays charged until the window ends.
var allowances = []allowance{
	{fault: history.Kill, part: "agent", rows: []string{agentDead}, requests: beside(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(.25)), refusedInProgress: ptr(evenParts(.25)), unnoticed: agentUnnoticed, alone: true, recovery: 5 * time.Second},
	{fault: history.Stop, part: "agent", rows: []string{agentDead}, requests: beside(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(.25)), refusedInProgress: ptr(evenParts(.25)), unnoticed: agentUnnoticed, alone: true, recovery: 5 * time.Second},
	{fault: history.Restart, part: "agent", rows: []string{agentRestarted}, inProgress: beside(1), bytes: double, costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: 5 * time.Second},
	{fault: history.NoFiles, part: "agent", rows: []string{agentNoFiles, agentDead}, requests: unbounded, inProgress: unbounded, byDefault: true, costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(.25)), refusedInProgress: ptr(evenParts(.25)), alone: true, recovery: 2 * time.Second},
	{fault: history.Overload, rows: []string{agentLate}, requests: beside(.1), byDefault: true, inProgress: beside(1), costs: unbounded, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 2 * time.Second},
	{fault: history.Crowd, rows: []string{agentLate}, requests: beside(.1), byDefault: true, inProgress: beside(1), costs: unbounded, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 2 * time.Second},
	{fault: history.Join, rows: []string{joins}, requests: double, inProgress: double, bytes: beside(1), recovery: 5 * time.Second},

	{fault: history.Kill, part: "haproxy", rows: []string{haproxyDead, haproxyAlone, shareLost}, bytes: beside(1), refusedCost: &nothing, fails: itsOwn, forgets: true, recovery: time.Second},
	{fault: history.Restart, part: "haproxy", rows: []string{haproxyDead, haproxyAlone, shareLost}, bytes: beside(1), refusedCost: &nothing, fails: itsOwn, forgets: true, recovery: time.Second},
	{fault: history.Stop, part: "haproxy", rows: []string{haproxyStands, runtimeSocket}, bytes: double, refusedCost: &nothing, fails: itsOwn, refusedRate: ptr(evenParts(1)), recovery: time.Second},
	{fault: history.NoFiles, part: "haproxy", rows: []string{haproxyNoFiles}, requests: beside(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded, refusedCost: &nothing, fails: itsOwn, refusedRate: ptr(evenParts(.25)), refusedInProgress: &nothing, recovery: 2 * time.Second},
	{fault: history.Reload, part: "haproxy", rows: []string{haproxyCredit, haproxyReload}, requests: beside(.25), bytes: double, refusedCost: &nothing, refusedInProgress: &nothing, recovery: 2 * time.Second, drains: Drain + 2*time.Second},

	{fault: history.Kill, part: "redis", rows: []string{redisDead, redisEmptied}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Restart, part: "redis", rows: []string{redisDead, redisEmptied}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Stop, part: "redis", rows: []string{redisDead, redisSilent}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Slow, part: "redis", rows: []string{redisSlow}, requests: perEach, inProgress: perEach, costs: perEach, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: time.Second},
	{fault: history.NoMemory, part: "redis", rows: []string{redisFull}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: 2 * time.Second},
	{fault: history.FullDisk, part: "redis", rows: []string{redisFull}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: 2 * time.Second},
	{fault: history.NoFiles, part: "redis", rows: []string{redisFull}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: 2 * time.Second},
	{fault: history.Flush, part: "redis", rows: []string{redisEmptied}, requests: double, inProgress: double, costs: double, refusedCost: &nothing, refusedRate: &nothing, recovery: 2 * time.Second},
	{fault: history.Failover, part: "redis", rows: []string{sentinels}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Kill, part: "sentinel", rows: []string{sentinels}},
	{fault: history.Stop, part: "sentinel", rows: []string{sentinels}},
	{fault: history.Restart, part: "sentinel", rows: []string{sentinels}},

	// What Sentinels and nodes of a Cluster have between them. A replica takes over within five seconds.
	{fault: history.Partition, part: "all→redis", rows: []string{redisDead, sentinels}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Slow, part: "all→redis", rows: []string{redisSlow}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 5 * time.Second},
	{fault: history.Reset, part: "all→redis", rows: []string{answerLost, redisSilent}, requests: double, inProgress: double, costs: double, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: time.Second},
	{fault: history.Partition, part: "nodes→redis", rows: []string{mastersApart}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Slow, part: "nodes→redis", rows: []string{mastersApart}, requests: perEach, inProgress: perEach, bytes: beside(1), costs: perEach, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: 5 * time.Second},
	{fault: history.Reset, part: "nodes→redis", rows: []string{mastersApart}},
	{fault: history.Partition, part: "replica→master", rows: []string{sentinels}},
	{fault: history.Slow, part: "replica→master", rows: []string{sentinels}},
	{fault: history.Reset, part: "replica→master", rows: []string{sentinels}},
	{fault: history.Partition, part: "all→sentinel", rows: []string{sentinels}},
	{fault: history.Slow, part: "all→sentinel", rows: []string{sentinels}},
	{fault: history.Reset, part: "all→sentinel", rows: []string{sentinels}},

	// One agent's link: the others drop the agent after 1.5 s, and share the whole limit beside what it admits alone.
	{fault: history.Partition, part: "agent→redis", rows: []string{redisDead, redisRegistry}, requests: double, inProgress: double, bytes: beside(1), costs: double, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), unnoticed: redisUnnoticed, recovery: 5 * time.Second},
	{fault: history.Slow, part: "agent→redis", rows: []string{redisSlow}, requests: double, inProgress: double, costs: double, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: time.Second},
	{fault: history.Reset, part: "agent→redis", rows: []string{answerLost, redisSilent}, requests: double, inProgress: double, costs: double, refusedCost: &nothing, refusedRate: ptr(evenParts(1)), refusedInProgress: ptr(evenParts(1)), recovery: time.Second},
	{fault: history.Partition, part: "polygen→redis", rows: []string{polygenCutOff}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.Slow, part: "polygen→redis", rows: []string{polygenCutOff}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.Reset, part: "polygen→redis", rows: []string{polygenCutOff}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.Partition, part: "haproxy→agent", rows: []string{agentDead}, requests: beside(1), byDefault: true, inProgress: double, bytes: double, costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(.25)), refusedInProgress: ptr(evenParts(.25)), unnoticed: agentUnnoticed, alone: true, recovery: 5 * time.Second},
	{fault: history.Slow, part: "haproxy→agent", rows: []string{agentLate}, requests: beside(1), byDefault: true, inProgress: beside(1), bytes: beside(1), costs: unbounded, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 2 * time.Second},
	{fault: history.Reset, part: "haproxy→agent", rows: []string{agentDead}, requests: beside(1), byDefault: true, inProgress: beside(1), bytes: beside(1), costs: unbounded, refusedCost: &nothing, refusedRate: ptr(evenParts(.25)), refusedInProgress: ptr(evenParts(.25)), unnoticed: agentUnnoticed, alone: true, recovery: 2 * time.Second},
	// A cost that is told late, or never, was estimated too low or too high until then.
	{fault: history.Partition, part: "haproxy→agent costs", rows: []string{correctionLost}, costs: double, refusedCost: &nothing, recovery: 3 * time.Second},
	{fault: history.Slow, part: "haproxy→agent costs", rows: []string{correctionLost}, costs: double, refusedCost: &nothing, recovery: 3 * time.Second},
	{fault: history.Reset, part: "haproxy→agent costs", rows: []string{correctionLost}, costs: double, refusedCost: &nothing, recovery: 3 * time.Second},
	// Without the peers session blocks lapse, and shares do not come; what is in progress is told by each question.
	{fault: history.Partition, part: "agent→haproxy peers", rows: []string{haproxyDead, shareLost}, bytes: double, refusedInProgress: &nothing, recovery: time.Second},
	{fault: history.Slow, part: "agent→haproxy peers", rows: []string{haproxyDead, shareLost}, bytes: double, refusedInProgress: &nothing, recovery: time.Second},
	{fault: history.Reset, part: "agent→haproxy peers", rows: []string{haproxyDead, shareLost}, bytes: double, refusedInProgress: &nothing, recovery: time.Second},
	{fault: history.Partition, part: "agent→haproxy runtime", rows: []string{runtimeSocket}, recovery: time.Second},
	{fault: history.Slow, part: "agent→haproxy runtime", rows: []string{runtimeSocket}, recovery: time.Second},
	{fault: history.Reset, part: "agent→haproxy runtime", rows: []string{runtimeSocket}, recovery: time.Second},
	{fault: history.Partition, part: "haproxy→origin", because: notOurs, bytes: unbounded, refusedCost: &nothing, fails: itsOwn, recovery: time.Second},
	{fault: history.Slow, part: "haproxy→origin", because: notOurs, bytes: unbounded, refusedCost: &nothing, recovery: time.Second},
	{fault: history.Reset, part: "haproxy→origin", because: notOurs, refusedCost: &nothing, fails: itsOwn, recovery: time.Second},
	{fault: history.Partition, part: "client→haproxy", because: notOurs, refusedCost: &nothing, fails: everybodys, recovery: time.Second},
	{fault: history.Slow, part: "client→haproxy", because: notOurs, refusedCost: &nothing, recovery: time.Second},
	{fault: history.Reset, part: "client→haproxy", because: notOurs, refusedCost: &nothing, fails: everybodys, recovery: time.Second},

	{fault: history.Kill, part: "polygen", rows: []string{polygenDead}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.Stop, part: "polygen", rows: []string{polygenDead, polygenCutOff}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.Restart, part: "polygen", rows: []string{polygenDead}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.NoFiles, part: "polygen", rows: []string{polygenCutOff}, bytes: beside(1), refusedInProgress: &nothing, recovery: 3 * time.Second},
	{fault: history.NeverReads, rows: []string{neverRead}},
	{fault: history.Replace, part: "limits", rows: []string{limitsOlder}, recovery: 3 * time.Second},
	{fault: history.Reload, part: "limits", rows: []string{limitsOlder}, recovery: 3 * time.Second},
	{fault: history.Break, part: "limits", rows: []string{limitsBroken}},
	{fault: history.Empty, part: "limits", rows: []string{limitsBroken}},
	{fault: history.FullDisk, rows: []string{limitsBroken}},

	{fault: history.ClockStep, part: "redis", rows: []string{redisClock}, requests: double, inProgress: double, costs: double, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 6 * time.Second},
	{fault: history.ClockStep, part: "haproxy", rows: []string{machineClock}, requests: beside(1), refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 6 * time.Second},
	// Its agent tells it deadlines by the same clock.
	{fault: history.ClockStep, part: "agent", rows: []string{machineClock}, refusedCost: &nothing, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 6 * time.Second},
	{fault: history.ClockStep, rows: []string{machineClock}, recovery: time.Second},
	{fault: history.Machine, rows: []string{redisSilent, redisStands}, requests: perEach, inProgress: perEach, bytes: unbounded, costs: perEach, refusedCost: &nothing, fails: everybodys, refusedRate: &nothing, refusedInProgress: &nothing, recovery: 2 * time.Second},
}

func ptr(p part) *part { return &p }
