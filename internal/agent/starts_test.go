package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// takeStarts is a report in a fixed order.
func takeStarts(s *starts) []redisbus.Started {
	all := s.take().sorted()
	for _, u := range all {
		slices.SortFunc(u.Classes, func(a, b redisbus.StartedClass) int { return cmp.Compare(a.Class, b.Class) })
	}
	slices.SortFunc(all, func(a, b redisbus.Started) int { return cmp.Compare(a.User, b.User) })
	return all
}

func classes(of ...any) (all []redisbus.StartedClass) {
	for i := 0; i < len(of); i += 2 {
		all = append(all, redisbus.StartedClass{Class: of[i].(string), Starts: int64(of[i+1].(int))})
	}
	return all
}

func TestStarts(t *testing.T) {
	s := newStarts()
	steps := []struct {
		name string
		do   func()
		want []redisbus.Started
	}{
		{"nothing", func() {}, nil},
		{"by user, verb and operation", func() {
			s.countStart("alice", "GET", "")
			s.countStart("alice", "GET", "LIST")
			s.countStart("alice", "PUT", "")
			s.countStart("bob", "GET", "LIST")
		}, []redisbus.Started{
			{User: "alice", Starts: 3, Classes: classes("GET", 2, "LIST", 1, "PUT", 1)},
			{User: "bob", Starts: 1, Classes: classes("GET", 1, "LIST", 1)},
		}},
		{"each report begins anew", func() { s.countStart("alice", "PUT", "") }, []redisbus.Started{{User: "alice", Starts: 1, Classes: classes("PUT", 1)}}},
		{"who has requests in progress is told of", func() { s.progress("carol", 2); s.progress("dave", 1) },
			[]redisbus.Started{{User: "carol", Active: 2}, {User: "dave", Active: 1}}},
		{"as long as they are", func() { s.progress("dave", 0) }, []redisbus.Started{{User: "carol", Active: 2}, {User: "dave"}}},
		{"and no longer", func() { s.countStart("carol", "GET", "") }, []redisbus.Started{{User: "carol", Active: 2, Starts: 1, Classes: classes("GET", 1)}}},
		{"HAProxy begins anew", func() { s.restarted() }, []redisbus.Started{{User: "carol"}}},
		{"the end of what nobody heard of", func() { s.progress("emil", 0) }, nil},
	}
	for _, step := range steps {
		step.do()
		if diff := gocmp.Diff(step.want, takeStarts(s), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// Users near a limit come first, then those with most. Beyond the bound a new user is not counted.
func TestStartsOfManyUsers(t *testing.T) {
	s := newStarts()
	for i := range maxStarted + 100 {
		s.count(fmt.Sprint("user", i), "GET", "", int64(1+i%7), 0)
	}
	s.nearLimit("user0")
	s.progress("user7", 9)
	reports := s.take().sorted()
	if len(reports) != maxStarted {
		t.Errorf("%d users are reported, want %d", len(reports), maxStarted)
	}
	if reports[0].User != "user0" || reports[1].User != "user7" || reports[1].Starts != 1 || reports[1].Active != 9 {
		t.Errorf("the first are %+v, want user0, who is near a limit, and user7 with most", reports[:2])
	}
	for i, u := range reports[2:] {
		if u.Starts > reports[i+1].Starts && i > 0 {
			t.Fatalf("%+v comes behind %+v", u, reports[i+1])
		}
	}
	if left := takeStarts(s); len(left) != 1 || left[0].User != "user7" {
		t.Errorf("then %d users are reported, want user7 alone", len(left))
	}
}

// The classes of one user are bounded: HAProxy's rules may be anybody's.
func TestStartedClassesAreBounded(t *testing.T) {
	s := newStarts()
	for i := range 3 * maxStartedClasses {
		s.countStart("alice", "GET", fmt.Sprint("OP", i))
	}
	got := takeStarts(s)
	if len(got) != 1 || len(got[0].Classes) != maxStartedClasses || got[0].Starts != 3*maxStartedClasses {
		t.Errorf("reported %d users, the first with %d classes and %d starts, want 1 with %d and %d",
			len(got), len(got[0].Classes), got[0].Starts, maxStartedClasses, 3*maxStartedClasses)
	}
}

func TestStartsAtOnce(t *testing.T) {
	const goroutines, each = 8, 500
	s := newStarts()
	var all sync.WaitGroup
	done := make(chan struct{})
	total := int64(0)
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		for {
			for _, u := range takeStarts(s) {
				total += u.Starts
			}
			select {
			case <-done:
				for _, u := range takeStarts(s) {
					total += u.Starts
				}
				return
			default:
			}
		}
	}()
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				s.countStart(fmt.Sprint("user", (g+i)%20), "GET", "")
			}
		})
	}
	all.Wait()
	close(done)
	<-counted
	if total != goroutines*each {
		t.Errorf("%d starts reported, want %d", total, goroutines*each)
	}
}

func TestStartsDoNotAllocate(t *testing.T) {
	s := newStarts()
	s.countStart("alice", "GET", "LIST")
	if n := testing.AllocsPerRun(1000, func() { s.countStart("alice", "GET", "LIST") }); n != 0 {
		t.Errorf("a start allocates %v times, want none", n)
	}
}

// Admitted requests are counted, of every user and class. HAProxy counts refused ones, its own and these.
func TestVerdictsCountStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		for range 6 {
			r.verdict(question{user: "alice", verb: "GET"}) // 4 of them are allowed
		}
		r.verdict(question{user: "staff", verb: "DELETE"}) // without any limit
		r.verdict(question{user: "wilma", verb: "PUT", op: "COPY"})
		r.learnProgress(peers.Update{Table: "/active", Key: "staff", Values: peers.Values{peers.ConnCur: 3}})
		if diff := gocmp.Diff([]redisbus.Started{
			{User: "alice", Starts: 4, Classes: classes("GET", 4)},
			{User: "staff", Active: 3, Starts: 1, Classes: classes("DELETE", 1)},
			{User: "wilma", Starts: 1, Classes: classes("COPY", 1, "PUT", 1)},
		}, takeStarts(r.starts)); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		if err := testutil.GatherAndCompare(r.registry, strings.NewReader(`
# HELP sluice_requests_started_total Requests that the agent let start, or HAProxy by credit, limited or not, by their users' tier, their verb (empty: admitted by credit, of an operation class with several verbs) and their operation class (empty: none, or admitted by credit where no class of the limit file has a limit); beyond 1000 series the tier is other. Not in it: who was refused, and who passed without a verdict.
# TYPE sluice_requests_started_total counter
sluice_requests_started_total{operation="",tier="free",verb="GET"} 4
sluice_requests_started_total{operation="",tier="staff",verb="DELETE"} 1
sluice_requests_started_total{operation="COPY",tier="wide",verb="PUT"} 1
`), "sluice_requests_started_total"); err != nil {
			t.Error(err)
		}
		r.followSession(peers.Session{State: peers.Gone})
		if got := takeStarts(r.starts); len(got) != 1 || got[0].Active != 0 {
			t.Errorf("reported %+v when HAProxy had ended, want one user with nothing in progress", got)
		}
	})
}
