package spoa

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/bus"
)

// Over time as many requests end as have started and are not in progress, of each user
// and of each tier, also where HAProxy tells of a start later than of its being in progress.
func TestEventsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newEvents()
		names := []string{"alice", "bob", "carol"}
		tierOf := func(user string) string { return map[string]string{"alice": "free", "bob": "free"}[user] }
		type sums struct{ active, started, ends, told int64 }
		users, tiers := map[string]*sums{}, map[string]*sums{"free": {}, "": {}}
		for _, name := range names {
			users[name] = &sums{}
		}
		seconds := rapid.IntRange(1, 10).Draw(rt, "seconds")
		for second := range seconds + 1 {
			var reports []bus.Started
			started := map[series]int64{}
			for _, name := range names {
				u, tier := users[name], tierOf(name)
				begins := rapid.Int64Range(0, 5).Draw(rt, "begins")
				late := rapid.Int64Range(0, 2).Draw(rt, "told of later") // starts that HAProxy's counters do not have yet
				ends := rapid.Int64Range(0, u.active+begins).Draw(rt, "ends")
				if second == seconds { // all has ended, and been told of
					begins, late, ends = 0, 0, u.active
				}
				u.started += begins
				u.active += begins - ends
				told := max(0, u.started-late-u.told)
				u.told += told
				tiers[tier].started += begins
				tiers[tier].active += begins - ends
				if told > 0 || u.active > 0 || e.users[name] > 0 { // as starts has it
					reports = append(reports, bus.Started{User: name, Active: int(u.active), Starts: told, Classes: []bus.StartedClass{{Class: "GET", Starts: told}}})
				}
				started[series{tier, "GET", ""}] += told
			}
			events := e.countSecond(reports, rapid.IntRange(0, len(reports)).Draw(rt, "near"), started, tierOf)
			for _, of := range events.Users {
				users[of.Name].ends += of.Ends
			}
			for _, of := range events.Tiers {
				tiers[of.Name].ends += of.Ends
			}
			for name, u := range users {
				if u.ends > u.started-u.active && u.told == u.started {
					rt.Fatalf("second %d: %d requests of %s have ended, %d started and %d are in progress", second, u.ends, name, u.started, u.active)
				}
			}
		}
		for name, sum := range map[string]*sums{"alice": users["alice"], "bob": users["bob"], "carol": users["carol"], "tier free": tiers["free"], "no tier": tiers[""]} {
			if sum.ends != sum.started {
				rt.Fatalf("%s: %d requests have ended, want all %d that started", name, sum.ends, sum.started)
			}
		}
		if len(e.users)+len(e.tiers) > 0 {
			rt.Fatalf("%d users and %d tiers are remembered with nothing in progress", len(e.users), len(e.tiers))
		}
	})
}

// Whoever is near a limit is told of, and of the others those with most, and whose end is
// still to come.
func TestEventsAreOfTheBusiest(t *testing.T) {
	e := newEvents()
	tierOf := func(string) string { return "free" }
	slow := bus.Started{User: "slow", Starts: 1, Active: 1}
	e.countSecond([]bus.Started{slow}, 0, nil, tierOf)

	reports := []bus.Started{{User: "near", Starts: 1}}
	for i := range 2 * maxBusiest {
		reports = append(reports, bus.Started{User: fmt.Sprint("user", i), Starts: int64(2 + i)})
	}
	slow.Starts, slow.Active = 0, 0
	events := e.countSecond(append(reports, slow), 1, nil, tierOf)
	found := map[string]bus.EventsOf{}
	for _, of := range events.Users {
		found[of.Name] = of
	}
	for _, user := range []string{"near", "slow", fmt.Sprint("user", 2*maxBusiest-1), fmt.Sprint("user", maxBusiest)} {
		if found[user].Ends == 0 {
			t.Errorf("no end of %s is told of", user)
		}
	}
	if len(found) != maxBusiest+2 {
		t.Errorf("%d users are told of, want %d", len(found), maxBusiest+2)
	}
}

// What Redis does not take is sent again with the next second, in order, and the oldest is
// given up when too much waits.
func TestEventsAreRepeated(t *testing.T) {
	e := newEvents()
	var taken []int64
	var failing error
	lost := 0
	numbers := map[uint64]int64{} // of reports, and their seconds
	send := func(second int64) {
		t.Helper()
		n, err := e.sendAll(t.Context(), bus.Events{Second: second}, func(_ context.Context, number uint64, events bus.Events) error {
			if of, known := numbers[number]; known && of != events.Second {
				t.Errorf("report %d is of second %d, and was of %d", number, events.Second, of)
			}
			numbers[number] = events.Second
			if failing == nil {
				taken = append(taken, events.Second)
			}
			return failing
		})
		if !errors.Is(err, failing) {
			t.Errorf("second %d: %v, want %v", second, err, failing)
		}
		lost += n
	}
	check := func(wantLost int, want ...int64) {
		t.Helper()
		if diff := cmp.Diff(want, taken); diff != "" || lost != wantLost {
			t.Errorf("%d lost, want %d; taken (-want +got):\n%s", lost, wantLost, diff)
		}
	}
	send(1)
	check(0, 1)
	failing = errors.New("no answer")
	send(2)
	send(3)
	failing = nil
	send(4)
	check(0, 1, 2, 3, 4)
	failing = errors.New("no answer")
	for second := int64(5); second < 5+maxUnsent+3; second++ {
		send(second)
	}
	failing, taken = nil, nil
	send(20)
	want := []int64{}
	for second := int64(9); second < 5+maxUnsent+3; second++ {
		want = append(want, second)
	}
	check(4, append(want, 20)...)
	reports := len(numbers)
	send(20) // the clock was set back
	if len(numbers) != reports+1 {
		t.Error("another report of the same second has the number of one before")
	}
}
