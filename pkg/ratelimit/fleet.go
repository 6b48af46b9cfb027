package ratelimit

import (
	"slices"

	"github.com/sluice-qos/sluice/pkg/credit"
)

type fleet struct {
	instances int   // agents in the cluster, this one included
	rank      int   // this agent's place among them
	informed  bool  // Cluster has been called
	joined    int64 // the second in which it first was
	shared    int64 // the last second in which it may not have been alone
	former    []formerly
	away      []Away
}

// formerly is a number of instances that other agents may still go by, through a second.
type formerly struct {
	instances int
	through   int64
}

// Away is an instance whose agent does not serve it: it has left, or is not heard any more, or has only just come.
// Its HAProxy may go on, and admits by itself what the agent has taught it: the instance's even part of each limit
// of a second (credit.Unasked).
type Away struct {
	Of      int   // instances there were, at least 2
	Through int64 // the last second in which it may be so, since the epoch
	Counted int64 // the first second in which pools reserve its portion, which is some of that part, for it is an instance again; 0: none
}

const (
	settleSpan = 2  // seconds in which all agents come to know how many they are
	maxFormer  = 16 // numbers of instances remembered
)

func (f *fleet) become(now int64, instances, rank int) {
	instances, rank = max(1, instances), max(0, rank)
	switch {
	case !f.informed:
		// Somebody may have served before it in this second.
		f.informed, f.joined, f.shared = true, now, now
	// Counting alone begins a second later than the word of it: the other may still admit from its lease.
	case f.instances > 1 && instances <= 1:
		// The one that went may still be finishing.
		f.shared = now + 1
	case f.instances > 1:
		f.shared = now
	}
	f.former = slices.DeleteFunc(f.former, func(o formerly) bool { return o.through < now })
	// Others hear of a change up to settleSpan later or sooner, and reserve by the old number until then.
	if f.instances != instances {
		f.former = append(f.former, formerly{f.instances, now + settleSpan})
		f.former = f.former[max(0, len(f.former)-maxFormer):]
	}
	f.instances, f.rank = instances, rank
}

// ceiling is what all agents together may admit of a limit in a second: not what HAProxies whose agents are away admit
// by themselves.
func (f *fleet) ceiling(limit int, sec int64) int {
	rest, least := limit, limit
	for _, o := range f.away {
		if o.Through >= sec {
			rest -= limit / o.Of
			if o.Counted > 0 && sec >= o.Counted {
				each, _ := f.portions(limit, sec)
				rest += min(each, limit/o.Of)
			}
			least = min(least, max(1, limit/o.Of))
		}
	}
	// Should nearly all be away, their parts are of different numbers of instances, and may be more than the limit.
	return max(rest, least)
}

func (f *fleet) settled(sec int64) bool {
	for _, o := range f.former {
		if o.through >= sec {
			return false
		}
	}
	for _, o := range f.away {
		// Who is alone would lend the whole limit.
		if o.Through >= sec && f.instances <= 1 {
			return false
		}
	}
	return sec > f.shared || f.instances > 1 && sec > f.joined+settleSpan
}

// portions is what each instance may admit by itself of a limit in a second, and how
// much is reserved for all of them. While agents may go by different numbers, the pool
// must have reserved what any of them counts on, and nobody may take more than any of
// them has reserved. For an agent that is alone there is no pool, so nothing is.
func (f *fleet) portions(limit int, sec int64) (each, reserve int) {
	most, agreed := f.instances, sec > f.joined+settleSpan
	for _, o := range f.former {
		if o.through >= sec {
			// What is taken: by the largest number, which gives the smallest portion.
			most, agreed = max(most, o.instances), false
		}
	}
	if most < 2 {
		return 0, 0
	}
	each = credit.Portion(limit, most)
	if agreed {
		return each, most * each
	}
	// Others may go by numbers that this agent has never heard of: whoever joins does not know
	// how many there were, and of two changes at a time each hears in its own order.
	return each, credit.MostReserved(limit, most)
}
