// Package gather sends calls of many goroutines together, where one round trip for many costs little more than one
// for a single call.
package gather

import (
	"context"
	"sync"
	"time"
)

const (
	// maxSending groups are on their way at a time. More than one, lest a connection that broke hold up
	// everybody; few, for calls cost least where most of them share a group.
	maxSending = 2
	// pause is the least time between the sending of two groups. It costs a call half as much on average where calls
	// come fast, which is little beside what a job takes, and puts some ten calls into a group at 5000 a second:
	// without it most groups have one or two.
	pause = 2 * time.Millisecond
	// unpaused groups follow one for which the pause was in vain, because calls come one after another as those of a single
	// worker do. Then the next pause tries whether that is so still.
	unpaused = 15
)

// Calls sends calls. Those that come up while groups are on their way, or within 2 ms of the last one, go together
// in the next. Any other goes at once, and so do nearly all of a single worker, which come one after another. Callers
// wait for their replies, so there are never more calls than callers. It is safe for concurrent use.
type Calls[Call, Reply any] struct {
	send    func(context.Context, []Call) ([]Reply, error)
	sending chan struct{} // of capacity maxSending

	mu   sync.Mutex
	next *group[Call, Reply] // that has not been sent yet; nil if there is none
	sent time.Time           // when the last group was
	skip int                 // so many of the next groups do not pause
}

type group[Call, Reply any] struct {
	calls   []Call
	callers []context.Context // of each call
	waiting int               // callers whose contexts have not ended
	ctx     context.Context   // ends when nobody waits for a reply any more
	cancel  context.CancelFunc
	done    chan struct{} // closed when the replies are there
	replies []Reply       // of each call
	err     error         // of all
}

// New returns Calls that send by the function, which returns a reply for each call or one error for all. Its context
// ends when nobody waits for any of the replies.
func New[Call, Reply any](send func(context.Context, []Call) ([]Reply, error)) *Calls[Call, Reply] {
	return &Calls[Call, Reply]{send: send, sending: make(chan struct{}, maxSending)}
}

// Do makes a call, together with others. With an error of the context it is not known whether it was made.
func (c *Calls[Call, Reply]) Do(ctx context.Context, call Call) (reply Reply, err error) {
	joined, n := c.join(ctx, call)
	select {
	case <-joined.done:
		if joined.err != nil {
			return reply, joined.err
		}
		return joined.replies[n], nil
	case <-ctx.Done():
		c.leave(joined)
		return reply, ctx.Err()
	}
}

// join puts a call into the next group, and returns its place there.
func (c *Calls[Call, Reply]) join(ctx context.Context, call Call) (joined *group[Call, Reply], n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = &group[Call, Reply]{done: make(chan struct{})}
		// Not the first caller's, who may be less patient than the others.
		c.next.ctx, c.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go c.run(c.next)
	}
	joined = c.next
	joined.calls, joined.callers = append(joined.calls, call), append(joined.callers, ctx)
	joined.waiting++
	return joined, len(joined.calls) - 1
}

func (c *Calls[Call, Reply]) leave(left *group[Call, Reply]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left.waiting--; left.waiting > 0 {
		return
	}
	left.cancel()
	// A call that comes now must not join what has ended.
	if c.next == left {
		c.next = nil
	}
}

func (c *Calls[Call, Reply]) run(next *group[Call, Reply]) {
	defer next.cancel()
	defer close(next.done)
	paused, err := c.await(next.ctx)
	if next.err = err; err != nil {
		return
	}
	defer func() { <-c.sending }()
	calls, places := c.take(next, paused)
	replies, err := c.send(next.ctx, calls)
	if next.err = err; err != nil {
		return
	}
	// Nobody reads the replies of those who have given up, but for one whose context ends in this moment.
	next.replies = make([]Reply, len(next.calls))
	for i, reply := range replies {
		next.replies[places[i]] = reply
	}
}

// await waits for the turn of the next group, and reports whether it had to pause.
func (c *Calls[Call, Reply]) await(ctx context.Context) (paused bool, err error) {
	select {
	case c.sending <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	rest := c.rest()
	if rest <= 0 {
		return false, nil
	}
	select {
	case <-time.After(rest):
		return true, nil
	case <-ctx.Done():
		<-c.sending
		return true, ctx.Err()
	}
}

func (c *Calls[Call, Reply]) rest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skip > 0 {
		c.skip--
		return 0
	}
	return pause - time.Since(c.sent)
}

// take closes a group, and returns its calls and their places.
func (c *Calls[Call, Reply]) take(next *group[Call, Reply], paused bool) (calls []Call, places []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == next {
		c.next = nil
	}
	for n, call := range next.calls {
		// Its caller has given up, and may by now have given the slot back that it asks for.
		if next.callers[n].Err() == nil {
			calls, places = append(calls, call), append(places, n)
		}
	}
	c.sent = time.Now()
	switch {
	case len(calls) > 1:
		c.skip = 0
	case paused:
		c.skip = unpaused
	}
	return calls, places
}
