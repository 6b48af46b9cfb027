package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// Users of each limit: wild offers twenty times the limit, calm a fifth of it, busy has four times as many clients as places, mover
// transfers without end, and requests of dora cost something. Without its agent HAProxy may hold users to the default tier.
const faultLimits = `
version: 1
costs: {credits: {estimate: {header: X-Rows, default: 1}, actual: {header: X-Cost}}}
default_tier: twenty
tiers:
  twenty: {requests: {GET: 20}}
  busy: {concurrent: 10}
  mover: {bandwidth: {down: 1MiB}}
  dora: {costs: {credits: {second: 1000}}}
users: {busy: busy, mover: mover, dora: dora}
`

// A fault is what happens to a cluster of two instances, and what it may cost.
type fault struct {
	name    string
	options cluster.Options                           // MaxWait: 0 means scene.ShortWait; faults of no agent and no Redis need none
	start   func(t *testing.T, f *fault) *scene.Scene // nil: with the options
	fails   func(t *testing.T, s *scene.Scene)
	heals   func(t *testing.T, s *scene.Scene) // nil: nothing

	rate     float64 // of wild's limit, in each second
	first    float64 // the same, in the seconds in which the fault begins and ends; 0 means rate
	progress int     // requests of busy at once, of a limit of 10
	bytes    float64 // of mover's limit, in the mean
	lossy    bool    // requests fail
	refuses  bool    // until HAProxy knows that its agent is away, it refuses most requests that it would ask about
}

func each(do func(in *cluster.Instance)) func(*testing.T, *scene.Scene) {
	return func(_ *testing.T, s *scene.Scene) {
		for _, in := range s.Instances {
			do(in)
		}
	}
}

func signalRedis(signal syscall.Signal) func(*testing.T, *scene.Scene) {
	return func(_ *testing.T, s *scene.Scene) { _ = s.Redis.Signal(signal) }
}

func startAgents(t *testing.T, s *scene.Scene) {
	for _, in := range s.Instances {
		if !in.Agent.Running() {
			in.StartAgent(t)
		}
	}
}

// startBehindLine starts a cluster whose way to Redis the fault makes slower.
func startBehindLine(t *testing.T, f *fault) *scene.Scene {
	_, addr := testkit.Redis(t)
	line := testkit.NewLink(t, addr, 0)
	slowDown := func(by time.Duration) func(*testing.T, *scene.Scene) {
		return func(*testing.T, *scene.Scene) { line.Delay.Store(int64(by)) }
	}
	f.fails, f.heals, f.options.Redis = slowDown(scene.ShortWait), slowDown(0), line.Addr
	return scene.Start(t, f.options, "busy")
}

// startBehindSentinels starts a cluster that follows Sentinels, whose master the fault kills.
func startBehindSentinels(t *testing.T, f *fault) *scene.Scene {
	master, replica, o := scene.NewSecured(t).Sentinels(t, faultLimits, time.Second)
	f.fails = func(*testing.T, *scene.Scene) { master.Kill() }
	s := scene.Start(t, o, "busy")
	s.Server = replica.Addr
	return s
}

// Whatever dies, hangs or is replaced, no request fails, a user below the limit is not refused, and limits hold as stated;
// afterwards they are exact again.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{
		{
			name: "all agents killed", fails: each(func(in *cluster.Instance) { in.Agent.Kill() }), heals: startAgents,
			// In the second of their return the agents do not know what HAProxy admitted alone, and the first one of them has all
			// of each limit for a moment.
			rate: 1.15, first: 3, progress: 15, bytes: 1, refuses: true,
		}, {
			name: "all agents hung", fails: each(func(in *cluster.Instance) { _ = in.Agent.Signal(syscall.SIGSTOP) }),
			heals: each(func(in *cluster.Instance) { _ = in.Agent.Signal(syscall.SIGCONT) }),
			// dora's requests must not wait in line with those that have ten minutes.
			options: cluster.Options{EnvOf: func(string) []string { return []string{"SLUICE_WAIT_TIMEOUT=10m"} }},
			rate:    1.15, first: 2, progress: 10, bytes: 1, refuses: true,
		}, {
			// The other agent takes over what is not held any more, and this HAProxy keeps its half.
			name: "one agent killed", fails: func(_ *testing.T, s *scene.Scene) { s.Instances[0].Agent.Kill() }, heals: startAgents,
			rate: 1.5, progress: 15, bytes: 1.5, refuses: true,
		}, {
			name: "the leader killed", options: cluster.Options{Polygens: 2, MaxWait: cluster.LongWait}, fails: killLeader,
			rate: 1, progress: 10, bytes: 1,
		}, {
			name: "polygen hung", options: cluster.Options{MaxWait: cluster.LongWait}, fails: func(_ *testing.T, s *scene.Scene) { _ = s.Polygens[0].Signal(syscall.SIGSTOP) },
			heals: func(_ *testing.T, s *scene.Scene) { _ = s.Polygens[0].Signal(syscall.SIGCONT) },
			rate:  1, progress: 10, bytes: 1,
		}, {
			// In the seconds of the loss and the return the agents do not agree for a moment.
			name: "Redis killed", fails: func(_ *testing.T, s *scene.Scene) { s.Redis.Kill() },
			heals: func(t *testing.T, s *scene.Scene) { s.Redis = testkit.RedisAt(t, s.RedisAddr) },
			rate:  1.1, first: 2, progress: 17, bytes: 1,
		}, {
			name: "Redis hung", fails: signalRedis(syscall.SIGSTOP), heals: signalRedis(syscall.SIGCONT),
			rate: 1.1, first: 2, progress: 17, bytes: 1,
		}, {
			// Until some answers have come, the agents do not know that they come too late.
			name: "Redis slow", start: startBehindLine,
			rate: 2, progress: 17, bytes: 1,
		}, {
			name: "Redis fails over", start: startBehindSentinels,
			// Until the last agent uses the new master they do not agree for a moment.
			rate: 1.5, first: 2, progress: 17, bytes: 1,
		}, {
			// Its connections are lost, and the origin may notice that later than the agent.
			name: "HAProxy killed", options: cluster.Options{MaxWait: cluster.LongWait}, fails: func(t *testing.T, s *scene.Scene) { s.Instances[0].HAProxy.Kill(); s.Instances[0].StartHAProxy(t) },
			rate: 1.25, progress: 20, bytes: 1, lossy: true,
		}, {
			// The new process may admit its credit of one second again; the old one's transfers keep their share, and the
			// other instance has the limit.
			name: "HAProxy reloaded", options: cluster.Options{Master: true, MaxWait: cluster.LongWait},
			fails: func(_ *testing.T, s *scene.Scene) { _ = s.Instances[0].HAProxy.Signal(syscall.SIGUSR2) },
			rate:  1.25, progress: 10, bytes: 1.5,
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.options.Instances, f.options.Limits, f.options.MaxWait = 2, faultLimits, cmp.Or(f.options.MaxWait, scene.ShortWait)
			if f.start == nil {
				f.start = func(t *testing.T, f *fault) *scene.Scene { return scene.Start(t, f.options, "busy") }
			}
			s := f.start(t, &f)
			s.Settle()
			f.judge(t, s)
			awaitSteady(t, s)
			checkExact(t, s)
		})
	}
}

// judge runs loads while the fault begins and ends.
func (f *fault) judge(t *testing.T, s *scene.Scene) {
	t.Helper()
	const begins, ends, over = 2 * time.Second, 6 * time.Second, 8 * time.Second
	var open *load.Report
	var bytes transfer.Report
	var began, healed time.Time
	start := time.Now()
	s.Runs["busy"].Begin()
	ctx, stop := context.WithDeadline(t.Context(), start.Add(over))
	defer stop()
	side(
		func() {
			users := slices.Concat(repeat("wild", 100), repeat("dora", 5), []string{"calm"})
			open = s.OfferUntil(ctx, t, 424, scene.GETs(users...))
		},
		func() {
			load := s.Closed("busy", 40, over)
			load.Retry = 200 * time.Millisecond
			if r := closed.Run(t.Context(), load); !f.lossy {
				scene.CheckRuns(t, r)
			}
		},
		func() { bytes = transfer.Run(t.Context(), s.Bytes, s.Streams("mover", 4, false), over) },
		func() {
			time.Sleep(time.Until(start.Add(begins)))
			began = time.Now()
			f.fails(t, s)
			time.Sleep(time.Until(start.Add(ends)))
			healed = time.Now()
			if f.heals != nil {
				f.heals(t, s)
			}
		},
	)
	if !f.lossy {
		scene.CheckAnswered(t, open)
		scene.CheckRateBetween(t, bytes, "mover", begins+time.Second, over, 0.2, 1.15*f.bytes) // transfers go on
	}
	judged := open.User("calm").Only(func(x load.Result) bool {
		sent := time.Unix(0, x.Sent)
		return !f.refuses || sent.Before(began) || sent.After(began.Add(noticed)) && sent.Before(healed) || sent.After(healed.Add(noticed))
	})
	// A machine that stands still makes answers of a living agent late, and of late ones HAProxy admits a part.
	if n := judged.Ratios(10, 0).FalseRefusals; 10*n > len(judged.Results) {
		t.Errorf("%d of %d requests of a user far below the limit were refused, want a tenth at most", n, len(judged.Results))
	}
	const limit = 20
	most := func(of float64) int { return int(of*limit + 0.5) }
	// What took as long as an agent waits for Redis may have been decided without it: the machine stood still.
	var longest time.Duration
	for _, x := range open.Results {
		longest = max(longest, time.Duration(min(x.Received, began.UnixNano())-x.Sent))
	}
	if longest < f.options.MaxWait {
		scene.CheckSeconds(t, open, "wild", start, began, limit, limit)
	} else {
		t.Logf("before the fault an answer took %v", longest)
	}
	scene.CheckSeconds(t, open, "wild", began, healed, limit, most(f.rate))
	scene.CheckSeconds(t, open, "wild", began.Add(-time.Second), healed.Add(3*time.Second), limit, most(max(f.first, f.rate)))
	f.checkProgress(t, s.Runs["busy"].Points(), began)
	// Requests that cost something are asked about each time, and those of wild are not: HAProxy refuses most of them.
	late := open.Only(func(x load.Result) bool { return x.Sent > began.Add(noticed).UnixNano() && x.Sent < healed.UnixNano() })
	if asked, refused := late.User("dora").Service().Quantile(0.1), late.User("wild").Service().Quantile(0.1); asked-refused >= scene.ShortWait {
		t.Errorf("nine of ten answers to requests that cost something took longer than %v, and to others %v, %v after the fault began", asked, refused, noticed)
	}
}

// noticed is after how long HAProxy knows that its agent is away, or is back: two checks of a second each, and what lies between them.
const noticed = 3 * time.Second

// noBeginning is for how long no request of a user at the limit may begin: HAProxy notices an agent that hangs after half a second,
// ten times that with the ShortWait, and the fault lasts four.
const noBeginning = 8 * time.Second

func (f *fault) checkProgress(t *testing.T, points []closed.Point, began time.Time) {
	t.Helper()
	var worst int
	last, longest := points[0].At, time.Duration(0)
	for i, p := range points {
		if i == 0 || p.Active <= points[i-1].Active {
			continue // an end
		}
		if p.At.Before(began) && p.Active > 10 {
			t.Errorf("%d requests ran at once before the fault, want 10 at most", p.Active)
		}
		worst, longest, last = max(worst, p.Active), max(longest, p.At.Sub(last)), p.At
	}
	t.Logf("at most %d at once, no beginning for %v", worst, longest)
	if worst > f.progress {
		t.Errorf("%d requests ran at once, want %d at most", worst, f.progress)
	}
	if longest > noBeginning {
		t.Errorf("no request began for %v, want %v at most", longest, noBeginning)
	}
}

// awaitSteady waits until all parts work, and have for long enough to be exact.
func awaitSteady(t *testing.T, s *scene.Scene) {
	t.Helper()
	for _, in := range s.Instances {
		in.AwaitReady(t)
		scene.AwaitMetric(t, in.Admin, "sluice_redis_lost", scene.Is(0))
		scene.AwaitMetric(t, in.Admin, "sluice_instances", scene.Is(float64(len(s.Instances))))
		testkit.Eventually(t, "HAProxy asks its agent", func() error {
			stats, err := in.Tell("show stat sluice_agent 4 -1")
			if err == nil && !strings.Contains(stats, ",UP,") {
				err = fmt.Errorf("%s", stats)
			}
			return err
		})
	}
	time.Sleep(3 * time.Second)
}

// checkExact fails the test unless limits are exact and used again, and nothing is left in progress. For some seconds agents may leave
// a part of a limit, and a slot, to one that was away.
func checkExact(t *testing.T, s *scene.Scene) {
	t.Helper()
	side(
		func() {
			round := 0
			testkit.Eventually(t, "the limit is used again", func() error {
				round++
				user := fmt.Sprint("alice-", round)
				r := s.Offer(t, "even", 200, 2*time.Second, scene.GETs(user))
				scene.CheckAnswered(t, r)
				scene.CheckLimit(t, r, user, 20, 0)
				if n := len(r.Admitted().Results); n < 36 {
					return fmt.Errorf("%d of 40 admitted in two seconds", n)
				}
				return nil
			})
		},
		func() {
			testkit.Eventually(t, "all places are used again", func() error {
				s.Runs["busy"].Begin()
				scene.CheckRuns(t, closed.Run(t.Context(), s.Closed("busy", 40, 2*time.Second)))
				most := s.Runs["busy"].Counts().Most
				if most > 10 {
					t.Errorf("after the fault %d requests ran at once, want 10 at most", most)
				}
				if most < 10 {
					return fmt.Errorf("at most %d of 10 ran at once", most)
				}
				return nil
			})
		},
	)
	s.AwaitNothingInProgress(t)
}

// killLeader kills the polygen that leads; another one leads within moments.
func killLeader(t *testing.T, s *scene.Scene) {
	leader := func() (leads *cluster.Polygen) {
		testkit.Eventually(t, "a polygen leads", func() error {
			for _, p := range s.Polygens {
				if p.Running() {
					if n, err := cluster.ReadMetric(p.Admin, "sluice_polygen_leading"); err == nil && n == 1 {
						leads = p
						return nil
					}
				}
			}
			return fmt.Errorf("none does")
		})
		return leads
	}
	leader().Kill()
	killed := time.Now()
	leader()
	// README: three seconds; the lease lasts two.
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("the standby led after %v", took)
	}
}
