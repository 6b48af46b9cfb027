package redisbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// maxStartedMessage bounds the bytes of one message about starts. The last user in it may
// exceed that.
const maxStartedMessage = 64 << 10

// Starts is what one instance saw of its users, limited or not, in a span of time that has
// just ended. Users without requests are not in it. If there are several messages about
// one span, each user is in one of them.
type Starts struct {
	Instance string
	Span     time.Duration // more than 0, to the millisecond
	Users    []Started
}

// Started is what was seen of one user.
type Started struct {
	User    string
	Active  int            // requests in progress at the end of the span
	Starts  int64          // requests that were admitted in the span
	Refused int64          // and that were refused
	Classes []StartedClass // the same by verb and operation class
}

// StartedClass is how many requests of a class were admitted and refused.
type StartedClass struct {
	Class           string
	Starts, Refused int64
}

// Started publishes what an instance saw in a span of time. Redis keeps nothing of it: a
// polygen that misses it hears the next one.
func (b *Bus) Started(ctx context.Context, instance string, span time.Duration, users []Started) error {
	// Polygens divide by it.
	if span < time.Millisecond {
		return fmt.Errorf("report starts: a span of %v", span)
	}
	var all []report
	for shard, rest := range byShard(b, users, func(u Started) string { return u.User }) {
		for len(rest) > 0 {
			var message []byte
			message, rest = appendStarts(nil, instance, span, rest)
			all = append(all, report{shard, message})
		}
	}
	return b.publishReports(ctx, "starts", "report starts", StartsChannel, all...)
}

// appendStarts writes a message about as many of the users as it may hold, and returns
// the others.
func appendStarts(message []byte, instance string, span time.Duration, users []Started) (_ []byte, rest []Started) {
	message = appendText(append(message, wireVersion+" "...), instance)
	// One negative number would make the whole message malformed.
	number := func(n int64) { message = strconv.AppendInt(append(message, ' '), max(0, n), 10) }
	number(span.Milliseconds())
	for len(users) > 0 && len(message) < maxStartedMessage {
		u := users[0]
		users = users[1:]
		message = appendText(append(message, ' '), u.User)
		number(int64(u.Active))
		number(u.Starts)
		number(u.Refused)
		message = appendClasses(message, u.Classes)
	}
	return message, users
}

// appendClasses writes how many requests of each class were admitted and refused, for takeClasses.
func appendClasses(message []byte, classes []StartedClass) []byte {
	message = strconv.AppendInt(append(message, ' '), int64(len(classes)), 10)
	for _, c := range classes {
		message = appendText(append(message, ' '), c.Class)
		message = strconv.AppendInt(append(message, ' '), max(0, c.Starts), 10)
		message = strconv.AppendInt(append(message, ' '), max(0, c.Refused), 10)
	}
	return message
}

func (w *words) takeClasses() (classes []StartedClass) {
	n := w.takeNumber()
	// What it says of their number is not trusted with memory: classes are made as words come.
	for ; n > 0 && w.hasMore(); n-- {
		c := StartedClass{Class: w.takeText(), Starts: w.takeNumber(), Refused: w.takeNumber()}
		if c.Class == "" || !ValidClass(c.Class) {
			w.failWith(fmt.Errorf("%.60q is no class", c.Class))
		}
		classes = append(classes, c)
	}
	if n > 0 {
		w.failWith(errors.New("fewer classes than it says"))
	}
	return classes
}

func decodeStarts(message string) (Starts, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	s := Starts{Instance: w.takeText()}
	ms := w.takeNumber()
	if s.Span = time.Duration(ms) * time.Millisecond; ms == 0 || ms > time.Hour.Milliseconds() {
		w.failWith(errors.New("a span that cannot be"))
	}
	for w.hasMore() {
		u := Started{User: w.takeText(), Active: int(w.takeNumber()), Starts: w.takeNumber(), Refused: w.takeNumber(), Classes: w.takeClasses()}
		// Only whole ones: after an error every word reads as nothing, and would be a user without a name.
		if w.err == nil {
			s.Users = append(s.Users, u)
		}
	}
	return s, w.err
}
