package polygen

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/parts"
)

// Each polygen knows of the users of its parts alone. Asked by somebody, it asks the others by way of Redis, for
// there they meet anyway, and puts the answers together. What is missing it says.

const (
	// othersAnswerWithin is how long the others have to answer.
	othersAnswerWithin = 250 * time.Millisecond
	// maxAskedUsers bounds the users of one question: one for each stream of live answers.
	maxAskedUsers = maxStreams
)

// question is what one polygen asks all others. Users are given by wire key, which may be of any bytes.
type question struct {
	Tops     map[api.Sort]int // as for view.BeginLook; nil for none
	Now      bool             // who is throttled now, not within the last second
	Users    [][]byte         // what is known of them
	History  []byte           // "" for none
	Unknown  api.Sort         // "" for none
	UnknownN int
}

// reply is what one polygen knows of it. Of users of others it says nothing.
type reply struct {
	Parts    parts.Set // whose users it knows
	Learning parts.Set // of them, of which not all is known yet
	Totals   api.Totals
	Tops     map[api.Sort][]api.Summary
	Limited  []api.Summary
	Users    map[int]api.User // by index in the question
	History  *api.History
	Unknown  api.UnknownUsers
}

// askOthers asks the other polygens about users of some parts, unless this one knows of all of these. It waits until who
// knows of them has answered, and says what is missing.
func (p *Polygen) askOthers(about parts.Set, q question) (replies []*reply, missing string) {
	learning := p.learningParts()
	// Mostly none: the only polygen knows of all.
	unknown := about &^ p.division.KnownParts()
	if unknown == 0 {
		return nil, missingOf(about, learning)
	}
	number, answers, silent := p.others.awaitAnswers()
	defer p.others.endWait(number)
	ctx, cancel := context.WithTimeout(context.Background(), othersAnswerWithin)
	defer cancel()
	// To all, although who has a part is known to Redis: by the time of the question another one may have it.
	if len(silent) > 0 && p.sendLetter(ctx, "", letter{Number: number, Ask: &q}) == nil {
		// Not for the whole time, and not for those who know of nobody that is asked about.
		for unknown != 0 && len(silent) > 0 && ctx.Err() == nil {
			select {
			case l := <-answers:
				// One reply of each: two would count its users twice.
				if at := slices.Index(silent, l.From); at >= 0 {
					silent = slices.Delete(silent, at, at+1)
					unknown &^= l.Reply.Parts
					learning |= l.Reply.Learning
					replies = append(replies, l.Reply)
				}
			case <-ctx.Done():
			}
		}
	}
	if unknown == 0 {
		return replies, missingOf(about, learning)
	}
	// The answer is given without them, and says so: what most polygens know is better than an error.
	p.metrics.unanswered.Add(float64(len(silent)))
	return replies, missingWithout(silent)
}

// missingWithout says what is missing where some polygens did not answer. The page knows these texts by their
// first word.
func missingWithout(silent []string) string {
	for i, name := range silent {
		silent[i] = baseName(name)
	}
	switch len(silent) {
	case 0:
		// All have answered, and some users have no polygen: they have just been given back, or the lease of one that
		// died has not lapsed yet.
		return "polygens divide the users anew: what is known of some of them is missing here"
	case 1:
		return "polygen " + silent[0] + " does not answer: what it knows is missing here"
	}
	return "polygens " + strings.Join(silent, ", ") + " do not answer: what they know is missing here"
}

// missingOf says what is missing while polygens learn of some of the users that are asked about.
func missingOf(about, learning parts.Set) string {
	switch learning &= about; {
	case learning == 0:
		return ""
	case about != parts.All:
		return "polygens are learning: not all is known of this user yet"
	}
	return fmt.Sprintf("polygens are learning: of about %d %% of the users not all is known yet", max(1, 100*learning.Len()/parts.Count))
}

// partsOf are the parts of users, given by wire key.
func (p *Polygen) partsOf(wires ...[]byte) (of parts.Set) {
	for _, wire := range wires {
		of |= parts.SetOf(p.shards.PartOf(string(wire)))
	}
	return of
}

// bounded is the question with no more of anything than polygens ask for: what comes may be of anybody.
func (q question) bounded() question {
	tops := q.Tops
	if q.Tops != nil {
		q.Tops = make(map[api.Sort]int, len(tops))
	}
	for by, n := range tops {
		q.Tops[by] = min(n, api.MaxTop)
	}
	q.UnknownN = min(max(q.UnknownN, 0), api.MaxTop)
	q.Users = q.Users[:min(len(q.Users), maxAskedUsers)]
	return q
}

// keys are the users that are asked about.
func (q question) keys() (keys []string) {
	for _, key := range q.Users {
		keys = append(keys, string(key))
	}
	return keys
}

// answerOther says what this polygen knows.
func (p *Polygen) answerOther(q question) (out reply) {
	q = q.bounded()
	now, kept := p.clock.Now(), p.division.KnownParts()
	// All is also what it is before its first answer from Redis, when it has heard of nobody.
	if kept == parts.All {
		kept = p.division.DecidedParts(time.Now())
	}
	// As userOfKey does. Streams ask again each second, and hear of changes: they ask so once, at their begin.
	if q.Now {
		p.recallCosts(q.keys())
	}
	if q.Tops != nil {
		out = p.lookOwn(now, q)
	}
	out.Parts, out.Learning = kept, p.learningParts()
	s := p.lockDashboard()
	defer s.mu.Unlock()
	for i, key := range q.Users {
		// Silence, for zeros would stand beside what the polygen of that part says.
		if !p.shards.HasUser(kept, string(key)) {
			continue
		}
		if out.Users == nil {
			out.Users = make(map[int]api.User)
		}
		if q.Now {
			out.Users[i] = s.view.User(now, string(key))
		} else {
			// A page shows the user, and asks for the history next: it begins with the first question.
			out.Users[i] = s.view.UserLately(now, string(key))
			s.past.Remember(now, string(key))
		}
	}
	if len(q.History) > 0 && p.shards.HasUser(kept, string(q.History)) {
		h := s.past.History(now, string(q.History), s.view)
		out.History = &h
	}
	if q.Unknown != "" {
		out.Unknown = s.view.Unknown(q.Unknown, q.UnknownN)
	}
	return out
}

// lookOwn looks at the users of this polygen for another one, and keeps histories of those who are shown there.
func (p *Polygen) lookOwn(now time.Time, q question) reply {
	s := p.lockDashboard()
	defer s.mu.Unlock()
	begin := s.view.BeginLook
	if q.Now {
		begin = s.view.BeginLookNow
	}
	look := begin(now, q.Tops)
	s.finish(look)
	o := look.Overview()
	// For a page, where whoever opens one of them wants to see the last minutes. A list alone opens nobody.
	if !q.Now {
		s.rememberShown(now, o)
	}
	return reply{Totals: o.Totals, Tops: o.Tops, Limited: o.Limited}
}
