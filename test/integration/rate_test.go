package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// repeat is a user so many times.
func repeat(user string, n int) []string { return slices.Repeat([]string{user}, n) }

// Any load of one user or on one instance leaves a limit exact, users below theirs and users without one untouched, and the
// origin without refused requests. Agents that operators gave one name are two agents.
func TestRequestRate(t *testing.T) {
	t.Parallel()
	for instances, patterns := range map[int][]string{1: {"even"}, 3: {"even", "90/10", "jump"}} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			s := scene.Start(t, cluster.Options{Instances: instances, OneName: true, Limits: `
version: 1
default_tier: hundred
tiers: {ten: {requests: {GET: 10}}, hundred: {requests: {GET: 100}}, thousand: {requests: {GET: 500}}, none: {}}
users: {"ten-*": ten, "free-*": none, "fast-*": thousand}
`})
			for i, pattern := range patterns {
				name := func(user string) string { return fmt.Sprint(user, "-", i) }
				users := slices.Concat(repeat(name("fast"), 8), repeat(name("wild"), 4), repeat(name("ten"), 2), []string{name("calm"), name("free")})
				r := s.Offer(t, pattern, 1200, 3*time.Second, scene.GETs(users...))
				scene.CheckAnswered(t, r)
				scene.CheckLimit(t, r, name("fast"), 500, 0.95)
				scene.CheckLimit(t, r, name("wild"), 100, 0.95)
				scene.CheckLimit(t, r, name("ten"), 10, 0.8)    // one token of a second is a tenth
				scene.CheckLimit(t, r, name("calm"), 100, 0.95) // who sends 75 a second
				if n := len(r.User(name("free")).Refused().Results); n > 0 {
					t.Errorf("%s: %d requests of a user without a limit were refused", pattern, n)
				}
				for _, user := range users {
					if served, admitted := int(s.Origin.UserCounts(user).Served), len(r.User(user).Admitted().Results); served != admitted {
						t.Errorf("%s: the origin served %d requests of %s, %d were admitted", pattern, served, user, admitted)
					}
				}
			}
		})
	}
}

// A new name in each request gets what the quota of unknown users may have and one limit more; users of the limit file notice
// nothing.
func TestUnknownUsersShareOneLimit(t *testing.T) {
	t.Parallel()
	const instances, quota, limit, alices = 2, 3, 10, 40
	s := scene.Start(t, cluster.Options{Instances: instances, SPOAArgs: []string{"--unknown-users", fmt.Sprint(quota)}, Limits: fmt.Sprintf(`
version: 1
default_tier: free
tiers: {free: {requests: {GET: %d}, concurrent: 4}, pro: {requests: {GET: %d}}}
users: {alice: pro}
`, limit, alices)})
	alice := scene.GETs("alice")
	r := s.Offer(t, "even", 600, 3*time.Second, func(i int) load.Request {
		if i%6 == 0 {
			return alice(i)
		}
		return load.Request{User: "random", Headers: fmt.Appendf(nil, "X-User: random-%d\r\n", i)}
	})
	scene.CheckAnswered(t, r)
	scene.CheckLimit(t, r, "alice", alices, 0.95)
	// Each agent has a quota of its own, and all have one pool of the others.
	if excess := r.User("random").Attribute((instances*quota+1)*limit, 0).Excess((instances*quota + 1) * limit); excess > 0 {
		t.Errorf("%d requests of random names beyond %d limits", excess, instances*quota+1)
	}
	for _, in := range s.Instances {
		if got := in.Metric(t, "sluice_unknown_users_counted"); got != quota {
			t.Errorf("%s: sluice_unknown_users_counted = %v, want %d", in.Name, got, quota)
		}
		table, err := in.Tell("show table sluice/active")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(table, "key="); n > quota+2 || !strings.Contains(table, "key=~others ") {
			t.Errorf("%s: HAProxy tracks %d users, want %d of the quota, alice and ~others at most:\n%s", in.Name, n, quota, table)
		}
	}

	// As many of them are in progress.
	statuses := make(chan int)
	const requests = 80
	for i := range requests {
		go func() {
			res, _, err := scene.Send(t.Context(), http.MethodHead, s.Addresses()[i%instances]+"/sleep/20000", fmt.Sprint("slow-", i), "")
			if err != nil {
				statuses <- 0
				return
			}
			statuses <- res.StatusCode
		}()
	}
	for range requests - (instances*quota+1)*4 {
		if status := <-statuses; status != http.StatusTooManyRequests {
			t.Errorf("status %d, want 429 of all beyond %d limits", status, instances*quota+1)
		}
	}
}

// HAProxy asks about a user at first, and soon admits the user's requests by credit.
func TestCreditAfterOneQuestion(t *testing.T) {
	t.Parallel()
	const users = 50
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 1000}}}\n"})
	asked := func() (n float64) {
		for _, in := range s.Instances {
			n += in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`)
		}
		return n
	}
	s.Settle()
	// questions counts those of a round in which each user sends a request to each instance.
	questions := func() float64 {
		before := asked()
		for i := range users {
			if n := s.Admitted(t, "GET", "/", fmt.Sprint("cold-", i), 2); n != 2 {
				t.Errorf("%d of 2 requests admitted", n)
			}
		}
		return asked() - before
	}
	all := float64(users * len(s.Instances))
	if n := questions(); n < .9*all {
		t.Errorf("HAProxy asked %v questions about users without credit, want about %v", n, all)
	}
	// Credit begins with the second after an answer, and no answer brings any around the end of a second.
	testkit.Eventually(t, "HAProxy admits users by credit", func() error {
		if n := questions(); n > all/10 {
			return fmt.Errorf("HAProxy asked %v questions in a round of %v requests", n, all)
		}
		return nil
	})
}
