package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// Each part is killed or stopped while a user far below their limit and one far above it
// send requests.

// shortWait is for how long agents wait for Redis where it matters that they do not wait
// for long. It is three times the shipped wait, for a machine that runs several
// tests stalls for longer than that.
const shortWait = 60 * time.Millisecond

// stallAtMost is by how much the load may be sent late. A machine that stalls for longer
// has agents taken for dead that are not.
const stallAtMost = 200 * time.Millisecond

// underLoad starts a cluster, sends it requests of calm (20 a second, far below their limit of 100) and
// wild (far above it) for eight seconds, and lets fault happen after two. It does so
// again should the machine stall meanwhile, as soon as that is seen.
func underLoad(t *testing.T, start func() *cluster.Cluster, fault func(*cluster.Cluster)) (c *cluster.Cluster, r *load.Report, at time.Time) {
	t.Helper()
	return underLoadFor(t, 8*time.Second, start, fault)
}

func underLoadFor(t *testing.T, d time.Duration, start func() *cluster.Cluster, fault func(*cluster.Cluster)) (c *cluster.Cluster, r *load.Report, at time.Time) {
	t.Helper()
	for again := 3; ; again-- {
		c = start()
		most := stallAtMost
		if again == 0 {
			most = math.MaxInt64
		}
		var stalled bool
		r, at, stalled = underLoadOnce(t, c, d, fault, most)
		stall := time.Duration(0)
		for _, x := range r.Results {
			stall = max(stall, time.Duration(x.Sent-x.Scheduled))
		}
		if !stalled && stall <= stallAtMost || again == 0 {
			return c, r, at
		}
		t.Log("the machine stalled: once more")
		c.Stop()
	}
}

// underLoadOnce reports also whether the machine stalled for longer than most: then the load
// ended early, and the fault may not have happened.
func underLoadOnce(t *testing.T, c *cluster.Cluster, d time.Duration, fault func(*cluster.Cluster), most time.Duration) (report *load.Report, at time.Time, stalled bool) {
	t.Helper()
	targets, err := load.Spread("even", c.Addresses()...)
	if err != nil {
		t.Fatal(err)
	}
	var stalls proctest.Stalls
	ctx, cancel := stalls.Bound(t.Context(), most)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
			return
		case <-time.After(2500 * time.Millisecond): // the load begins within a second
		}
		at = time.Now()
		fault(c)
	}()
	users := load.Users("GET", "/", append(slices.Repeat([]string{"wild"}, 19), "calm")...)
	report, err = load.Run(ctx, load.Spec{
		Targets: targets, Rate: 400, Duration: d, Align: true, Requests: users, Timeout: proctest.Patience,
	})
	if err != nil && (report == nil || !proctest.Stalled(ctx)) {
		t.Fatal(err)
	}
	<-done
	return report, at, err != nil
}

// after keeps the requests that were sent later than a time.
func after(r *load.Report, at time.Time) *load.Report {
	return r.Only(func(x load.Result) bool { return x.Sent > at.UnixNano() })
}

// checkCalm fails the test if a request of calm was refused in a second in which calm sent
// at most half of the limit of 100. On a machine that stalls the load sends in one second
// what it should have sent before, and a user who is near their limit may be refused what
// another HAProxy has credit for. Of requests whose verdict took longer than the agents'
// wait HAProxy admits few, as it is meant to.
func checkCalm(t *testing.T, r *load.Report, wait time.Duration) {
	t.Helper()
	calm := r.User("calm")
	for i, x := range calm.Results {
		if x.Refused() && !answeredWithin(x, wait) {
			calm.Results[i].Status = http.StatusOK
		}
	}
	if n := calm.Ratios(50, clockSlack).FalseRefusals; n > 0 {
		t.Errorf("%d requests of a user far below their limit were refused", n)
		for _, x := range calm.Results {
			if x.Status != http.StatusOK {
				t.Logf("sent at %v, answered after %v: %d", time.Unix(0, x.Sent).Format(time.StampMilli), time.Duration(x.Received-x.Sent), x.Status)
			}
		}
	}
}

// checkQuick fails the test if calm, about whom the agent is asked each time, waited
// for verdicts that never come. Each answer would take as long as shortWait then;
// one in ten is quicker on the busiest machine if they do come.
func checkQuick(t *testing.T, r *load.Report, what string) {
	t.Helper()
	if p10 := r.User("calm").Service().Quantile(0.1); p10 >= shortWait {
		t.Errorf("%s: nine of ten answers took longer than %v", what, p10)
	}
}

// inTime leaves out what may have passed because a verdict did not come within the agents' wait: so it
// is meant to be, and on a busy machine it happens.
func inTime(r *load.Report, wait time.Duration) *load.Report {
	return r.Only(func(x load.Result) bool { return answeredWithin(x, wait) })
}

// answeredWithin reports whether HAProxy can have had a verdict on the request: it waits
// for 10 ms more than the agents do.
func answeredWithin(x load.Result, wait time.Duration) bool {
	return x.Received-x.Sent < int64(wait+10*time.Millisecond)
}

// checkRecovered fails the test unless the limit of 100 is used again to nine tenths: by a
// user who is new each time, for on a busy machine many verdicts come too late. Of those
// that come in time none may be too much.
func checkRecovered(t *testing.T, c *cluster.Cluster, rate float64) {
	t.Helper()
	round := 0
	proctest.Eventually(t, "the limit is used again", func() error {
		round++
		r := offer(t, c, fmt.Sprint("alice", round), "even", rate, 2*time.Second)
		if excess := inTime(r, shortWait).Ratios(100, clockSlack).Excess; excess > 0 {
			t.Errorf("%d requests over the limit", excess)
		}
		for _, row := range r.Ratios(100, clockSlack).Rows {
			if row.Whole && row.Admitted < 90 {
				return fmt.Errorf("round %d: %d of 100 admitted in second %d", round, row.Admitted, row.Second)
			}
		}
		return nil
	})
}

// checkHolds fails the test if wild got more than the limit of 100 in a whole
// second between two times, with one limit of grace for whatever was cut.
func checkHolds(t *testing.T, r *load.Report, from, to time.Time, most int) {
	t.Helper()
	counts := r.User("wild").Attribute(100, clockSlack)
	for sec := from.Unix() + 1; sec < to.Unix(); sec++ {
		if n := counts.At(sec); n > most {
			t.Errorf("second %d: %d requests of wild were admitted, want at most %d", sec-from.Unix(), n, most)
		}
	}
}

func TestAgentKilled(t *testing.T) {
	t.Parallel()
	c, r, at := underLoad(t, func() *cluster.Cluster {
		return cluster.Start(t, cluster.Options{Limits: limitFile(100), MaxWait: shortWait})
	}, func(c *cluster.Cluster) { c.Instances[0].Agent.Kill() })
	in := c.Instances[0]
	checkAnswered(t, r)
	checkCalm(t, r, shortWait)
	checkQuick(t, after(r, at.Add(time.Second)), "later than a second after the agent's death")
	awaitInstances(t, c, "gone")

	in.StartAgent(t)
	in.AwaitReady(t)
	awaitInstances(t, c, "there")
	proctest.Eventually(t, "HAProxy asks the agent again", func() error {
		r := offer(t, c, "wild", "even", 400, time.Second)
		if len(r.Refused().Results) == 0 {
			return fmt.Errorf("nothing is refused")
		}
		return nil
	})
	checkRecovered(t, c, 400)
}

// awaitInstances waits until polygen tells of one instance that it is "there" or "gone".
func awaitInstances(t *testing.T, c *cluster.Cluster, want string) {
	t.Helper()
	proctest.Eventually(t, "polygen tells of the instance as "+want, func() error {
		text, err := cluster.Get(c.Polygens[0].Admin, "/api/v1/instances")
		if err != nil {
			return err
		}
		var list api.Instances
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		if len(list.Instances) != 1 || (list.Instances[0].Gone != nil) != (want == "gone") {
			return fmt.Errorf("it tells %s", text)
		}
		return nil
	})
}

func TestAgentStopped(t *testing.T) {
	t.Parallel()
	c, r, at := underLoad(t, func() *cluster.Cluster {
		return cluster.Start(t, cluster.Options{Limits: limitFile(100), MaxWait: shortWait})
	}, func(c *cluster.Cluster) { _ = c.Instances[0].Agent.Signal(syscall.SIGSTOP) })
	in := c.Instances[0]
	checkAnswered(t, r)
	checkCalm(t, r, shortWait)
	checkQuick(t, after(r, at.Add(time.Second)), "later than a second after the agent was stopped")
	_ = in.Agent.Signal(syscall.SIGCONT)
	proctest.Eventually(t, "HAProxy asks the agent again", func() error {
		r := offer(t, c, "wild", "even", 400, time.Second)
		if len(r.Refused().Results) == 0 {
			return fmt.Errorf("nothing is refused")
		}
		return nil
	})
}

func TestTablesHoldWithoutAgent(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: limitFile(100), MaxWait: shortWait})
	in := c.Instances[0]
	in.Agent.Kill()
	proctest.Eventually(t, "alice, who is in the table, is refused", func() error { // a slow machine may ask when the table has forgotten
		until := time.Now().Add(time.Hour).Unix()
		if out, err := in.Tell(fmt.Sprintf("set table sluice/throttle key GET|alice data.gpt0 %d data.gpc0 7", until)); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if res, _ := get(t, in.Address, "alice"); res.StatusCode != http.StatusTooManyRequests || res.Header.Get("RateLimit-Policy") != `"GET";q=7;w=1` {
			return fmt.Errorf("status %d with policy %s", res.StatusCode, res.Header.Get("RateLimit-Policy"))
		}
		return nil
	})
	if res, _ := get(t, in.Address, "bob"); res.StatusCode != http.StatusOK {
		t.Errorf("bob, who is not, got %d", res.StatusCode)
	}
}

// mostWithRedis is what a second may admit: the limit of 100, and one more if the
// machine was so busy that an agent took Redis for lost.
func mostWithRedis(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	if busy(t, c, 0) {
		return 200
	}
	return 100
}

func TestPolygenKilledAndReplaced(t *testing.T) {
	t.Parallel()
	leader := func(c *cluster.Cluster) *cluster.Polygen {
		for _, p := range c.Polygens {
			if p.Running() && cluster.Metric(t, p.Admin, "sluice_polygen_leading") == 1 {
				return p
			}
		}
		return nil
	}
	awaitLeader := func(c *cluster.Cluster) (leads *cluster.Polygen) {
		proctest.Eventually(t, "one leads", func() error {
			if leads = leader(c); leads == nil {
				return fmt.Errorf("none does")
			}
			return nil
		})
		return leads
	}
	var took time.Duration
	c, r, at := underLoad(t, func() *cluster.Cluster {
		c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: limitFile(100)})
		awaitLeader(c)
		return c
	}, func(c *cluster.Cluster) {
		awaitLeader(c).Kill() // for a moment none leads on a machine that stood still
		killed := time.Now()
		awaitLeader(c)
		took = time.Since(killed)
	})
	t.Logf("the other polygen led after %v", took)
	checkAnswered(t, r)
	most := mostWithRedis(t, c)
	if most == 100 {
		checkCalm(t, r, cluster.LongWait)
	}
	checkHolds(t, r, at.Add(-2*time.Second), at.Add(6*time.Second), most)
}

func TestAllPolygensStopped(t *testing.T) {
	t.Parallel()
	c, r, at := underLoad(t, func() *cluster.Cluster {
		return cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100)})
	}, func(c *cluster.Cluster) { _ = c.Polygens[0].Signal(syscall.SIGSTOP) })
	checkAnswered(t, r)
	most := mostWithRedis(t, c)
	if most == 100 {
		checkCalm(t, r, cluster.LongWait)
	}
	checkHolds(t, r, at.Add(-2*time.Second), at.Add(6*time.Second), most)
}

// TestRedisGone kills Redis, which has TLS and users, or stops it, under load. Users who were hot keep
// their limit, divided among the instances; others keep theirs.
func TestRedisGone(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		name string
		gone func(*proctest.RedisNode)
		back func(*testing.T, *proctest.RedisNode)
	}{
		{"killed", func(n *proctest.RedisNode) { n.Kill() }, func(t *testing.T, n *proctest.RedisNode) { n.Restart(t) }},
		{"stopped", func(n *proctest.RedisNode) { _ = n.Signal(syscall.SIGSTOP) }, func(_ *testing.T, n *proctest.RedisNode) { _ = n.Signal(syscall.SIGCONT) }},
	} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			var noticed, back time.Time
			var redis *proctest.RedisNode
			c, r, at := underLoad(t, func() *cluster.Cluster {
				s, addr := newSecured(t), proctest.FreeAddr(t)
				redis = proctest.StartRedisNode(t, append(s.Args, "--tls-port", proctest.PortOf(addr))...)
				o := s.options(limitFile(100), []string{addr})
				o.MaxWait = shortWait
				return cluster.Start(t, o)
			}, func(c *cluster.Cluster) {
				how.gone(redis)
				for _, in := range c.Instances {
					proctest.Eventually(t, in.Name+" noticed", func() error { return lost(t, in, 1) })
				}
				noticed = time.Now()
				time.Sleep(2500 * time.Millisecond)
				how.back(t, redis)
				back = time.Now()
				for _, in := range c.Instances {
					proctest.Eventually(t, in.Name+" found Redis again", func() error { return lost(t, in, 0) })
				}
			})
			checkAnswered(t, r)
			checkCalm(t, r, shortWait)
			checkQuick(t, after(r, noticed), "after the agents noticed that Redis went")
			// Whole seconds of the loss: each instance holds its part.
			checkHolds(t, inTime(r, shortWait), noticed, back, 100)
			// Around the loss and the return the agents do not agree for a
			// moment; no second may have more than one limit besides.
			checkHolds(t, inTime(r, shortWait), at.Add(-2*time.Second), back.Add(3*time.Second), 200)
			checkRecovered(t, c, 800)
		})
	}
}

func lost(t *testing.T, in *cluster.Instance, want float64) error {
	if got := in.Metric(t, "sluice_redis_lost"); got != want {
		return fmt.Errorf("sluice_redis_lost is %v, want %v", got, want)
	}
	return nil
}

// TestRedisSlow puts 100 ms between everybody and Redis: more than a request
// may wait.
func TestRedisSlow(t *testing.T) {
	t.Parallel()
	var line *proctest.Link
	_, r, at := underLoad(t, func() *cluster.Cluster {
		_, redis := proctest.Redis(t)
		line = proctest.NewLink(t, redis, 0)
		return cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100), MaxWait: shortWait, Redis: line.Addr})
	}, func(*cluster.Cluster) { line.Delay.Store(int64(50 * time.Millisecond)) })
	checkAnswered(t, r)
	checkCalm(t, r, shortWait)
	checkQuick(t, after(r, at.Add(time.Second)), "later than a second after Redis became slow")
	checkHolds(t, inTime(r, shortWait), at.Add(time.Second), at.Add(6*time.Second), 200)
}

func TestHAProxyRestarted(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: limitFile(50)})
	in := c.Instances[0]
	checkLimit(t, offer(t, c, "alice", "even", 500, 2*time.Second), 50, 0.97)
	in.HAProxy.Kill()
	in.StartHAProxy(t)
	checkLimit(t, offer(t, c, "bob", "even", 500, 2*time.Second), 50, 0.97)
	in.AwaitReady(t) // the peers session is back
}

func TestInstanceJoinsUnderLoad(t *testing.T) {
	t.Parallel()
	var joined time.Time
	c, r, at := underLoad(t, func() *cluster.Cluster {
		c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100)})
		c.Instances[1].Agent.Stop()
		proctest.Eventually(t, "the first is alone", func() error {
			if n := c.Instances[0].Metric(t, "sluice_instances"); n != 1 {
				return fmt.Errorf("%v instances", n)
			}
			return nil
		})
		return c
	}, func(c *cluster.Cluster) {
		c.Instances[1].StartAgent(t)
		c.Instances[1].AwaitReady(t)
		// HAProxy takes two checks to find its agent again; until then that
		// instance limits nobody.
		proctest.Eventually(t, "HAProxy has found its agent", func() error {
			stats, err := c.Instances[1].Tell("show stat sluice_agent 4 -1")
			if err == nil && !strings.Contains(stats, ",UP,") {
				err = errors.New(stats)
			}
			return err
		})
		joined = time.Now()
	})
	checkAnswered(t, r)
	most := mostWithRedis(t, c)
	if most == 100 {
		checkCalm(t, r, cluster.LongWait)
	}
	checkHolds(t, r, joined, at.Add(6*time.Second), most)
	if conn, err := net.Dial("unix", c.Instances[1].SPOE); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
