package spoa

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
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
		all := func(events bus.Events) (reachable, away bus.Events) { return events, bus.Events{} }
		n, err := e.sendAll(t.Context(), bus.Events{Second: second, Tiers: []bus.EventsOf{{Name: "free", Ends: 1}}}, all, func(_ context.Context, number uint64, events bus.Events) error {
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

// What a lost shard, or the registry, did not take holds up the rest no longer than until the loss is noticed, whenever
// it was counted. It is taken when that is back.
func TestEventsOfALostShardHoldUpNoOthers(t *testing.T) {
	b := unreachable(t, 2)
	near, other := "alice", "bob"
	for b.ShardOf(other) == b.ShardOf(near) {
		other += "b"
	}
	for _, tt := range []struct {
		name       string
		lose, find func(r *rig)
		away, rest []string
	}{
		{"a shard", func(r *rig) { r.exchange.links[b.ShardOf(near)].loseRedis(errAway) }, func(r *rig) { r.exchange.links[b.ShardOf(near)].findRedis() },
			[]string{near}, []string{other, "free"}},
		{"the registry", func(r *rig) { r.noteRegistry(errAway) }, func(r *rig) { r.noteRegistry(nil) }, []string{"free"}, []string{near, other}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Bus = b })
			taken, e, back := map[int64][]string{}, newEvents(), false
			send := func(second int64) error {
				_, err := e.sendAll(t.Context(), bus.Events{Second: second, Users: oneEndOf(near, other), Tiers: oneEndOf("free")}, r.limiter.divideLost, func(_ context.Context, _ uint64, events bus.Events) error {
					var names []string
					for _, of := range slices.Concat(events.Users, events.Tiers) {
						names = append(names, of.Name)
					}
					if !back && slices.Contains(names, tt.away[0]) {
						return errAway
					}
					taken[events.Second] = append(taken[events.Second], names...)
					return nil
				})
				return err
			}
			if err := send(1); !errors.Is(err, errAway) {
				t.Fatalf("before the loss is known: %v, want %v", err, errAway)
			}
			tt.lose(r)
			if err := send(2); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(map[int64][]string{1: tt.rest, 2: tt.rest}, taken); diff != "" {
				t.Errorf("taken, by second (-want +got):\n%s", diff)
			}
			tt.find(r)
			back = true
			if err := send(3); err != nil {
				t.Error(err)
			}
			all := slices.Concat(tt.rest, tt.away)
			if diff := cmp.Diff(map[int64][]string{1: all, 2: all, 3: {near, other, "free"}}, taken); diff != "" {
				t.Errorf("taken when it is back, by second (-want +got):\n%s", diff)
			}
		})
	}
}

func oneEndOf(names ...string) (all []bus.EventsOf) {
	for _, name := range names {
		all = append(all, bus.EventsOf{Name: name, Ends: 1})
	}
	return all
}

// To look at a user may have the core decide something, which is carried out at once.
func TestRaisingWhatIsInProgressIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil)
		name := func(i int) string { return fmt.Sprint("user-", i) }
		const users = 1500 // more than hear of new limits at once
		for i := range users {
			r.ask(name(i), "GET")
			r.applyPolicies([]policy.Message{policy.Block{User: name(i), Limit: 2, Release: 1}})
		}
		r.force(parse(t, strings.Replace(slotLimits, "free: {concurrent: 2}", "free: {concurrent: 5}", 1)))
		told := len(r.toldOfBlocks())
		reports := []bus.Started{{User: name(users - 1)}}
		r.raiseInProgress(reports)
		if blocks := r.toldOfBlocks(); reports[0].Active != 1 || len(blocks) != told+1 || blocks[told].User != name(users-1) || blocks[told].Limit != 5 {
			t.Errorf("%d in progress, and HAProxy was told %+v, want 1 and that the user's limit is 5", reports[0].Active, blocks[told:])
		}
	})
}
