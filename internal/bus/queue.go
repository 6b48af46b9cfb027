package bus

import "sync"

// maxQueue bounds the bytes that wait to be handled, each message counted with
// messageCost beside its payload. At most twice as much is held: what waits and
// what is being handled.
const (
	maxQueue    = 8 << 20
	messageCost = 128
)

// A message is one that was published. The zero message, missed, says that others may have
// been lost before it.
type message struct {
	channel Channel
	payload string
}

var gapMarker message

// A queue stands between the reading of a connection and the handling of what was read.
// Reading must never wait: a real Redis cuts slow readers off, and the embedded one waits
// for them. The zero queue is not ready: use newQueue.
type queue struct {
	filled chan struct{} // has one element while messages wait

	mu       sync.Mutex
	messages []message
	bytes    int
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

// enqueue appends a message. When there is no room it is dropped, enqueue returns
// false, and a missed message takes its place.
func (q *queue) enqueue(m message) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := messageCost + len(m.payload)
	// The marker of a gap has room in any case, or the gap would be hidden just when messages are lost.
	if ok = m == gapMarker || q.bytes+cost <= maxQueue; ok {
		q.bytes += cost
	} else {
		m = gapMarker
	}
	// One missed message says as much as several in a row, which would have no bound.
	if n := len(q.messages); m != gapMarker || n == 0 || q.messages[n-1] != gapMarker {
		q.messages = append(q.messages, m)
	}
	select {
	case q.filled <- struct{}{}:
	// The reader was told already, and takes all that is there.
	default:
	}
	return ok
}

// takeAll removes all messages.
func (q *queue) takeAll() []message {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages := q.messages
	// Another array from here on: these are handled while more come.
	q.messages, q.bytes = nil, 0
	return messages
}
