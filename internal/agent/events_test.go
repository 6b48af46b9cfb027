package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
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
			var reports []redisbus.Started
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
					reports = append(reports, redisbus.Started{User: name, Active: int(u.active), Starts: told, Classes: []redisbus.StartedClass{{Class: "GET", Starts: told}}})
				}
				started[series{tier, "GET", ""}] += told
			}
			events := e.countSecond(reports, started, nil, tierOf)
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

// The bucket has the first users of the reports, and those whose end is still to come.
func TestEventsAreOfTheBusiest(t *testing.T) {
	e := newEvents()
	tierOf := func(string) string { return "free" }
	e.countSecond([]redisbus.Started{{User: "slow", Starts: 1, Active: 1}}, nil, nil, tierOf)

	var reports []redisbus.Started
	for i := range 2 * maxReported {
		reports = append(reports, redisbus.Started{User: fmt.Sprint("user", i), Starts: 1})
	}
	events := e.countSecond(append(reports, redisbus.Started{User: "slow"}), nil, nil, tierOf)
	found := map[string]redisbus.EventsOf{}
	for _, of := range events.Users {
		found[of.Name] = of
	}
	for _, user := range []string{"user0", fmt.Sprint("user", maxReported-1), "slow"} {
		if found[user].Ends != 1 {
			t.Errorf("%d ends of %s, want 1", found[user].Ends, user)
		}
	}
	if len(found) != maxReported+1 {
		t.Errorf("%d users are in the bucket, want %d", len(found), maxReported+1)
	}
}

// What belongs to a lost shard, or to the registry, is left out of a report, so that the rest arrives.
func TestEventsOfALostShardAreLeftOut(t *testing.T) {
	b := unreachable(t, 2)
	near, other := "alice", "bob"
	for b.ShardOf(other) == b.ShardOf(near) {
		other += "b"
	}
	for _, tt := range []struct {
		name       string
		lose, find func(r *rig)
		rest       []string
	}{
		{"a shard", func(r *rig) { r.exchange.links[b.ShardOf(near)].loseRedis(errAway) }, func(r *rig) { r.exchange.links[b.ShardOf(near)].findRedis() }, []string{other, "free"}},
		{"the registry", func(r *rig) { r.noteRegistry(errAway) }, func(r *rig) { r.noteRegistry(nil) }, []string{near, other}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Bus = b })
			check := func(when string, want []string, wantAll bool) {
				t.Helper()
				events, all := r.limiter.withoutLost(redisbus.Events{Second: 7, Users: oneEndOf(near, other), Tiers: oneEndOf("free")})
				var names []string
				for _, of := range slices.Concat(events.Users, events.Tiers) {
					names = append(names, of.Name)
				}
				if diff := cmp.Diff(want, names); diff != "" || events.Second != 7 || all != wantAll {
					t.Errorf("%s: all %v, second %d, names (-want +got):\n%s", when, all, events.Second, diff)
				}
			}
			check("before", []string{near, other, "free"}, true)
			tt.lose(r)
			check("while it is lost", tt.rest, false)
			tt.find(r)
			check("when it is back", []string{near, other, "free"}, true)
		})
	}
}

func oneEndOf(names ...string) (all []redisbus.EventsOf) {
	for _, name := range names {
		all = append(all, redisbus.EventsOf{Name: name, Ends: 1})
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
			r.applyPolicies([]redisbus.Message{redisbus.Block{User: name(i), Limit: 2, Release: 1}})
		}
		r.force(parse(t, strings.Replace(slotLimits, "free: {concurrent: 2}", "free: {concurrent: 5}", 1)))
		told := len(r.toldOfBlocks())
		reports := []redisbus.Started{{User: name(users - 1)}}
		r.raiseInProgress(reports)
		if blocks := r.toldOfBlocks(); reports[0].Active != 1 || len(blocks) != told+1 || blocks[told].User != name(users-1) || blocks[told].Limit != 5 {
			t.Errorf("%d in progress, and HAProxy was told %+v, want 1 and that the user's limit is 5", reports[0].Active, blocks[told:])
		}
	})
}
