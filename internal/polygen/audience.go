package polygen

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// audienceSpan is how long an instance serves a user after its last report of the user, at
	// least, and twice that at most. Instances tell of all their users every second.
	audienceSpan = 3 * time.Second
	// maxAudience bounds the users of whom it is known who serves them. What concerns others
	// goes to all instances.
	maxAudience = 200_000
	// fewServe is how many instances are told by a message of each, however few there are besides.
	fewServe = 8
	// appealEvery is how often all instances are told what else goes to those alone who serve the
	// user, where all hold a part of the limit: it holds for 3 s (hintSpan, shareFor), and hints are not repeated sooner.
	appealEvery = 1500 * time.Millisecond
)

// audience knows which instances serve a user, by what they report of them, and so whom a
// policy concerns. Its zero value sends everything to all. It is for one goroutine.
type audience struct {
	live          []string           // the instances, sorted; nil: not known yet
	heard, before map[string]*served // by user: of whom there were reports since turned, and of whom there were in the span before that alone
	full, wasFull bool               // users had no room in heard, and in before
	turned        time.Time
	shards        parts.Shards
	learns        learning             // of which users it is not known who serves them: policies about them go to all
	learning      parts.Set            // their parts in this round
	appeals       map[appeal]time.Time // when all instances were told last
}

// served is who serves a user: the instances that have reported them since the audience turned, and in the
// span before that, sorted. A user in audience.before has only the latter, which are still called heard.
type served struct{ heard, before []string }

// appeal is what all instances are told now and then.
type appeal struct{ kind, limit, user string }

// report takes that an instance has told of a user.
func (a *audience) report(user, instance string) {
	s := a.heard[user]
	if s == nil {
		// Who has no room is served by all, as before policies were addressed: more messages, and nobody who misses one.
		if len(a.heard) >= maxAudience {
			a.full = true
			return
		}
		if s = a.before[user]; s == nil {
			s = &served{}
		} else {
			delete(a.before, user)
		}
		// The lists take turns, as the maps do: most users are served by the same instances all the time.
		s.heard, s.before = s.before[:0], s.heard
		if a.heard == nil {
			a.heard = make(map[string]*served)
		}
		a.heard[user] = s
	}
	if at, found := slices.BinarySearch(s.heard, instance); !found {
		s.heard = slices.Insert(s.heard, at, instance)
	}
}

// knows reports whether instances have told of a user in the last seconds.
func (a *audience) knows(user string) bool { return a.heard[user] != nil || a.before[user] != nil }

// beginRound takes the time at which policies are addressed.
func (a *audience) beginRound(now time.Time) { a.learning = a.learns.at(now, a.shards) }

// learnsOf reports whether it is not known yet who serves a user.
func (a *audience) learnsOf(user string) bool {
	// All users are of before the first turn. Nearly always nobody is later, and nothing is hashed.
	return a.live == nil || a.before == nil || a.learning != 0 && a.shards.HasUser(a.learning, user)
}

// forget forgets who has not told of a user for long.
func (a *audience) forget(now time.Time) {
	if a.turned.IsZero() {
		a.turned = now
	}
	// Less than 0 is a clock that was set back: it would keep who served somebody hours ago.
	if passed := now.Sub(a.turned); passed < audienceSpan && passed >= 0 {
		return
	}
	// Two maps that take turns need no time for each report, and no look at all of them.
	a.before, a.heard, a.turned = a.heard, nil, now
	a.wasFull, a.full = a.full, false
	for told, at := range a.appeals {
		if passed := now.Sub(at); passed >= appealEvery || passed < 0 {
			delete(a.appeals, told)
		}
	}
}

// concerned is whom to send what is the same for all who serve a user; nil stands for all instances.
func (a *audience) concerned(user string) []string { return a.orAll(a.serving(user)) }

// orAll sends what is the same for all of some instances to all there are if these are most.
func (a *audience) orAll(serve []string) []string {
	// One message that all hear costs less than one for each of most of them.
	if len(serve) >= fewServe && 2*len(serve) >= len(a.live) {
		return nil
	}
	return serve
}

// ofThrottle is whom a throttle concerns.
func (a *audience) ofThrottle(t *ratelimit.Throttle) []string {
	if t.Instances == nil || a.live == nil {
		return a.concerned(t.Key.User)
	}
	return a.ofLive(slices.Clone(t.Instances))
}

// serving is who serves a user, sorted; nil stands for all instances.
func (a *audience) serving(user string) []string {
	var now, then []string
	if s := a.heard[user]; s != nil {
		now, then = s.heard, s.before
	} else if s := a.before[user]; s != nil {
		then = s.heard
	}
	// All are told of users of whom nothing is known, and of others until this polygen has heard for a while who
	// serves them: one message too many costs little, and one too few a block that does not hold somewhere.
	// Who had no room in one of the maps may be served by others than the other map says.
	if a.learnsOf(user) || len(now)+len(then) == 0 || a.full && len(now) == 0 || a.wasFull && len(then) == 0 {
		return nil
	}
	// Both are sorted, and nearly always the same.
	serve := make([]string, 0, max(len(now), len(then)))
	for len(now)+len(then) > 0 {
		next := &now
		if len(now) == 0 || len(then) > 0 && then[0] < now[0] {
			next = &then
		}
		if n := len(serve); n == 0 || serve[n-1] != (*next)[0] {
			serve = append(serve, (*next)[0])
		}
		*next = (*next)[1:]
	}
	return a.ofLive(serve)
}

// ofShares is whom a division of bandwidth concerns.
func (a *audience) ofShares(s *bandwidth.Sharing) []string {
	// Who had shares before is known of users of whom this polygen has heard for a while.
	if a.learnsOf(s.User) {
		return nil
	}
	return a.ofLive(s.Concerned())
}

// ofLive drops those that are gone: nobody hears what is sent to them, and all would be told it instead.
func (a *audience) ofLive(instances []string) []string {
	return slices.DeleteFunc(instances, func(instance string) bool {
		_, there := slices.BinarySearch(a.live, instance)
		return !there
	})
}

// ofReserved is serving, for what tells instances to give up what they hold of a limit.
func (a *audience) ofReserved(now time.Time, set *limits.Set, told appeal) []string {
	// Where HAProxies can have credit, each instance holds a part, whether it serves the user or not: then it is all
	// instances at first, and from time to time for those that have begun since.
	if !credit.PossibleKey(told.user) || !credit.Possible(set.User(told.user), len(a.live)) {
		return a.serving(told.user)
	}
	if passed := now.Sub(a.appeals[told]); passed < appealEvery && passed >= 0 {
		return a.serving(told.user)
	}
	if a.appeals == nil {
		a.appeals = make(map[appeal]time.Time)
	}
	a.appeals[told] = now
	return nil
}
