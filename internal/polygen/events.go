package polygen

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// maxStreams bounds the open streams, of live answers and of events together.
	maxStreams = 64
	// maxUnread bounds the events that wait for one reader.
	maxUnread = 1024
)

// errStreams refuses a stream beyond maxStreams.
var errStreams = fmt.Errorf("%d streams are open, which is the most: close one first", maxStreams)

// streams counts the open streams. The zero value has none.
type streams struct {
	n     atomic.Int64
	gauge prometheus.Gauge
}

// acquire counts one more, unless there are too many.
func (s *streams) acquire() error {
	// Counted first and taken back: of two that come at once for the last place, a look before would let both in.
	if n := s.n.Add(1); n > maxStreams {
		s.n.Add(-1)
		return errStreams
	}
	s.gauge.Inc()
	return nil
}

func (s *streams) release() {
	s.n.Add(-1)
	s.gauge.Dec()
}

// events hands what happens to its readers. Nobody waits for a reader: events that one
// is too slow for are lost to that reader, who is told how many. The zero value has no
// readers.
type events struct {
	lost prometheus.Counter
	any  atomic.Bool // there are readers

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
		// What was lost is told before what comes after it, so that a reader knows where the gap is.
		if !r.filter.Passes(&e) || r.tellLost(e.Time) && r.tryDeliver(m) {
			continue
		}
		r.lost++
		s.lost.Inc()
	}
}

// tellLost tells each reader that has room again how many events it has lost.
func (s *events) tellLost(now time.Time) {
	if !s.any.Load() {
		return
	}
	// Each second: with the next event alone, a reader who has caught up might hear of the gap hours later.
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		r.tellLost(now)
	}
}

// tellLost reports whether the reader has been told of all events that it has lost.
func (r *reader) tellLost(now time.Time) bool {
	if r.lost == 0 {
		return true
	}
	m := &api.Message{Event: string(api.LostEvent), Value: &api.Event{
		Time: now.UTC().Truncate(time.Millisecond), Kind: api.LostEvent, Count: r.lost,
	}}
	if !r.tryDeliver(m) {
		return false
	}
	r.lost = 0
	return true
}

func (r *reader) tryDeliver(m *api.Message) bool {
	// decide waits for nobody: a browser that was put to sleep must not hold up the policies.
	select {
	case r.messages <- m:
		return true
	default:
		return false
	}
}

// concurrentLimit is the name of the limit of requests in progress.
const concurrentLimit = "concurrent"

// tellPolicies tells of what was decided, be it sent or not. Of blocks those who are
// told of are the users whose blocks begin: the others are repetitions.
func (p *Polygen) tellPolicies(set *limits.Set, begun []string, hints []ratelimit.Hint, throttles []ratelimit.Throttle, d concurrency.Decisions, sharings []bandwidth.Sharing) {
	if !p.events.any.Load() {
		return
	}
	now := p.clock.Now()
	for _, user := range d.Unblocks {
		p.publishEvent(api.Event{Time: now, Kind: api.UnblockEvent, Name: api.NameOf(user), Limit: concurrentLimit,
			Reason: api.ConcurrentRequests, Mode: set.User(user).ConcurrentMode.String()})
	}
	for _, t := range throttles {
		until := time.Unix(t.WindowStart+t.Key.Window.Seconds(), 0).UTC()
		p.publishEvent(api.Event{Time: now, Kind: api.ThrottleEvent, Name: api.NameOf(t.Key.User), Limit: limits.RateName(t.Key.Class, t.Key.Window),
			Reason: api.RequestRate, Max: int64(t.Limit), Until: &until, Mode: rateMode(set, t.Key).String()})
	}
	for _, b := range d.Blocks {
		// A block is sent five times a second while it holds. A reader wants its beginning.
		if _, first := slices.BinarySearch(begun, b.User); first {
			p.publishEvent(api.Event{Time: now, Kind: api.BlockEvent, Name: api.NameOf(b.User), Limit: concurrentLimit,
				Reason: api.ConcurrentRequests, Max: int64(b.Max), Mode: set.User(b.User).ConcurrentMode.String()})
		}
	}
	for _, s := range d.Sharings {
		until := s.Until.UTC().Truncate(time.Millisecond)
		e := api.Event{Time: now, Kind: api.SlotsEvent, Name: api.NameOf(s.User), Limit: concurrentLimit, Until: &until,
			Mode: set.User(s.User).ConcurrentMode.String()}
		for _, share := range s.Shares {
			e.Shares = append(e.Shares, api.ShareOf(share.Instance, int64(share.Slots)))
		}
		p.publishEvent(e)
	}
	for _, s := range sharings {
		// All instances at once: a share alone does not tell whether the limit is used up.
		e := api.Event{Time: now, Kind: api.ShareEvent, Name: api.NameOf(s.User), Limit: "bandwidth." + s.Direction.String(),
			Mode: limits.Enforce.String()}
		for _, share := range s.Shares {
			e.Shares = append(e.Shares, api.ShareOf(share.Instance, share.Bytes))
		}
		p.publishEvent(e)
	}
	for _, h := range hints {
		until := h.Until.UTC().Truncate(time.Millisecond)
		p.publishEvent(api.Event{Time: now, Kind: api.HotEvent, Name: api.NameOf(h.Key.User), Limit: limits.RateName(h.Key.Class, h.Key.Window),
			Until: &until, Instances: h.Instances, Mode: rateMode(set, h.Key).String()})
	}
}
