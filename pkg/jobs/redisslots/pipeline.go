package redisslots

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxPipelines are on their way at a time. More than one, lest a connection that broke hold up
// everybody; few, for the calls of many workers cost least where most of them share one.
const maxPipelines = 2

// pipelines send calls. Those that come up while maxPipelines are on their way go together in
// the next one, in one round trip: each of its own would cost more than what Redis does for
// it. A call that finds none on its way goes at once. Callers wait for their replies, so there
// are never more calls than callers.
type pipelines struct {
	send    func(context.Context, []call) []*redis.Cmd
	sending chan struct{} // of capacity maxPipelines

	mu   sync.Mutex
	next *pipeline // that has not been sent yet; nil if there is none
}

// pipeline is calls that are sent together.
type pipeline struct {
	calls   []call
	callers []context.Context // of each call
	waiting int               // callers whose contexts have not ended
	ctx     context.Context   // ends when nobody waits for a reply any more
	cancel  context.CancelFunc
	done    chan struct{} // closed when the replies are there
	replies []*redis.Cmd
}

func newPipelines(send func(context.Context, []call) []*redis.Cmd) *pipelines {
	return &pipelines{send: send, sending: make(chan struct{}, maxPipelines)}
}

// call makes a call, together with others. With an error of the context it is not known whether
// it was made.
func (p *pipelines) call(ctx context.Context, c call) *redis.Cmd {
	joined, n := p.join(ctx, c)
	select {
	case <-joined.done:
		return joined.replies[n]
	case <-ctx.Done():
		p.leave(joined)
		failed := redis.NewCmd(ctx)
		failed.SetErr(ctx.Err())
		return failed
	}
}

// join puts a call into the next pipeline, and returns its place there.
func (p *pipelines) join(ctx context.Context, c call) (joined *pipeline, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = &pipeline{done: make(chan struct{})}
		// Not the first caller's, who may be less patient than the others.
		p.next.ctx, p.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go p.run(p.next)
	}
	joined = p.next
	joined.calls, joined.callers = append(joined.calls, c), append(joined.callers, ctx)
	joined.waiting++
	return joined, len(joined.calls) - 1
}

// leave ends a pipeline that nobody waits for any more.
func (p *pipelines) leave(left *pipeline) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left.waiting--; left.waiting > 0 {
		return
	}
	left.cancel()
	// A call that comes now must not join what has ended.
	if p.next == left {
		p.next = nil
	}
}

// run sends a pipeline when it is its turn.
func (p *pipelines) run(next *pipeline) {
	defer next.cancel()
	defer close(next.done)
	select {
	case p.sending <- struct{}{}:
		defer func() { <-p.sending }()
	case <-next.ctx.Done():
		return
	}
	p.mu.Lock()
	if p.next == next {
		p.next = nil
	}
	p.mu.Unlock()
	next.replies = make([]*redis.Cmd, len(next.calls))
	var calls []call
	var places []int
	for n, c := range next.calls {
		// Its caller has given up, and may by now have given the slot back that it asks for.
		if next.callers[n].Err() == nil {
			calls, places = append(calls, c), append(places, n)
		}
	}
	for i, reply := range p.send(next.ctx, calls) {
		next.replies[places[i]] = reply
	}
	// Nobody reads those of the others, but for a caller whose context ends in this moment.
	for n, reply := range next.replies {
		if reply == nil {
			next.replies[n] = redis.NewCmd(next.callers[n])
			next.replies[n].SetErr(next.callers[n].Err())
		}
	}
}
