package integration

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/longrun/mixed"
	"github.com/sluice-qos/sluice/test/scene"
)

const progressLimits = `
version: 1
default_tier: ten
tiers:
  ten: {concurrent: 10}
  five: {concurrent: 5}
  twenty: {concurrent: 20}
  patient: {concurrent: 5, over_limit: {concurrent: wait 30s}}
  hasty: {concurrent: 2, over_limit: {concurrent: wait 200ms}}
  none: {}
users: {bob: five, carol: twenty, patty: patient, hank: hasty, other: none}
`

// side runs loads side by side.
func side(loads ...func()) {
	var all sync.WaitGroup
	for _, l := range loads {
		all.Go(l)
	}
	all.Wait()
}

// As many requests of a user run as the limit allows, and never one more. A user below the limit is never refused, and requests
// that may wait for room are served late.
func TestProgress(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 3} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			s := scene.Start(t, cluster.Options{Instances: instances, Limits: progressLimits})
			const d = 4 * time.Second
			var alice, carol, patty closed.Report
			side(
				func() { alice = closed.Run(t.Context(), s.Closed("alice", 40, d)) },
				func() { carol = closed.Run(t.Context(), s.Closed("carol", 10, d)) },
				func() { patty = closed.Run(t.Context(), s.Closed("patty", 20, d)) },
			)
			for user, r := range map[string]closed.Report{"alice": alice, "carol": carol, "patty": patty} {
				scene.CheckRuns(t, r)
				refused := r.Statuses[http.StatusTooManyRequests]
				if want := user == "alice"; refused > 0 != want {
					t.Errorf("%d of %d requests of %s were refused, want some: %v", refused, refused+r.Statuses[http.StatusOK], user, want)
				}
			}
			for user, want := range map[string]int64{"alice": 10, "patty": 5} {
				if most := s.Origin.UserCounts(user).MaxActive; most != want {
					t.Errorf("at most %d requests of %s ran at once, want %d", most, user, want)
				}
			}
			checkBurst(t, s)
			checkHasty(t, s)
			s.AwaitNothingInProgress(t)
		})
	}
}

// checkBurst sends bob's requests in one instant: each slot is taken once. If one of them is answered before the others come, HAProxy
// has slots to give by itself (the half of a small limit, for one instance), which requests that were already asked about do not find.
func checkBurst(t *testing.T, s *scene.Scene) {
	t.Helper()
	const requests, limit, fewest = 60, 5, 3
	begin, statuses := make(chan struct{}), make(chan int)
	for i := range requests {
		go func() {
			conn, err := net.Dial("tcp", s.Addresses()[i%len(s.Instances)])
			if err != nil {
				statuses <- 0
				return
			}
			defer conn.Close()
			<-begin
			fmt.Fprint(conn, "GET /sleep/5000 HTTP/1.1\r\nHost: x\r\nX-User: bob\r\nConnection: close\r\n\r\n")
			answer := make([]byte, 12)
			_, _ = conn.Read(answer)
			status, _ := strconv.Atoi(string(answer[9:]))
			statuses <- status
		}()
	}
	close(begin)
	got := map[int]int{}
	for range requests {
		got[<-statuses]++
	}
	most := s.Origin.UserCounts("bob").MaxActive
	if got[200] < fewest || got[200] > limit || got[200]+got[429] != requests || most != int64(got[200]) {
		t.Errorf("a burst: answers %v, at most %d at once; want %d to %d × 200 at once, the others 429", got, most, fewest, limit)
	}
}

// checkHasty has both slots of hank taken: another request waits for 200 ms, and no longer.
func checkHasty(t *testing.T, s *scene.Scene) {
	t.Helper()
	defer s.Hold(t, "hank", 2)()
	began := time.Now()
	res, _ := scene.Get(t, s.Addresses()[0], "hank")
	if took := time.Since(began); res.StatusCode != http.StatusTooManyRequests || took < 200*time.Millisecond {
		t.Errorf("answered %d after %v, want 429 after 200ms", res.StatusCode, took)
	}
}

// Requests that end in every way there is leave nothing behind.
func TestNothingStaysInProgress(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: progressLimits, Origin: scene.Serve(t, mixed.Origin())})
	done := make(chan error)
	for _, in := range s.Instances {
		go func() {
			tally, err := mixed.Run(t.Context(), in.Address, []string{"alice", "bob", "carol", "hank", "other"}, 1000)
			if err == nil && tally.Statuses[200] == 0 {
				err = fmt.Errorf("nothing was answered: %+v", tally)
			}
			done <- err
		}()
	}
	for range s.Instances {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	s.AwaitNothingInProgress(t)
}

// A user at the limit is blocked in HAProxy, also in one that has started again, is let in by hand and blocked again, and is let
// in when there is room.
func TestBlock(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: progressLimits})
	release := s.Hold(t, "bob", 5)
	in := s.Instances[1]
	blocked := func(when string) {
		t.Helper()
		testkit.Eventually(t, "bob is blocked "+when, func() error {
			for range 20 {
				scene.Get(t, in.Address, "bob")
			}
			table, err := in.Tell("show table sluice/block")
			if err != nil {
				return err
			}
			for line := range strings.Lines(table) {
				var until int64
				if _, rest, ok := strings.Cut(line, "gpt0="); ok && strings.Contains(line, "key=bob ") {
					if _, err := fmt.Sscan(rest, &until); err == nil && until >= time.Now().Unix() {
						return nil
					}
				}
			}
			return fmt.Errorf("the table has %s", table)
		})
	}
	blocked("when all slots are taken")
	for _, p := range s.Polygens { // the leader and the standby
		testkit.Eventually(t, "polygen shows it", func() error {
			scene.Get(t, in.Address, "bob") // without another request the instances have nothing to report
			text, err := cluster.Get(p.Admin, "/api/v1/users/bob")
			if err == nil && !strings.Contains(text, `"state":"blocked"`) {
				err = fmt.Errorf("bob is %s", text)
			}
			return err
		})
		answer := scene.Told(t, p, "POST", "/api/v1/users/bob/unblock", `{"reason":"a test"}`)
		if !strings.Contains(answer, `"sent":true,"in_progress":5,"max":5,"note":"the user has 5 of 5 requests in progress`) {
			t.Errorf("unblock = %s, want that bob is at the limit", answer)
		}
		blocked("again after the unblock")
	}
	in.HAProxy.Kill()
	in.StartHAProxy(t)
	in.AwaitReady(t)
	blocked("again after HAProxy has started again")
	release()
	s.Await(t, "bob is let in", "bob", http.StatusOK)
}

// Requests of an excepted class run beside as many others as the limit allows, also while those are refused again and again.
func TestProgressWithExceptions(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: `
version: 1
default_tier: free
classes: {STREAM: {path_prefix: /hold/}}
tiers: {free: {concurrent: {limit: 5, except: [STREAM]}, bandwidth: {down: 100MiB}}}
`})
	first := s.Hold(t, "alice", 20)
	var report closed.Report
	var others func()
	side(
		func() { report = closed.Run(t.Context(), s.Closed("alice", 40, 6*time.Second)) },
		func() {
			time.Sleep(3 * time.Second)
			others = s.Hold(t, "alice", 10)
		},
	)
	scene.CheckRuns(t, report)
	if most := s.Origin.UserCounts("alice").MaxActive; most != 5 || report.Statuses[http.StatusTooManyRequests] == 0 {
		t.Errorf("at most %d requests ran at once, answers %v, want 5 and some refused", most, report.Statuses)
	}
	first()
	others()
	s.AwaitNothingInProgress(t)
}
