package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/test/cluster"
	"github.com/sluice-qos/sluice/test/mixed"
)

// progressLimits gives every user so many requests in progress, and lets those
// of the tier "patient" wait for room.
func progressLimits(n int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers:\n  free: {concurrent: %d}\n"+
		"  patient: {concurrent: %d, over_limit: {concurrent: wait 20s}}\n  hasty: {concurrent: %d, over_limit: {concurrent: wait 200ms}}\n"+
		"  none: {}\nusers: {other: none, patty: patient, hank: hasty}\n", n, n, n)
}

// short is work of 50 to 250 ms: requests end often enough for a test to see
// much in a few seconds.
func short(r *rand.Rand) time.Duration {
	return 50*time.Millisecond + time.Duration(r.Int64N(int64(200*time.Millisecond)))
}

// counting starts an origin that counts what runs.
func counting(t *testing.T, limit int) (*closed.Origin, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := closed.NewOrigin(limit)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); o.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })
	o.Begin()
	return o, l.Addr().String()
}

// checkStatuses fails the test if a request had no answer, or one of another
// status than 200 and 429.
func checkStatuses(t *testing.T, r closed.Report) {
	t.Helper()
	if r.Failed > 0 {
		t.Errorf("%d requests failed, want none: %v", r.Failed, r.Errors)
	}
	for status, n := range r.Statuses {
		if status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Errorf("%d answers have status %d, want 200 or 429 only", n, status)
		}
	}
}

// Fifty clients who come back until they get in: as many requests run as the
// limit allows, and never one more.
func TestProgressIsExact(t *testing.T) {
	t.Parallel()
	const limit = 10
	for _, instances := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			o, origin := counting(t, limit)
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: progressLimits(limit), Origin: origin})
			r := closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 50, Work: short, Duration: 4 * time.Second, Seed: 1})
			checkStatuses(t, r)
			counts := o.Counts()
			if counts.Most != limit && !busy(t, c, 0) {
				t.Errorf("at most %d requests ran at once, want %d", counts.Most, limit)
			}
			if r.Statuses[http.StatusTooManyRequests] == 0 {
				t.Error("nothing was refused")
			}
			t.Logf("%d answered, %d refused", r.Statuses[200], r.Statuses[429])
			checkNothingInProgress(t, c)
		})
	}
}

// A burst that arrives in one instant finds each slot taken once.
func TestProgressOfABurst(t *testing.T) {
	t.Parallel()
	const limit = 10
	o, origin := counting(t, limit)
	c := cluster.Start(t, cluster.Options{Limits: progressLimits(limit), Origin: origin})
	begin := make(chan struct{})
	statuses := make(chan int)
	for range 100 {
		go func() {
			conn, err := net.Dial("tcp", c.Addresses()[0])
			if err != nil {
				statuses <- 0
				return
			}
			defer conn.Close()
			<-begin
			fmt.Fprint(conn, "GET /sleep/5000 HTTP/1.1\r\nHost: x\r\nX-User: alice\r\nConnection: close\r\n\r\n")
			answer := make([]byte, 12)
			_, _ = conn.Read(answer)
			status, _ := strconv.Atoi(string(answer[9:]))
			statuses <- status
		}()
	}
	close(begin)
	got := map[int]int{}
	for range 100 {
		got[<-statuses]++
	}
	if (got[200] != limit || got[429] != 100-limit || o.Counts().Most != limit) && !stoodStill(t, c) {
		t.Errorf("answers: %v, at most %d at once; want %d × 200, the rest 429", got, o.Counts().Most, limit)
	}
}

// No user below the limit is refused, over several instances either.
func TestProgressBelowTheLimit(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 20)
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(20), Origin: origin})
	r := closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 10, Work: short, Duration: 3 * time.Second, Seed: 1})
	checkStatuses(t, r)
	if n := r.Statuses[http.StatusTooManyRequests]; n > 0 {
		t.Errorf("%d requests were refused with at most %d of 20 in progress", n, o.Counts().Most)
	}
}

// Requests of a tier that waits are answered late rather than refused.
func TestProgressWaits(t *testing.T) {
	t.Parallel()
	const limit = 5
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			o, origin := counting(t, limit)
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: progressLimits(limit), Origin: origin})
			r := closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "patty", Clients: 30, Work: short, Duration: 4 * time.Second, Seed: 1})
			checkStatuses(t, r)
			busy := busy(t, c, 0) // then not everybody waits in line
			if n := r.Statuses[http.StatusTooManyRequests]; n > 0 && !busy {
				t.Errorf("%d of %d requests were refused, want none: they may wait", n, n+r.Statuses[200])
			}
			if most := o.Counts().Most; most != limit && !busy {
				t.Errorf("at most %d requests ran at once, want %d", most, limit)
			}
			checkNothingInProgress(t, c)
		})
	}
}

// Who may wait 200 ms and finds no room is refused then.
func TestProgressWaitsNoLonger(t *testing.T) {
	t.Parallel()
	_, origin := counting(t, 2)
	c := cluster.Start(t, cluster.Options{Limits: progressLimits(2), Origin: origin})
	go closed.Run(t.Context(), closed.Spec{
		Addresses: c.Addresses(), User: "hank", Clients: 2, Duration: 100 * time.Millisecond, Retry: time.Millisecond,
		Work: func(*rand.Rand) time.Duration { return proctest.Patience }, // so that waiting longer ends in a 200, or not at all
	})
	proctest.Eventually(t, "two requests run", func() error {
		if n := inProgress(t, c.Instances[0]); n != 2 {
			return fmt.Errorf("%v in progress", n)
		}
		return nil
	})
	began := time.Now()
	res, _ := get(t, c.Addresses()[0], "hank")
	if took := time.Since(began); res.StatusCode != 429 || took < 200*time.Millisecond {
		t.Errorf("answered %d after %v, want 429 after 200ms", res.StatusCode, took)
	}
	if got := res.Header.Get("Sluice-Reason"); got != "concurrent-requests" {
		t.Errorf("Sluice-Reason = %q, want concurrent-requests", got)
	}
	if after, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || after < 1 || after > 3 {
		t.Errorf("Retry-After = %q, want 1 to 3", res.Header.Get("Retry-After"))
	}
}

// A user who is refused again and again is refused by HAProxy alone, and let in
// again when there is room.
func TestProgressBlocksNatively(t *testing.T) {
	t.Parallel()
	const limit = 3
	_, origin := counting(t, limit)
	c := cluster.Start(t, cluster.Options{Limits: progressLimits(limit), Origin: origin})
	in := c.Instances[0]
	closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 30, Retry: 10 * time.Millisecond,
		Work: func(*rand.Rand) time.Duration { return time.Second }, Duration: 2 * time.Second})
	if n := in.Metric(t, `sluice_native_blocks_total{action="block"}`); n == 0 {
		t.Error("HAProxy was never told to block")
	}
	proctest.Eventually(t, "alice is let in again", func() error {
		if res, _ := get(t, in.Address, "alice"); res.StatusCode != 404 && res.StatusCode != 400 {
			return fmt.Errorf("status %d", res.StatusCode) // the origin has nothing but /sleep
		}
		return nil
	})
}

// Requests that end in every way there is leave nothing behind: not in HAProxy,
// not in the agents, not in Redis.
func TestProgressOfMixedRequests(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	origin := &http.Server{Handler: mixed.Origin()}
	go func() { _ = origin.Serve(l) }()
	t.Cleanup(func() { origin.Close() })
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(4), Origin: l.Addr().String()})
	users := []string{"alice", "bob", "carol", "dave", "hank", "other"}
	done := make(chan error)
	for _, in := range c.Instances {
		go func() {
			tally, err := mixed.Run(t.Context(), in.Address, users, 2000)
			if err == nil && tally.Statuses[200] == 0 {
				err = fmt.Errorf("nothing was answered: %+v", tally)
			}
			done <- err
		}()
	}
	for range c.Instances {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	checkNothingInProgress(t, c)
}

// checkNothingInProgress fails the test unless every count comes to exactly 0.
func checkNothingInProgress(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	proctest.Eventually(t, "every count is 0", func() error {
		for _, in := range c.Instances {
			if n := inProgress(t, in); n != 0 {
				return fmt.Errorf("%s: the agent believes %v requests in progress", in.Name, n)
			}
			table, err := in.Tell("show table sluice/active")
			if err != nil {
				return err
			}
			if !strings.Contains(table, "# table: sluice/active") {
				return fmt.Errorf("no table: %q", table)
			}
			for line := range strings.Lines(table) {
				if strings.Contains(line, "conn_cur=") && !strings.Contains(line, "conn_cur=0 ") && !strings.HasSuffix(strings.TrimSpace(line), "conn_cur=0") {
					return fmt.Errorf("%s: HAProxy counts %s", in.Name, line)
				}
			}
		}
		return checkSlots(c)
	})
}

func inProgress(t *testing.T, in *cluster.Instance) float64 {
	return in.Metric(t, "sluice_requests_in_progress")
}

// checkSlots looks at what Redis says that the instances hold and run: nothing runs, and
// each holds at most its portion, which it need not ask for.
func checkSlots(c *cluster.Cluster) error {
	out, err := slotsInRedis(c)
	if err != nil {
		return err
	}
	set, err := limitfile.Load(c.LimitsFile)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		var held, active, seq, at int
		var key string
		if _, err := fmt.Sscan(line, &held, &active, &seq, &at, &key); err != nil {
			if strings.TrimSpace(line) == "" {
				continue
			}
			return fmt.Errorf("holding %q: %w", line, err)
		}
		of := set.User(key[strings.LastIndex(key, ":")+1:])
		portion := 0
		if len(c.Instances) > 1 && credit.Possible(of, len(c.Instances)) {
			portion = credit.Portion(of.Concurrent, len(c.Instances))
		}
		if active > 0 || held > portion {
			return fmt.Errorf("Redis has %q: want nothing in progress, and at most %d slots", strings.TrimSpace(line), portion)
		}
	}
	return nil
}

// slotsInRedis is a line for each instance and user of whom the pool has heard: slots held, requests
// in progress, the number of the last ask, when it came, and the key.
func slotsInRedis(c *cluster.Cluster) (string, error) {
	host, port, err := net.SplitHostPort(c.RedisAddr)
	if err != nil {
		return "", err
	}
	out, err := exec.Command("redis-cli", "-h", host, "-p", port, "EVAL", `
		local holdings = {}
		for _, key in ipairs(redis.call('KEYS', 'sluice:*:slots:*')) do
		  for _, v in ipairs(redis.call('HVALS', key)) do table.insert(holdings, v .. ' ' .. key) end
		end
		return holdings`, "0").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli: %w: %s", err, out)
	}
	return string(out), nil
}

// faultLoad drives a limit of 10 with 50 clients, lets fault happen after a second, and
// returns what the origin saw.
func faultLoad(t *testing.T, c *cluster.Cluster, o *closed.Origin, fault func()) (points []closed.Point, at time.Time) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 50, Work: short, Duration: 8 * time.Second, Seed: 1})
	}()
	time.Sleep(time.Second)
	at = time.Now()
	fault()
	<-done
	return o.Points(), at
}

// healSpan is what over-admission and lock-out may last after a fault, and slack what
// the test's own machine may add: the most that leaves a second of the load to check.
const (
	healSpan = 2 * time.Second
	slack    = 3 * time.Second
)

// checkHealed fails the test if, later than healSpan after the faulty part was
// back, a request began above the limit, or if after the fault none began for so
// long. From the fault on at most so many may run.
// On a machine that was busy, how many ran is not judged.
func checkHealed(t *testing.T, points []closed.Point, at time.Time, back time.Duration, limit, most int, busy bool) {
	t.Helper()
	last, worst := at, 0
	var longest time.Duration
	for i, p := range points {
		if i == 0 || p.Active <= points[i-1].Active {
			continue // an end
		}
		switch since := p.At.Sub(at); {
		case since < 0:
			if p.Active > limit && !busy {
				t.Errorf("%v before the fault %d requests ran", -since, p.Active)
			}
			continue
		case since > back+healSpan+slack && p.Active > limit && !busy:
			t.Errorf("%v after the fault a request began as number %d", since, p.Active)
		default:
			worst = max(worst, p.Active)
		}
		longest = max(longest, p.At.Sub(last))
		last = p.At
	}
	t.Logf("after the fault: at most %d at once, longest time without a beginning %v", worst, longest)
	if worst > most && !busy {
		t.Errorf("after the fault %d requests ran at once, want at most %d", worst, most)
	}
	if longest > healSpan+slack {
		t.Errorf("after the fault nobody was let in for %v, want %v at most", longest, healSpan)
	}
	if end := points[len(points)-1].At.Sub(last); end > healSpan+slack {
		t.Errorf("nobody was let in for the last %v", end)
	}
}

func TestProgressAgentKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		instances, most int
	}{
		{1, 10}, // HAProxy holds by itself what its agent taught it
		{2, 15}, // the other agent takes over what is not held any more; this HAProxy keeps its half
	} {
		t.Run(fmt.Sprint(tt.instances, " instances"), func(t *testing.T) {
			o, origin := counting(t, 10)
			c := cluster.Start(t, cluster.Options{Instances: tt.instances, Limits: progressLimits(10), Origin: origin})
			in := c.Instances[0]
			points, at := faultLoad(t, c, o, func() {
				in.Agent.Kill()
				time.Sleep(500 * time.Millisecond)
				in.StartAgent(t)
			})
			// What began above the limit while the agent was away runs to its end.
			checkHealed(t, points, at, 500*time.Millisecond, 10, tt.most, busy(t, c, 0))
			checkNothingInProgress(t, c)
		})
	}
}

func TestProgressPolygenKilled(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 10)
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(10), Origin: origin})
	points, at := faultLoad(t, c, o, c.Polygens[0].Kill)
	checkHealed(t, points, at, 0, 10, 10, busy(t, c, 0))
	checkNothingInProgress(t, c)
}

func TestProgressHAProxyKilled(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 10)
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(10), Origin: origin})
	in := c.Instances[0]
	points, at := faultLoad(t, c, o, func() {
		in.HAProxy.Kill()
		in.StartHAProxy(t)
	})
	// The origin may notice a little later than the agent that a request is over.
	checkHealed(t, points, at, 0, 10, 20, busy(t, c, 0))
	checkNothingInProgress(t, c)
}

func TestProgressRedisKilled(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 10)
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(10), Origin: origin})
	points, at := faultLoad(t, c, o, func() {
		c.Redis.Kill()
		time.Sleep(time.Second)
		c.Redis = proctest.RedisAt(t, c.RedisAddr)
	})
	// Each goes on with its half, beside what the other one still has above its: 15,
	// and as many more as end while the origin has not noticed yet.
	checkHealed(t, points, at, time.Second, 10, 17, busy(t, c, 2))
	checkNothingInProgress(t, c)
}

// A reload under load: what the old worker still has counts, so that the limit
// holds through it, and is used again when the old worker has ended.
func TestProgressHAProxyReloaded(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 10)
	c := cluster.Start(t, cluster.Options{Limits: progressLimits(10), Origin: origin, Master: true})
	points, at := faultLoad(t, c, o, func() { _ = c.Instances[0].HAProxy.Signal(syscall.SIGUSR2) })
	checkHealed(t, points, at, 0, 10, 10, busy(t, c, 0))
	checkNothingInProgress(t, c)
}

// What was blocked when HAProxy ended is blocked again soon after its return.
func TestProgressBlocksAreTaughtAgain(t *testing.T) {
	t.Parallel()
	const limit = 3
	o, origin := counting(t, limit)
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: progressLimits(limit), Origin: origin})
	in := c.Instances[1]
	load := func(address string, clients int, d time.Duration) closed.Report {
		return closed.Run(t.Context(), closed.Spec{Addresses: []string{address}, User: "alice", Clients: clients, Retry: 10 * time.Millisecond,
			Work: func(*rand.Rand) time.Duration { return 8 * time.Second }, Duration: d})
	}
	go load(c.Instances[0].Address, limit, time.Hour) // who has all slots, on the other instance
	proctest.Eventually(t, "all slots are taken", func() error {
		if n := o.Counts().Active; n != limit {
			return fmt.Errorf("%d are, want %d", n, limit)
		}
		return nil
	})
	blocked := func() error {
		table, err := in.Tell("show table sluice/block")
		if err != nil {
			return err
		}
		for line := range strings.Lines(table) {
			if _, rest, ok := strings.Cut(line, "gpt0="); ok && strings.Contains(line, "key=alice ") {
				deadline, _, _ := strings.Cut(rest, " ")
				if n, err := strconv.ParseInt(strings.TrimSpace(deadline), 10, 64); err == nil && n >= time.Now().Unix() {
					return nil
				}
			}
		}
		return fmt.Errorf("not blocked: %s", table)
	}
	// The agent lets go of a block that nobody has met for a while, as on a machine that
	// is slow to start HAProxy, and blocks nobody who was refused too rarely, as on one that
	// stood still for most of the load.
	proctest.Eventually(t, "alice is blocked again after HAProxy was started again", func() error {
		load(in.Address, 20, time.Second)
		if err := proctest.Poll(slack, blocked); err != nil {
			return err
		}
		in.HAProxy.Kill()
		in.StartHAProxy(t)
		began := time.Now()
		err := proctest.Poll(slack, blocked)
		t.Logf("blocked again %v after HAProxy accepted connections: %v", time.Since(began), err)
		return err
	})
}
