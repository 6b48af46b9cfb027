package parts

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Shards is into how many shards Redis' users are divided, at least 1. All processes must agree, and its methods may not
// change: by them a user's pools are found, and who hears what is reported of the user.
//
// A part lies in one shard, so that a polygen hears only the shards in which it has parts: part p in shard p mod Shards.
// Of more shards than there are parts each lies in one part.
type Shards int

// ShardOf is the shard of a user, given by wire key.
func (n Shards) ShardOf(key string) int {
	// Nearly everywhere, and it is asked of each user of each call.
	if n <= 1 {
		return 0
	}
	return int(xxhash.Sum64String(key) % uint64(n))
}

// PartOf is the part of a user, given by wire key.
func (n Shards) PartOf(key string) int {
	hash, shards := xxhash.Sum64String(key), uint64(max(1, n))
	shard := hash % shards
	if shards >= Count {
		return int(shard % Count)
	}
	// Other bits of the hash than those that shards and the parts of windows take, or all users of a shard would be in
	// some of its parts.
	return int(shard + shards*(hash>>48%((Count-shard+shards-1)/shards)))
}

// HasUser reports whether the part of a user is in a set.
func (n Shards) HasUser(s Set, key string) bool {
	// Nearly always, for most clusters have one polygen: nothing is hashed.
	return s == All || s.Has(n.PartOf(key))
}

// Of are the shards in which some parts lie, sorted.
func (n Shards) Of(s Set) (shards []int) {
	for shard := range max(1, int(n)) {
		if s&n.partsBeside(shard%Count) != 0 {
			shards = append(shards, shard)
		}
	}
	return shards
}

// Parts are the parts of a shard's users.
func (n Shards) Parts(shard int) Set { return n.partsBeside(shard % Count) }

// partsBeside are the parts that lie in the same shard as a part.
func (n Shards) partsBeside(part int) (s Set) {
	shards := min(max(1, int(n)), Count)
	for p := part % shards; p < Count; p += shards {
		s |= 1 << p
	}
	return s
}

// toGiveBack are so many of some parts: those of shards with fewest of them first, so that few shards are left to hear.
func (n Shards) toGiveBack(held Set, count int) (given Set) {
	for _, part := range n.byShard(held, 0)[:count] {
		given |= 1 << part
	}
	return given
}

// byPreference are all parts that a polygen does not hold, those that it should rather take first: those that are free, and of them
// those of shards that it hears already, then those of shards that are free as a whole.
func (n Shards) byPreference(held, free Set) []int {
	free &^= held
	var beside Set
	for _, part := range free.Numbers() {
		if n.partsBeside(part)&held != 0 {
			beside |= 1 << part
		}
	}
	order := slices.Concat(n.byShard(beside, held), reversed(n.byShard(free&^beside, 0)))
	// The answer that says what is free may be half a second old.
	return append(order, (All &^ free &^ held).Numbers()...)
}

func reversed(list []int) []int {
	slices.Reverse(list)
	return list
}

// byShard are the parts of a set, shard by shard: those first of which fewest are in the set, and most in another one.
func (n Shards) byShard(s, first Set) []int {
	list := s.Numbers()
	slices.SortFunc(list, func(a, b int) int {
		besideA, besideB := n.partsBeside(a), n.partsBeside(b)
		return cmp.Or(cmp.Compare((besideB&first).Len(), (besideA&first).Len()), cmp.Compare((besideA&s).Len(), (besideB&s).Len()),
			// One shard after the other, the highest part first.
			cmp.Compare(bits.TrailingZeros64(uint64(besideB)), bits.TrailingZeros64(uint64(besideA))), cmp.Compare(b, a))
	})
	return list
}
