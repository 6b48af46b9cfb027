package polygen

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// maxStreams bounds the open streams, of live answers and of events together.
	maxStreams = 64
	// maxUnread bounds the events that wait for one reader.
	maxUnread = 1024
)

// errStreams refuses a stream beyond maxStreams.
var errStreams = fmt.Errorf("%d streams are open, which is the most: close one first", maxStreams)

type streams struct{ n atomic.Int64 }

// acquire counts one more, unless there are too many.
func (s *streams) acquire() error {
	// Count first and take back: of two that come for the last place, a look before would let both in.
	if n := s.n.Add(1); n > maxStreams {
		s.n.Add(-1)
		return errStreams
	}
	return nil
}

func (s *streams) release() { s.n.Add(-1) }

// events hands what happens to its readers, and never waits for one. The zero value has no readers.
type events struct {
	any atomic.Bool // there are readers

	mu      sync.Mutex
	readers []*reader
}

type reader struct {
	filter   api.Filter
	messages chan *api.Message
	lost     int // events lost since the last message
}

// Policies returns a stream of what is decided from now on, until stop is called.
func (p *Polygen) Policies(f api.Filter) (messages <-chan *api.Message, stop func(), err error) {
	if err := p.streams.acquire(); err != nil {
		return nil, nil, err
	}
	r := &reader{filter: f.ByKey(), messages: make(chan *api.Message, maxUnread)}
	e := &p.events
	e.mu.Lock()
	e.readers = append(e.readers, r)
	e.any.Store(true)
	e.mu.Unlock()
	return r.messages, sync.OnceFunc(func() {
		e.mu.Lock()
		e.readers = slices.DeleteFunc(e.readers, func(other *reader) bool { return other == r })
		e.any.Store(len(e.readers) > 0)
		e.mu.Unlock()
		p.streams.release()
	}), nil
}

// publishEvent tells the readers of an event, whose time is now if it has none. It never waits for
// readers, and does nothing if there are none. It is safe for concurrent use.
func (p *Polygen) publishEvent(e api.Event) {
	// Nearly always, and an event costs some allocations for each policy.
	if !p.events.any.Load() {
		return
	}
	if e.Time.IsZero() {
		e.Time = p.clock.Now()
	}
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	p.events.deliver(e)
}

// overrideEnded is the note of an override that has ended by itself.
const overrideEnded = "ended"

func (s *events) deliver(e api.Event) {
	m := &api.Message{Event: string(e.Kind), Value: &e}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		if !r.filter.Passes(&e) {
			continue
		}
		// What was lost is told before the next event, so that a reader knows where the gap is.
		if r.lost > 0 && r.tryDeliver(&api.Message{Event: string(api.LostEvent), Value: &api.Event{Time: e.Time, Kind: api.LostEvent, Count: r.lost}}) {
			r.lost = 0
		}
		if r.lost > 0 || !r.tryDeliver(m) {
			r.lost++
		}
	}
}

func (r *reader) tryDeliver(m *api.Message) bool {
	select {
	case r.messages <- m:
		return true
	default:
		return false
	}
}

// concurrentLimit is the name of the limit of requests in progress.
const concurrentLimit = "concurrent"

// tellPolicies tells of what was decided, whether it is sent or not. Of blocks it tells those of begun: the others are
// repetitions.
func (p *Polygen) tellPolicies(set *limits.Set, begun []string, d decisions) {
	if !p.events.any.Load() {
		return
	}
	now := p.clock.Now()
	tell := func(kind api.EventKind, user, limit string, mode limits.Mode, e api.Event) {
		e.Time, e.Kind, e.Name, e.Limit, e.Mode = now, kind, api.NameOf(user), limit, mode.String()
		if e.Until != nil {
			*e.Until = e.Until.UTC().Truncate(time.Millisecond)
		}
		p.publishEvent(e)
	}
	for _, user := range d.Unblocks {
		tell(api.UnblockEvent, user, concurrentLimit, set.User(user).ConcurrentMode, api.Event{Reason: api.ConcurrentRequests})
	}
	for _, t := range d.throttles {
		until := time.Unix(t.End, 0)
		tell(api.ThrottleEvent, t.Key.User, limits.RateName(t.Key.Class, t.Key.Window), rateMode(set, t.Key), api.Event{Reason: api.RequestRate, Max: int64(t.Limit), Until: &until})
	}
	for _, b := range d.Blocks {
		if _, first := slices.BinarySearch(begun, b.User); first {
			tell(api.BlockEvent, b.User, concurrentLimit, set.User(b.User).ConcurrentMode, api.Event{Reason: api.ConcurrentRequests, Max: int64(b.Max)})
		}
	}
}
