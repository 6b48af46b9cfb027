package redisbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// An Event is what Subscribe hands out: Policies, Usage, Progress, Demand, Starts, Registry or
// Connected.
type Event interface{ isEvent() }

// Policies are the policies of one message of polygen.
type Policies []Message

// Connected says that messages may have been missed before it, and none since: the
// subscription has begun, once more perhaps, or messages were dropped. The receiver reads
// the state that it follows anew.
type Connected struct{}

func (Policies) isEvent()  {}
func (Usage) isEvent()     {}
func (Progress) isEvent()  {}
func (Demand) isEvent()    {}
func (Starts) isEvent()    {}
func (Registry) isEvent()  {}
func (Connected) isEvent() {}

const (
	pingEvery    = 250 * time.Millisecond
	silenceLimit = time.Second            // a connection on which even pings stay unanswered for so long is dead
	retryAfter   = 100 * time.Millisecond // between attempts to subscribe
)

// Subscribe hands the events of channels to handle, one at a time, until ctx
// ends, and returns ctx's error. It connects again by itself whenever a
// connection is lost, which it notices within about a second even if Redis only
// falls silent.
//
// A handler that falls behind by 8 MiB loses messages; they are counted, and a
// Connected follows. Malformed messages are counted and have no other effect.
func (b *Bus) Subscribe(ctx context.Context, channels []Channel, handle func(Event)) error {
	if len(channels) == 0 {
		return errors.New("subscribe: no channel")
	}
	named := make(map[string]Channel, len(channels))
	for _, channel := range channels {
		if strings.Contains(string(channel), "<") {
			return fmt.Errorf("subscribe: %s stands for many channels", channel)
		}
		named[string(channel)] = channel
	}
	s := &subscription{bus: b, queue: newQueue(), handle: handle}
	return s.run(ctx, (&ear{subscription: s, channels: named}).keepReading)
}

// SubscribeOwn hands the policies that concern one instance alone to handle, as Subscribe does
// with those for all; see PublishTo. In a cluster its connection is to the node that has the
// instance's channel, so the loss of that node does not keep back what all instances hear.
func (b *Bus) SubscribeOwn(ctx context.Context, instance string, handle func(Event)) error {
	s := &subscription{bus: b, queue: newQueue(), handle: handle}
	own := &ear{subscription: s, channels: map[string]Channel{ownChannel(instance): OwnChannel}, sharded: b.sharded()}
	return s.run(ctx, own.keepReading)
}

type subscription struct {
	bus          *Bus
	queue        *queue
	starts       *queue // those of StartsChannel, which nothing else waits for; nil without reports
	handle       func(Event)
	unpacker     Unpacker // of the goroutine that dispatches the queue
	malformedLog daemon.LogLimit
}

// run hands out what read puts into the queues, until ctx ends.
func (s *subscription) run(ctx context.Context, read func(context.Context)) error {
	var running sync.WaitGroup
	// Reading never waits for handling: a real Redis cuts slow readers off.
	running.Go(func() { read(ctx) })
	if s.starts != nil {
		running.Go(func() { s.dispatch(ctx, s.starts) })
	}
	s.dispatch(ctx, s.queue)
	running.Wait()
	return ctx.Err()
}

func (s *subscription) queueOf(channel Channel) *queue {
	// All agents tell of all their users at once, each second: a spent pool must not wait until that is read.
	if channel == StartsChannel {
		return s.starts
	}
	return s.queue
}

type ear struct {
	*subscription
	channels map[string]Channel // by their names in Redis
	sharded  bool               // they are channels of a slot of a Redis Cluster
	older    bool               // the node has none of these
}

// keepReading keeps a session going until ctx ends.
func (s *ear) keepReading(ctx context.Context) {
	lost := false
	s.bus.unsubscribed.Inc()
	defer s.bus.unsubscribed.Dec()
	for {
		subscribed, err := s.session(ctx)
		if subscribed {
			s.bus.unsubscribed.Inc()
		}
		if ctx.Err() != nil {
			return
		}
		// A loss is told once, and not each attempt to repair it: there are ten a second.
		if subscribed || !lost {
			s.bus.logger.WarnContext(ctx, "subscription lost", slog.Any("channels", s.names()), slog.Any("error", err))
		}
		lost = true
		// Its slot may have another node now, which agents' calls would tell, and there are none here.
		if s.sharded {
			s.bus.findMasters(ctx)
		}
		if !daemon.Sleep(ctx, retryAfter) {
			return
		}
	}
}

var (
	errSilent = errors.New("no answer to pings")
	errEnded  = errors.New("the node has given the channel away")
)

// session reads from one connection until it fails or ctx ends. It reports
// whether it came to be subscribed.
func (s *ear) session(ctx context.Context) (subscribed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	// Without channels there is no connection yet: the watch begins before it.
	conn := s.bus.client.Subscribe(ctx)
	heard := newSince()
	watched := make(chan error, 1)
	go func() { watched <- pingUntilSilent(ctx, conn, heard, s.bus.silenceLimit) }()
	defer func() {
		cancel()
		// The watch has closed the connection, and knows why; the reader only finds it closed.
		if silent := <-watched; silent != nil {
			err = silent
		}
	}()

	if err := s.subscribe(ctx, conn); err != nil {
		return false, err
	}
	confirmed := 0
	for {
		m, err := conn.Receive(ctx)
		if err != nil {
			// The next session does without: a Redis Cluster before version 7 has no channels of slots.
			s.older = isUnknownCommand(err)
			return subscribed, err
		}
		// Whatever comes shows that the connection lives, and if nothing is published the answers to pings do.
		heard.restart()
		switch m := m.(type) {
		case *redis.Subscription:
			// The slot has moved to another node, which knows nothing of this connection.
			if m.Kind == "sunsubscribe" {
				return subscribed, errEnded
			}
			// Each channel is confirmed by itself; until the last one is, messages are missed.
			if confirmed++; confirmed == len(s.channels) {
				subscribed = true
				s.bus.unsubscribed.Dec()
				// Behind what an earlier connection has read: the receiver reads anew when it has handled that.
				s.queue.enqueue(message{payload: s.names()[0]})
				s.bus.logger.InfoContext(ctx, "subscribed", slog.Any("channels", s.names()))
			}
		case *redis.Message:
			// By what documents call it: metrics have no label for each instance or shard.
			channel := s.channels[m.Channel]
			s.bus.messages.WithLabelValues(string(channel)).Inc()
			if !s.queueOf(channel).enqueue(message{channel: channel, payload: m.Payload}) {
				s.bus.dropped.WithLabelValues(string(channel)).Inc()
			}
		}
	}
}

func (s *ear) subscribe(ctx context.Context, conn *redis.PubSub) error {
	if s.sharded && !s.older {
		return conn.SSubscribe(ctx, s.names()...)
	}
	return conn.Subscribe(ctx, s.names()...)
}

func (s *ear) names() []string { return slices.Sorted(maps.Keys(s.channels)) }

// pingUntilSilent pings a connection, and closes it when ctx ends or, with an error, when nothing has
// been heard for too long.
func pingUntilSilent(ctx context.Context, conn *redis.PubSub, heard *since, silence time.Duration) error {
	// Reading by go-redis neither ends with the context nor notices that the peer is silent. A read deadline would
	// notice, but it may expire within a message and lose its beginning.
	defer conn.Close()
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if heard.elapsed() > silence {
			return errSilent
		}
		// If it fails, so does the reader.
		_ = conn.Ping(ctx)
	}
}

func (s *subscription) dispatch(ctx context.Context, queue *queue) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-queue.filled:
		}
		for _, m := range queue.takeAll() {
			// Not after all that waits, which may be 8 MiB.
			if ctx.Err() != nil {
				return
			}
			if event := s.decode(m); event != nil {
				s.handle(event)
			}
		}
	}
}

// decode returns nil for what was not understood.
func (s *subscription) decode(m message) (event Event) {
	var err error
	bad := 1
	switch m.channel {
	case gapChannel:
		return Connected{}
	case UsageChannel:
		event, err = decodeUsage(m.payload)
	case ProgressChannel:
		event, err = decodeProgress(m.payload)
	case DemandChannel:
		event, err = decodeDemand(m.payload)
	case StartsChannel:
		event, err = decodeStarts(m.payload)
	case InstancesChannel:
		var c change
		if c, err = decodeChange(m.payload); err == nil {
			// A change that does not follow on the last one is no error: the next heartbeat brings the list.
			if r, ok := s.bus.membership.take(c); ok {
				event = r
			}
		}
	case PoliciesChannel:
		var lines []byte
		if lines, err = s.unpacker.Unpack(m.payload); err == nil {
			event, bad, err = s.bus.decodePolicies(lines)
		}
	case OwnChannel:
		event, bad, err = s.bus.decodePolicies([]byte(m.payload))
	}
	if err == nil {
		return event
	}
	// Whoever may publish is trusted, but versions differ while processes are replaced: it is counted, and ends nothing.
	s.bus.malformed.WithLabelValues(string(m.channel)).Add(float64(bad))
	s.logMalformed(m, err)
	// Lines of policies are independent of each other, so the good ones count. Of any other
	// message the part before the error may be wrong as well.
	if m.channel == PoliciesChannel || m.channel == OwnChannel {
		return event
	}
	return nil
}

// decodePolicies returns nil for a message of which no line was understood, and how many lines were not.
func (b *Bus) decodePolicies(lines []byte) (event Event, bad int, err error) {
	policies, err := Decode(lines)
	var line []byte
	counts := make(lineCounts)
	for _, p := range policies {
		line = Append(line[:0], p)
		counts.add(line)
	}
	b.countPolicies(counts)
	if len(policies) > 0 {
		event = Policies(policies)
	}
	bad = 1
	// Each line that an older agent does not know counts: that is how an operator finds out which one is behind.
	var skipped *SkippedError
	if errors.As(err, &skipped) {
		bad = skipped.Lines
	}
	return event, bad, err
}

func (s *subscription) logMalformed(m message, err error) {
	if skipped, ok := s.malformedLog.Allow(); ok {
		s.bus.logger.Warn("malformed message", slog.String("channel", string(m.channel)), slog.Any("error", err), slog.Int("messages", skipped+1))
	}
}

type since struct {
	start time.Time
	last  atomic.Int64 // time.Duration after start
}

// newSince begins now. It counts by the monotonic clock: one that is set makes no connection look silent.
func newSince() *since { return &since{start: time.Now()} }

func (s *since) restart() { s.last.Store(int64(time.Since(s.start))) }

func (s *since) elapsed() time.Duration {
	return time.Since(s.start) - time.Duration(s.last.Load())
}
