package parts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// All processes must agree.
func TestPartsAndShardsOfUsers(t *testing.T) {
	for _, tt := range []struct {
		shards      Shards
		user        string
		shard, part int
	}{
		{1, "alice", 0, 35}, {1, "bob", 0, 7}, {1, "", 0, 6},
		{16, "alice", 9, 57}, {16, "bob", 11, 59},
		{100, "alice", 89, 25},
	} {
		if shard, part := tt.shards.ShardOf(tt.user), tt.shards.PartOf(tt.user); shard != tt.shard || part != tt.part {
			t.Errorf("of %d shards %q is in shard %d, part %d, want %d, %d", tt.shards, tt.user, shard, part, tt.shard, tt.part)
		}
	}
}

// The users of a part are in shards of the part, whatever their number, and parts of a shard have about as many users each.
func TestPartsLieInShards(t *testing.T) {
	for _, n := range []Shards{1, 2, 3, 16, 40, 64, 65, 100, 1024} {
		counts := map[int]int{}
		for i := range 64_000 {
			user := fmt.Sprint("user-", i)
			shard, part := n.ShardOf(user), n.PartOf(user)
			counts[part]++
			if !slices.Contains(n.Of(SetOf(part)), shard) {
				t.Fatalf("of %d shards %s is in shard %d and part %d, which lies in %v", n, user, shard, part, n.Of(SetOf(part)))
			}
		}
		if len(n.Of(All)) != int(n) || len(counts) != Count || len(n.Of(0)) != 0 {
			t.Errorf("of %d shards all parts lie in %d, and %d parts have users", n, len(n.Of(All)), len(counts))
		}
		for part, users := range counts {
			// A part of one shard has a part of its users, one of more has all of theirs.
			want := 64_000 * max(1, len(n.Of(SetOf(part)))) / int(n) / n.partsBeside(part).Len()
			if want = max(want, 1); float64(users) < 0.8*float64(want) || float64(users) > 1.2*float64(want) {
				t.Errorf("of %d shards part %d has %d users, want about %d", n, part, users, want)
			}
		}
	}
}

// From one that hears four shards a whole one moves, not a part of each.
func TestGivesBackWholeShards(t *testing.T) {
	const n = Shards(16)
	whole := n.partsBeside(1) | n.partsBeside(2) | n.partsBeside(3)
	if got := n.toGiveBack(whole|SetOf(4, 20), 6); got != SetOf(4, 20)|n.partsBeside(3) {
		t.Errorf("it gives back %v, want 4, 20 and shard 3", got.Numbers())
	}
	free := All &^ whole &^ SetOf(9) // 9 is another's
	got := n.byPreference(SetOf(1, 17, 2), free|n.partsBeside(1)&^SetOf(1, 17)|SetOf(18))
	first, last := []int{49, 33, 18, 0, 16, 32, 48}, []int{3, 9, 19, 34, 35, 50, 51} // nobody said that these are free
	if !slices.Equal(got[:7], first) || !slices.Equal(got[len(got)-7:], last) || len(got) != Count-3 {
		t.Errorf("it takes %v, want %v first and %v last", got, first, last)
	}
}

// Four polygens hear about a quarter of sixteen shards each, however they came to their parts.
func TestPolygensHearFewShards(t *testing.T) {
	for _, tt := range []struct {
		shards   Shards
		polygens int
		each     float64 // shards that a polygen hears, on average
	}{{16, 1, 16}, {16, 2, 8}, {16, 4, 4}, {64, 4, 16}, {16, 3, 7}, {16, 8, 3}, {3, 3, 2}, {1024, 4, 256}} {
		t.Run(fmt.Sprintf("%d of %d shards", tt.polygens, tt.shards), func(t *testing.T) {
			c := newCluster(func() time.Duration { return 0 })
			c.shards = tt.shards
			for range tt.polygens {
				c.join()
				c.run(3 * time.Second)
			}
			if got := c.heard() / float64(tt.polygens); got > tt.each {
				t.Errorf("after they joined each hears %.2f shards, want %v at most", got, tt.each)
			}
			// Each is replaced, as by an upgrade, one after the other.
			for _, old := range slices.Clone(c.polygens) {
				c.redis.ask(c.now, old.name, old.division.DropAll(), true)
				old.dead = true
				c.run(3 * time.Second)
				c.join()
				c.run(3 * time.Second)
			}
			if got := c.heard() / float64(tt.polygens); got > 1.5*tt.each {
				t.Errorf("after each was replaced each hears %.2f shards, want %v at most", got, 1.5*tt.each)
			}
		})
	}
}

// heard is how many shards all hear together.
func (c *cluster) heard() (n float64) {
	for _, p := range c.polygens {
		if !p.dead {
			n += float64(len(p.division.HeardShards()))
		}
	}
	return n
}

// Whoever decides about a user hears the user's shard.
func TestDecidersHear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Shards(rapid.IntRange(1, 200).Draw(t, "shards"))
		d, now := New(lease, n), time.Unix(1000, 0)
		if d.HeardShards() != nil {
			t.Fatal("it hears shards before it holds a part")
		}
		held := Set(rapid.Uint64().Draw(t, "held"))
		d.TakeAnswer(now, Answer{Held: held, Polygens: []string{"a"}})
		user := rapid.String().Draw(t, "user")
		if hears := slices.Contains(d.HeardShards(), n.ShardOf(user)); n.HasUser(d.DecidedParts(now), user) && !hears {
			t.Fatalf("it decides about %s, and does not hear shard %d", user, n.ShardOf(user))
		}
	})
}
