package jobs

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Unlimited is the Total of who has no limit of jobs: users who are exempt, those whose
// limit the file lifts, and all whom a dry run is for. Their slots are counted as
// everybody's are, and never run out.
const Unlimited = math.MaxInt32

// FileTiers are those of a limit file: an edit of it is in force with the next job. A
// user needs no entry, for one that has none has the default tier. It is safe for
// concurrent use if Set is.
type FileTiers struct {
	// Set returns what the limit file says now, such as LimitFile.Set, or the Set of
	// redislimits. If it is nil, or returns nil, the tiers are free (the default), pro,
	// pro_plus and enterprise with the numbers they have if a file does not say.
	Set func() *limits.Set

	// Totals, by the name of a tier, replace how many jobs its users may run at a time:
	// see Env. A user for whom the file has a number of their own keeps that.
	Totals map[string]int
}

// Tier returns the tier of a user. It never fails.
func (f FileTiers) Tier(_ context.Context, user string) (Tier, error) {
	set := f.currentSet()
	l := set.User(user)
	return f.tierFrom(set, user, l.Tier, l.Jobs()), nil
}

// InForce names what the tiers are now, not counting Totals: it is another text when an edit,
// an override or its end may have changed one.
func (f FileTiers) InForce() string {
	set := f.currentSet()
	// The version says what the file is, and the next end which of its overrides are over.
	return set.Version() + " " + set.Expires().String()
}

func (f FileTiers) hasTotal(tier string) bool {
	_, replaced := f.Totals[tier]
	_, exists := f.currentSet().TierLimits(tier)
	return replaced && exists
}

// currentSet is the set in use, without what has expired.
func (f FileTiers) currentSet() *limits.Set {
	if f.Set != nil {
		if set := f.Set(); set != nil {
			// Overrides with an end are over without an edit of the file.
			return set.At(time.Now())
		}
	}
	return withoutFile()
}

// tierFrom is the tier of that name with these limits of jobs, for the user with a key.
func (f FileTiers) tierFrom(set *limits.Set, key, name string, j limits.Jobs) Tier {
	t := Tier{Name: name, Class: Class(set.QueueClass(j.Class, name, key)), Limits: Limits{Total: Unlimited}}
	// Named only where it is not that of all users, as in the zero Tier.
	if class := Class(set.QueueClass(limits.ScheduledQueues, name, key)); class != Scheduled {
		t.Scheduled = class
	}
	// Off, or a dry run: slots are counted and shown, and never run out.
	if j.Mode != limits.Enforce {
		return t
	}
	// A tier may limit its queues alone.
	if j.Total > 0 {
		t.Limits.Total = j.Total
	}
	// A user's own number is an exception from the tier's, whoever says that one.
	if n, ok := f.Totals[name]; ok && j.Source != limits.OfUser {
		t.Limits.Total = n
	}
	t.Limits.EachQueue = j.Queues[limits.All]
	for service, n := range j.Queues {
		switch {
		case service == limits.All, n == 0 && t.Limits.EachQueue == 0:
			continue
		case t.Limits.Queues == nil:
			// One of its own: the set is shared, and a caller may change what it gets.
			t.Limits.Queues = make(map[string]int, len(j.Queues))
		}
		// One without a limit is there by name, or the limit of each queue would be its own.
		t.Limits.Queues[service] = cmp.Or(n, Unlimited)
	}
	return t
}

// withoutFile are the tiers that there are without a limit file.
var withoutFile = sync.OnceValue(func() *limits.Set {
	set, err := limitfile.Parse("tiers", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {}, pro_plus: {}, enterprise: {}}\n"))
	if err != nil {
		// It is always the same text.
		panic(err)
	}
	return set
})
